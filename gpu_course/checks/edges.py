"""Catalogue of the edge cases of a task, a record of those that a check exercises, and makers of some.

An edge case counts as drawn where it occurs among the arguments of a call of the answer, or around that call.
`recording()` keeps what was drawn while a check runs; outside it nothing is looked at. `Exercise.exempt` gives the
reason for what a text does not ask for. A group concerns an exercise only where the answer receives its kind of thing:
an exercise without a model need not mention frozen parameters.

    with edges.recording() as seen:
        exercise.examine(exercise.reference, places)
    seen.drawn, seen.missing()
"""

import contextlib
import copy
import functools
import itertools
import math
import numbers
import tomllib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import simgpu

# ---- the catalogue ---------------------------------------------------------------------------------------------------

CATALOGUE: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GROUP = {name: group for group, edges in CATALOGUE.items() for name in edges}
_ALWAYS = frozenset({"calls"})  # groups that concern every exercise
_FORMATS = {torch.float16: "half", torch.bfloat16: "bfloat16", torch.float64: "double", torch.bool: "bool"}
_HUGE, _TINY, _COUNTED = 1e4, 1e-4, 2**31
_MOST = 10_000  # elements of a tensor whose values are looked at


@dataclass
class Seen:
    """Record of a check's run: edge cases exercised, groups that concern the exercise, budgets used.

    `budgets` holds what was counted, how much of it was used, and how much is allowed.
    """

    drawn: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=lambda: set(_ALWAYS))
    budgets: list[tuple[str, int, int]] = field(default_factory=list)
    _orders: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)  # of lists, by their sorted entries

    def note_orders(self, given: Any) -> None:
        """Note where a list, or a dict, among `given` has the entries of an earlier one in another order."""
        for value in _containers(given):
            if isinstance(value, list | dict):
                words = tuple(_word(entry) for entry in (value.items() if isinstance(value, dict) else value))
                if self._orders.setdefault(tuple(sorted(words)), words) != words:
                    self.drawn.add("order")

    def missing(self) -> set[str]:
        """Return the edge cases of the exercise's groups that were not exercised."""
        return {name for name, group in GROUP.items() if group in self.groups} - self.drawn


_SEEN: ContextVar[Seen | None] = ContextVar("edges that are drawn", default=None)


@contextlib.contextmanager
def recording() -> Iterator[Seen]:
    """Record the edge cases that a check exercises in the block."""
    seen = Seen()
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def named(*names: str) -> list[str]:
    """Return the edge cases with these names, or of these groups. Raises ValueError for an unknown name."""
    unknown = [name for name in names if name not in GROUP and name not in CATALOGUE]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no edge and no group of edges: {', '.join([*CATALOGUE, *GROUP])}")
    return [edge for name in names for edge in CATALOGUE.get(name, (name,))]


def reasons(by_names: Mapping[str, str]) -> dict[str, str]:
    """Expand a table of reasons by names of edge cases or groups, separated by spaces, to one by edge case."""
    return {edge: why for names, why in by_names.items() for edge in named(*names.split())}


def note(*names: str) -> None:
    """Note an edge case that arguments do not show, such as a limit that is met exactly."""
    seen = _SEEN.get()
    if seen is not None:
        seen.drawn.update(named(*names))
        seen.groups.update(GROUP[name] for name in named(*names))


def note_budget(what: str, used: int, allowed: int) -> None:
    """Note how much of a budget an answer used."""
    seen = _SEEN.get()
    if seen is not None:
        seen.budgets.append((what, used, allowed))


def merge(other: Seen | None) -> None:
    """Add the record of another process."""
    seen = _SEEN.get()
    if seen is not None and other is not None:
        seen.drawn |= other.drawn
        seen.groups |= other.groups


def watched() -> bool:
    """Return whether edge cases are being recorded."""
    return _SEEN.get() is not None


def note_call(given: Any, device: torch.device) -> None:
    """Note the edge cases among an answer's arguments, and around its call, on the check's `device`."""
    seen = _SEEN.get()
    if seen is None:
        return
    drawn = set(_edges_of(given, device))
    seen.note_orders(given)
    if torch.get_default_dtype() != torch.float32:
        drawn.add("default_type")
    seen.drawn |= drawn
    seen.groups |= {GROUP[name] for name in drawn} | set(_groups_of(given, device))


