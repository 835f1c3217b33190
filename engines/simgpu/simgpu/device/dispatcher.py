"""Kernels and functions of PyTorch for the device type `sim`, which `enable` switches on."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from simgpu.device import compiling, cpu_fallback, cudnn_layers, operators, shapes_only, state
from simgpu.device.generators import advance, check_generator, drawing
from simgpu.device.state import device_of
from simgpu.device.tensor import CPU, SimTensor, adopt
from simgpu.device.torch_functions import replace_functions
from simgpu.ground import attention, device_kind, inductor
from simgpu.ground.autocast import operator_of, register_rules, see_wrapped_tensors
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator
from simgpu.machine.prices import Cost

aten = torch.ops.aten
_kept: list[object] = []  # keeps the registrations alive


def switch_on(put: Replacements, module: ModuleType) -> None:
    """Rename PrivateUse1 to `sim`, register `module` as `torch.sim` with its kernels, and replace functions."""
    put.keep(TORCH.utils.backend_registration, "_privateuse1_backend_name")
    for kind in (TORCH._C._autograd.DeviceType, TORCH._C._profiler.ProfilerActivity):
        put.keep(kind, "SIM", "name", "__repr__", "__str__")
    TORCH.utils.rename_privateuse1_backend("sim")
    _register(module)
    for kind in ("sim", "cuda"):
        see_wrapped_tensors(kind)
    replace_functions(put, module)
    compiling.replace(put)


@cache
def _register(module: ModuleType) -> None:
    """Register `torch.sim`, factories, autocast and what C++ asks of a device, once: PyTorch takes nothing of it back.

    `torch.sim` stays with them, for C++ calls `sim` the accelerator from now on, and PyTorch asks that for its module.
    """
    torch._register_device_module("sim", module)
    guard, library = _Guard(), torch.library.Library("aten", "IMPL")
    TORCH._C._acc.register_python_privateuseone_device_guard(guard)
    _register_factories(library)
    cudnn_layers.register(library)
    library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradMeta")
    library.impl("one_hot", _one_hot, "AutogradMeta")
    library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
    for name in _COMPARING_DEVICES:
        library.impl(name, partial(_in_words_of_kind, operator_of(name)), "AutogradMeta")
    for packet in (getattr(aten, name) for name in _COMPARING_RESULTS.split()):
        for operator in (getattr(packet, overload) for overload in packet.overloads() if "out" in overload):
            if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
                library.impl(operator, partial(_in_words_of_kind, operator), "AutogradMeta")
    attention.register(library)
    for name, made in _RANKS.items():
        library.impl(name, partial(_rank_out, operator_of(name), operator_of(made)), "AutogradMeta")
    register_autocast()
    _kept.extend((guard, library))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=state.note_fork)


@cache
def register_autocast() -> None:
    """Register the rules of `torch.autocast("sim")`, which mean nothing to a process without the device `sim`."""
    fallback = torch.library.Library("_", "IMPL")  # operators that are on no list keep their inputs' format
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    register_rules(library, "sim")
    _kept.extend((fallback, library))


class _Guard(TORCH._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return TORCH._C._autograd.DeviceType.PrivateUse1


FACTORIES = """empty.memory_format empty_strided zeros ones full scalar_tensor arange arange.start arange.start_step
linspace logspace eye eye.m rand randn randint randint.low randperm normal.float_float tril_indices triu_indices
hann_window hann_window.periodic _efficientzerotensor""".split()  # noqa: SIM905
# C++ code such as `torch.tensor` fills and reads below the level where Python dispatches: it is caught there
_BELOW_PYTHON = ("copy_", "fill_.Scalar", "fill_.Tensor", "zero_", "_local_scalar_dense")


def _register_factories(library: torch.library.Library) -> None:
    """Make tensors on `sim`, and on `meta` with an index, which C++ asks for when it makes a tensor like another."""
    for name in FACTORIES:
        library.impl(name, partial(make, operator_of(name)), "PrivateUse1")
    register_sparse_factories(library, "PrivateUse1")
    made = [name for name in FACTORIES if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta")]
    for name in (*made, *_BELOW_PYTHON):
        ours = _change if name in _BELOW_PYTHON else _make_meta
        kernel = partial(_on_meta, operator_of(name), ours, torch.library.get_kernel(f"aten::{name}", "Meta"))
        library.impl(name, kernel, "Meta", with_keyset=True, allow_override=True)


def register_sparse_factories(library: torch.library.Library, key: str) -> None:
    """Make sparse tensors without elements on the devices of a dispatch key."""
    for kind in ("Sparse", "SparseCsr"):
        library.impl("empty.memory_format", partial(make, operator_of("empty.memory_format")), kind + key)
    name = "_sparse_coo_tensor_with_dims"
    library.impl(name, partial(make, operator_of(name)), f"Sparse{key}")


def _on_meta(operator: Operator, ours: Callable[..., Any], original: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `ours` does with a tensor of `sim`, which C++ takes for `meta`, and what PyTorch did with another."""
    if not isinstance(keys, torch._C.DispatchKeySet):
        # Under a fake mode PyTorch looks a Python kernel up by name, and finds ours, without keys, in place of its own
        return TORCH._decomp.meta_table[operator](keys, *args, **kwargs)
    result = ours(operator, args, kwargs)
    return original.call_boxed(keys, *args, **kwargs) if result is NotImplemented else result


