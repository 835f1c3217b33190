"""Tensor on the simulated GPU: a wrapper over a CPU tensor, and the attributes that Python reads from it.

For C++ a tensor on `sim:1` is a tensor on `meta:1`, because PyTorch's engine needs no device guard there: an exception
in a backward pass stays an exception. Python sees `sim:1`. A `meta` device with an index therefore always means `sim`.
"""

import copy
import functools
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Concatenate, NoReturn, ParamSpec, SupportsIndex, TypeVar

import numpy as np
import torch

from simgpu.device import cpu_fallback, state
from simgpu.device.layouts import SPARSE, Layout
from simgpu.device.state import Device, device_of
from simgpu.ground import device_kind, sparse
from simgpu.ground.torch_internals import BASE, TORCH, call_traced, is_tracing
from simgpu.machine.prices import Cost

CPU = torch.device("cpu")
_Keys, _Key = TORCH._C.DispatchKeySet, TORCH._C.DispatchKey
KEYS = _Keys(_Key.AutocastPrivateUse1) | _Keys(_Key.AutocastCUDA) | _Keys(_Key.AutocastMPS) | _Keys(_Key.AutocastXPU)
OURS = ("_inner", "_index", "_layout")
make = torch.Tensor._make_wrapper_subclass
_P = ParamSpec("_P")
_R = TypeVar("_R")


