"""What does PyTorch need to know about the device type `sim`? Everything that enable() registers, once a process."""

from __future__ import annotations

import importlib
import math
import os
from functools import partial, wraps
from multiprocessing.reduction import ForkingPickler

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from course_utils.simulator import state
from course_utils.simulator.autocast import register_autocast
from course_utils.simulator.generator import check_generator, register_generator
from course_utils.simulator.parameters import keep_identity
from course_utils.simulator.state import device_of
from course_utils.simulator.storages import register_storages
from course_utils.simulator.tensor import SimTensor, adopt

__all__ = ["register"]

aten = torch.ops.aten
_library = None  # keeps the registrations alive
_guard = None


def register(module) -> None:
    """Rename PrivateUse1 to `sim` and register `module` as `torch.sim`, factories, autocast, saving and pinning."""
    global _library, _guard
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", module)
    _guard = _Guard()
    torch._C._acc.register_python_privateuseone_device_guard(_guard)
    _library = torch.library.Library("aten", "IMPL")
    _register_factories(_library)
    _library.impl("lstm.input", _lstm, "AutogradMeta")
    _library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradMeta")
    _library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
    register_autocast(_library)
    register_storages()
    _patch_accelerator(module)
    register_generator()
    keep_identity()
    foreach = getattr(importlib.import_module("torch.optim.optimizer"), "_foreach_supported_types", None)
    if foreach is not None and SimTensor not in foreach:
        foreach.append(SimTensor)  # as on CUDA, an optimizer step is a few operations over lists of tensors
    clip_grad = importlib.import_module("torch.nn.utils.clip_grad")
    supported = clip_grad._device_has_foreach_support  # is asked about the device that the C++ side sees, which is meta
    clip_grad._device_has_foreach_support = lambda device: device.type == "meta" or supported(device)
    ForkingPickler.register(SimTensor, _refuse_to_leave)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(setattr, state, "forked", True))


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1


def _refuse_to_leave(tensor):
    raise RuntimeError("a tensor on the simulated GPU cannot be sent to another process: send tensor.cpu()")


# ---- factories --------------------------------------------------------------------------------------------------
_FACTORIES = """empty.memory_format empty_strided zeros ones full scalar_tensor arange arange.start arange.start_step
linspace logspace eye eye.m rand randn randint randint.low randperm normal.float_float tril_indices triu_indices
hann_window hann_window.periodic _efficientzerotensor""".split()  # noqa: SIM905
_BELOW_PYTHON = ("copy_", "fill_.Scalar", "fill_.Tensor", "zero_", "_local_scalar_dense")


def _register_factories(library) -> None:
    """Make tensors on `sim`, and on `meta` with an index, which C++ asks for when it makes a tensor like another."""
    for name in _FACTORIES:
        operator = _operator(name)
        library.impl(name, partial(_make, operator), "PrivateUse1")
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            kernel = partial(_make_meta, operator, torch.library.get_kernel(f"aten::{name}", "Meta"))
            library.impl(name, kernel, "Meta", with_keyset=True, allow_override=True)
    for name in _BELOW_PYTHON:
        kernel = partial(_change_meta, _operator(name), torch.library.get_kernel(f"aten::{name}", "Meta"))
        library.impl(name, kernel, "Meta", with_keyset=True, allow_override=True)


def _make(operator, *args, device=None, pin_memory=None, **kwargs):
    if state.forked:
        raise RuntimeError(state.FORKED)
    check_generator(kwargs.get("generator"))
    index = device_of(device)
    name = operator.overloadpacket.__name__
    gpu = state.world.gpus[index]
    if args and isinstance(args[0], list | tuple) and name != "empty_strided":
        gpu.require(math.prod(args[0]) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize)
    if name == "_efficientzerotensor":
        operator = aten.zeros.default
    tensor = adopt(operator(*args, device=torch.device("cpu"), **kwargs), index)
    if not name.startswith("empty"):
        state.world.kernel(index, name, tensor.numel(), tensor.nbytes)
    return tensor


def _make_meta(operator, original, keys, *args, **kwargs):
    if not isinstance(keys, torch._C.DispatchKeySet):
        return _by_name(operator, keys, args, kwargs)
    device = kwargs.get("device")
    if device is not None and device.index is not None:
        return _make(operator, *args, **kwargs)
    return original.call_boxed(keys, *args, **kwargs)


def _by_name(operator, keys, args, kwargs):
    """Under a fake mode PyTorch looks a Python kernel up by name, and finds ours, without keys, in place of its own."""
    return torch._decomp.meta_table[operator](keys, *args, **kwargs)