# ---- what is among the arguments -------------------------------------------------------------------------------------


def _groups_of(given: Any, device: torch.device) -> Iterator[str]:
    """Yield the groups of edge cases that arguments of these kinds can show; devices only beside others."""
    somewhere = ("surroundings",) if device.type == "cpu" else ("surroundings", "places")
    for value in tree_leaves(given):
        if isinstance(value, torch.Tensor):
            yield from ("shapes", "values", "formats", *somewhere)
        elif isinstance(value, torch.device):
            yield from somewhere
        elif isinstance(value, nn.Module | torch.optim.Optimizer):
            yield from ("models", *somewhere)
        elif isinstance(value, numbers.Number) and not isinstance(value, bool):
            yield "numbers"
    if any(isinstance(value, list | dict) for value in _containers(given)):
        yield "lists"  # a tuple often is a shape or a pair


def _edges_of(given: Any, device: torch.device) -> Iterator[str]:
    for value in tree_leaves(given):
        yield from _edges_of_one(value)
        for device_of_value in _devices_of(value):
            yield from _places(device_of_value, device)
    for value in _containers(given):
        if len(value) < 2 and not isinstance(value, tuple):
            yield "one_entry" if value else "no_entries"


def _edges_of_one(value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield from (*_shapes(value), *_values(value), *_formats(value.dtype))
    elif isinstance(value, torch.dtype):
        yield from _formats(value)
    elif isinstance(value, nn.Module):
        yield from _model(value)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _optimizer(value)
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        yield from _number(value)
    elif isinstance(value, str) and not value:
        yield "no_entries"


def _devices_of(value: Any) -> list[torch.device]:
    if isinstance(value, nn.Module):
        return [parameter.device for parameter in value.parameters()]
    if isinstance(value, torch.Tensor):
        return [value.device]
    return [value] if isinstance(value, torch.device) else []


def _containers(given: Any) -> Iterator[Any]:
    """Yield the lists, tuples and dicts within the arguments, `given` itself excluded."""
    for value in given.values() if isinstance(given, dict) else given:
        if isinstance(value, list | tuple | dict):
            yield value
            yield from _containers(value)


def _shapes(x: torch.Tensor) -> Iterator[str]:
    if x.dim() == 0:
        yield "scalar"
    elif x.numel() == 0:
        yield "empty"
    elif 1 in x.shape:
        yield "single"
    if any(size > 2 and size % 2 for size in x.shape):
        yield "odd"
    strides = [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1] if _laid_out(x) else []
    if strides != sorted(strides, reverse=True):
        yield "permuted"
    elif strides and not x.is_contiguous():
        yield "sliced"


def _word(entry: Any) -> str:
    """Return a key of `entry` that equal entries share; for a large tensor, its shape alone."""
    if isinstance(entry, torch.Tensor):
        entry = simgpu.values_of(entry.detach())
        known = not entry.is_meta and _laid_out(entry) and entry.numel() <= _MOST
        return f"{tuple(entry.shape)} {entry.tolist() if known else ''}"
    return repr(entry)


def _laid_out(x: torch.Tensor) -> bool:
    return x.layout == torch.strided and x.numel() > 0


def _values(x: torch.Tensor) -> Iterator[str]:
    x = simgpu.values_of(x.detach())  # which the simulated clock does not notice
    if x.is_meta or not _laid_out(x) or x.numel() > _MOST or type(x) not in (torch.Tensor, nn.Parameter):
        return
    flat = x.cpu().flatten()
    if len(set(flat.tolist())) < flat.numel():
        yield "tied"
    if (flat == 0).any():
        yield "zero"
    if flat.is_complex() or flat.dtype == torch.bool:
        return
    flat = flat.double()
    finite = flat[flat.isfinite()]
    if finite.numel() < flat.numel():
        yield "not_finite"
    if (finite < 0).any():
        yield "negative"
    if (finite.abs() > _HUGE).any():
        yield "huge"
    if ((finite != 0) & (finite.abs() < _TINY)).any():
        yield "tiny"


def _formats(dtype: torch.dtype) -> Iterator[str]:
    if dtype in _FORMATS:
        yield _FORMATS[dtype]
    elif dtype.is_complex:
        yield "complex"
    elif not dtype.is_floating_point:
        yield "whole"


def _places(of_value: torch.device, device: torch.device) -> Iterator[str]:
    if device.type != "cpu" and of_value.type == "cpu":
        yield "cpu"
    elif device.type != "cpu" and of_value.index not in (None, device.index):
        yield "elsewhere"


def _model(model: nn.Module) -> Iterator[str]:
    if not model.training:
        yield "evaluation"
    yield from _parameters(list(model.parameters()))
    if len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters())):
        yield "shared"


