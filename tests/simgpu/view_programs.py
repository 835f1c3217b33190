"""Does a random program of views that are changed in place do on the simulated GPU what it does on the CPU?

A program is a list of steps, drawn from a seed: views of views, changes of shape in place, arithmetic in place through
any of them, assignments, copies; then a backward pass. `outcome` runs it on a device and notes, after each step, what
can be seen of every tensor; `compare` says how two outcomes differ.
"""

import random
import re
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["KINDS", "Step", "compare", "drawn", "outcome", "text"]

KINDS = ("same", "needless error", "other words", "silent difference")
_STEPS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHAPES = ((4, 2), (2, 3), (3, 3), (1, 4), (2, 1, 3), (2, 2, 2), (1, 3, 1), (6,), (2, 3, 2))


@dataclass(frozen=True)
class Step:
    """One line of a program: what it says, what it does with the tensors so far, and whether it makes a new one."""

    line: str
    do: Callable[[list[torch.Tensor], list[torch.Tensor]], torch.Tensor | None]


def text(seed: int) -> str:
    """Return the program of a seed as a reader would write it."""
    return "\n".join([_start(seed)[0], *(step.line for step in drawn(seed)), "backward"])


def _start(seed: int) -> tuple[str, tuple[int, ...], str]:
    """Return how a program begins: its line, the shape, and what kind of tensor the first one is."""
    draw = random.Random(seed)
    shape, kind = draw.choice(_SHAPES), draw.choice(("computed", "computed", "computed", "constant", "leaf"))
    return f"t0 = {kind} tensor of shape {shape}", shape, kind


def drawn(seed: int) -> list[Step]:
    """Return the steps of the program that belongs to a seed."""
    draw = random.Random(seed + 1)
    steps, count = [], 1
    for _ in range(draw.randint(3, 9)):
        family = draw.choice((_view, _view, _shape_in_place, _shape_in_place, _arithmetic, _arithmetic, _assignment))
        step, makes = family(draw, draw.randrange(count), draw.randrange(count), count)
        steps.append(step)
        count += makes
    return steps


# ---- steps ----------------------------------------------------------------------------------------------------------
def _dim(number: int, tensor: torch.Tensor, more: int = 0) -> int:
    """Return a dimension that the tensor has, by a number that was drawn before its shape was known."""
    return number % max(tensor.dim() + more, 1)


def _chosen(draw: random.Random, kind: str, **names: int) -> tuple[str, Callable[..., torch.Tensor]]:
    """Return one of the steps of a kind in view_programs.toml: its name, and what it does with `t`, `o` and `w`."""
    name, code = draw.choice(_STEPS[kind])
    return name.format(**names), eval(f"lambda t, o=None, w=None: {code}", {"_dim": _dim, **names})


def _view(draw: random.Random, of: int, other: int, count: int) -> tuple[Step, bool]:
    a, b = draw.randrange(6), draw.randrange(6)
    name, make = _chosen(draw, "views", a=a, b=b)
    return Step(f"t{count} = t{of}.{name}", lambda tensors, leaves: make(tensors[of])), True