def _operator(name: str):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _change_meta(operator, original, keys, *args, **kwargs):
    """C++ code such as `torch.tensor` fills and reads below the level where Python dispatches: catch it here."""
    if not isinstance(keys, torch._C.DispatchKeySet):
        return _by_name(operator, keys, args, kwargs)
    if args and type(args[0]) is SimTensor:
        return SimTensor.__torch_dispatch__(operator, (), args, kwargs)
    return original.call_boxed(keys, *args, **kwargs)


# ---- the LSTM of the CPU, one operator a layer and direction ----------------------------------------------------
def _ctc_loss(log_probs, targets, input_lengths, target_lengths, *options):
    if type(log_probs) is not SimTensor:
        args = (log_probs, targets, input_lengths, target_lengths, *options)
        return aten.ctc_loss.Tensor.decompose(*args)
    lengths = [one.tolist() for one in (input_lengths, target_lengths)]  # C++ does so, but not for a subclass
    return aten.ctc_loss.IntList(log_probs, targets, *lengths, *options)


def _lstm(x, hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first):
    fused = (
        type(x) is SimTensor
        and x.dtype is torch.float32
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hidden[0].size(2) == hidden[1].size(2)
    )
    if not fused:
        args = (x, hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first)
        return torch.ops.aten.lstm.input.decompose(*args)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx, cx = hidden[0].contiguous(), hidden[1].contiguous()
    directions = 2 if bidirectional else 1
    width = 4 if has_biases else 2
    h_last, c_last = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            weights = list(params[i * width : (i + 1) * width])
            if not has_biases:
                weights += [weights[0].new_zeros(weights[0].size(0)) for _ in range(2)]
            y, h, c, _ = aten.mkldnn_rnn_layer(
                x, *weights, hx[i], cx[i], direction > 0, [], 2, hidden[0].size(2), layers, has_biases, bidirectional,
                batch_first, train,
            )  # fmt: skip
            outputs.append(y)
            h_last.append(h)
            c_last.append(c)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(h_last), torch.stack(c_last)


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """The CPU's fused attention where the CPU would choose it, else the plain formula."""
    rest = {"scale": scale, "enable_gqa": enable_gqa}
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    if all(type(tensor) is SimTensor for tensor in tensors):
        inner = [tensor._inner.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        choice = aten._fused_sdp_choice(*inner[:3], *(inner[3:] or [None]), dropout_p, is_causal, **rest)
        if choice == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value:
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
            flat = query.dim() == 3  # without heads: the kernel takes them since torch 2.15, with one head put in
            if flat:
                query, key, value = (tensor.unsqueeze(1) for tensor in (query, key, value))
                attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
            mixed = aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )[0]
            return mixed.squeeze(1) if flat else mixed
    operator = aten.scaled_dot_product_attention.default
    return operator.decompose(query, key, value, attn_mask, dropout_p, is_causal, **rest)


# ---- torch.accelerator ------------------------------------------------------------------------------------------
def _patch_accelerator(module) -> None:
    """C++ finds no streams behind `sim`; the Python functions of torch.accelerator are led to torch.sim instead."""
    names = {
        "synchronize": "synchronize",
        "current_device_index": "current_device",
        "current_device_idx": "current_device",
        "set_device_index": "set_device",
        "set_device_idx": "set_device",
        "current_stream": "current_stream",
        "set_stream": "set_stream",
        "device_index": "device",
        "memory_allocated": "memory_allocated",
        "max_memory_allocated": "max_memory_allocated",
        "memory_reserved": "memory_reserved",
        "max_memory_reserved": "max_memory_reserved",
        "reset_peak_memory_stats": "reset_peak_memory_stats",
        "empty_cache": "empty_cache",
        "get_memory_info": "mem_get_info",
        "memory_stats": "memory_stats",
    }
    for name, ours in names.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(module, ours))
    original = torch.get_device_module
    wrap = wraps(original)  # torch.compile looks for what is wrapped
    torch.get_device_module = wrap(lambda device=None: original("sim" if device is None else device))
    if not hasattr(torch._C, "_scatter"):  # a build without CUDA
        for name in ("_scatter", "_gather", "_broadcast_coalesced"):
            setattr(torch._C, name, _refuse_data_parallel)


def _refuse_data_parallel(*args, **kwargs):
    raise RuntimeError("DataParallel needs CUDA and does not work on the simulated GPU: use DistributedDataParallel")


class CurrentDevice(TorchFunctionMode):
    """Gives `device="sim"` the index of the current GPU where that is not 0."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._device = torch.device("sim", index)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(self._fill, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fill(self, value):
        if (isinstance(value, torch.device) and value.type == "sim" and value.index is None) or (
            type(value) is str and value == "sim"
        ):
            return self._device
        return value
