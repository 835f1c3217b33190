"""Exercises of lesson 07: where the bytes are, and how to do with fewer of them."""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import plots
from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.common.budgets import Floor, spend
from gpu_course.common.probes import named, state_of, unchanged
from gpu_course.lesson07.allocator import at_most, on_gpu
from gpu_course.lesson07.blocks import run_blocks
from gpu_course.lesson07.levers import Levers, label_of, time_ms
from gpu_course.lesson07.low_rank import LowRank
from gpu_course.lesson07.serving import kv_cache_bytes
from gpu_course.lesson07.steps import accumulate, quarter_step

__all__ = [
    "Levers", "LowRank", "accumulate", "at_most", "evaluate_batches", "four_parts", "kv_cache_bytes", "label_of",
    "largest_batch", "on_gpu", "quarter_step", "run_blocks", "time_ms",
]  # fmt: skip

exercise = lesson("07")


@exercise(
    title="Predict the four parts",
    minutes=10,
    difficulty=1,
    hints=(
        "Each part is a sum of bytes. tensor.nbytes are the bytes of a tensor or a parameter, and model.parameters() "
        "gives each parameter once.",
        "Only parameters with requires_grad have a gradient and states. A state has 4 bytes for each number: SGD keeps "
        "no state, momentum one, Adam two. A 16-bit weight also has a float32 copy.",
        "The optimizer's part is a sum over the trained parameters: numel() times the bytes that it keeps for each "
        "number, which are 4 a state, and 4 more where itemsize is 2.",
    ),
)
def four_parts(model: nn.Module, optimizer: str, saved: list[torch.Tensor]) -> dict[str, int]:
    """Return the bytes of the four parts of a training step of `model`."""
    states = {"SGD": 0, "momentum": 1, "Adam": 2}[optimizer]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.nbytes for parameter in trained),
        # states are float32, whatever the weights are; 16-bit weights have a float32 master copy besides
        "optimizer": sum(p.numel() * (4 * states + (4 if p.itemsize == 2 else 0)) for p in trained),
        "activations": sum(tensor.nbytes for tensor in saved),
    }


@four_parts.alternative("one pass over the parameters, so what each one costs stands in one place; longer")
def _(model, optimizer, saved):
    found = {"parameters": 0, "gradients": 0, "optimizer": 0, "activations": sum(tensor.nbytes for tensor in saved)}
    for parameter in model.parameters():
        found["parameters"] += parameter.nbytes
        if parameter.requires_grad:
            found["gradients"] += parameter.nbytes
            copies = ("SGD", "momentum", "Adam").index(optimizer) + (parameter.itemsize == 2)
            found["optimizer"] += 4 * copies * parameter.numel()
    return found


class _Scaled(nn.Module):
    """A layer in float64 and numbers in 8 bits, both trained, a frozen layer in 16 bits, and a scale for all."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.frozen = nn.Linear(3, 2, dtype=torch.float64), nn.Linear(5, 1, dtype=torch.float16)
        self.narrow, self.scale = nn.Parameter(torch.empty(7, dtype=torch.float8_e4m3fn)), nn.Parameter(torch.empty(()))
        self.frozen.requires_grad_(False)


class _Tied(nn.Module):
    """An embedding whose weight the output layer uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


_TYPES = torch.int64, torch.complex64, torch.float16, torch.float64, torch.bool


