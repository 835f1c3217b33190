"""How does a tensor on the simulated GPU behave? A wrapper over a CPU tensor that counts its bytes and its time.

For C++ a tensor on `sim:1` is a tensor on `meta:1`, because PyTorch's engine needs no device guard there: an exception
in a backward pass stays an exception. Python sees `sim:1`. A `meta` device with an index therefore always means `sim`.
"""

from __future__ import annotations

import torch

from course_utils.simulator import state
from course_utils.simulator.generator import check_generator
from course_utils.simulator.methods import TensorMethods
from course_utils.simulator.plan import HOST_ARGUMENTS, PLANS, Plan, charge, plan_of
from course_utils.simulator.state import FORKED, device_of

__all__ = ["SimTensor", "adopt", "as_sim", "refresh"]

aten = torch.ops.aten
_make = torch.Tensor._make_wrapper_subclass
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, torch.memory_format, torch.layout, str})
_CPU = torch.device("cpu")


class SimTensor(TensorMethods, torch.Tensor):
    """A tensor whose values live in `_inner`, a CPU tensor, and whose device is the simulated GPU `_index`."""

    _inner: torch.Tensor
    _index: int
    _nbytes: int
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plan = PLANS.get(id(func)) or plan_of(func)  # operators live for ever; hashing one is slow
        if state.forked:
            raise RuntimeError(FORKED)
        if plan.simple and not kwargs:
            result = _run_simple(func, plan, args)
            if result is not None:
                return result
        if plan.special is not None:
            return plan.special(func, args, kwargs or {})
        return _run(func, plan, args, kwargs)

    @staticmethod
    def adopt(inner: torch.Tensor, index: int) -> SimTensor:
        return adopt(inner, index)