def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    yield from _parameters([parameter for group in optimizer.param_groups for parameter in group["params"]])
    if len(optimizer.param_groups) > 1:
        yield "two_groups"


def _parameters(parameters: list[torch.Tensor]) -> Iterator[str]:
    learning = [one.requires_grad for one in parameters]
    if parameters and not any(learning):
        yield "all_frozen"
    elif not all(learning):
        yield "frozen"
    if any(one.grad is not None for one in parameters):
        yield "old_gradients"
    if any(one.dtype == torch.float64 for one in parameters):
        yield "double_model"
    if any(one.dim() == 0 for one in parameters):
        yield "scalar_parameter"


def _number(value: Any) -> Iterator[str]:
    if value == 0:
        yield "number_zero"
    elif value < 0:
        yield "number_negative"
    if value >= _COUNTED and not math.isinf(value):
        yield "number_large"


# ---- makers ----------------------------------------------------------------------------------------------------------


def permuted(x: torch.Tensor) -> torch.Tensor:
    """Return the values of `x` with the strides of a transposed tensor; of one dimension or none, `x` itself."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


def sliced(x: torch.Tensor) -> torch.Tensor:
    """Return the values of `x` as a view of a wider tensor that begins later: no two rows are neighbours in memory.

    Of one dimension, every second element. What lies between is 77 (True), which no right answer looks at.
    """
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 3), 77, device=x.device).to(x.dtype)
    view = wide[..., 1 : 1 + x.shape[-1]] if x.dim() > 1 else wide[1 : 1 + 2 * len(x) : 2]
    return view.copy_(x)


@functools.cache
def has_double(device: torch.device) -> bool:
    """Return whether `device` computes in float64: Apple's GPUs refuse such a tensor, some of Intel's its operators."""
    try:
        torch.zeros(1, device=device, dtype=torch.float64).mul(1)
    except (TypeError, RuntimeError):
        return False
    return True


def supporting(device: torch.device, values: Any) -> torch.device:
    """Return `device`, or the CPU where it has no float64 and `values` (tensors, modules, a dtype) are of that type."""
    leaves = [leaf.parameters() if isinstance(leaf, nn.Module) else [leaf] for leaf in tree_leaves(values)]
    needs_it = any(getattr(one, "dtype", one) in (torch.float64, torch.complex128) for one in itertools.chain(*leaves))
    return torch.device("cpu") if needs_it and not has_double(device) else device


@functools.cache
def scaling(device: torch.device) -> torch.device:
    """Return `device`, or the CPU where a `GradScaler` fails on it: its division is in float64."""
    weight = torch.ones(1, device=device, requires_grad=True)
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(weight.sum()).backward()
    try:
        scaler.unscale_(torch.optim.SGD([weight]))
    except (TypeError, RuntimeError):
        return torch.device("cpu")
    return device


def on(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the values of `x` on `device`, with its strides, gaps between rows too."""
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device).copy_(x)


UGLY = torch.tensor([[1.0, 2e4, math.inf, 1.0], [1e-6, -3.0, 0.0, -1e6]])  # numbers of every kind


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """Return a copy of `model` whose parameters with these names require no gradients; without names, none does."""
    made = copy.deepcopy(model)
    for name, parameter in made.named_parameters():
        if name in names or not names:
            parameter.requires_grad_(False)
    return made


def with_old_gradients(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose parameters have gradients of 3, as a step left them, where they require any."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 3.0)
    return made


@contextlib.contextmanager
def default_type(dtype: torch.dtype = torch.float64) -> Iterator[None]:
    """Make `dtype` the default type in the block, as a caller may have done."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
