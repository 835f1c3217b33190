"""How does a tensor on the simulated GPU behave? A wrapper over a CPU tensor that counts its bytes and its time.

For C++ a tensor on `sim:1` is a tensor on `meta:1`, because PyTorch's engine needs no device guard there: an exception
in a backward pass stays an exception. Python sees `sim:1`. A `meta` device with an index therefore always means `sim`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from course_utils.simulator._model import World

__all__ = ["SimTensor", "adopt", "as_sim", "device_of"]

aten = torch.ops.aten
_make = torch.Tensor._make_wrapper_subclass
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, torch.memory_format, torch.layout, str})
_CPU = torch.device("cpu")

world: World  # set by simulator.enable
forked = False  # set in a forked child
FORKED = (
    "Cannot re-initialize sim in forked subprocess. To use the simulated GPU with multiprocessing, you must use the "
    "'spawn' start method"
)
meta_devices: list[torch.device] = []
sim_devices: list[torch.device] = []


def _shown_to_modes(method):
    """Let function modes, such as that of `counting`, see this method as they see torch.Tensor's own."""

    @functools.wraps(method)
    def shown(self, *args, **kwargs):
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(shown, (self,), self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return shown


class SimTensor(torch.Tensor):
    """A tensor whose values live in `_inner`, a CPU tensor, and whose device is the simulated GPU `_index`."""

    _inner: torch.Tensor
    _index: int
    _nbytes: int
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plan = _PLANS.get(func) or _plan(func)
        if forked:
            raise RuntimeError(FORKED)
        if plan.simple and not kwargs:
            result = _run_simple(func, plan, args)
            if result is not None:
                return result
        if plan.special is not None:
            return plan.special(func, args, kwargs or {})
        return _run(func, plan, args, kwargs)

    # ---- what Python asks of a tensor -------------------------------------------------------------------------
    device = property(lambda self: sim_devices[self._index])
    is_meta = property(lambda self: False)
    is_sim = property(lambda self: True)

    def get_device(self) -> int:
        return self._index

    def to(self, *args, **kwargs):
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        other = kwargs.pop("other", None)
        if other is not None:
            args = (other.device, other.dtype, *args)
        if len(args) > 2 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
            args, copy = args[:-1], args[-1]
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "sim":
            device = meta_devices[device_of(device)]
        keywords = {"non_blocking": non_blocking, "copy": copy}
        if memory_format is not None:
            keywords["memory_format"] = memory_format
        if device is not None:
            keywords["device"] = device
        return torch._C.TensorBase.to(self, dtype=dtype or self.dtype, **keywords)

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        device = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad, **kwargs)

    def numpy(self, *, force: bool = False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    @_shown_to_modes
    def tolist(self):
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self._inner.data_ptr()

    def untyped_storage(self):
        return self._inner.untyped_storage()

    def storage(self):
        return self._inner.storage()

    def is_pinned(self, device=None) -> bool:
        return False

    def pin_memory(self, device=None):
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def share_memory_(self):
        raise RuntimeError("a tensor on the simulated GPU cannot be shared between processes: share tensor.cpu()")

    def type(self, dtype=None, non_blocking=False, **kwargs):
        if dtype is None:
            return "torch.sim." + self._inner.type().rpartition(".")[2]
        return self.to(dtype, non_blocking=non_blocking) if isinstance(dtype, torch.dtype) else super().type(dtype)

    def __dlpack__(self, *args, **kwargs):
        raise BufferError(f"a tensor on {self.device} cannot be exported: use tensor.cpu()")

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, new):
        if not isinstance(new, SimTensor):
            raise RuntimeError(f"cannot assign a tensor on {new.device} to .data of a tensor on {self.device}")
        torch._C.TensorBase.data.__set__(self, new)
        self._inner, self._index, self._nbytes = new._inner, new._index, new._nbytes

    @_shown_to_modes
    def __repr__(self, *, tensor_contents=None):
        with torch.no_grad():
            text = repr(self.detach().cpu())[:-1]
        extra = f"device='{self.device}'"
        if self.grad_fn is not None:
            extra += f", grad_fn=<{self.grad_fn.name()}>"
        elif self.requires_grad:
            extra += ", requires_grad=True"
        joint = ", " if len(text) - text.rfind("\n") + len(extra) < 78 else ",\n       "
        return ("Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else "") + text + joint + extra + ")"

    @_shown_to_modes
    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    # ---- copying and saving -----------------------------------------------------------------------------------
    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        storage = self._inner.untyped_storage().__deepcopy__(memo)
        inner = torch.empty(0, dtype=self.dtype, device=_CPU)
        inner.set_(storage, self.storage_offset(), self.shape, self.stride())
        new = adopt(inner, self._index)
        world.kernel(self._index, "copy_", 0, 2 * inner.nbytes)
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        new.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_inner", "_index", "_nbytes")})
        if self.grad is not None:
            new.grad = self.grad.__deepcopy__(memo)
        return new

    def __reduce_ex__(self, protocol):
        if forked:
            raise RuntimeError("a tensor on the simulated GPU cannot leave a worker process: return a CPU tensor")
        storage = torch.storage.TypedStorage(
            wrap_storage=self._inner.untyped_storage(), dtype=self.dtype, _internal=True
        )
        args = (storage, self.storage_offset(), tuple(self.shape), self.stride(), self.requires_grad, {})
        if isinstance(self, torch.nn.Parameter):
            tensor = (torch._utils._rebuild_tensor_v2, (*args[:4], False, {}))
            return torch._utils._rebuild_parameter, (_Rebuilt(*tensor), self.requires_grad, {})
        return torch._utils._rebuild_tensor_v2, args

    def __tensor_flatten__(self):  # makes Module.to swap parameters in place, so that they keep their identity
        return ["_inner"], self._index

    @staticmethod
    def __tensor_unflatten__(inner, index, outer_size, outer_stride):
        raise NotImplementedError("torch.compile does not work on the simulated GPU: compile for the CPU instead")