def shown_to_modes(method: "Callable[Concatenate[SimTensor, _P], _R]") -> "Callable[Concatenate[SimTensor, _P], _R]":
    """Show this method to function modes, such as that of `counting`, as torch.Tensor's own."""

    @functools.wraps(method)
    def shown(self: "SimTensor", *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(shown, (self,), self, *args, **kwargs)
        if is_tracing():
            return call_traced(method, self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return shown


_BUILDER = "torch._dynamo.variables.builder"
_TOLD = {"torch.nn.modules.module": None, _BUILDER: ("_wrap", "infer_subclass_type")}  # module: its functions, or all


class _VisibleTo:
    """Descriptor that exposes the wrapper protocol only to the callers that need it.

    - `Module.to` swaps parameters that are wrappers, so that they keep their identity, as on CUDA.
    - Dynamo traces wrappers; what it asks next must say that this is one tensor, not several.
    - Libraries look for the storage that tensors share.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, tensor: Any, owner: type) -> Any:
        asks = sys._getframe(1)
        while asks.f_back is not None and asks.f_globals.get("__name__") == "torch.utils._python_dispatch":
            asks = asks.f_back
        name = asks.f_globals.get("__name__", "")
        functions = _TOLD.get(name, ())
        if name.startswith("torch.") and functions is not None and asks.f_code.co_name not in functions:
            raise AttributeError("a tensor on the simulated GPU is one tensor for PyTorch")
        return functools.partial(self._method, tensor)


def _refuse_to_be_made(*about: object) -> NoReturn:
    raise NotImplementedError("a tensor on the simulated GPU cannot be put together of others")


def refuse_gradient(of_gradient: torch.device, of_tensor: torch.device) -> NoReturn:
    """Raise as `THPVariable_set_grad` in python_variable.cpp for a gradient on another device than its tensor."""
    which, gradient, tensor = "with device type", of_gradient.type, of_tensor.type
    if gradient == tensor:
        which, gradient, tensor = "located on device with index", str(of_gradient.index), str(of_tensor.index)
    words = f"attempting to assign a gradient {which} '{gradient}' to a tensor {which} '{tensor}'"
    raise RuntimeError(f"{words}. Please ensure that the gradient and the tensor are on the same device")


class SimTensor(torch.Tensor):
    """A tensor whose values live in `_inner`, a CPU tensor, and whose device is the simulated GPU `_index`.

    Its methods are those of `torch.Tensor` that C++ would answer for the device `meta`; its operators are run by
    `operators.dispatch`.
    """

    __module__ = "torch"  # by which libraries for several frameworks, such as autoray, tell whose an array is
    _inner: torch.Tensor
    _index: int
    _layout: Any  # a `Layout`, None until somebody asks for it, or SPARSE
    __torch_dispatch__: Any  # `operators.dispatch`
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __new__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A parameter here is of this class, and libraries make another one by `type(parameter)(data, …)`."""
        if "requires_grad" in kwargs:
            return torch.nn.Parameter(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    device: Any = property(lambda self: state.world.devices[self._index])
    is_meta: Any = property(lambda self: False)
    is_sim = property(lambda self: True)
    is_cuda: Any = property(lambda self: device_kind.kind == "cuda")
    is_mps: Any = property(lambda self: device_kind.kind == "mps")
    is_xpu: Any = property(lambda self: device_kind.kind == "xpu")

    def get_device(self) -> int:
        return self._index

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        anew = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        other = kwargs.pop("other", None)
        if other is not None:
            args = (other.device, other.dtype, *args)
        if len(args) > 2 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
            args, anew = args[:-1], args[-1]
        device, dtype, non_blocking, memory_format = TORCH._C._nn._parse_to(*args, **kwargs)
        if device is not None and device_kind.is_ours(device):
            device = state.world.meta_devices[device_of(device)]
        keywords = {"device": device, "memory_format": memory_format}
        keywords = {name: value for name, value in keywords.items() if value is not None}
        return BASE.to(self, dtype=dtype or self.dtype, non_blocking=non_blocking, copy=anew, **keywords)

    # the stub lets `dtype` stand by place, which PyTorch itself refuses
    def new_tensor(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, data: Any, *, dtype: torch.dtype | None = None, device: Device = None, requires_grad: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        device = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad, **kwargs)

    # the stub names the one argument, which PyTorch itself takes by place
    def new(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, device: Device = None
    ) -> torch.Tensor:
        if device is not None and not device_kind.is_ours(torch.device(device)):
            raise RuntimeError(f"Expected a '{device_kind.kind}' device for new, but found {device}")
        if self._layout is SPARSE:
            return torch.sparse_coo_tensor(*args or ((0,),), dtype=self.dtype, device=device or self.device)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].detach()
        if len(args) == 1 and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
            return self.new_tensor(args[0], device=device)
        return self.new_empty(*args or (0,), device=device)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    @shown_to_modes
    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        cache, storage = state.world.memory.gpus[self._index].cache, self.untyped_storage()
        if cache is None or not storage.nbytes():
            return self._inner.data_ptr()
        return cache.address(state.world.memory.live[storage._cdata]) + self.storage_offset() * self.itemsize

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._inner.untyped_storage()

    def storage(self) -> torch.TypedStorage:
        return self._inner.storage()

    def record_stream(self, s: Any) -> None:
        """Keep the caching allocator, where it is on, from reusing the memory before the stream `s` is done with it."""
        gpu = state.world.memory.gpus[self._index]
        if device_kind.kind == "mps":
            raise cpu_fallback.missing("record_stream")
        if state.world.clock.races is not None:
            state.world.clock.races.share(self, (self._index, s.stream_id))
        if gpu.cache is not None:
            gpu.cache.record_stream(state.world.memory.live[self.untyped_storage()._cdata], s.stream_id)

    def is_pinned(self, device: Device = None) -> bool:
        return False

    def pin_memory(self, device: Device = None) -> NoReturn:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def share_memory_(self) -> NoReturn:
        raise RuntimeError("a tensor on the simulated GPU cannot be shared between processes: share tensor.cpu()")

    def type(self, dtype: str | torch.dtype | None = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return f"torch.{device_kind.kind}." + self._inner.type().rpartition(".")[2]
        return self.to(dtype, non_blocking=non_blocking) if isinstance(dtype, torch.dtype) else super().type(dtype)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise BufferError(f"a tensor on {self.device} cannot be given to another library: use tensor.cpu()")

    def _set_data(self, new: torch.Tensor) -> None:
        if not isinstance(new, SimTensor):
            raise RuntimeError(f"cannot assign a tensor on {new.device} to .data of a tensor on {self.device}")
        BASE.data.__set__(self, new)
        self._inner, self._index, self._layout = new._inner, new._index, new._layout

    def _set_grad(self, new: torch.Tensor | None) -> None:
        if isinstance(new, torch.Tensor) and new.device != self.device:
            refuse_gradient(new.device, self.device)
        BASE.grad.__set__(self, new)

    # what `data` gives shares no version counter, so autograd does not see changes
    data: Any = property(lambda self: BASE.data.__get__(self), _set_data)
    grad: Any = property(lambda self: BASE.grad.__get__(self), _set_grad, lambda self: BASE.grad.__delete__(self))

    @shown_to_modes
    def __repr__(self, *, tensor_contents: object = None) -> str:
        with torch.no_grad():
            text = repr(self.detach().cpu())[:-1]
        extra = f"device='{self.device}'"
        if self.grad_fn is not None:
            extra += f", grad_fn=<{self.grad_fn.name()}>"
        elif self.requires_grad:
            extra += ", requires_grad=True"
        joint = ", " if len(text) - text.rfind("\n") + len(extra) < 78 else ",\n       "
        return ("Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else "") + text + joint + extra + ")"

    @shown_to_modes
    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[Any, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment."
            )
        if isinstance(self, torch.nn.Parameter):  # as PyTorch does: without gradient and attributes
            clone = self.data.clone(memory_format=torch.preserve_format)
            new = memo[id(self)] = torch.nn.Parameter(clone, self.requires_grad)
            return new
        if self._layout is SPARSE:
            memo[id(self)] = copied = adopt(self._inner.clone(), self._index).requires_grad_(self.requires_grad)
            return copied
        if device_kind.kind == "mps":  # there PyTorch copies the tensor, not the storage that others may share
            inner = self._inner.detach().clone()
        else:
            storage, inner = self.untyped_storage(), torch.empty(0, dtype=self.dtype, device=CPU)
            if state.world.only_shapes:  # nothing is copied: PyTorch takes what it finds here for the copy
                memo.setdefault("torch", {}).setdefault(storage._cdata, torch.UntypedStorage(storage.nbytes()))
            inner.set_(copy.deepcopy(storage, memo), self.storage_offset(), self.shape, self.stride())
        new: Any = adopt(inner, self._index)
        state.world.clock.kernel(self._index, "copy_", Cost(0, 2 * inner.nbytes))
        new = new.conj_physical() if self.is_conj() else new.neg() if self.is_neg() else new
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy({k: v for k, v in self.__dict__.items() if k not in OURS}, memo))
        if self.grad is not None:
            new.grad = self.grad.__deepcopy__(memo)
        return new

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        state.world.clock.report(math.inf)
        if state.forked:
            raise RuntimeError("a tensor on the simulated GPU cannot leave a worker process: return a CPU tensor")
        if self._layout is SPARSE:
            coo = self.layout is torch.sparse_coo
            about = (*sparse.parts(self), self.size(), *([self.is_coalesced()] if coo else []))
            return TORCH._utils._rebuild_sparse_tensor, (self.layout, about)
        storage = torch.storage.TypedStorage(wrap_storage=self.untyped_storage(), dtype=self.dtype, _internal=True)
        args = (storage, self.storage_offset(), tuple(self.shape), self.stride(), self.requires_grad, {})
        bits = TORCH._utils.get_tensor_metadata(self)  # of a conjugate or negative view
        args += (bits,) if bits else ()
        if isinstance(self, torch.nn.Parameter):
            tensor = _Rebuilt(TORCH._utils._rebuild_tensor_v2, (*args[:4], False, *args[5:]))
            return TORCH._utils._rebuild_parameter, (tensor, self.requires_grad, {})
        return TORCH._utils._rebuild_tensor_v2, args

    def __coerce_same_metadata_as_tangent__(self, *expected: object) -> torch.Tensor:
        """Say that this may be a gradient where a compiled graph expects a plain tensor."""
        return self

    __tensor_flatten__: Any = _VisibleTo(lambda self: (["_inner"], None))
    __tensor_unflatten__: Any = _VisibleTo(lambda self: _refuse_to_be_made)


SimTensor.__name__ = "Tensor"  # as errors of Python and C++ call the type


def _indices(index: Any, device: torch.device) -> Any:
    """Return `index` with a tensor for each sequence of numbers in it, by PyTorch's rule of what is one."""
    parts = torch.Tensor, list, tuple, range, slice, type(...), type(None)
    if isinstance(index, tuple):
        return tuple(_numbers(item, device) for item in index)
    if isinstance(index, list) and len(index) < 32 and any(isinstance(item, parts) for item in index):
        return [_numbers(item, device) for item in index]
    return _numbers(index, device)


def _numbers(item: Any, device: torch.device) -> Any:
    if isinstance(item, torch.Tensor) or not (isinstance(item, list | tuple | range) or getattr(item, "ndim", 0)):
        return item
    return torch.tensor(item, dtype=None if len(item) else torch.int64, device=device)


# A list among indices becomes a tensor in C++, which makes it on `meta` and from 2.15 on never writes it
_LISTS_AS_TENSORS = tuple(map(int, torch.__version__.split(".")[:2])) > (2, 13)


@shown_to_modes
def _get(self: SimTensor, index: Any) -> torch.Tensor:
    return BASE.__getitem__(self, _indices(index, self.device))


@shown_to_modes
def _set(self: SimTensor, index: Any, value: Any) -> None:
    """Assign; a number begins on the CPU, as on CUDA (applySlicing's caller in python_variable_indexing.cpp)."""
    if isinstance(value, int | float | complex):
        value = torch.scalar_tensor(value, dtype=self.dtype, device=CPU)
    return BASE.__setitem__(self, _indices(index, self.device) if _LISTS_AS_TENSORS else index, value)


SimTensor.__setitem__ = _set
if _LISTS_AS_TENSORS:
    SimTensor.__getitem__ = _get


class _Rebuilt:
    """Pickles as the tensor that calling `function(*args)` gives."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


class NoNestedTensorsError(NotImplementedError):
    """A nested tensor was asked for on a simulated GPU."""


def as_sim(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner`, whose storage is accounted already, as a tensor on simulated GPU `index`."""
    if inner.is_quantized:
        raise NotImplementedError("the simulated GPU has no quantized tensors: quantize on the CPU")
    if inner.is_nested:
        raise NoNestedTensorsError(
            "the simulated GPU has no nested tensors: give nn.TransformerEncoder enable_nested_tensor=False"
        )
    if inner.layout is not torch.strided:
        return _as_sparse(inner, index)
    tensor = dense(inner, index)
    if inner.dtype.is_complex and inner.is_conj():
        torch._C._set_conj(tensor, True)
    if inner.is_neg():
        torch._C._set_neg(tensor, True)
    return tensor


def dense(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner`, dense and no conjugate or negative view, whose bytes are accounted, as `as_sim` does."""
    if device_kind.limits:
        device_kind.refuse_tensor(inner.dtype)
    device = state.world.meta_devices[index]
    tensor: Any = make(
        SimTensor, inner.size(), inner.stride(), inner.storage_offset() or None, None, inner.dtype, torch.strided,
        device, False, False, None, False, False, KEYS,
    )  # fmt: skip
    tensor._inner, tensor._index, tensor._layout = inner, index, None
    return tensor


def of_layout(inner: torch.Tensor, layout: Layout) -> SimTensor:
    """Return `inner` as `dense` does, where its layout is known.

    Arguments go by place, since most results of operators pass here and names take C++ a quarter of the time.
    """
    tensor: Any = make(
        SimTensor, layout.sizes, layout.strides, inner.storage_offset() or None, None, layout.dtype, torch.strided,
        layout.device, False, False, None, False, False, KEYS,
    )  # fmt: skip
    tensor._inner, tensor._index, tensor._layout = inner, layout.index, layout
    return tensor


def _as_sparse(inner: torch.Tensor, index: int) -> SimTensor:
    """Return sparse values as a tensor on simulated GPU `index`; for C++ an empty sparse one whose device Python says.

    Its indices and values are accounted by `adopt` and by operators, since it has no storage of its own.
    """
    if inner.layout not in sparse.LAYOUTS:
        raise NotImplementedError(
            f"the simulated GPU has no tensors of layout {inner.layout}: use dense ones, or layouts COO, CSR and CSC"
        )
    device_kind.refuse_tensor(inner.dtype)
    if device_kind.kind == "mps" and inner.layout is not torch.sparse_coo:
        raise NotImplementedError(f"Could not run 'new_compressed_tensor' from the '{state.world.devices[0]}' device.")
    shell = torch.empty(inner.shape, layout=inner.layout, dtype=inner.dtype, device="meta")
    tensor: Any = TORCH.Tensor._make_subclass(SimTensor, shell, False, dispatch_device=True)
    tensor._inner, tensor._index, tensor._layout = inner, index, SPARSE
    return tensor


def own(inner: torch.Tensor, index: int) -> bool:
    """Account the parts of a dense or sparse tensor to GPU `index`; return whether any is new."""
    if inner.layout is torch.strided:
        return state.world.memory.own(inner, index)
    return any([state.world.memory.own(part, index) for part in sparse.parts(inner)])


def adopt(inner: torch.Tensor, index: int) -> SimTensor:
    """Return `inner` as a tensor on simulated GPU `index`, its storage accounted there."""
    if inner.layout in (torch.strided, *sparse.LAYOUTS) and not inner.is_nested:
        own(inner, index)
    return as_sim(inner, index)


def refresh(tensor: SimTensor) -> None:
    """Make shape, strides and bits of the wrapper equal to those of its values, which an operation has changed."""
    inner = tensor._inner
    if tensor._layout is SPARSE:
        own(inner, tensor._index)
        return
    state.world.memory.own(inner, tensor._index)
    if state.world.clock.failure is not None:
        state.world.clock.failure.sound.pop(inner.untyped_storage()._cdata, None)
    if tensor.shape != inner.shape or tensor.stride() != inner.stride():
        # in inference mode too, a tensor made outside stays an ordinary one
        outside = torch.is_inference_mode_enabled() and not tensor.is_inference()
        with torch.inference_mode(False) if outside else nullcontext():
            BASE.data.__set__(tensor, as_sim(inner, tensor._index))
        tensor._layout = None
    if inner.dtype.is_complex and tensor.is_conj() != inner.is_conj():  # lu_solve sets it, given out=
        torch._C._set_conj(tensor, inner.is_conj())


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor that holds the values of a tensor on a simulated GPU; any other tensor as it is.

    The two share their memory, and the clock does not notice: for those who measure and check, not for programs.
    """
    return tensor._inner if isinstance(tensor, SimTensor) else tensor
