"""Patches of PyTorch's Python functions, so that files, modules and torch.accelerator know `sim`."""

import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from simgpu.clock import capture
from simgpu.device import generators, pinning, scripts, state, subclasses
from simgpu.device.state import device_of
from simgpu.device.tensor import OURS, SimTensor, values_of
from simgpu.ground import device_kind, fakes
from simgpu.ground.nodes import graph_nodes, graph_of, here
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import BASE, TORCH

_Lazy = TORCH.nn.parameter.UninitializedTensorMixin
_Change: TypeAlias = Callable[[torch.Tensor], torch.Tensor]  # what `.to`, `.half` … do with each tensor of a module


def replace_functions(put: Replacements, module: ModuleType) -> None:
    """Replace them all; `module` is `torch.sim`."""
    subclasses.replace_functions(put)
    put.append(TORCH.serialization._package_registry, (5, _location, _restore))
    TORCH.serialization._package_registry.sort()
    pinning.replace_functions(put)
    put.put(
        torch.UntypedStorage, __new__=staticmethod(_new_storage), resize_=_resize, clone=_clone,
        device=property(_device_of_storage),
    )  # fmt: skip
    put.put(torch.Tensor, device=property(device_of_wrapper))
    put.put(torch.utils, swap_tensors=_swap)
    put.put(TORCH._utils, set_tensor_metadata=_set_metadata)
    put.put(torch.nn.Module, _apply=_apply)
    put.put(_Lazy, sim_index=None, device=property(_device_of_lazy), materialize=_materialize)
    for kind in (UninitializedParameter, UninitializedBuffer):
        put.put(kind, __new__=_new_lazy(kind.__new__))
    put.put(UninitializedParameter, __deepcopy__=_copy_lazy)
    generators.replace(put)
    scripts.replace(put)
    # as a file is loaded; C++ would see `meta`
    check = _of_values(TORCH._validate_sparse_compressed_tensor_args)
    put.put(torch, _validate_sparse_compressed_tensor_args=check)
    _lead_accelerator_to(put, module)
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    # as on CUDA, an optimizer step is a few operations over lists of tensors
    put.append(optimizers._foreach_supported_types, SimTensor)
    put.append(TORCH.utils._foreach_utils._foreach_supported_types, SimTensor)  # clipping has a list of its own
    clip_grad: Any = importlib.import_module("torch.nn.utils.clip_grad")
    grouped = _on_devices_of_ours(clip_grad._group_tensors_by_device_and_dtype)
    put.put(clip_grad, _group_tensors_by_device_and_dtype=grouped)
    if not hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        remember_allocator_settings(put)
    put.put(torch.autograd, _engine_run_backward=_in_words_of_sim(TORCH.autograd._engine_run_backward))
    passes: Any = TORCH.autograd.function.BackwardCFunction
    put.put(passes, apply=_on_devices_of_inputs(passes.apply))
    TORCH.multiprocessing.reductions.reduction.ForkingPickler.register(SimTensor, _refuse_to_leave)


def _on_devices_of_ours(group: Callable[..., dict[tuple[torch.device, torch.dtype], Any]]) -> Callable[..., Any]:
    """Return `group`, which sorts tensors by device and format, with simulated GPUs where C++ sees `meta:0` …"""

    def grouped(*args: Any, **kwargs: Any) -> Any:
        found = group(*args, **kwargs).items()
        ours = state.world.devices
        return {
            (ours[at.index] if at.type == "meta" and at.index is not None else at, f): rest for (at, f), rest in found
        }

    return grouped


def _refuse_to_leave(tensor: SimTensor) -> NoReturn:
    if device_kind.kind == "mps":
        raise RuntimeError("_share_filename_: only available on CPU")
    raise RuntimeError("a tensor on the simulated GPU cannot be sent to another process: send tensor.cpu()")


def _of_values(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to receive the CPU tensors behind tensors on simulated GPUs."""

    @wraps(plain)
    def called(*args: Any, **options: Any) -> Any:
        return plain(*map(values_of, args), **options)

    return called


def remember_allocator_settings(put: Replacements) -> None:
    """Return the allocator's settings on PyTorch 2.11 as later versions do."""
    told = [os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))]
    take = torch._C._accelerator_setAllocatorSettings

    def remembered(text: str) -> None:
        take(text)
        told[:] = [text]

    put.put(
        torch._C, _accelerator_setAllocatorSettings=remembered, _accelerator_getAllocatorSettings=lambda: told[0]
    )  # fmt: skip


