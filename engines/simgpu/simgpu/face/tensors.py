"""Tensors of a device that a program calls `cuda`, `mps` or `xpu`.

PyTorch's factories ask the dispatcher, where `register_kernels` answers for that kind's key. Functions written in C++
that move a tensor, such as `Tensor.to` and `torch.tensor`, ask for a device guard instead, which a process without
such a device has not: those are replaced by Python functions that name the simulated GPU and call them.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _device

from simgpu.device import dispatcher, state
from simgpu.device.state import Device
from simgpu.device.tensor import SimTensor, refuse_gradient, shown_to_modes
from simgpu.device.torch_functions import device_of_wrapper
from simgpu.face import batch_norm
from simgpu.ground import device_kind, fakes
from simgpu.ground.autocast import operator_of, register_rules, see_wrapped_tensors
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import BASE, TORCH, Args, Kwargs, Operator, call_traced, is_tracing

_kept: dict[str, torch.library.Library] = {}  # by kind of device; keeps the registrations alive
MAKE = ("tensor", "as_tensor", "asarray", "range", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
         "sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor")  # fmt: skip
_OUT = "zeros ones full empty rand randn randint randperm eye arange range linspace logspace normal".split()  # noqa: SIM905


def lead(device: Any) -> Any:
    """Return the simulated GPU that `device`, as a program gives it, means under its kind's name; others as they are.

    For C++ the devices of fake tensors are `meta`. Raises `torch.AcceleratorError` for one that does not exist.
    """
    if type(device) is str and device.startswith(device_kind.kind):
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type != device_kind.kind:
        return device
    return torch.device("meta" if fakes.are_made() else "sim", state.device_of(device.index))


def register_kernels() -> None:
    """Register a kind with factories and autocast, once a process; without the face nothing changes."""
    kind = device_kind.current
    if kind.name in _kept:
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # PyTorch's kernels and rules, which know tensors of C++ alone, are overridden
        warnings.simplefilter("ignore")
        for name in dispatcher.FACTORIES:
            library.impl(name, functools.partial(_make, kind, operator_of(name)), kind.key, allow_override=True)
        dispatcher.register_sparse_factories(library, kind.key)
        if kind.name == "cuda":
            batch_norm.register(library)
        register_rules(library, kind.name)
    see_wrapped_tensors(kind.name)
    _kept[kind.name] = library


def _make(kind: device_kind.Kind, operator: Operator, *args: Any, **kwargs: Any) -> torch.Tensor:
    if device_kind.kind != kind.name:
        getattr(getattr(torch, kind.name), "_lazy_init", int)()  # says why there is no such device here
        raise NotImplementedError(
            f"Could not run '{operator.name()}' with arguments from the '{kind.key}' backend: simgpu.{kind.name}() is "
            "not on"
        )
    return dispatcher.make(operator, *args, **kwargs)


def replace(put: Replacements) -> None:
    """Replace the functions that move tensors and those that ask which device is the default."""
    _device._device_constructors()  # remembers the functions that it is asked about: PyTorch's, not ours
    known = TORCH.jit._builtins._get_builtin_table()  # TorchScript knows operators by the identity of their functions
    for name in (*MAKE, *_OUT):
        plain = getattr(torch, name)
        put.put(torch, **{name: (_comparing if name in _OUT else _leading)(plain)})
        if id(plain) in known:
            put.put_item(known, id(getattr(torch, name)), known[id(plain)])
    put.put(torch, kaiser_window=by_way_of_the_cpu(torch.kaiser_window))
    for name in ("nested_tensor", "as_nested_tensor"):
        put.put(torch.nested, **{name: _refusing(getattr(torch.nested, name))})
    put.put(torch.Tensor, to=_to, type=_type, new_tensor=_leading(torch.Tensor.new_tensor))
    asked = f"is_{device_kind.kind}"
    asks = property(functools.partial(_is_of_kind, getattr(BASE, asked).__get__, device_kind.kind))
    put.put(torch.Tensor, record_stream=_record_stream, **{asked: asks})
    if device_kind.kind != "mps":  # which has no method of its own
        put.put(torch.Tensor, **{device_kind.kind: _to_current(getattr(BASE, device_kind.kind))})
        put.put(SimTensor, share_memory_=lambda self: self, is_shared=lambda self: True)  # sending is refused
    for kind in (torch.Tensor, SimTensor):
        put.put(kind, data=_across_devices(kind.data))
    put.put(torch.Tensor, grad=_Gradient(BASE.grad.__get__, _set_gradient, BASE.grad.__delete__))
    put.put(_device.DeviceContext, __torch_function__=_in_context)


def _is_of_kind(plain: Callable[[torch.Tensor], bool], kind: str, tensor: torch.Tensor) -> bool:
    return plain(tensor) or device_of_wrapper(tensor).type == kind


def _leading(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its argument `device` led to the simulated GPU."""

    @functools.wraps(function)
    def led(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = lead(kwargs["device"])
        return call_traced(function, *args, **kwargs) if is_tracing() else function(*args, **kwargs)

    return led


def _comparing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory that takes `device` beside `out`, a simulated GPU in both, which C++ takes for `meta`."""

    @functools.wraps(function)
    def compared(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None or kwargs.get("out") is None:
            return function(*args, **kwargs)
        if device_kind.is_ours(torch.device(kwargs["device"])):
            kwargs["device"] = "meta"
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            raise RuntimeError(str(error).replace("meta", device_kind.kind)) from None

    return compared


def by_way_of_the_cpu(function: Callable[..., Any], name: str = "device", *places: str) -> Callable[..., Any]:
    """Return `function`, for which a simulated GPU has no kernel, with its result copied where `name` says.

    `places` are the names of what it takes by place.
    """

    @functools.wraps(function)
    def moved(*args: Any, **kwargs: Any) -> Any:
        kwargs, args = dict(zip(places, args, strict=False)) | kwargs, args[len(places) :]
        target = lead(kwargs.get(name))
        if not isinstance(target, torch.device) or target.type != "sim":
            return function(*args, **kwargs)
        return function(*args, **kwargs | {name: "cpu"}).to(target)

    return moved


_NOT_NESTED = "NestedTensorImpl storage must be either CUDA, CPU, XPU or privateuseone but got mps:0"


def _refusing(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def refused(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        target = lead(device)
        if isinstance(target, torch.device) and target.type == "sim":
            if device_kind.kind == "mps":
                raise RuntimeError(_NOT_NESTED)
            raise NotImplementedError("the simulated GPU has no nested tensors: use padded ones there")
        return function(*args, device=device, **kwargs)

    return refused


def _across_devices(plain: Any) -> property:
    """Return the attribute `data`, to which CUDA lets a program assign a tensor on another device."""

    def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(new, SimTensor) == isinstance(tensor, SimTensor):
            plain.__set__(tensor, new)
            return
        gradient, needed = tensor.grad, tensor.requires_grad
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        twin = torch.nn.Parameter(new.detach(), needed) if is_parameter else new.detach().requires_grad_(needed)
        torch.utils.swap_tensors(tensor, twin)
        if gradient is not None:
            tensor.grad = gradient.to(new.device)

    return property(plain.__get__, assign)


class _Gradient(property):
    """The attribute `grad`: before PyTorch 2.12 its compiler asks the getter whose it is, and a property cannot say."""

    __objclass__ = torch.Tensor


def _set_gradient(tensor: torch.Tensor, new: torch.Tensor | None) -> None:
    if type(new) is SimTensor and device_of_wrapper(tensor).type == "cpu":
        refuse_gradient(new.device, tensor.device)
    BASE.grad.__set__(tensor, new)


@functools.wraps(BASE.to)
def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args:
        args = (lead(args[0]), *args[1:])
    if kwargs.get("device") is not None:
        kwargs["device"] = lead(kwargs["device"])
    return BASE.to(self, *args, **kwargs)


def _to_current(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the method that is called as the kind of device, such as `Tensor.cuda`."""
    return shown_to_modes(functools.wraps(plain)(_moved))


def _moved(
    self: torch.Tensor, device: Device = None, non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:  # fmt: skip
    kind = device_kind.kind
    if isinstance(device, str | torch.device) and torch.device(device).type != kind:
        raise RuntimeError(f"Invalid device, must be {kind} device")
    index = state.device_of(device)
    return self.to(lead(torch.device(kind, index)), non_blocking=non_blocking, memory_format=memory_format)


_record_stream_before = torch.Tensor.record_stream


@functools.wraps(_record_stream_before)
def _record_stream(self: torch.Tensor, s: Any) -> None:
    if self.device.type == "cpu":
        raise NotImplementedError("Could not run 'aten::record_stream' with arguments from the 'CPU' backend.")
    _record_stream_before(self, s)


_type_before = torch.Tensor.type


@functools.wraps(_type_before)
def _type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """Also for the names of old, such as "torch.cuda.FloatTensor", which say device and number format together."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "cuda_name", "")
    if not name.startswith("torch.cuda."):
        return _type_before(self, dtype, non_blocking, **kwargs)
    return self.to(torch.device("sim", state.device_of(None)), FORMATS[name.rpartition(".")[2]], non_blocking)


def _in_context(
    self: _device.DeviceContext, function: Callable[..., Any], types: Sequence[type], args: Args = (),
    kwargs: Kwargs | None = None,
) -> Any:  # fmt: skip
    kwargs = dict(kwargs or {})
    if function in _device._device_constructors() and kwargs.get("device") is None:
        kwargs["device"] = lead(self.device)
        function = _comparing(function) if "out" in kwargs else function
    return function(*args, **kwargs)


FORMATS = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16,
    "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


@functools.cache  # once a process, as `Tensor_new` in torch/csrc/tensor/python_tensor.cpp
def _warn_of_old_types() -> None:
    warnings.warn(
        "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
        "torch.tensor(data, dtype=*, device='cuda') to create tensors.",
        UserWarning, stacklevel=3,
    )  # fmt: skip


class _OldType(type):
    """Of `torch.cuda.FloatTensor` and its kin: no tensors are of these classes, but `isinstance` answers."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is FORMATS[cls.__name__]

    def __call__(cls, *given: Any, device: Device = None) -> torch.Tensor:
        (_warn_of_old_types.__wrapped__ if torch.is_warn_always_enabled() else _warn_of_old_types)()
        return cls.make(*given, device=device)

    def make(cls, *given: Any, device: Device = None) -> torch.Tensor:
        """Return a tensor of this type, without a warning."""
        target, dtype = torch.device("sim", state.device_of(device)), FORMATS[cls.__name__]
        if len(given) == 1 and not isinstance(given[0], int | torch.Size):
            return torch.tensor(given[0], device=target, dtype=dtype)
        return torch.empty(*given or (0,), device=target, dtype=dtype)


OLD_TYPES = {name: _OldType(name, (), {"cuda_name": f"torch.cuda.{name}", "dtype": FORMATS[name]}) for name in FORMATS}
