"""What does Python get that asks a tensor on the simulated GPU for its device, its values or a copy?"""

from __future__ import annotations

import functools

import torch

from course_utils.simulator import state
from course_utils.simulator.state import device_of

__all__ = ["TensorMethods"]

_CPU = torch.device("cpu")


def _shown_to_modes(method):
    """Let function modes, such as that of `counting`, see this method as they see torch.Tensor's own."""

    @functools.wraps(method)
    def shown(self, *args, **kwargs):
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(shown, (self,), self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return shown


class TensorMethods:
    """The methods of `torch.Tensor` that C++ would answer for the device `meta`."""

    device = property(lambda self: state.sim_devices[self._index])
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
            device = state.meta_devices[device_of(device)]
        if torch.is_inference_mode_enabled():  # there `to` comes whole, and nobody would take it apart
            return self._to_in_inference_mode(device, dtype, non_blocking, copy, memory_format)
        keywords = {"non_blocking": non_blocking, "copy": copy}
        if memory_format is not None:
            keywords["memory_format"] = memory_format
        if device is not None:
            keywords["device"] = device
        return torch._C.TensorBase.to(self, dtype=dtype or self.dtype, **keywords)

    def _to_in_inference_mode(self, device, dtype, non_blocking, copy, memory_format):
        stays = device in (None, state.meta_devices[self._index]) and dtype in (None, self.dtype)
        ordered = memory_format in (None, torch.preserve_format) or self.is_contiguous(memory_format=memory_format)
        if stays and ordered and not copy:
            return self
        device = state.meta_devices[self._index] if device is None else device
        keywords = {"device": device, "non_blocking": non_blocking, "memory_format": memory_format}
        return torch.ops.aten._to_copy(self, dtype=dtype or self.dtype, **keywords)

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

    def record_stream(self, stream) -> None:
        """Nothing to do: memory here is never handed on while a queue still uses it."""

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
        return torch._C.TensorBase.data.__get__(self)  # shares no version counter, so autograd does not see changes

    @data.setter
    def data(self, new):
        if not isinstance(new, TensorMethods):
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

    @property
    def grad(self):
        return torch._C.TensorBase.grad.__get__(self)

    @grad.setter
    def grad(self, new):
        if isinstance(new, torch.Tensor) and new.device != self.device:
            raise RuntimeError(
                f"attempting to assign a gradient on {new.device} to a tensor on {self.device}. Please ensure that the "
                "gradient and the tensor are on the same device"
            )
        torch._C.TensorBase.grad.__set__(self, new)

    @grad.deleter
    def grad(self):
        torch._C.TensorBase.grad.__delete__(self)

    # ---- copying and saving -----------------------------------------------------------------------------------
    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment."
            )
        storage = self._inner.untyped_storage().__deepcopy__(memo)
        inner = torch.empty(0, dtype=self.dtype, device=_CPU)
        inner.set_(storage, self.storage_offset(), self.shape, self.stride())
        new = type(self).adopt(inner, self._index)
        state.world.kernel(self._index, "copy_", 0, 2 * inner.nbytes)
        new.requires_grad_(self.requires_grad)
        memo[id(self)] = new
        new.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_inner", "_index", "_nbytes")})
        if self.grad is not None:
            new.grad = self.grad.__deepcopy__(memo)
        return new

    def __reduce_ex__(self, protocol):
        if state.forked:
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
