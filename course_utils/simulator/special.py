"""What do copies, reads by the host and in-place changes of shape cost and do on the simulated GPU?"""

from __future__ import annotations

import torch

from course_utils.simulator import state
from course_utils.simulator.plan import SPECIAL
from course_utils.simulator.state import device_of
from course_utils.simulator.tensor import SimTensor, adopt, refresh

__all__: list[str] = []  # importing this module fills SPECIAL

aten = torch.ops.aten
_CPU = torch.device("cpu")


def _copy_(func, args, kwargs):
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    inner = [t._inner if type(t) is SimTensor else t for t in (target, source)]
    if type(target) is SimTensor and type(source) is SimTensor and target._index == source._index:
        inner[0].copy_(inner[1])
        state.world.kernel(target._index, "copy_", 0, inner[0].nbytes + inner[1].nbytes)
    elif type(target) is SimTensor and source.dim() == 0 and type(source) is not SimTensor:
        inner[0].copy_(inner[1])
        state.world.kernel(target._index, "fill_", 0, inner[0].nbytes)
    elif type(target) is SimTensor:
        inner[0].copy_(inner[1])
        direction = "D2D" if type(source) is SimTensor else "H2D"
        pinned = direction == "D2D" or source.is_pinned()
        blocking = direction == "H2D" and not (non_blocking and pinned)
        if direction == "D2D":
            state.world.order(target._index, source._index)
        state.world.copy(target._index, direction, inner[1].nbytes, pinned=pinned, blocking=blocking)
    else:
        _to_host(target, source, non_blocking and target.is_pinned())
    return target


def _to_host(target: torch.Tensor, source: SimTensor, later: bool) -> None:
    arrives = state.world.copy(
        source._index, "D2H", source._inner.nbytes, pinned=target.is_pinned(), blocking=not later
    )
    if later:
        state.world.arrive_later(arrives, target, source._inner.clone())
    else:
        target.data.copy_(source._inner)


def _to_copy(func, args, kwargs):
    source = args[0]
    keywords = dict(kwargs)
    device = keywords.pop("device", None)
    non_blocking = keywords.pop("non_blocking", False)
    keywords.pop("pin_memory", None)
    if device is not None and device.type == "meta" and device.index is None:
        return func(source._inner, device=device, **keywords)
    if device is None or device.type in ("sim", "meta"):
        index = source._index if device is None else device_of(device)
        inner = func(source._inner, device=_CPU, **keywords)
        result = adopt(inner, index)
        if index == source._index:
            state.world.kernel(index, "copy_", 0, inner.nbytes + source._inner.nbytes)
        else:
            state.world.order(index, source._index)
            state.world.copy(index, "D2D", source._inner.nbytes, pinned=True, blocking=False)
        return result
    if device.type != "cpu":
        raise RuntimeError(f"a tensor on {source.device} cannot be moved to {device}: this process has no such device")
    inner = func(source._inner, **keywords)
    if non_blocking:  # CUDA gives page-locked memory here, and the values arrive when the copy is done
        target = torch.Tensor.pin_memory(torch.zeros_like(inner, device=_CPU))
        arrives = state.world.copy(source._index, "D2H", source._inner.nbytes, pinned=True, blocking=False)
        state.world.arrive_later(arrives, target, inner)
        return target
    state.world.copy(source._index, "D2H", source._inner.nbytes, pinned=False, blocking=True)
    return inner


def _read_scalar(func, args, kwargs):
    source = args[0]
    state.world.copy(source._index, "D2H", source._inner.nbytes, pinned=True, blocking=True)
    return func(source._inner)


def _change_view(func, args, kwargs):
    """`unsqueeze_`, `t_`, … : the values and the wrapper change in the same way."""
    tensor = args[0]
    func(tensor._inner, *args[1:], **kwargs)
    refresh(tensor)
    return tensor


def _pack(func, args, kwargs):
    """Lengths stay on the CPU, as on CUDA."""
    packed, batch_sizes = func(args[0]._inner, *args[1:], **kwargs)
    state.world.kernel(args[0]._index, "pack_padded_sequence", 0, 2 * packed.nbytes)
    return adopt(packed, args[0]._index), batch_sizes


SPECIAL.update(
    {
        aten._has_compatible_shallow_copy_type.default: lambda func, args, kwargs: type(args[0]) is type(args[1]),
        aten._pack_padded_sequence.default: _pack,
        aten.copy_.default: _copy_,
        aten._to_copy.default: _to_copy,
        aten._local_scalar_dense.default: _read_scalar,
        **{
            getattr(getattr(aten, name), overload): _change_view
            for name, overload in (
                ("unsqueeze_", "default"),
                ("squeeze_", "default"),
                ("squeeze_", "dim"),
                ("squeeze_", "dims"),
                ("t_", "default"),
                ("transpose_", "default"),
                ("as_strided_", "default"),
            )
        },
    }
)