def _make_meta(operator: Operator, args: Args, kwargs: Kwargs) -> Any:
    device = kwargs.get("device")
    is_sim = device is not None and device.index is not None and state.is_on()
    if not is_sim or inductor.is_lowering():  # there `fakes` knows it for the GPU's
        return NotImplemented
    return make(operator, *args, **kwargs)


def _change(operator: Operator, args: Args, kwargs: Kwargs) -> Any:
    sim = args and isinstance(args[0], SimTensor)
    return operators.dispatch(SimTensor, operator, (), args, kwargs) if sim else NotImplemented


def make(
    operator: Operator, *args: Any, device: torch.device | None = None, pin_memory: bool | None = None, **kwargs: Any
) -> SimTensor:
    if state.forked:
        raise device_kind.forked()
    if not state.is_on():
        raise RuntimeError("the simulated GPU is switched off: simgpu.enable() switches it on again")
    check_generator(kwargs.get("generator"))
    index = device_of(device)
    name = operator.overloadpacket.__name__
    dense = kwargs.get("layout") in (None, torch.strided)
    if cpu_fallback.refuse_factory(operator):
        return adopt(operator(*args, device=CPU, **kwargs), index)
    if args and isinstance(args[0], list | tuple) and name != "empty_strided" and dense:
        nbytes = math.prod(args[0]) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
        state.world.memory.gpus[index].require(nbytes)
    if name == "_efficientzerotensor":
        operator = aten.zeros.default
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    with drawing(kwargs.get("generator"), index) if draws else nullcontext():
        only_shapes = state.world.only_shapes
        inner = shapes_only.made(operator, args, kwargs) if only_shapes else operator(*args, device=CPU, **kwargs)
    if device_kind.limits:
        device_kind.refuse_dimensions(inner)
        device_kind.refuse_kernel(() if name.startswith(("empty", "zeros")) else (inner.dtype,))
    tensor = adopt(inner, index)
    if draws:
        advance(kwargs.get("generator"), index, tensor)
    if not name.startswith("empty") and dense:
        state.world.clock.recorded = False
        state.world.clock.kernel(index, name, Cost(tensor.numel(), tensor.nbytes))
        if state.world.clock.races is not None:
            state.world.clock.races.operation(index, [], [tensor])
    return tensor


_RANKS = {
    "linalg_matrix_rank.out": "linalg_matrix_rank",
    "linalg_matrix_rank.out_tol_tensor": "linalg_matrix_rank.tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor_out": "linalg_matrix_rank.atol_rtol_tensor",
    "linalg_matrix_rank.atol_rtol_float_out": "linalg_matrix_rank.atol_rtol_float",
}  # fmt: skip