def _refuse(words: str, *args: object) -> NoReturn:
    raise RuntimeError(words)


def _in_words_of_sim(run: Callable[..., Any]) -> Callable[..., Any]:
    """Name tensors in errors of the backward pass as on CUDA, torch.sim.FloatTensor, not by C++'s names."""

    @wraps(run)
    def named(*args: Any, **kwargs: Any) -> Any:
        quiet = state.world.clock.quiet
        _refuse_other_devices(*args[:2])
        if state.world.clock.capture is not None:
            capture.refuse_stale(graph_nodes(map(graph_of, args[0])))
        before, here.create_graph = here.create_graph, bool(args[3] if len(args) > 3 else kwargs.get("create_graph"))
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            error.args = (device_kind.in_words(str(error)),)
            raise
        finally:
            here.create_graph = before
            state.world.clock.quiet = quiet  # also where a node of a compiled graph raised

    return named


def _refuse_other_devices(outputs: Sequence[Any], gradients: Sequence[Any] = ()) -> None:
    """Raise as `validate_outputs` in autograd/engine.cpp where a gradient is on another device than what it is of.

    A number is moved there. C++ does not ask where one of the two is of a subclass of Tensor.
    """
    for place, (output, gradient) in enumerate(zip(outputs, gradients, strict=False)):
        edge = not isinstance(output, torch.Tensor)  # `GradientEdge`, which schedules of pipelines give
        if edge or not (isinstance(output, SimTensor) or isinstance(gradient, SimTensor)):
            continue
        if isinstance(gradient, torch.Tensor) and gradient.dim() > 0 and gradient.device != output.device:
            devices = f"expected device {output.device} but got {gradient.device}"
            raise RuntimeError(f"invalid gradient at index {place} - {devices}")


def _on_devices_of_inputs(run: Callable[..., Any]) -> Callable[..., Any]:
    """Raise as on CUDA for an `autograd.Function` that returns a gradient on the CPU."""

    @wraps(run)
    def checked(self: Any, *args: Any) -> Any:
        results = run(self, *args)
        several = results if isinstance(results, tuple) else (results,)
        plain = [place for place, one in enumerate(several) if type(one) is torch.Tensor and one.dim() > 0]
        if plain and several[plain[0]].device.type == "cpu":
            nodes = [node for node, _ in self.next_functions if node is not None]
            devices = [node._input_metadata[0].device for node in nodes]
            if all(device.type == "meta" and device.index is not None for device in devices):
                wanted = state.world.devices[devices[0].index]
                words = f"returned an invalid gradient at index {plain[0]} - expected device {wanted} but got cpu"
                raise RuntimeError(f"Function {type(self).__name__} {words}")
        return results

    return checked


def _lead_accelerator_to(put: Replacements, module: ModuleType) -> None:
    """C++ finds no streams behind `sim`; the Python functions of torch.accelerator are led to torch.sim instead."""
    names = {
        "current_device_index": "current_device", "current_device_idx": "current_device", "device_index": "device",
        "set_device_index": "set_device", "set_device_idx": "set_device", "get_memory_info": "mem_get_info",
        "current_stream": "", "set_stream": "", "synchronize": "", "empty_cache": "", "memory_allocated": "",
        "max_memory_allocated": "", "memory_reserved": "", "max_memory_reserved": "", "memory_stats": "",
        "reset_peak_memory_stats": "", "reset_accumulated_memory_stats": "",
    }  # fmt: skip
    for name, ours in names.items():
        if hasattr(torch.accelerator, name):
            put.put(torch.accelerator, **{name: getattr(module, ours or name)})
    original = torch.get_device_module
    wrap = wraps(original)  # torch.compile looks for what is wrapped
    put.put(torch, get_device_module=wrap(lambda device=None: original("sim" if device is None else device)))
    if not hasattr(torch._C, "_scatter"):  # a build without CUDA
        for name in ("_scatter", "_gather", "_broadcast_coalesced"):
            words = "DataParallel needs CUDA and does not work on the simulated GPU: use DistributedDataParallel"
            put.put(torch._C, **{name: partial(_refuse, words)})


_resize_plain = torch.UntypedStorage.resize_


