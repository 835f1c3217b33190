"""How does `Module.to` move a parameter so that it stays the same object for optimizers, hooks and names?"""

from __future__ import annotations

import functools

import torch
from torch.nn.parameter import is_lazy

from course_utils.simulator.tensor import SimTensor

__all__ = ["keep_identity"]

_OURS = ("_inner", "_index", "_nbytes")
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_swap_plain = torch.utils.swap_tensors


def keep_identity() -> None:
    """Let `Module.to`, `.cpu`, `.half` … exchange what a parameter consists of, as CUDA does, not the parameter."""
    torch.utils.swap_tensors = _swap
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def _apply(self, fn, recurse=True):
        _refuse_lazy(self, fn)
        _leave_meta(self, fn)
        if torch.__future__.get_swap_module_params_on_conversion():
            return apply(self, fn, recurse)
        if not any(type(p) is SimTensor for p in self._parameters.values()):
            return apply(self, fn, recurse)
        for child in self.children() if recurse else ():
            child._apply(fn)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, False)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    torch.nn.Module._apply = _apply


def _refuse_lazy(module: torch.nn.Module, fn) -> None:
    """Raise where `fn` moves a parameter that has no shape yet to a simulated GPU: it would get a shape of 0 there."""
    for value in (*module._parameters.values(), *module._buffers.values()):
        if is_lazy(value) and type(fn(torch.empty(0, dtype=value.dtype, device="cpu"))) is SimTensor:
            raise NotImplementedError(
                f"the simulated GPU takes no {type(module).__name__} that has no shapes yet: run one batch through the "
                "model on the CPU, then move it"
            )


def _leave_meta(module: torch.nn.Module, fn) -> None:
    """Give `module` new parameters in place of those on `meta`, if `fn` moves them to a simulated GPU, as CUDA does.

    The old ones stay on `meta`: an optimizer made before, or a second module that shares them, keeps those.
    """
    for name, old in module._parameters.items():
        if old is None or type(old) is SimTensor or not old.is_meta:
            continue
        if type(fn(torch.empty(0, dtype=old.dtype, device="meta"))) is SimTensor:
            module._parameters[name] = torch.nn.Parameter(torch.empty_like(old), old.requires_grad)


def _poisoned(gradients):
    raise RuntimeError(
        "this graph was made before a parameter in it moved to another device or number format: run the forward pass "
        "again after moving the model, or run backward before it"
    )


def _swap(t1: torch.Tensor, t2: torch.Tensor) -> None:
    """Exchange two tensors; those who hold `t1` find `t2` there, with the hooks and attributes that `t1` had.

    PyTorch's own function refuses while a graph, a view or a weak reference holds `t1`, where CUDA would go on. Graphs
    and views keep what `t1` consisted of; backward through such a graph raises.
    """
    if SimTensor not in (type(t1), type(t2)):
        _swap_plain(t1, t2)
        return
    if t1 is t2:
        return
    hooks = {name: getattr(t1, name) for name in _HOOKS}
    for name in _HOOKS:
        setattr(t1, name, None)
    if t1.is_leaf and t1.requires_grad and t1._use_count() > 1:
        torch.autograd.graph.get_gradient_edge(t1).node.register_prehook(_poisoned)
    extra = {key: value for key, value in t1.__dict__.items() if key not in _OURS}
    t1.__class__, t2.__class__ = t2.__class__, t1.__class__
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    torch._C._swap_tensor_impl(t1, t2)
    t1.__dict__.update(extra)
    for name, hook in hooks.items():
        if hook:
            setattr(t1, name, hook)
