"""Changes of shape in place, such as `unsqueeze_`, of tensors that share memory.

After a change in place, autograd makes the gradients of all views of that memory anew. For a view on the CPU or on CUDA
it takes the view's strides. For one of a subclass, as every tensor of the simulated GPU is, it repeats the calls that
made the view from its base, and knows nothing of a call that changed a shape in place: the gradient would be wrong
without a word. So `x.unsqueeze_(0)` makes a new view here, which autograd can repeat, and `x` becomes that view.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.device import state
from simgpu.device.tensor import OURS, SimTensor, refresh, shown_to_modes
from simgpu.ground.torch_internals import BASE, TORCH, Args, Kwargs, Operator

_autograd = TORCH._C._autograd
_ALONE = 2  # references to a storage that one tensor has: that of its values, and Python's
_tried = threading.local()  # `tensor`: whose change in place autograd is asked about


class _Allowed(Exception):
    """Autograd allows the change in place that it was asked about."""


def _in_place(name: str, anew: Callable[..., torch.Tensor]) -> None:
    """Define the method `name` of simulated tensors, which changes a shape by way of the view from `anew`."""
    plain = getattr(BASE, name)

    @shown_to_modes
    @functools.wraps(plain)
    def changed(self: SimTensor, *args: Any, **kwargs: Any) -> SimTensor:
        if self.is_inference() or not (self._is_view() or _is_shared(self)):
            return plain(self, *args, **kwargs)
        refuse_stale(self, (self,))
        flows = self.requires_grad and _is_allowed(plain, self, args, kwargs)
        if _is_leaf(self):
            raise NotImplementedError(
                f"the simulated GPU cannot change the shape of a parameter by {name} while other tensors share its "
                f"memory: make a new one, nn.Parameter(x.detach().{name[:-1]}(...))"
            )
        with torch.inference_mode(False), torch.no_grad():  # who asks for its `grad_fn` makes it
            _become(self, anew(self, *args, **kwargs))
        if flows:
            _ = self.grad_fn  # without one autograd takes the tensor for a leaf
        return self

    setattr(SimTensor, name, changed)


def _is_allowed(plain: Callable[..., Any], tensor: SimTensor, args: Args, kwargs: Kwargs) -> bool:
    """Return whether autograd lets a tensor change in place; where it is on, raise what it raises if it does not.

    It does not for a leaf, and not for one of several views that one call returned.
    """
    _tried.tensor = tensor
    try:
        with _disable_current_modes(), torch.enable_grad():
            plain(tensor, *args, **kwargs)
    except _Allowed:
        return True
    except RuntimeError:
        if torch.is_grad_enabled():
            raise
    finally:
        _tried.tensor = None
    return False


def _is_leaf(tensor: SimTensor) -> bool:
    """Return whether gradients end here. A view is not asked for its `grad_fn`, which autograd would make anew."""
    depends = tensor._base is not None and tensor._base.requires_grad
    return tensor.requires_grad and not depends and tensor.is_leaf


def _is_shared(tensor: SimTensor) -> bool:
    """Return whether the memory of a tensor is that of another one too."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > _ALONE


def _become(tensor: SimTensor, new: torch.Tensor) -> None:
    """Turn a tensor into `new` for all its holders; views and graphs keep the old one."""
    if tensor.retains_grad or tensor._backward_hooks:
        raise NotImplementedError(
            "the simulated GPU cannot change the shape of a tensor in place after retain_grad() or register_hook() "
            "while other tensors share its memory: make a new view, such as y = x.unsqueeze(0), and call it for y"
        )
    meta = _autograd._get_creation_meta(tensor) if tensor._is_view() else _autograd.CreationMeta.DEFAULT
    _autograd._set_creation_meta(new, meta)  # what autograd forbids for the one, it forbids for the other
    torch.autograd.graph.increment_version(tensor)
    for name in OURS:
        mine, its = getattr(tensor, name), getattr(new, name)
        setattr(tensor, name, its)
        setattr(new, name, mine)
    torch._C._swap_tensor_impl(tensor, new)


def _as_strided(
    tensor: SimTensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return a view of the whole memory, whatever part of it the tensor was: gradients reach all elements of it.

    On the CPU they reach those outside the tensor's own part only after a further change in place.
    """
    base = tensor if tensor._base is None else tensor._base
    return base.as_strided(size, stride, tensor.storage_offset() if storage_offset is None else storage_offset)


def _t(tensor: SimTensor) -> torch.Tensor:
    if tensor.dim() > 2:
        raise RuntimeError(f"t_() expects a tensor with <= 2 dimensions, but self is {tensor.dim()}D")
    return tensor.t()


for _name in ("unsqueeze_", "squeeze_", "transpose_", "swapaxes_", "swapdims_"):
    _in_place(_name, getattr(torch.Tensor, _name[:-1]))
_in_place("t_", _t)
_in_place("as_strided_", _as_strided)


# ---- changes of shape that come from elsewhere: from C++, torch.as_strided_, torch.ops ------------------------------
def change(func: Operator, args: Args, kwargs: Kwargs) -> SimTensor:
    """Change the shape of a tensor in place, as the operator `func` says: of its values and of the wrapper."""
    tensor = args[0]
    if getattr(_tried, "tensor", None) is tensor:
        raise _Allowed
    refuse_stale(tensor, (tensor,))
    shared = tensor._is_view() or _is_shared(tensor)
    func(tensor._inner, *args[1:], **kwargs)
    refresh(tensor)
    if shared:
        storage = tensor.untyped_storage()._cdata
        state.world.stale[storage] = state.world.memory.live[storage], tensor.requires_grad
    return tensor


def any_stale() -> bool:
    """Return whether autograd would regenerate any known view from an outdated base."""
    return bool(state.world.stale)


def refuse_stale(tensor: object, given: Any) -> None:
    """Raise where a tensor, with others that are `given`, must not change in place: a gradient would be wrong."""
    if type(tensor) is not SimTensor or tensor._inner.layout is not torch.strided:
        return  # a sparse tensor has no views
    key = tensor.untyped_storage()._cdata
    known = state.world.stale.get(key)
    if known is None:
        return
    if state.world.memory.live.get(key) is not known[0]:
        del state.world.stale[key]  # another storage lies there now
    elif known[1] or (torch.is_grad_enabled() and any(one.requires_grad for one in given)):
        raise NotImplementedError(
            "the simulated GPU cannot change this memory in place any more: a view of it got another shape by "
            "torch.as_strided_, torch.ops or torch.func, and gradients would be wrong. Call the method instead, such "
            "as x.unsqueeze_(0), or make a new view, such as x = x.unsqueeze(0)"
        )