def _rank_out(operator: Operator, functional: Operator, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Write the rank into `out`, which PyTorch's kernel returns unwritten where it is of a subclass of Tensor."""
    if not isinstance(out, SimTensor):
        return _in_words_of_kind(operator, *args, out=out, **kwargs)
    rank = functional(*args, **kwargs)
    return torch.add(rank, 0, out=out)  # resizes, or says which number format does not fit


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    *options: Any,
) -> torch.Tensor:  # fmt: skip
    if not isinstance(log_probs, SimTensor):
        return aten.ctc_loss.Tensor.decompose(log_probs, targets, input_lengths, target_lengths, *options)
    lengths = [one.tolist() for one in (input_lengths, target_lengths)]  # C++ does so, but not for a subclass
    return aten.ctc_loss.IntList(log_probs, targets, *lengths, *options)


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As on CUDA, where the kernel that scatters finds a class that is not there (`one_hot` in ATen's Onehot.cpp).

    For a tensor on `meta`, as which C++ sees this one, it compares instead, and no class is wrong.
    """
    if not isinstance(classes, SimTensor):
        return aten.one_hot.default.decompose(classes, num_classes)
    if classes.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if classes.numel() == 0 and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if num_classes == -1:
        num_classes = int(classes.max()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    return classes.new_zeros(*classes.shape, num_classes).scatter_(-1, classes.unsqueeze(-1), 1)


# C++ compares devices or types in these before any operator runs, or shows a tensor
_COMPARING_DEVICES = """inner take_along_dim linalg_multi_dot chain_matmul tensor_split.tensor_indices_or_sections
istft stft.center stft meshgrid meshgrid.indexing conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding
conv_transpose1d conv_transpose2d.input conv_transpose3d.input""".split()  # noqa: SIM905
_COMPARING_RESULTS = """inner take_along_dim tensordot diff matrix_power special_ndtr linalg_multi_dot
linalg_norm linalg_cond linalg_matrix_norm linalg_matrix_power linalg_pinv linalg_tensorinv
linalg_tensorsolve linalg_vecdot"""


def _in_words_of_kind(func: Operator, *args: Any, **kwargs: Any) -> Any:
    try:
        return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    except RuntimeError as error:
        error.args = (device_kind.in_words(str(error)),)
        raise


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The kernel that CUDA would choose: one that is fused, or the plain formula."""
    places = [tensor.device for tensor in (query, key, value)]
    if len(set(places)) > 1 and query.dtype == key.dtype == value.dtype:  # C++ would name the device `meta`
        words = "query.device: {} key.device: {} and value.device: {} instead.".format(*places)
        raise RuntimeError(f"Expected query, key, and value to have the same device type, but got {words}")
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    ours = [tensor for tensor in tensors if isinstance(tensor, SimTensor)]
    if len(ours) == len(tensors):
        inner = [tensor._inner.detach().requires_grad_(tensor.requires_grad) for tensor in ours]
        mixed = attention.fused(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa, inner=inner,
            capability=state.world.clock.machine.gpu.compute_capability,
        )  # fmt: skip
        if mixed is not None:
            return mixed
    if is_causal and attn_mask is None and hasattr(query, "device_mesh"):
        attn_mask, is_causal = _causal_mask(query, key), False
    operator = aten.scaled_dot_product_attention.default
    return operator.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _causal_mask(query: Any, key: torch.Tensor) -> torch.Tensor:
    """Return the mask of `is_causal` for DTensors, on all ranks; C++ would make a plain tensor and not let it in."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh, local = query.device_mesh, query.to_local()
    mask = torch.zeros(query.size(-2), key.size(-2), dtype=query.dtype, device=local.device)
    later = torch.ones(mask.shape, dtype=torch.bool, device=local.device).triu(1)
    return DTensor.from_local(mask.masked_fill_(later, -math.inf), mesh, [Replicate()] * mesh.ndim, run_check=False)


class CurrentDevice(TorchFunctionMode):
    """Gives `device="sim"` the index of the current GPU where that is not 0."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._device = torch.device("sim", index)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        return func(*tree_map(self._fill, args), **tree_map(self._fill, kwargs or {}))

    def _fill(self, value: Any) -> Any:
        unsaid = isinstance(value, torch.device) and value.type == "sim" and value.index is None
        return self._device if unsaid or (type(value) is str and value == "sim") else value
