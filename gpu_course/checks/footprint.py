"""Footprint of a call: what it leaves changed of its arguments, and of what an earlier call returned.

Numbers are compared in tensors of at most 10,000 elements. Neither the clock nor the memory of a simulated GPU notices.
"""

import inspect
import re
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

import simgpu
from gpu_course.checks.comparison import difference

__all__ = ["MODIFIES_INPUT", "STILL_NEEDED", "Footprint", "Left", "Returned", "needs_no_graph", "unfit_for_autograd"]

_TRAINING = "numbers gradients state"  # what training a model changes
_CHOSEN = "the caller has chosen it, and goes on with it"
MODIFIES_INPUT, STILL_NEEDED = "modifies its input", "the caller still needs it; build a new object instead"
_MOST = 10_000  # elements of a tensor whose numbers are compared
_WHY = {
    "numbers": "it is not to be changed here",
    "gradients": "the caller may still need them",
    "state": "momentum and averages are gone: the next step begins as the first one did",
    "settings": _CHOSEN,
    "mode": _CHOSEN,
    "requires_grad": "the caller has chosen what is trained",
    "hooks": "it runs in each later call",
    "place": _CHOSEN,
    "dtype": _CHOSEN,
    "input": STILL_NEEDED,
}  # by aspect

Left = tuple[str, str, str]  # what a call left changed, in words with names and without, and why that matters


class Footprint:
    """What arguments are before a call, so that `left` can say what the call changed of them."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
        self._named = _named(function, args, kwargs)
        self._before = self._read()

    def left(self, allowed: str | bool) -> Iterator[Left]:
        """Yield what differs now. `allowed` to differ are all aspects (True), or some in words: "training", "mode".

        "model.mode" allows the mode of the argument `model` alone.
        """
        if allowed is True:
            return
        may, now = (allowed or "").replace("training", _TRAINING).split(), self._read()
        for (aspect, name), was in self._before.items():
            value = now.get((aspect, name), was)
            owner = re.match(r"\w*", name)
            if not {aspect, f"{owner and owner[0]}.{aspect}"} & {*may} and _differ(value, was):
                yield (*_words(aspect, name, value), _WHY[aspect])
        yield from self._without_state(now)

    def _read(self) -> dict[tuple[str, str], Any]:
        return {(aspect, name): value for who, one in self._named for aspect, name, value in _aspects(who, one)}

    def _without_state(self, now: dict[tuple[str, str], Any]) -> Iterator[Left]:
        """Yield an optimizer that keeps averages of gradients, has moved its parameters and has nothing of the kind."""
        moved = any(aspect == "numbers" and _differ(now.get((aspect, name), was), was)
                    for (aspect, name), was in self._before.items())  # fmt: skip
        for who, one in self._named:
            averages = isinstance(one, torch.optim.Optimizer) and any(
                group.get("momentum") or "betas" in group for group in one.param_groups
            )
            if moved and averages and not any(one.state.values()):
                text = "leaves the optimizer without its state"
                yield text.replace("the optimizer", f"`{who}`"), text, _WHY["state"]


def _named(function: Callable, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments by the names of parameters."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"argument {number}": value for number, value in enumerate((*args, *kwargs.values()), start=1)}
    return list(bound.items())


def _aspects(who: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield aspect, name and value of what a call could change."""
    if isinstance(value, nn.Module):
        yield from _of_module(who, value)
    elif isinstance(value, torch.optim.Optimizer):
        for number, group in enumerate(value.param_groups):
            of_group = f" of group {number}" * (len(value.param_groups) > 1)
            for key, chosen in group.items():
                if isinstance(chosen, int | float):
                    yield "settings", f"{who}: {key}{of_group}", chosen
    elif isinstance(value, torch.Tensor):
        yield "input", who, _numbers(value)
        yield "requires_grad", who, value.requires_grad
    elif isinstance(value, list | tuple | dict):
        inside = list(value.values()) if isinstance(value, dict) else list(value)
        yield "input", f"{who}: entries", [*map(id, inside)]
        for number, one in enumerate(inside):
            yield from _aspects(f"{who}[{number}]", one)


