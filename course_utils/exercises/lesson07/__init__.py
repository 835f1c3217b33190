"""Exercises of lesson 07: where the bytes are, and how to do with fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import plots
from course_utils.checks import Case, WrongAnswer, lesson
from course_utils.exercises.common.budgets import Floor, spend
from course_utils.exercises.common.probes import Named, Probe, Tries, left_changed, state_of
from course_utils.exercises.lesson07 import parts
from course_utils.exercises.lesson07.blocks import check_blocks
from course_utils.exercises.lesson07.steps import accumulate, half_step, quarter_step

__all__ = ["accumulate", "evaluate_batches", "four_parts", "half_step", "largest_batch", "quarter_step", "run_blocks"]

exercise = lesson("07")


@exercise(title="Predict the four parts", minutes=8, difficulty=1, hints=(
    "Four sums. A tensor's bytes are tensor.nbytes, a parameter's too; model.parameters() gives each parameter once.",
    "Only parameters with requires_grad have a gradient and states. A state has 4 bytes for each number: SGD keeps "
    "none, momentum one, Adam two; a 16-bit weight has a float32 copy besides.",
    "numbers = 4 * states + (4 if parameter.itemsize < 4 else 0), and parameter.numel() * numbers of each trained one",
))  # fmt: skip
def four_parts(model: nn.Module, optimizer: str, saved: list[torch.Tensor]) -> dict[str, int]:
    """Return the bytes of parameters, gradients, optimizer state and activations of a training step of `model`."""
    states = {"SGD": 0, "momentum": 1, "Adam": 2}[optimizer]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.nbytes for parameter in trained),
        # states are float32, whatever the weights are; 16-bit weights have a float32 master copy besides
        "optimizer": sum(p.numel() * (4 * states + (4 if p.itemsize < 4 else 0)) for p in trained),
        "activations": sum(tensor.nbytes for tensor in saved),
    }


@four_parts.checks
def _(case: Case) -> None:
    for model, optimizer, saved in parts.cases():
        expected, state = four_parts.reference(model, optimizer, saved), state_of(model)
        got = case.call(model, optimizer, saved)
        changed = left_changed(state, state_of(model))
        case.instead(changed, f"leaves the model in another state: {changed}", "it is only to be counted")
        if isinstance(got, dict) and set(got) == set(expected):
            got = {part: got[part] for part in expected}  # in any order
            for part in expected:
                name, why = parts.mistake_in(part, got[part], expected[part], model, optimizer, saved)
                case.instead(name, name, why, expected=expected, got=got)
                if got[part] != expected[part]:
                    break  # the first wrong part is the one to speak of
        case.equal(got, expected, why="four numbers of bytes: parameters, gradients, optimizer, activations")


@exercise(title="Checkpoint the right blocks", minutes=10, difficulty=3, simulated=True, hints=(
    "A checkpointed block keeps its input, which has x.nbytes, instead of its kept_bytes. Which blocks save most?",
    "All blocks cost the same to compute again. So take the largest first, and stop when the sum is small enough.",
    "order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i]); while the sum is above limit_bytes take the "
    "next: the sum shrinks by kept_bytes[i] - x.nbytes. A taken one runs as checkpoint(block, x, use_reentrant=False).",
))  # fmt: skip
def run_blocks(blocks: nn.ModuleList, x: torch.Tensor, kept_bytes: list[int], limit_bytes: int) -> torch.Tensor:
    """Return what the blocks make of `x`, keeping at most `limit_bytes`, and recomputing as few blocks as possible."""
    total, chosen = sum(kept_bytes), set()
    for place in sorted(range(len(blocks)), key=lambda place: -kept_bytes[place]):
        if total > limit_bytes:
            total -= kept_bytes[place] - x.nbytes  # of a checkpointed block only the input stays
            chosen.add(place)
    for place, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if place in chosen else block(x)
    return x


@run_blocks.checks
def _(case: Case) -> None:
    floor = Floor()
    for lengths, share in (
        ((1, 6), 0.6),
        ((2, 1, 5, 1), 1.0),
        ((2, 1, 5, 1), 0.7),
        ((1, 8, 2, 7, 1, 3), 0.5),
        ((4, 4, 4), 0.4),
    ):
        check_blocks(case, floor, lengths, share, trained_input=lengths != (4, 4, 4))


@exercise(title="Find two leaks", minutes=8, difficulty=2, simulated=True, hints=(
    "Two lists grow. What does each entry of them refer to, beside the number or the words that you want?",
    "A loss refers to its graph, and the graph to all activations. An exception refers to its traceback, that to the "
    "frames, and those to their variables.",
    "with torch.inference_mode(): around the loop; losses.append(loss.item()); problems.append(str(error)).",
))  # fmt: skip
def evaluate_batches(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> tuple[list[float], list[str]]:
    """Return the losses of the good batches, and the messages of the others, with memory that does not grow."""
    losses, problems = [], []
    with torch.inference_mode():  # no graph, so nothing is kept for a backward pass
        for x, y in batches:
            try:
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                losses.append(loss.item())  # a number refers to nothing
            except RuntimeError as error:
                problems.append(str(error))  # the words, not the error: its traceback holds the tensors
    return losses, problems


@evaluate_batches.checks
def _(case: Case) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    model = Named(*layers).to(case.device)
    y = torch.arange(8) % 4
    good, bad = [(torch.rand(8, 64), y) for _ in range(3)], [(torch.rand(64, 60 + n), y) for n in range(3)]
    with torch.no_grad():
        expected = [float(F.cross_entropy(model(x.to(case.device)), y.to(case.device))) for x, _ in good]
    floor = Floor()
    for training, batches in ((False, good), (False, good[:1] + 2 * bad), (True, bad[:1] + good[:1]), (False, [])):
        probe, state = Probe(floor, batches), state_of(model.train(training))
        got = case.call(model, probe, case.device, modifies=True)
        grown = probe.grown_bytes()
        bad_ones = sum(len(x) != 8 for x, _ in batches)
        case.instead(grown > 256 and not bad_ones, f"leaks: {plots.bytes_text(grown)} more are alive after each batch",
                     "take one batch after the other; a loss in a list keeps its graph, and the graph every "
                     "activation: keep the number")  # fmt: skip
        case.instead(grown > 256, f"leaks: {plots.bytes_text(grown)} more are alive after each failing batch",
                     "an error refers to its traceback, that to every frame and its tensors: keep words")  # fmt: skip
        losses = [expected[n % 3] for n in range(len(batches) - bad_ones)]
        pair = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(one, list | tuple) for one in got)
        case.instead(not pair, f"returns {type(got).__name__}, expected two lists", "losses and messages")
        case.instead(any(isinstance(one, torch.Tensor) for one in got[0]), "returns tensors for losses",
                     "a number refers to nothing, a tensor to memory of the device: loss.item()")  # fmt: skip
        case.instead(any(isinstance(one, BaseException) for one in got[1]), "returns errors instead of their words",
                     "str(error) is the message; the error itself holds the frames it went through")  # fmt: skip
        noted = [one for one in got[1] if "shapes cannot be multiplied" not in str(one)]
        case.instead(not bad_ones and noted, f"notes an error for a good batch: {noted[0] if noted else ''}",
                     "the except block hides an error of the answer's own")  # fmt: skip
        case.equal(list(got[0]), losses, rtol=1e-4, why="one mean loss for each good batch, in order")
        case.instead(len(got[1]) != bad_ones, f"notes {len(got[1])} messages for {bad_ones} failing batches",
                     "the evaluation goes on after a failing batch, and says what failed")  # fmt: skip
        case.instead(not (all(isinstance(one, str) for one in got[1]) and not noted),
                    "the messages are not the errors'",
                    "str(error) is what an error says")  # fmt: skip
        changed = left_changed(state, state_of(model))
        case.instead(changed, f"leaves the model in another state: {changed}", "an evaluation changes nothing")
        case.instead(any(one.grad is not None for one in model.parameters()), "leaves gradients in the model",
                     "an evaluation calls no backward(): gradients take as much memory as the weights")  # fmt: skip
    for batches in (2 * good, 2 * (good[:1] + bad)):  # twice, since a name may hold the batch before
        _peaks(case, floor, model, batches)


def _peaks(case: Case, floor: Floor, model: nn.Module, batches: list) -> None:
    """Fail if twice as many batches need more memory at once: also what is gone before the next is asked for."""
    probes = [Probe(floor, batches), Probe(floor, 2 * batches)]
    few, many = (spend(floor, partial(case.call, model, one, case.device, modifies=True)) for one in probes)
    case.instead(not few.flops, "computes on the CPU what belongs on the device", "the model is on the device")
    grown = many.peak_bytes - few.peak_bytes
    case.instead(grown > 256, f"leaks: the peak is {plots.bytes_text(grown)} higher with twice as many batches",
                 "take one batch after the other, and keep numbers and words alone")  # fmt: skip


@exercise(title="Find the largest batch", minutes=10, difficulty=2, simulated=True, hints=(
    "A size that fits and one that fails: try the middle, and one of the two moves. They end as neighbours.",
    "Catch torch.OutOfMemoryError alone. Try the next size after the except block has ended: only then is memory free.",
    "fits, fails = 0, limit + 1; while fails - fits > 1: size = (fits + fails) // 2; try: step(size), fits = size; "
    "except torch.OutOfMemoryError: fails = size",
))  # fmt: skip
def largest_batch(step: Callable[[int], object], limit: int) -> int:
    """Return the largest size from 1 to `limit` for which step(size) has enough memory, or 0; other errors pass."""
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            fails = size  # the error and its frames are gone when this block ends
    return fits


@largest_batch.checks
def _(case: Case) -> None:
    floor = Floor()
    for largest, limit in ((1, 1), (8, 8), (0, 5), (37, 100), (6, 9)):
        tries = Tries(case.device)
        before = floor.used_bytes
        with floor.gpu.budget(3 * 1024 * largest + 1024 + 512), _repeats_named(case, tries):
            got = case.call(tries.step, limit, modifies=True)
        outside = [size for size in tries.sizes if not 1 <= size <= limit]
        case.instead(outside, f"calls step({outside[0] if outside else ''}), and sizes go from 1 to {limit}",
                     "there are no more rows, and a step without rows may fail for other reasons")  # fmt: skip
        case.instead(got is None or isinstance(got, bool) or not isinstance(got, int),
                     f"returns {type(got).__name__}, expected a whole number")  # fmt: skip
        case.instead(got < 0, f"returns {got}, and 0 says that no size fits", expected=largest, got=got)
        case.instead(got > limit, f"returns {got}, and sizes go from 1 to {limit}", "larger ones were never tried")
        case.instead(got > largest, f"returns {got}, a size that fails",
                     "return the largest that went through, not the last one", expected=largest, got=got)  # fmt: skip
        case.instead(got < largest, f"returns {got}, and larger sizes fit",
                     "go on between the largest that fits and the smallest that fails; and try again after the except "
                     "block: inside it the error still holds the tensors", expected=largest, got=got)  # fmt: skip
        case.instead(floor.used_bytes > before, f"leaves {floor.used_bytes - before} bytes alive",
                     "something still refers to what step made, a stored error perhaps")  # fmt: skip
        case.budget(
            "calls of step", len(tries.sizes), 2 * limit.bit_length() + 2, "each one costs a step: halve the range"
        )
    _passes_other_errors(case)


@contextmanager
def _repeats_named(case: Case, tries: Tries) -> Iterator[None]:
    """Name the search that tries one size for ever, where all that was seen is that it does not end."""
    try:
        yield
    except WrongAnswer:
        last = set(tries.sizes[-20:])
        what = f"does not end: it calls step({min(last, default=0)}) again and again"
        why = "each try must move a bound: what fits and what fails end as neighbours"
        case.instead(len(tries.sizes) > 100 and len(last) == 1, what, why)
        raise


def _passes_other_errors(case: Case) -> None:
    """Fail if the answer takes every error for a lack of memory."""

    def step(size: int) -> None:
        raise RuntimeError("unsupported memory format option")

    try:
        case.call(step, 8, modifies=True)
    except WrongAnswer as wrong:
        if "memory format" in wrong.message:
            return
        raise
    case.fail(
        "hides an error that has nothing to do with memory", "catch torch.OutOfMemoryError, not every RuntimeError"
    )