class _Rebuilt:
    """Pickles as the tensor that calling `function(*args)` gives."""

    def __init__(self, function, args):
        self._call = (function, args)

    def __reduce__(self):
        return self._call


def device_of(device: torch.device | str | int | None) -> int:
    """Return the index of a simulated GPU; no index means the current one. Raises as CUDA does if there is none."""
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if index is None:
        return world.current
    if not 0 <= index < len(world.gpus):
        raise torch.AcceleratorError(
            f"sim error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs? "
            f"This machine simulates {len(world.gpus)}: sim:0 to sim:{len(world.gpus) - 1}."
        )
    return index


def as_sim(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner`, whose storage is accounted already, as a tensor on simulated GPU `index`."""
    if inner.layout is not torch.strided:
        raise NotImplementedError(f"the simulated GPU has no tensors of layout {inner.layout}: use dense ones")
    device = meta_devices[index]
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
    if inner.layout is torch.strided:
        world.own(inner, index)
    return as_sim(inner, index)


def _refresh(tensor: SimTensor) -> None:
    """Make shape and strides of the wrapper equal to those of its values, after an operation that changed them."""
    inner = tensor._inner
    world.own(inner, tensor._index)
    if tensor.shape != inner.shape or tensor.stride() != inner.stride():
        torch._C.TensorBase.data.__set__(tensor, as_sim(inner, tensor._index))
        tensor._nbytes = inner.nbytes


# ---- running an operator ----------------------------------------------------------------------------------------
@dataclass
class _Plan:
    name: str
    special: Any = None
    mutates: tuple[str | int, ...] = ()
    flops: Any = None
    matrix: bool = False
    gathers: bool = False  # reads as many elements as it writes, not its whole input
    overwrites: bool = False  # writes its first argument without reading it
    waits: bool = False  # the host needs the result: its size or its value depends on the data
    mixes: bool = False  # takes CPU tensors beside those of the device: indices
    pointwise: bool = False
    simple: bool = False  # takes tensors and numbers, gives one tensor, and needs none of the above


_GATHERS = {"embedding", "index", "index_select", "gather", "index_put_", "index_put", "_index_put_impl_", "scatter_"}
_OVERWRITES = {"zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "copy_"}
_WAITS = {"nonzero", "masked_select", "equal", "_local_scalar_dense", "is_nonzero", "_unique2", "unique_consecutive"}
_MIXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_HOST_ARGUMENTS = {
    "_pack_padded_sequence": "lengths",
    "_pack_padded_sequence_backward": "batch_sizes",
}  # stay on the CPU
_PLANS: dict[Any, _Plan] = {}


def _plan(func) -> _Plan:
    packet, schema = func.overloadpacket, func._schema
    name = packet.__name__
    mutates = tuple(
        arg.name if arg.kwarg_only else position
        for position, arg in enumerate(schema.arguments)
        if arg.alias_info is not None and arg.alias_info.is_write
    )
    flops = flop_registry.get(packet, _EXTRA_FLOPS.get(name))
    _PLANS[func] = plan = _Plan(
        name,
        special=_SPECIAL.get(func),
        mutates=mutates,
        flops=flops,
        matrix=flops is not None,
        gathers=name in _GATHERS,
        overwrites=name in _OVERWRITES,
        waits=name in _WAITS or torch.Tag.dynamic_output_shape in func.tags,
        mixes=name in _MIXES,
        pointwise=torch.Tag.pointwise in func.tags,
    )
    special = plan.special or mutates or flops or plan.gathers or plan.overwrites or plan.waits or plan.mixes
    plan.simple = not special and [str(r.type) for r in schema.returns] == ["Tensor"]
    return plan


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


def _run_simple(func, plan: _Plan, args):
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
    if out.layout is not torch.strided:
        return as_sim(out, index)
    storage = out.untyped_storage()
    if storage._cdata in world.live:
        return _wrap(out, index, args)[0]
    world.produce(index, plan.name, storage, out, nbytes)
    return as_sim(out, index)


def _run(func, plan: _Plan, args, kwargs):
    found: list[torch.Tensor] = []
    inner_args = [_unwrap(arg, found) for arg in args]
    inner_kwargs = {name: _unwrap(value, found) for name, value in kwargs.items()} if kwargs else {}
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
        world.wait_until(world.queue_ns(index), "wait for the result")
        return out
    result, new = _wrap(out, target, found)
    for which in plan.mutates:
        changed = kwargs.get(which) if type(which) is str and kwargs else args[which] if type(which) is int else None
        for tensor in changed if isinstance(changed, list | tuple) else (changed,):
            if type(tensor) is SimTensor:
                _refresh(tensor)
    if new or plan.mutates or plan.waits:
        _charge(plan, index, found, inner_args, inner_kwargs, out)
    return result


def _common_index(func, plan: _Plan, found: list) -> int:
    """Return the one GPU that all tensors are on, or raise as CUDA does; CPU tensors of no dimension may join."""
    index = None
    for tensor in found:
        if type(tensor) is SimTensor:
            if index is None:
                index = tensor._index
            elif tensor._index != index:
                _raise_mixed(func, plan, found)
    for tensor in found:
        if type(tensor) is not SimTensor and tensor.dim() > 0:
            if plan.name in _HOST_ARGUMENTS:
                continue
            if not (plan.mixes and tensor.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8)):
                _raise_mixed(func, plan, found)
            world.copy(index, "H2D", tensor.nbytes, pinned=False, blocking=True)
    return world.current if index is None else index


def _raise_mixed(func, plan: _Plan, found: list):
    first = next(tensor for tensor in found if type(tensor) is SimTensor or tensor.dim() > 0)
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
    if device is None or device.type in ("sim", "meta") and device.index is not None:
        kwargs["device"] = _CPU
        return index if device is None else device_of(device.index)
    if device.type == "sim":
        kwargs["device"] = _CPU
        return world.current
    return None


def _wrap(out, index: int, found: list):
    """Return `out` with each tensor wrapped, the caller's own wrapper where it is the same tensor, and whether any is
    in new memory."""
    if isinstance(out, torch.Tensor):
        for tensor in found:
            if type(tensor) is SimTensor and tensor._inner is out:
                return tensor, False
        if out.layout is not torch.strided:
            return as_sim(out, index), True
        new = world.own(out, index)
        return as_sim(out, index), new
    if isinstance(out, list | tuple):
        pairs = [_wrap(item, index, found) for item in out]
        return type(out)([p[0] for p in pairs]) if type(out) in (list, tuple) else pairs, any(p[1] for p in pairs)
    return out, False


def _charge(plan: _Plan, index: int, found, args, kwargs, out) -> None:
    """Advance the virtual clock by what this operator costs."""
    outputs = [t for t in (out if isinstance(out, list | tuple) else (out,)) if isinstance(t, torch.Tensor)]
    written = sum(t.nbytes for t in outputs)
    if plan.name in ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "resize_", "set_"):
        return  # memory only, no kernel
    inputs = [t._inner if type(t) is SimTensor else t for t in found]
    if plan.gathers:
        read = written + sum(t.nbytes for t in inputs if not t.is_floating_point())
    else:
        read = sum(t.nbytes for t in (inputs[1:] if plan.overwrites else inputs))
    if plan.mutates and not outputs:
        written = sum(t.nbytes for t in inputs[: max(1, len(inputs) // 2)])
    if plan.flops is not None:
        flops = int(plan.flops(*args, **kwargs, out_val=out))
        dtype = inputs[0].dtype
    else:
        flops = max((t.numel() for t in (*inputs, *outputs)), default=0)
        dtype = torch.float64 if any(t.dtype is torch.float64 for t in outputs) else torch.float32
    world.kernel(index, plan.name, flops, read + written, _peak_name(dtype, plan.matrix))
    if plan.waits:
        world.copy(index, "D2H", 8, pinned=True, blocking=True)


_PEAKS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


def _peak_name(dtype: torch.dtype, matrix: bool) -> str:
    if dtype is torch.float32 and matrix and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return _PEAKS.get(dtype, "fp32")


def _lstm_flops(x, w_ih, w_hh, *args, out_val=None, **kwargs) -> int:
    tokens = math.prod(x.shape[:-1])
    return 2 * tokens * (w_ih.numel() + w_hh.numel())


_EXTRA_FLOPS = {
    "mkldnn_rnn_layer": _lstm_flops,
    "mkldnn_rnn_layer_backward": lambda *a, **k: 2 * _lstm_flops(a[0], a[1], a[2]),
}


# ---- copies -----------------------------------------------------------------------------------------------------
def _copy_(func, args, kwargs):
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    inner = [t._inner if type(t) is SimTensor else t for t in (target, source)]
    if type(target) is SimTensor and type(source) is SimTensor and target._index == source._index:
        inner[0].copy_(inner[1])
        world.kernel(target._index, "copy_", 0, inner[0].nbytes + inner[1].nbytes)
    elif type(target) is SimTensor and source.dim() == 0 and type(source) is not SimTensor:
        inner[0].copy_(inner[1])
        world.kernel(target._index, "fill_", 0, inner[0].nbytes)
    elif type(target) is SimTensor:
        inner[0].copy_(inner[1])
        direction = "D2D" if type(source) is SimTensor else "H2D"
        pinned = direction == "D2D" or source.is_pinned()
        blocking = direction == "H2D" and not (non_blocking and pinned)
        if direction == "D2D":
            world.order(target._index, source._index)
        world.copy(target._index, direction, inner[1].nbytes, pinned=pinned, blocking=blocking)
    else:
        _to_host(target, source, non_blocking and target.is_pinned())
    return target


def _to_host(target: torch.Tensor, source: SimTensor, later: bool) -> None:
    arrives = world.copy(source._index, "D2H", source._inner.nbytes, pinned=target.is_pinned(), blocking=not later)
    if later:
        world.arrive_later(arrives, target, source._inner.clone())
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
            world.kernel(index, "copy_", 0, inner.nbytes + source._inner.nbytes)
        else:
            world.order(index, source._index)
            world.copy(index, "D2D", source._inner.nbytes, pinned=True, blocking=False)
        return result
    if device.type != "cpu":
        raise RuntimeError(f"a tensor on {source.device} cannot be moved to {device}: this process has no such device")
    inner = func(source._inner, **keywords)
    if non_blocking:  # CUDA gives page-locked memory here, and the values arrive when the copy is done
        target = torch.Tensor.pin_memory(torch.zeros_like(inner, device=_CPU))
        arrives = world.copy(source._index, "D2H", source._inner.nbytes, pinned=True, blocking=False)
        world.arrive_later(arrives, target, inner)
        return target
    world.copy(source._index, "D2H", source._inner.nbytes, pinned=False, blocking=True)
    return inner


def _read_scalar(func, args, kwargs):
    source = args[0]
    world.copy(source._index, "D2H", source._inner.nbytes, pinned=True, blocking=True)
    return func(source._inner)


def _change_view(func, args, kwargs):
    """`unsqueeze_`, `t_`, … : the values and the wrapper change in the same way."""
    tensor = args[0]
    func(tensor._inner, *args[1:], **kwargs)
    _refresh(tensor)
    return tensor


def _pack(func, args, kwargs):
    """Lengths stay on the CPU, as on CUDA."""
    packed, batch_sizes = func(args[0]._inner, *args[1:], **kwargs)
    world.kernel(args[0]._index, "pack_padded_sequence", 0, 2 * packed.nbytes)
    return adopt(packed, args[0]._index), batch_sizes


_SPECIAL = {
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