def _of_module(who: str, model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, module in model.named_modules():
        name = f"{who}.{path}".rstrip(".")
        yield "mode", name, module.training
        for key, hooks in vars(module).items():
            if "hooks" in key and isinstance(hooks, dict):
                yield "hooks", f"{name}: {key}", len(hooks)
    for path, one in (*model.named_parameters(), *model.named_buffers()):
        name = f"{who}.{path}"
        yield "numbers", name, _numbers(one)
        yield "place", name, one.device
        yield "dtype", name, one.dtype
        if isinstance(one, nn.Parameter):
            yield "requires_grad", name, one.requires_grad
            yield "gradients", name, None if one.grad is None else _numbers(one.grad)


def _numbers(x: torch.Tensor) -> Any:
    """Return a copy of small tensors, of others `...`."""
    inner = simgpu.values_of(x)
    usual = type(inner) in (torch.Tensor, nn.Parameter) and not inner.is_meta and inner.layout == torch.strided
    return inner.detach().cpu().clone() if usual and inner.numel() <= _MOST else ...


def _differ(now: Any, was: Any) -> bool:
    if isinstance(now, torch.Tensor) and isinstance(was, torch.Tensor):
        return bool(difference(now, was.to(now.dtype))) and now.shape == was.shape  # "dtype" tells of another dtype
    if (now is None) != (was is None):
        return True
    return now is not ... and was is not ... and (type(now) is not type(was) or now != was)


def _words(aspect: str, name: str, value: Any) -> tuple[str, str]:
    who, _, detail = name.partition(": ")
    match aspect:
        case "mode":
            how = f"in {'training' if value else 'evaluation'} mode"
            return f"leaves `{who}` {how}", f"leaves a model {how}"
        case "settings":
            return f"changes {detail} of `{who}` to {value:g}", "changes the settings of an optimizer"
    others = {
        "requires_grad": (f"leaves `{who}` with requires_grad={value}", "leaves requires_grad changed"),
        "hooks": (f"leaves a hook on `{who}`", "leaves a hook on a model"),
        "place": (f"leaves `{who}` on {value}", "leaves a model on another device"),
        "dtype": (f"leaves `{who}` in {value}", "leaves a model in another dtype"),
        "gradients": (f"changes the gradient of `{who}`", "changes gradients"),
        "numbers": (f"changes `{who}`", "changes a model"),
    }
    return others.get(aspect, (f"modifies `{who}`", MODIFIES_INPUT))


# ---- results ---------------------------------------------------------------------------------------------------------


class Returned:
    """What a call returned, kept until the next one, which may not write over it.

    `weakly` keeps no tensor alive, where memory is counted: one that the next call writes over is held by the answer.
    """

    def __init__(self, value: Any, given: Any, weakly: bool = False) -> None:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        kept = all(_numbers(one) is not ... for one in tensors)
        shared = set(_storages(value)) & set(_storages(given))
        if weakly and tensors:
            value = tree_map_only(torch.Tensor, weakref.ref, value)
        elif kept and any(one.requires_grad for one in tensors):  # without its graph
            value = tree_map_only(torch.Tensor, lambda tensor: simgpu.values_of(tensor).detach(), value)
        self._value = value if kept and not shared else None
        self._before: Any = None

    def keep(self) -> None:
        """Copy it as it is now, before the next call."""
        self._before = _copied(self._value)

    def changes(self, value: Any) -> Iterator[Left]:
        """Yield that the call since then, which returned `value`, has changed it or returned it again."""
        held = [leaf() if isinstance(leaf, weakref.ref) else leaf for leaf in tree_leaves(self._value)]
        if self._before is None or any(leaf is None for leaf in held):
            return
        if difference(_copied(self._value), self._before, copied=True):
            text = "changes what it returned in an earlier call"
            yield text, text, "whoever kept that result now has other numbers: return a new object each time"
        if {*_storages(held)} & {*_storages(value)}:
            text = "returns the tensor of an earlier call again"
            yield text, text, "whoever changes one of the two results changes both: return a new object each time"


def _copied(value: Any) -> Any:
    """Return a copy of what a call returned, tensors on the CPU; None where it holds anything else than values."""
    value = value() if isinstance(value, weakref.ref) else value
    if isinstance(value, torch.Tensor):
        return _numbers(value)
    if type(value) in (list, tuple):
        return [_copied(one) for one in value]
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    return set(value) if type(value) is set else value if isinstance(value, int | float | str) else None


def needs_no_graph(given: Any) -> bool:
    """Return whether nothing among the arguments of a call can require gradients, so that its result may not either."""
    return torch.is_grad_enabled() and not any(map(_may_have_graph, tree_leaves(given)))


def unfit_for_autograd(value: Any, given: Any) -> Iterator[Left]:
    """Yield that a tensor of a result requires gradients, or was made in inference mode where none `given` was."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if any(leaf.requires_grad for leaf in tensors):
        text = "returns a tensor that requires gradients"
        yield text, text, "nothing that it was handed does: whatever is computed from it would be recorded"
    given = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    if any(leaf.is_inference() for leaf in tensors) and not any(leaf.is_inference() for leaf in given):
        text = "returns a tensor of inference mode"
        yield text, text, "a training cannot use it later: with torch.no_grad() it can, and nothing is recorded either"


_PLAIN = int, float, complex, str, bytes, Path, torch.device, torch.dtype, type(None), types.BuiltinFunctionType
_WITH_GRAPHS = torch.Tensor, nn.Module, torch.optim.Optimizer


def _may_have_graph(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, types.FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return any(isinstance(one, _WITH_GRAPHS) and _may_have_graph(one) for one in held)
    own = type(value).__module__.startswith("gpu_course.") and not isinstance(value, _WITH_GRAPHS)
    return not all(isinstance(one, _PLAIN) for one in (tree_leaves(vars(value)) if own else [value]))


def _storages(value: Any) -> Iterator[int]:
    """Yield where the numbers of tensors and modules are in memory."""
    for leaf in tree_leaves(value):
        made = isinstance(leaf, nn.Module) and "_parameters" in vars(leaf)  # else super().__init__() was not called
        tensors: list[Any] = [*leaf.parameters(), *leaf.buffers()] if made else [leaf]
        for tensor in map(simgpu.values_of, tensors):
            if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.numel():
                yield tensor.untyped_storage().data_ptr()
