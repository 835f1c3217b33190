"""The exercise “A killed worker”."""

import traceback

import torch
from torch.utils.data import DataLoader

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.photos import LENGTH, LIMIT_BYTES, SIZE, Archive, Samples, archive, brightness


@exercise(
    minutes=6,
    difficulty=2,
    draws=True,
    limit_s=30.0,
    hints=(
        "No line of Python raised an error: the system ended the process. Of what does a worker hold more after each "
        "sample?",
        "A photograph is large, but the program needs only one number from it.",
        "Each worker keeps every photograph in its own `read`. Keep the number instead, or nothing: each is read once.",
    ),
)
def photo_means(archive: Archive, workers: int) -> torch.Tensor:
    """Return the mean brightness of each photograph, in order, read by `workers`."""

    def mean_of(index: int) -> float:
        return archive.decode(index).float().mean().item()  # the photograph is gone when this returns

    loader = DataLoader(Samples(len(archive), mean_of), batch_size=None, num_workers=workers)
    return torch.tensor(list(loader))


photo_means.exempt("counts are small numbers, from 0 on", "number_negative number_large limit")
photo_means.exempt(PROGRAM, "second_call unchanged random_state")


@photo_means.checks
def _(case: Case) -> None:
    chosen = "the caller has chosen how many workers read"
    with archive() as given:
        got = case.call(given, 2, modifies=True)
        decoded, processes, here, held = given.log()
    why = "then the memory is taken by your own process: when the system ends that one, all is lost"
    case.fail_if(here, "reads in its own process", why)
    why = "the mean of each was asked for"
    case.fail_if(
        len(set(decoded)) < LENGTH, f"leaves data out: {len(set(decoded))} of {LENGTH} photographs are read", why
    )
    case.fail_if(min(held) < SIZE, "changes what the archive counts", "the memory is no larger for that")
    case.fail_if(
        max(held) > LIMIT_BYTES,
        f"holds {max(held) / 2**20:.0f} MiB of photographs in a worker, where {LIMIT_BYTES / 2**20:.0f} are allowed",
        "such a worker is killed; to start again only hides it",
    )
    why = "expected is the mean over all pixels of each photograph, in order"
    case.equal(got, torch.tensor([brightness(index) for index in range(LENGTH)]), rtol=1e-4, why=why)
    case.fail_if(processes != 2, f"reads in {processes} processes, not in 2", chosen)
    case.budget("photographs read", len(decoded), LENGTH, "decoding is what takes the time")
    with archive() as given:  # without workers all is in this process, and its memory is seen too
        case.call(given, 0, modifies=True)
        *_, held = given.log()
    case.fail_if(
        max(held) > LIMIT_BYTES,
        f"holds {max(held) / 2**20:.0f} MiB of photographs where it collects what the workers send",
        "a program that keeps all of them is killed as a worker is: keep a number of each",
    )
    with archive(damaged=5) as given:
        error = case.error_of(given, 1)
        processes = given.log()[1]
        traceback.clear_frames(error.__traceback__ if error else None)  # who holds the loader holds its workers
        why = "a damaged photograph no longer reaches the caller: repair the cause"
        case.fail_if(error is None, "swallows errors", why)
    case.fail_if(processes != 1, f"reads in {processes} processes, not in 1", chosen)