def _models() -> Iterator[tuple[nn.Module, str, list[torch.Tensor]]]:
    """Yield (model, optimizer, saved tensors), small ones first; all on the meta device, which keeps shapes alone."""
    with torch.device("meta"):
        linear, half = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
        frozen = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        frozen[0].requires_grad_(False)
        x = [torch.empty(5, 3), torch.empty(5, 2, dtype=torch.bfloat16)]
        mixed = nn.Sequential(nn.Linear(4, 4).to(torch.float16), nn.BatchNorm1d(4))
        large = nn.Sequential(*[nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(4)])
        for given in (
            (linear, "SGD", []),
            (linear, "SGD", x),
            (linear, "momentum", x),
            (linear, "Adam", x),
            (half, "Adam", x),
            (half, "SGD", x),
            (frozen, "Adam", x),
            (_Tied(), "Adam", x),
            (mixed, "Adam", x),
            (_Scaled(), "momentum", [torch.empty(()), torch.empty(0, 4), torch.empty(3, 5, dtype=torch.bool).T]),
            (_Scaled().requires_grad_(False), "Adam", x),  # all frozen
            (nn.ReLU(), "SGD", x),  # no parameters
            (large, "Adam", [torch.empty(64, 4096) for _ in range(8)]),
            (linear, "Adam", [x[1], x[0]]),
            (linear, "Adam", x[:1]),
            (nn.Linear(3, 1).double(), "Adam", [edges.sliced(torch.empty(4, 3)), torch.empty(1, 3)]),
            (nn.Linear(3, 1).half(), "momentum", [torch.empty(3, dtype=one) for one in _TYPES]),
        ):
            for module in given[0].modules():
                module.extra_repr = partial(_formats, module)
            yield given


def _formats(module: nn.Module) -> str:
    """Return the parameters of `module` itself for a message: the formats are what the answer depends on."""
    return ", ".join(
        f"{name} {tuple(one.shape)} {str(one.dtype)[6:]}{'' if one.requires_grad else ' frozen'}"
        for name, one in module.named_parameters(recurse=False)
    )


four_parts.leaves_out(
    "only shapes, formats and what is trained count: on meta there is nothing else",
    "values places default_type evaluation old_gradients",
)
four_parts.leaves_out("it gets no optimizer, and a model cannot be kept for later", "two_groups second_call")


@four_parts.checks
def _(case: Case) -> None:
    for model, optimizer, saved in _models():
        state = state_of(model)
        got = case.call(model, optimizer, saved)
        unchanged(case, state, model, "it is only to be counted")
        expected = four_parts.reference(model, optimizer, saved)
        if isinstance(got, dict) and set(got) == set(expected):
            got = {part: got[part] for part in expected}  # in any order
        case.equal(got, expected, why="four numbers of bytes: parameters, gradients, optimizer, activations")


def _times(factor: float) -> list[Callable]:
    """Return the answers that give all sizes in another unit, as numbers with a point and as whole ones."""
    return [
        lambda *given, kind=kind: {part: kind(size * factor) for part, size in four_parts(*given).items()}
        for kind in (float, int)
    ]


_UNIT = "bytes are asked for; a byte has 8 bits"
four_parts.mistake("takes bits for bytes", _UNIT, *_times(8))
four_parts.mistake("counts KiB", _UNIT, *_times(1 / 2**10))
four_parts.mistake("counts MiB", _UNIT, *_times(1 / 2**20))