def _shape_in_place(draw: random.Random, of: int, other: int, count: int) -> tuple[Step, bool]:
    a, b = draw.randrange(6), draw.randrange(6)
    name, change = _chosen(draw, "shapes", a=a, b=b)

    # without autograd a tensor that is no view keeps a grad_fn of another shape, on the CPU too
    graph = of == 0 or draw.random() < 0.8

    def do(tensors: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
        with nullcontext() if graph or not tensors[of]._is_view() else torch.no_grad():
            change(tensors[of])

    return Step(f"t{of}.{name}" + "  # no grad" * (not graph), do), False


def _arithmetic(draw: random.Random, of: int, other: int, count: int) -> tuple[Step, bool]:
    name, change = _chosen(draw, "arithmetic", other=other)
    graph = draw.random() < 0.85

    def do(tensors: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
        with nullcontext() if graph else torch.no_grad():
            change(tensors[of], tensors[other], leaves[0])

    return Step(f"t{of}.{name}" + "  # no grad" * (not graph), do), False


def _assignment(draw: random.Random, of: int, other: int, count: int) -> tuple[Step, bool]:
    a = draw.randrange(6)
    index = draw.choice((0, -1, slice(0, 1), (..., 0), (0, 0), slice(None), (None, 0)))
    if draw.random() < 0.3:
        return Step(f"t{count} = t{of} * 2", lambda tensors, leaves: tensors[of] * 2), True
    value, what = draw.choice(
        ((lambda o, w: 7.0 + a, f"{7.0 + a}"), (lambda o, w: w, "w"), (lambda o, w: o, f"t{other}"))
    )

    def do(tensors: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
        tensors[of][index] = value(tensors[other], leaves[0])

    return Step(f"t{of}[{index}] = {what}", do), False


# ---- running --------------------------------------------------------------------------------------------------------
def outcome(seed: int, device: str) -> list[object]:
    """Run the program of a seed and return what can be seen: after each step, of each tensor; at the end, gradients."""
    _, shape, kind = _start(seed)
    first = torch.empty(shape, dtype=torch.float64, device=device)
    first.copy_(torch.arange(1.0, 1.0 + first.numel()).view(shape))
    leaves = [torch.tensor(0.5, dtype=torch.float64, device=device, requires_grad=True)]
    leaves += [] if kind == "constant" else [first.requires_grad_()]
    tensors, seen = [first * 1 if kind == "computed" else first], []
    for step in drawn(seed):
        made, error = None, ""
        try:
            made = step.do(tensors, leaves)
        except Exception as problem:
            error = _words(problem)
        if made is not None:
            tensors.append(made)
        elif " = t" in step.line and "[" not in step.line:
            tensors.append(tensors[0])  # what could not be made is the first one: later steps have their tensors
        seen.append((error, [_look(tensor) for tensor in tensors]))
    return [*seen, _gradients(tensors, leaves)]


def _words(problem: Exception) -> str:
    """Return kind and first line of an error, with names of devices and of views' functions that may differ."""
    said = str(problem).partition("\n")[0].replace("torch.sim.DoubleTensor", "torch.DoubleTensor")
    said = re.sub(r"which is output 0 of \w+", "which is an output", said)
    return f"{type(problem).__name__}: {said}"


def _look(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what can be seen of a tensor without asking for its `grad_fn`, which autograd makes when it is asked."""
    geometry = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return *geometry, tensor.requires_grad, tensor._version, tensor.detach().cpu().tolist()


def _gradients(tensors: list[torch.Tensor], leaves: list[torch.Tensor]) -> tuple[object, ...]:
    """Return the gradients of a sum in which every element of every tensor has a weight of its own."""
    try:
        loss = sum((t * _weights(t, place)).sum() for place, t in enumerate(tensors))
        if not loss.requires_grad:
            return loss.item(), None, None
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return loss.item(), [None if one is None else one.tolist() for one in grads], None
    except Exception as problem:
        return None, None, _words(problem)


def _weights(tensor: torch.Tensor, place: int) -> torch.Tensor:
    count = torch.arange(1.0, 1.0 + tensor.numel(), dtype=torch.float64).view(tensor.shape)
    return (count + 10 * place).to(tensor.device)


def compare(expected: list[object], got: list[object]) -> str:
    """Return one of KINDS: how `got`, on the simulated GPU, first differs from `expected`, on the CPU.

    An error that only the CPU raises counts as a silent difference.
    """
    for right, mine in zip(expected, got, strict=True):
        if right != mine:
            due, said = (one[0] if isinstance(one[0], str) else one[2] for one in (right, mine))
            return "silent difference" if due == said or not said else "other words" if due else "needless error"
    return "same"