def as_sim(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner`, whose storage is accounted already, as a tensor on simulated GPU `index`."""
    if inner.is_quantized:
        raise NotImplementedError("the simulated GPU has no quantized tensors: quantize on the CPU")
    if inner.layout is not torch.strided:
        raise NotImplementedError(f"the simulated GPU has no tensors of layout {inner.layout}: use dense ones")
    if inner.is_nested:
        raise NotImplementedError(
            "the simulated GPU has no nested tensors: give nn.TransformerEncoder enable_nested_tensor=False"
        )
    device = state.meta_devices[index]
    if inner.is_contiguous() and inner.storage_offset() == 0:
        tensor = _make(SimTensor, inner.shape, dtype=inner.dtype, device=device, _extra_dispatch_keys=_KEYS)
    else:
        tensor = _make(
            SimTensor,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
            _extra_dispatch_keys=_KEYS,
        )
    tensor._inner, tensor._index, tensor._nbytes = inner, index, inner.nbytes
    if inner.dtype.is_complex and inner.is_conj():
        torch._C._set_conj(tensor, True)
    return tensor


def adopt(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner` as a tensor on simulated GPU `index`, its storage accounted there."""
    if inner.layout is torch.strided and not inner.is_nested:
        state.world.own(inner, index)
    return as_sim(inner, index)


def refresh(tensor: SimTensor) -> None:
    """Make shape and strides of the wrapper equal to those of its values, after an operation that changed them."""
    inner = tensor._inner
    state.world.own(inner, tensor._index)
    if tensor.shape != inner.shape or tensor.stride() != inner.stride():
        torch._C.TensorBase.data.__set__(tensor, as_sim(inner, tensor._index))
        tensor._nbytes = inner.nbytes


def _unwrap(value, found: list):
    kind = type(value)
    if kind is SimTensor:
        found.append(value)
        return value._inner
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        found.append(value)
        return value
    if isinstance(value, list | tuple):
        return [_unwrap(item, found) for item in value]
    return value


def _run_simple(func, plan: Plan, args):
    """Run an operator whose tensors are all on one simulated GPU and whose result is one new tensor: the usual case.

    Returns None, with nothing done, where the call is of another kind.
    """
    index, nbytes, inner = -1, 0, []
    for arg in args:
        kind = type(arg)
        if kind is SimTensor:
            if index < 0:
                index = arg._index
            elif arg._index != index:
                return None
            nbytes += arg._nbytes
            inner.append(arg._inner)
        elif kind in _PLAIN:
            inner.append(arg)
        else:
            return None
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cpu"):
        return None
    out = func._op(*inner)
    if out.layout is not torch.strided or out.is_nested or out.dtype.is_complex:
        return adopt(out, index)
    storage, world = out.untyped_storage(), state.world
    if storage._cdata in world.live:
        return _wrap(out, index, args)[0]
    size = out.nbytes
    world.produce(index, plan.name, storage, size, out.dtype, nbytes + size)
    if not out.is_contiguous():
        return as_sim(out, index)
    result = _make(SimTensor, out.shape, dtype=out.dtype, device=state.meta_devices[index], _extra_dispatch_keys=_KEYS)
    result._inner, result._index, result._nbytes = out, index, size
    return result


def _run(func, plan: Plan, args, kwargs):
    found: list[torch.Tensor] = []
    inner_args = [_unwrap(arg, found) for arg in args]
    inner_kwargs = {name: _unwrap(value, found) for name, value in kwargs.items()} if kwargs else {}
    if kwargs and "generator" in kwargs:
        check_generator(kwargs["generator"])
    index = _common_index(func, plan, found)
    target = index
    if "device" in inner_kwargs:
        target = _target(inner_kwargs, index)
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(
        "cpu"
    ):  # a CPU autocast region does not touch a GPU
        with torch.autocast("cpu", enabled=False):
            out = func(*inner_args, **inner_kwargs)
    else:
        out = func(*inner_args, **inner_kwargs)
    if target is None:
        state.world.wait_until(state.world.queue_ns(index), "wait for the result")
        return out
    result, new = _wrap(out, target, found)
    for which in plan.mutates:
        changed = kwargs.get(which) if type(which) is str and kwargs else args[which] if type(which) is int else None
        for tensor in changed if isinstance(changed, list | tuple) else (changed,):
            if type(tensor) is SimTensor:
                refresh(tensor)
    if new or plan.mutates or plan.waits:
        inputs = [t._inner if type(t) is SimTensor else t for t in found]
        charge(plan, index, inputs, inner_args, inner_kwargs, out)
    return result


def _common_index(func, plan: Plan, found: list) -> int:
    """Return the one GPU that all tensors are on, or raise as CUDA does; CPU tensors of no dimension may be read."""
    index = None
    for tensor in found:
        if type(tensor) is SimTensor:
            if index is None:
                index = tensor._index
            elif tensor._index != index:
                _raise_mixed(func, plan, found, tensor)
    in_place = plan.pointwise and 0 in plan.mutates and not plan.overwrites
    for tensor in found:
        if type(tensor) is not SimTensor and (tensor.dim() > 0 or (in_place and tensor is found[0])):
            if plan.name in HOST_ARGUMENTS and not tensor.is_floating_point():
                continue
            if not (plan.mixes and tensor.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8)):
                _raise_mixed(func, plan, found, tensor)
            state.world.copy(index, "H2D", tensor.nbytes, pinned=False, blocking=True)
    return state.world.current if index is None else index


def _raise_mixed(func, plan: Plan, found: list, wrong: torch.Tensor):
    first = next(tensor for tensor in found if type(tensor) is SimTensor or tensor.dim() > 0)
    other = wrong
    if wrong.device == first.device:
        other = next(t for t in found if t.device != first.device and (type(t) is SimTensor or t.dim() > 0))
    if plan.pointwise:
        devices = f"found at least two devices, {first.device} and {other.device}!"
    else:
        position = next(i for i, tensor in enumerate(found) if tensor is other)
        tensors = [a.name for a in func._schema.arguments if "Tensor" in str(a.type)]
        name = tensors[min(position, len(tensors) - 1)]
        devices = (
            f"but got {name} is on {other.device}, different from other tensors on {first.device} "
            f"(when checking argument in method wrapper_sim_{plan.name})"
        )
        raise RuntimeError(f"Expected all tensors to be on the same device, {devices}")
    raise RuntimeError(f"Expected all tensors to be on the same device, but {devices}")


def _target(kwargs: dict, index: int) -> int | None:
    """Take `device` out of a call and return the GPU of its result; None for a result on the CPU or on `meta`."""
    device = kwargs["device"]
    if device is None or (device.type in ("sim", "meta") and device.index is not None):
        kwargs["device"] = _CPU
        return index if device is None else device_of(device.index)
    if device.type == "sim":
        kwargs["device"] = _CPU
        return state.world.current
    return None


def _wrap(out, index: int, found: list):
    """Return `out` with each tensor wrapped, the caller's own wrapper where it is the same tensor, and whether any is
    in new memory."""
    if isinstance(out, torch.Tensor):
        for tensor in found:
            if type(tensor) is SimTensor and tensor._inner is out:
                return tensor, False
        if out.layout is not torch.strided or out.is_nested:
            return as_sim(out, index), True
        new = state.world.own(out, index)
        if not new and torch.is_inference_mode_enabled() and not out.is_inference():
            with torch.inference_mode(False):  # a view of a tensor made outside stays an ordinary tensor
                return as_sim(out, index), False
        return as_sim(out, index), new
    if isinstance(out, list | tuple):
        pairs = [_wrap(item, index, found) for item in out]
        return type(out)([p[0] for p in pairs]) if type(out) in (list, tuple) else pairs, any(p[1] for p in pairs)
    return out, False