@exercise(
    title="Find two leaks",
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


evaluate_batches.alternative(
    "no_grad makes no graph either, and what it computes may take part in training later; a little more bookkeeping",
    edit("""
        -    with torch.inference_mode():  # no graph, so nothing is kept for a backward pass
        +    with torch.no_grad():  # no graph, so nothing is kept for a backward pass
    """),
)


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


evaluate_batches.leaves_out("only what grows counts, whatever the model", "frozen all_frozen shared double_model")
evaluate_batches.leaves_out("its parameters have shapes, and no optimizer comes with it", "scalar_parameter two_groups")
evaluate_batches.leaves_out("the simulated GPU counts the memory", "places default_type")
evaluate_batches.leaves_out("a model cannot be kept for later", "second_call unchanged")


_ERRORS = {1: TypeError, 2: ValueError, 3: RuntimeError, 4: KeyError}  # by the number of rows


class _Model(named(nn.Sequential, "model")):
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
    model = _Model(*layers).to(case.device)
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
        case.instead(not isinstance(error, kind), f"catches a {kind.__name__}", why)
    error = case.error_of(model, _damaged(good), case.device)
    why = "the model has not raised: no batch is bad, and what gives them is out of order"
    case.instead(not isinstance(error, RuntimeError), "catches an error of what gives the batches", why)
    for batches in (2 * good, 2 * (good[:1] + bad)):  # twice, since a name may hold the batch before
        probes = [_Batches(floor, batches), _Batches(floor, 2 * batches)]
        few, many = (spend(floor, partial(case.call, model, one, case.device, modifies=True)) for one in probes)
        products = sum(len(x) for x, _ in batches if x.shape[1] == 64) * 2 * 64 * 256  # of the first layer
        case.instead(
            few.flops < products, "computes on the CPU what belongs on the device", "the model is on the device"
        )
        grown = many.peak_bytes - few.peak_bytes
        case.instead(
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
    got = case.call(model, probe, case.device, modifies=True)
    case.instead(model.moved, "moves or casts the model", "it is where it belongs, and the caller goes on with it")
    size, leaks = plots.bytes_text(probe.grown_bytes), probe.grown_bytes > _NEEDED
    why = "they may come from a generator, which gives them once"
    case.instead(probe.passes > 1, "goes through the batches more than once", why)
    why = "a name refers to each batch, its loss or its graph: take one after the other, and keep numbers"
    case.instead(leaks and not bad_ones, f"leaks: {size} more are alive after each batch", why)
    why = "a stored error refers to the calls that it went through, and so to their tensors: keep its text"
    case.instead(leaks, f"leaks: {size} more are alive after each failing batch", why)
    why = "there may be more of them than memory: take one after the other, and refer to none later"
    case.instead(max(probe.alive) > 2, "leaks: keeps the batches, on the CPU", why)
    pair = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(one, list | tuple) for one in got)
    kinds = " and ".join(type(one).__name__ for one in got[:3]) if isinstance(got, tuple | list) else "no list"
    case.instead(not pair, f"returns {type(got).__name__} ({kinds}), expected two lists", "losses and messages")
    why = "a number refers to nothing, a tensor to memory of the device: loss.item()"
    case.instead(any(isinstance(one, torch.Tensor) for one in got[0]), "returns tensors for losses", why)
    why = "str(error) is the message; the error itself holds the calls it went through, with their tensors"
    case.instead(any(isinstance(one, BaseException) for one in got[1]), "returns errors instead of their words", why)
    why = "the except block hides an error of the answer's own"
    case.instead(not bad_ones and got[1], f"notes an error for a good batch: {got[1][0] if got[1] else ''}", why)
    case.equal(list(got[0]), losses, rtol=1e-4, why="one mean loss for each good batch, in order")
    case.equal(list(got[1]), messages, why="str(error) for each failing batch, in order; it goes on after them")
    unchanged(case, state, model, "an evaluation changes nothing")
    case.instead(
        any(one.grad is None or not (one.grad == 1).all() for one in model.parameters()),
        "changes the gradients of the model",
        "an evaluation calls no backward() and clears nothing: the caller may be in the middle of a training step",
    )
    left = floor.used_bytes - before
    why = "something still refers to tensors when it has returned: an attribute, a global name, a stored error"
    case.instead(left > 0, f"leaves {plots.bytes_text(left)} alive", why)


@exercise(
    title="Find the largest batch",
    minutes=12,
    difficulty=2,
    simulated=True,
    hints=(
        "Keep a size that fits and one that fails. Try the middle: it replaces one of the two, until they are "
        "neighbours.",
        "Catch torch.OutOfMemoryError alone. Try the next size after the except block has ended: only then is memory "
        "free.",
        "Begin with fits = 0, which needs no try, and fails = limit + 1. While they are no neighbours try the size "
        "between them: it becomes `fits` after step(size), `fails` in the except block.",
    ),
)
def largest_batch(step: Callable[[int], object], limit: int) -> int:
    """Return the largest size up to `limit` for which step has memory enough, or 0."""
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            fails = size  # the error and its frames are gone when this block ends
    return fits


@largest_batch.alternative("`bisect` halves the range; short, for those who know that False sorts before True")
def _(step, limit):
    import bisect

    def fails(size):
        try:
            step(size)
        except torch.OutOfMemoryError:
            return True
        return False

    return bisect.bisect_left(range(1, limit + 1), True, key=fails)


class _Tries:
    """A training step that takes 3 KiB for each row, and the sizes with which it was called."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.sizes, self.inside = device, [], False

    def step(self, size: int) -> torch.Tensor:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"size must be a whole number, not {size!r}")
        self.sizes.append(size)
        self.inside |= sys.exc_info()[0] is not None  # whoever calls is still in an except block
        if len(self.sizes) > 300:
            raise RuntimeError(f"does not end: it called step 300 times, with size {size} again and again")
        rows = torch.ones(size, 256, device=self.device)
        doubled = rows * 2
        (rows + doubled).sum()
        return doubled  # a third of the memory stays with whoever keeps it

    def __repr__(self) -> str:
        return "step"


largest_batch.leaves_out("a limit is a small number above 0", "number_zero number_negative number_large")
largest_batch.leaves_out("it is handed a function", "second_call unchanged")


@largest_batch.checks
def _(case: Case) -> None:
    floor = Floor()
    edges.note("limit")  # each size fits, and none does
    for largest, limit in ((1, 1), (8, 8), (0, 5), (37, 100), (6, 9), (1, 64), (63, 64), (500, 1000)):
        tries = _Tries(case.device)
        before = floor.used_bytes
        with floor.memory.budget(3 * 1024 * largest + 1024 + 512):
            got = case.call(tries.step, limit, modifies=True)
        outside = [size for size in tries.sizes if not 1 <= size <= limit]
        case.instead(
            outside,
            f"calls step({outside[0] if outside else ''}), and sizes go from 1 to {limit}",
            "there are no more rows, and a step without rows may fail for other reasons",
        )
        case.instead(
            tries.inside and got != largest,
            "tries again inside the except block",
            "there the error still holds the tensors of the try that failed: leave the block first",
            expected=largest,
            got=got,
        )
        knows = f"{largest} rows have enough memory" if largest else "no size has enough memory"
        case.equal(
            got,
            largest,
            why=f"{knows}, {'limit is' if largest == limit else 'and not'} "
            f"{limit if largest == limit else largest + 1}; it called step {len(tries.sizes)} times",
        )
        left = floor.used_bytes - before
        case.instead(
            left > 0, f"leaves {left} bytes alive", "something still refers to what step made, a stored error perhaps"
        )
        case.budget(
            "calls of step", len(tries.sizes), 2 * limit.bit_length() + 2, "each one costs a step: halve the range"
        )
    for fits, error in (
        (0, RuntimeError("unsupported memory format option")),
        (0, RuntimeError("the disk of the cache is out of memory")),
        (0, ValueError("a batch of 50 rows cannot be divided by 8")),
        (0, torch.AcceleratorError("CUDA error: an illegal memory access was encountered")),
        (40, MemoryError("the host has no memory left")),  # after a try that fitted, and two that did not
    ):
        _raises_on(case, fits, error)


def _raises_on(case: Case, fits: int, error: Exception) -> None:
    """Fail unless the answer lets `error` of a step out: for sizes up to `fits` it works, above 60 there is no memory.

    "Catch no other error."
    """

    def step(size: int) -> None:
        if size > 60:
            raise torch.OutOfMemoryError("out of memory")
        if size > fits:
            raise error

    raised = case.error_of(step, 100)
    case.instead(
        raised is not error,
        f"hides an error that torch.OutOfMemoryError is not: {type(error).__name__}: {error}",
        "catch torch.OutOfMemoryError alone, not every RuntimeError, nor by the words of a message",
    )
