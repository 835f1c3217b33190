"""What happened, and where would you look next? Incidents of published training runs, and the exercise on them.

name = "busy, and cool"
print(INCIDENTS[name])                                     # what a person saw
print(judge(name, "one GPU is slow", "df -h /dev/shm"))    # right, or what would be seen otherwise
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import arguments
from gpu_course.checks import Case, edit, lesson

__all__ = ["CAUSES", "INCIDENTS", "LOOKS", "Incident", "judge", "name_causes"]

exercise = lesson("11")


@dataclass(frozen=True)
class Incident:
    """What was seen, why it is this `cause`, where to `look` next, what came of it, and where that is told."""

    shown: str
    cause: str
    look: str
    because: str
    ended: str
    source: str
    year: int

    def __str__(self) -> str:
        return self.shown.strip("\n")

    __repr__ = __str__


_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CAUSES: dict[str, str] = dict(sorted(_READ["causes"].items()))  # the file has them in the order of the incidents
LOOKS: dict[str, str] = dict(sorted(_READ["looks"].items()))
INCIDENTS = {name: Incident(**row) for name, row in _READ["incidents"].items()}


def judge(name: str, cause: str, look: str) -> str:
    """Return whether `cause` and `look` are right for the incident, and if not, what would be seen otherwise.

    Raises ValueError that lists the names where one of the three is none of them.
    """
    incident = INCIDENTS[arguments.one_of("name", name, tuple(INCIDENTS))]
    arguments.one_of("cause", cause, tuple(CAUSES))
    arguments.one_of("look", look, tuple(LOOKS))
    if cause != incident.cause:
        return f"It is not this cause: then {CAUSES[cause]}. Source: {incident.source}"
    if look != incident.look:
        return f"It is this cause, but look elsewhere: {look} shows {LOOKS[look]}. Source: {incident.source}"
    return f"Yes: {incident.because}. {incident.ended} Source: {incident.source} ({incident.year})."


@exercise(
    title="Incidents",
    where="any machine: published incidents",
    minutes=16,
    difficulty=2,
    hints=(
        "First sort them: does a log name a part (memory, bus, shared memory, network), do ranks wait, is it only "
        "slower, or are the numbers wrong? Each cause occurs once.",
        "Print LOOKS: each look says what it can show. Choose the one that would prove your cause, or refute it.",
        "`judge(name, cause, look)` says of a wrong cause what would have been seen then. Compare that with what is "
        "shown.",
    ),
)
def name_causes() -> dict[str, tuple[str, str]]:
    """Return (cause, next look) for each incident."""
    return {
        "busy, and cool": ("ranks wait in a collective", "dumps of all ranks"),
        "a line in the kernel's log": ("a row of memory is replaced", "reset the GPU, count spare rows"),
        "a crash on one node": ("an error in memory that nothing corrects", "dcgmi diag, its longest test"),
        "a GPU that was there": ("the GPU is not on the bus", "the kernel's log, slot and power"),
        "two watchdogs": ("ranks call different collectives", "the code of both operations"),
        "the end of the epoch": ("ranks have different numbers of batches", "the batches of each rank"),
        "stuck in evaluation": ("a rank waits for its data", "the workers of that rank"),
        "eight GPUs, 6 GB/s": ("no fast link between the GPUs", "bandwidth of one socket alone"),
        "the network that was paid for": ("NCCL does not use InfiniBand", "InfiniBand inside the container"),
        "it does not start": ("/dev/shm is full", "df -h /dev/shm"),
        "a peak in the curve": ("a spike of the loss", "the next hundred steps"),
        "the run that never got far": ("training is unstable in float16", "norms of gradients and activations"),
        "five per cent": ("one GPU is slow", "step times without some nodes"),
        "glitches": ("a GPU computes wrong results", "dcgmi diag, its longest test"),
        "a job that ends": ("the scheduler took the machine", "when the program saves, and resumes"),
        "too good after each restart": ("data come again after a resume", "the position in the data"),
    }


name_causes.leaves_out("it takes no argument", "other_input")


@name_causes.checks
def _(case: Case) -> None:
    got = case.call()
    answers = got if isinstance(got, dict) else {}
    missing = [name for name in INCIDENTS if name not in answers]
    case.instead(missing, "does not answer all incidents", f"missing: {', '.join(missing[:3])}")
    strange = [name for name in answers if name not in INCIDENTS]
    case.instead(strange, f"has the key {strange[:1]}", "the names of the incidents are those of INCIDENTS")
    for name, incident in INCIDENTS.items():
        _check_answer(case, name, incident, answers.get(name))


def _check_answer(case: Case, name: str, incident: Incident, answer: Any) -> None:
    """Check the cause and the next look of one incident."""
    case.about(f"name_causes() for {name!r}: {answer}", case.device)
    pair = isinstance(answer, tuple) and len(answer) == 2
    known = pair and answer[0] in list(CAUSES) and answer[1] in list(LOOKS)  # lists take what is unhashable, too
    case.instead(not known, "is not (cause, look) of the two lists", "print CAUSES and LOOKS, and copy the names")
    if known:
        cause, look = answer
        case.instead(cause != incident.cause, f"its cause is not: {cause}", f"then {CAUSES[cause]}")
        case.instead(look != incident.look, f"does not follow from {cause}", f"{look} shows {LOOKS[look]}")


def _takes(name: str, cause: str, look: str) -> tuple[str, str]:
    """Return the edit of the reference that takes this cause and look for the incident."""
    incident = INCIDENTS[name]
    return f'"{name}": ("{incident.cause}", "{incident.look}")', f'"{name}": ("{cause}", "{look}")'


name_causes.alternative(
    "the answers as rows, which are easier to extend by incidents of your own",
    edit("""
        -    return {
        +    return dict({
        ...
        -    }
        +    })
    """),
)
