"""The exercise “Find two leaks”."""

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import plots
from gpu_course.checks import Case, exercise
from gpu_course.common.budgets import Floor, spend
from gpu_course.common.probes import named, state_of, unchanged


@exercise(
    minutes=8,
    difficulty=2,
    simulated=True,
    hints=(
        "Two lists grow. What does each entry of them refer to, beside the number or the words that you want?",
        "A loss refers to its graph, and the graph to all activations. An exception refers to its traceback, the "
        "traceback to the function calls that the error went through, and each call to its variables.",
        "torch.inference_mode() around the loop makes no graphs. Keep the number that .item() gives, and the text that "
        "str() makes of an error.",
    ),
)
def evaluate_batches(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> tuple[list[float], list[str]]:
    """Return the good batches' losses and the others' messages, without a leak."""
    losses, problems = [], []
    with torch.inference_mode():  # no graph, so nothing is kept for a backward pass
        for x, y in batches:
            try:
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                losses.append(loss.item())  # a number refers to nothing
            except RuntimeError as error:
                problems.append(str(error))  # the words, not the error: its traceback holds the tensors
    return losses, problems


class _Batches:
    """Batches that note how many bytes of the device, and how many of them, are alive when the next is asked for."""

    def __init__(self, floor: Floor, batches: list) -> None:
        self.floor, self.batches = floor, batches
        self.passes, self.alive, self.device_bytes = 0, [0], []

    def __iter__(self) -> Iterator:
        self.passes += 1
        given = []
        for x, y in (*self.batches, (None, None)):
            self.device_bytes.append(self.floor.used_bytes)
            self.alive.append(sum(one() is not None for one in given))
            if x is None:
                return
            x = x.clone()  # each one is new, as from a file
            given.append(weakref.ref(x))
            yield x, y
            x = None

    @property
    def grown_bytes(self) -> int:
        """By how much memory grew with each batch, from the third request on; 0 for fewer."""
        seen = self.device_bytes
        return (seen[-1] - seen[2]) // (len(seen) - 3) if len(seen) > 3 else 0

    def __repr__(self) -> str:
        return f"<{len(self.batches)} batches>"


evaluate_batches.exempt("only what grows counts, whatever the model", "frozen all_frozen shared double_model")
evaluate_batches.exempt("its parameters have shapes, and no optimizer comes with it", "scalar_parameter two_groups")
evaluate_batches.exempt("the simulated GPU counts the memory", "places default_type")
evaluate_batches.exempt("a model cannot be kept for later", "second_call unchanged")


_ERRORS = {1: TypeError, 2: ValueError, 3: RuntimeError, 4: KeyError}  # by the number of rows


class Model(named(nn.Sequential, "model")):
    """A model that raises for a few rows, each time another error, and notes in `moved` whether somebody moves it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) in _ERRORS:
            raise _ERRORS[len(x)]("so few rows\nare a mistake")
        return super().forward(x)

    def _apply(self, *given: Any, **options: Any) -> nn.Module:
        self.moved = True
        return super()._apply(*given, **options)


def _damaged(batches: list) -> Iterator:
    yield from batches
    raise RuntimeError("the file of the next batch is damaged")


_NEEDED = 64  # bytes that a loss may take until it is read


@evaluate_batches.checks
def _(case: Case) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    model = Model(*layers).to(case.device)
    y = torch.arange(8) % 4
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of a training that goes on later
    good, bad = [(torch.rand(8, 64), y) for _ in range(3)], [(torch.rand(64, 62 - n), y) for n in range(3)]
    few, empty = (torch.rand(3, 64), y[:3]), (torch.full((8, 64), torch.nan), y)  # two lines; a loss of nan
    floor = Floor()
    for training, batches in (
        (False, good),
        (False, good[:1] + bad),
        (True, bad[:1] + good[:1]),
        (False, []),
        (False, [few, good[0], few, empty]),
    ):
        _evaluated(case, floor, model.train(training), batches)
    for rows, kind in ((1, TypeError), (2, ValueError), (4, KeyError)):  # "catch no other error"
        error = case.error_of(model, _Batches(floor, [(torch.rand(rows, 64), y[:rows])]), case.device)
        why = "it is a mistake in the program, and no bad batch: it must reach the caller"
        case.fail_if(not isinstance(error, kind), f"catches a {kind.__name__}", why)
    error = case.error_of(model, _damaged(good), case.device)
    why = "the model has not raised: no batch is bad, and what gives them is out of order"
    case.fail_if(not isinstance(error, RuntimeError), "catches an error of what gives the batches", why)
    for batches in (2 * good, 2 * (good[:1] + bad)):  # twice, since a name may hold the batch before
        probes = [_Batches(floor, batches), _Batches(floor, 2 * batches)]
        few, many = (spend(floor, partial(case.call, model, one, case.device, modifies="nothing")) for one in probes)
        products = sum(len(x) for x, _ in batches if x.shape[1] == 64) * 2 * 64 * 256  # of the first layer
        case.fail_if(few.flops < products, "computes on the CPU what belongs on the device", "the model is there")
        grown = many.peak_bytes - few.peak_bytes
        case.fail_if(
            grown > _NEEDED * len(batches),
            f"leaks: the peak is {plots.bytes_text(grown)} higher with twice as many batches",
            "take one batch after the other, and keep numbers and words alone",
        )


def _evaluated(case: Case, floor: Floor, model: nn.Module, batches: list) -> None:
    """Check one evaluation: what grows meanwhile, what it returns, and what it leaves behind."""
    model.moved = False
    probe, state, before = _Batches(floor, batches), state_of(model), floor.used_bytes
    bad_ones = sum(len(x) != 8 for x, _ in batches)
    losses, messages = [], []
    for x, y in batches:
        try:
            with torch.no_grad():
                losses.append(F.cross_entropy(model(x.to(case.device)), y.to(case.device)).item())
        except RuntimeError as error:
            messages.append(str(error))
    got = case.call(model, probe, case.device, modifies="nothing")
    case.fail_if(model.moved, "moves or casts the model", "it is where it belongs, and the caller goes on with it")
    size, leaks = plots.bytes_text(probe.grown_bytes), probe.grown_bytes > _NEEDED
    why = "they may come from a generator, which gives them once"
    case.fail_if(probe.passes > 1, "goes through the batches more than once", why)
    why = "a name refers to each batch, its loss or its graph: take one after the other, and keep numbers"
    case.fail_if(leaks and not bad_ones, f"leaks: {size} more are alive after each batch", why)
    why = "a stored error refers to the calls that it went through, and so to their tensors: keep its text"
    case.fail_if(leaks, f"leaks: {size} more are alive after each failing batch", why)
    why = "there may be more of them than memory: take one after the other, and refer to none later"
    case.fail_if(max(probe.alive) > 2, "leaks: keeps the batches, on the CPU", why)
    pair = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(one, list | tuple) for one in got)
    kinds = " and ".join(type(one).__name__ for one in got[:3]) if isinstance(got, tuple | list) else "no list"
    case.fail_if(not pair, f"returns {type(got).__name__} ({kinds}), expected two lists", "losses and messages")
    why = "a number refers to nothing, a tensor to memory of the device: loss.item()"
    case.fail_if(any(isinstance(one, torch.Tensor) for one in got[0]), "returns tensors for losses", why)
    why = "str(error) is the message; the error itself holds the calls it went through, with their tensors"
    case.fail_if(any(isinstance(one, BaseException) for one in got[1]), "returns errors instead of their words", why)
    why = "the except block hides an error of the answer's own"
    case.fail_if(not bad_ones and got[1], f"notes an error for a good batch: {got[1][0] if got[1] else ''}", why)
    case.equal(list(got[0]), losses, rtol=1e-4, why="one mean loss for each good batch, in order")
    case.equal(list(got[1]), messages, why="str(error) for each failing batch, in order; it goes on after them")
    unchanged(case, state, model, "an evaluation changes nothing")
    case.fail_if(
        any(one.grad is None or not (one.grad == 1).all() for one in model.parameters()),
        "changes the gradients of the model",
        "an evaluation calls no backward() and clears nothing: the caller may be in the middle of a training step",
    )
    left = floor.used_bytes - before
    why = "something still refers to tensors when it has returned: an attribute, a global name, a stored error"
    case.fail_if(left > 0, f"leaves {plots.bytes_text(left)} alive", why)