def _resize(self: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """Account at once a storage that grows or shrinks by itself, as FSDP frees and fills the gathered parameters."""
    _resize_plain(self, nbytes)
    known = state.world.memory.live.get(self._cdata)
    if known is not None and known.nbytes != self.nbytes():
        with state.world.lock:
            state.world.memory.charge(known, self.nbytes(), known.nbytes)
    return self


class _SimStorage(torch.UntypedStorage):
    """Bytes read from a file that are to live on a simulated GPU; here they are the CPU's."""

    sim_index = 0
    device: Any = property(lambda self: state.world.devices[self.sim_index])


def _device_of_storage(storage: torch.UntypedStorage) -> torch.device:
    """Return the simulated GPU to which the account has the storage, or the device that C++ knows."""
    state.world.memory.settle()
    ref = state.world.memory.live.get(storage._cdata)
    return TORCH._C.StorageBase.device.__get__(storage) if ref is None else state.world.devices[ref.gpu.index]


_plain_device = BASE.device.__get__


def device_of_wrapper(tensor: torch.Tensor) -> torch.device:
    """Return the device; inside `torch.func` tensors are of C++'s own class, which says `meta` for a simulated GPU."""
    device = _plain_device(tensor)
    if device.index is None:  # as on the CPU: this is asked of every tensor, and the index is the quickest to ask
        return device
    if device.type != "meta" or fakes.are_made():
        return device
    functorch = TORCH._C._functorch
    if not (functorch.is_batchedtensor(tensor) or functorch.is_gradtrackingtensor(tensor)):
        return device
    return state.world.devices[device.index]


_clone_plain = torch.UntypedStorage.clone


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy; of a storage on a simulated GPU one of the CPU, which becomes the GPU's with a tensor over it."""
    if not device_kind.is_ours(storage.device):
        return _clone_plain(storage)
    return torch.UntypedStorage(storage.nbytes()).copy_(storage)


def _location(storage: Any) -> str | None:
    device = _device_of_storage(storage)
    if not device_kind.is_ours(device):
        return None
    return device.type if device_kind.current.is_single else str(device)


def _of_file(location: str) -> int:
    """Return the GPU that a file says. Raises as CUDA does where this machine has not so many."""
    index, count, kind = torch.device(location).index or 0, len(state.world.devices), device_kind.kind
    if kind in ("cuda", "xpu") and index >= count:
        raise RuntimeError(
            f"Attempting to deserialize object on {kind.upper()} device {index} but torch.{kind}.device_count() is "
            f"{count}. Please use torch.load with map_location to map your storages to an existing device."
        )
    return device_of(location)


def _restore(storage: Any, location: str) -> torch.UntypedStorage | None:
    if location.partition(":")[0] not in ("sim", device_kind.kind):
        return None
    index = _of_file(location)
    moved = _SimStorage(storage.nbytes())
    moved.copy_(storage)
    moved.sim_index = index
    state.world.clock.copy(index, "H2D", storage.nbytes(), pinned=False, blocking=True)
    return moved


_make_storage = torch.UntypedStorage.__new__


def _new_storage(cls: type[torch.UntypedStorage], *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Make a storage; one of the device itself, which C++ would try to allocate, is refused."""
    device = kwargs.get("device")
    if device is not None and device_kind.is_ours(torch.device(device)):
        raise RuntimeError("a storage alone cannot be made on the simulated GPU: make a tensor there")
    return _make_storage(cls, *args, **kwargs)


_set_bits = TORCH._utils.set_tensor_metadata


def _set_metadata(tensor: torch.Tensor, metadata: dict[str, bool]) -> None:
    """Make a tensor from a file a conjugate or negative view, and its values with it."""
    for marked in (tensor, tensor._inner) if type(tensor) is SimTensor else (tensor,):
        _set_bits(marked, metadata)


_OLD_GRAPH = (
    "this graph was made before a parameter in it moved to another device or number format: run the forward pass "
    "again after moving the model, or run backward before it"
)
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_swap_plain = torch.utils.swap_tensors
_apply_plain = torch.nn.Module._apply


@wraps(_apply_plain)
def _apply(self: torch.nn.Module, fn: _Change, recurse: bool = True) -> torch.nn.Module:
    """Patch `.to`, `.cpu`, `.half` … to swap a parameter's data, as on CUDA, not the parameter."""
    if any(isinstance(tensor, _Lazy) for tensor in (*self._parameters.values(), *self._buffers.values())):
        fn = _keep_lazy(fn)
    _leave_meta(self, fn)
    if isinstance(self, torch.jit.ScriptModule):
        return _apply_to_script(self, fn, recurse)
    ours = any(type(parameter) is SimTensor for parameter in self._parameters.values())
    if torch.__future__.get_swap_module_params_on_conversion() or not ours:
        return _apply_plain(self, fn, recurse)
    for child in self.children() if recurse else ():
        child._apply(fn)
    lazy = {name: one for name, one in self._parameters.items() if isinstance(one, _Lazy)}
    for name, parameter in lazy.items():  # there is nothing to exchange yet
        fn(parameter)  # pyright: ignore[reportArgumentType]
        self._parameters[name] = None
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _apply_plain(self, fn, False)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        self._parameters.update(lazy)


def _apply_to_script(module: Any, fn: _Change, recurse: bool) -> torch.nn.Module:
    """Replace the parameters of a TorchScript module, which C++ holds, where a swap would not reach them."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, old in module._parameters.items():
        with torch.no_grad():
            new = fn(old)
        module._parameters[name] = torch.nn.Parameter(new, old.requires_grad)
        if old.grad is not None:
            module._parameters[name].grad = fn(old.grad)
    for name, old in module._buffers.items():
        module._buffers[name] = fn(old)
    return module


def _keep_lazy(fn: _Change) -> _Change:
    """Return `fn` that notes the simulated GPU to which it would move a lazy parameter or buffer, and moves nothing."""

    def noted(tensor: Any) -> torch.Tensor:
        if not isinstance(tensor, _Lazy):
            return fn(tensor)
        moved = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        tensor.sim_index = moved._index if type(moved) is SimTensor else None
        if tensor.sim_index is None and moved.device.type != "cpu":
            return fn(tensor)
        tensor.data = torch.empty(0, dtype=moved.dtype, device="cpu")
        return tensor

    return noted


def _new_lazy(make: Callable[..., Any]) -> Any:
    """Return `__new__` of lazy parameters or buffers, made by `make`, that notes a simulated GPU as their device."""

    @wraps(make)
    def new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs |= dict(zip(("requires_grad", "device", "dtype"), args, strict=False))
        sample = torch.empty(0, device=kwargs.get("device"))
        if type(sample) is not SimTensor:
            return make(cls, **kwargs)
        made = make(cls, **kwargs | {"device": "cpu"})
        made.sim_index = sample._index
        return made

    return staticmethod(new)


_copy_lazy_plain: Callable[..., Any] = UninitializedParameter.__deepcopy__


@wraps(_copy_lazy_plain)
def _copy_lazy(self: Any, memo: dict[int, Any]) -> torch.Tensor:
    new = _copy_lazy_plain(self, memo)
    new.sim_index = self.sim_index
    return new


_materialize_plain = _Lazy.materialize


@wraps(_materialize_plain)
def _materialize(
    self: Any, shape: Sequence[int], device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> None:
    sample = torch.empty(0, device=self.device if device is None else device)
    if type(sample) is not SimTensor:
        return _materialize_plain(self, shape, device, dtype)
    new = torch.empty(shape, device=sample.device, dtype=dtype or self.dtype)
    needed = self.requires_grad
    _materialize_plain(self, shape, "cpu", dtype)  # its class is that of a tensor now
    torch.utils.swap_tensors(self, torch.nn.Parameter(new, needed) if isinstance(self, torch.nn.Parameter) else new)


def _device_of_lazy(self: Any) -> torch.device:
    return BASE.device.__get__(self) if self.sim_index is None else state.world.devices[self.sim_index]


def _leave_meta(module: torch.nn.Module, fn: _Change) -> None:
    """Give `module` new parameters in place of those on `meta`, if `fn` moves them to a simulated GPU, as CUDA does.

    The old ones stay on `meta`: an optimizer made before, or a second module that shares them, keeps those.
    """
    for name, old in module._parameters.items():
        if old is None or type(old) is SimTensor or not old.is_meta:
            continue
        if type(fn(torch.empty(0, dtype=old.dtype, device="meta"))) is SimTensor:
            module._parameters[name] = torch.nn.Parameter(torch.empty_like(old), old.requires_grad)


def _swap(t1: Any, t2: Any) -> None:
    """Swap two tensors: holders of `t1` find `t2`, with the hooks and attributes of `t1`.

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
        torch.autograd.graph.get_gradient_edge(t1).node.register_prehook(partial(_refuse, _OLD_GRAPH))
    extra = {key: value for key, value in t1.__dict__.items() if key not in OURS}
    t1.__class__, t2.__class__ = t2.__class__, t1.__class__
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    torch._C._swap_tensor_impl(t1, t2)
    t1.__dict__.update(extra)
    for name, hook in hooks.items():
        if hook:
            setattr(t1, name, hook)
