"""Programs for a GPU on tensors with shapes and no memory, and the kernels that they start.

PyTorch's FakeTensorMode runs the operators on shapes alone. Fake tensors of a CUDA device need CUDA in the process, so
elsewhere they are fake CPU tensors, made to take the paths that a GPU takes: the number formats of autocast follow
CUDA's lists, and optimizers work on all parameters at once ("foreach").
"""

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map

from simgpu.device import collectives
from simgpu.forecasts import fake_ranks, flex, workspaces
from simgpu.forecasts.recorder import Recorder
from simgpu.ground import attention, device_kind, fused_cells, inductor, places, recurrent
from simgpu.ground.autocast import register_rules
from simgpu.ground.composite import without_modes
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator

_MESHES = os.path.join(os.path.dirname(torch.distributed.__file__), "device_mesh.py")  # not there in some builds
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_NUMBERED = torch.linspace, torch.arange  # PyTorch's own: CUDA's face puts others in their place


def fake_device(device: torch.device | None) -> torch.device:
    """Return the device that fake tensors say they are on, for a program on `device`."""
    if device is not None and device.type == "cuda" and not device_kind.is_ours(device):
        return device
    return torch.device("cpu")


@contextmanager
def fake_program(
    device: torch.device | None,
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
    recorder: Recorder,
    ranks: int | None = None,
) -> Generator[tuple[nn.Module, Any, torch.optim.Optimizer | None]]:
    """Inside, tensors are fake: yield the model, the batch and the optimizer, None where none is made.

    `recorder` notes messages and streams, and kernels while it is entered. `device` None means a GPU that need not be
    here. With `ranks` the program is rank 0 of so many, of which no other exists: `torch.distributed` is set up, and
    messages have sizes and no values. Programs of several threads take turns.

    Raises TypeError or ValueError that names what returned something else, and RuntimeError in the words of this engine
    where the program needs the values of tensors, or where autocast is on around it.
    """
    rank, outside = fake_ranks.Rank(recorder), (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    _refuse_autocast()
    with ExitStack() as stack:
        contexts = _alone(), torch.random.fork_rng(devices=()), _clear_errors(), torch.inference_mode(False)
        for context in (*contexts, torch.enable_grad()):
            stack.enter_context(context)
        stack.callback(rank.leave)
        if ranks is not None:
            stack.enter_context(fake_ranks.fake_group(ranks, rank))
        batch = _batch(make_batch, device, rank)
        with faking(device, rank):
            model = _model(make_model)
            target = fake_device(device)
            batch = tree_map(lambda x: as_fake(x, target) if isinstance(x, torch.Tensor) else x, batch)
            optimizer = None if make_optimizer is None else _optimizer(make_optimizer, model, device)
            with torch.inference_mode(outside[1]), torch.set_grad_enabled(outside[0]):
                yield model, batch, optimizer


def _refuse_autocast() -> None:
    """Raise where the call stands in `torch.autocast`: without CUDA PyTorch switches that of "cuda" off, unseen."""
    regions = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    if regions or torch._C._is_any_autocast_enabled():
        raise RuntimeError("torch.autocast around a forecast is not seen where CUDA is missing: put it into `step`")


_turn = threading.RLock()  # what a fake program replaces in PyTorch, it replaces for the whole process
_inside: list[None] = []  # a program for each that this thread is in


@contextmanager
def _alone() -> Generator[None]:
    """Serialise fake programs across threads; a nested one does not affect the outer one."""
    with ExitStack() as stack:
        stack.enter_context(_turn)
        if _inside:
            stack.enter_context(without_modes())
        _inside.append(None)
        stack.callback(_inside.pop)
        yield


def _model(make_model: Callable[[], nn.Module]) -> nn.Module:
    model = make_model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_model must return a torch.nn.Module, not {model!r}")
    if not all(_is_fake(parameter) for parameter in model.parameters()):
        raise ValueError("make_model returned a model that exists already: build it inside the function")
    return model


def _optimizer(
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], model: nn.Module, device: torch.device | None
) -> torch.optim.Optimizer:
    optimizer = make_optimizer(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"make_optimizer must return a torch.optim.Optimizer, not {optimizer!r}")
    kinds = {type(getattr(one, "_local_tensor", 0)) for one in model.parameters()}  # PyTorch refuses a mixture
    in_lists = (device is None or device.type not in ("cpu", "mps")) and len(kinds) < 2
    for group in optimizer.param_groups if in_lists else ():
        if group.get("foreach", 0) is None and not group.get("fused") and not group.get("differentiable"):
            group["foreach"] = True  # what optimizers choose there where the caller leaves it to them
    return optimizer


def _is_fake(tensor: torch.Tensor | None) -> bool:
    """Return whether a tensor, or this rank's part of a DTensor, is fake."""
    return isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor)


@contextmanager
def _clear_errors() -> Generator[None]:
    """Explain the limits of fake tensors in place of PyTorch's error."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise _needs_values(error, str(error)) from None
    except RuntimeError as error:
        if ".numpy() is not supported" in str(error):
            raise _needs_values(error, ".numpy()") from None
        if "UninitializedParameter" not in str(error):
            raise
        words = "make_model must give every layer its sizes: lazy layers get theirs from a real batch"
        raise TypeError(words) from None


def _needs_values(error: Exception, what: str) -> RuntimeError:
    line = places.place_of(error)
    return RuntimeError(
        f"a forecast has shapes and no values, and the program needs values for {what}{f' ({line})' if line else ''}: "
        "leave .item(), .numpy(), print, if and masks by value out of it"
    )


def _batch(make_batch: Callable[[], Any], device: torch.device | None, rank: fake_ranks.Rank) -> Any:
    """Return the batch as fake tensors; one that cannot be made of shapes alone, as real ones."""
    try:
        with faking(device, rank):
            return make_batch()
    except Exception:
        return make_batch()


def usual_step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None) -> None:
    """Train for one step, or run forward only where there is no optimizer.

    `batch` is (inputs, target) or inputs alone. The loss is the cross-entropy over the last dimension for a target of
    whole numbers, the mean squared error for others, the mean of the output without a target.
    """
    inputs, target = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
    if optimizer is not None:
        optimizer.zero_grad()
    if isinstance(inputs, dict):
        output = model(**inputs)
    else:
        output = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    if optimizer is None:
        return
    if target is None:
        loss = output.mean()
    elif target.is_floating_point():
        loss = F.mse_loss(output, target)
    else:
        loss = F.cross_entropy(output.flatten(0, -2), target.flatten())
    loss.backward()
    optimizer.step()


@contextmanager
def faking(device: torch.device | None, rank: fake_ranks.Rank) -> Generator[None]:
    """Inside, tensors are fake, every device means the fake one, and `rank` notes messages."""
    kind = "sim" if device is None else device.type
    fillers: dict[str, Any] = {
        name: _unless_fake(fill) for name, fill in vars(nn.init).items() if name.startswith("_no_grad_")
    }
    with warnings.catch_warnings(action="ignore", category=UserWarning), ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _moving(nn.Module._apply)))
        stack.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 1024))  # 1, for `linspace` of depths
        stack.enter_context(mock.patch.object(FakeTensor, "tolist", _listed(FakeTensor.tolist)))
        stack.enter_context(mock.patch.multiple(nn.init, **fillers))
        if kind != "mps":  # elsewhere gradients are clipped as lists of tensors
            types = [*TORCH.utils._foreach_utils._foreach_supported_types, FakeTensor]
            stack.enter_context(mock.patch.object(TORCH.utils._foreach_utils, "_foreach_supported_types", types))
        if kind != "cuda":
            stack.enter_context(_autocast_on_the_cpu(as_on_a_gpu=kind != "cpu"))
        if kind == "sim":
            stack.enter_context(_kernels_of_cuda(rank.recorder))
            stack.enter_context(flex.patched(rank.recorder))
        stack.enter_context(_Fake(rank, simulated=kind == "sim"))
        stack.enter_context(_OneDevice(fake_device(device), simulated=kind == "sim"))
        yield


def as_fake(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a fake tensor with the shape, strides and format of `tensor`; call it inside `faking`."""
    made = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=target)
    return made.requires_grad_(tensor.requires_grad)


class _Fake(FakeTensorMode):
    """FakeTensorMode also for operators that C++ code calls, as that of DistributedDataParallel does: what it asks for
    on `meta` is no device of the program."""

    def __init__(self, rank: fake_ranks.Rank, simulated: bool) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.rank, self.simulated = rank, simulated

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: Args = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            if func is _ATTENTION and self.simulated:  # it comes here in inference mode alone
                return _attention(self.rank.recorder, *args, **(kwargs or {}))
            result = super().__torch_dispatch__(func, types, args, kwargs or {})
            if collectives.is_one(func):
                return self.rank.talk(func, args, result)
            return workspaces.added(func, args, result, self)


class _OneDevice(TorchFunctionMode):
    """Turns every device that a program names, and the default one, into `target`."""

    def __init__(self, target: torch.device, simulated: bool) -> None:
        super().__init__()
        self.target, self.simulated = target, simulated
        self.makers = _device_constructors()
        self.stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a real tensor: itself, its fake

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if _asked_by_a_mesh():  # which is made of numbers, and these must be known
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("cuda", "xpu", "cpu") and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if func is torch.device:
            return self.target
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _copied(*args)
        args = self._turn(tuple(args))
        kwargs = {name: self._turn(value) for name, value in (kwargs or {}).items()}
        if func in self.makers and kwargs.get("device") is None:
            kwargs["device"] = self.target
        if func in _NUMBERED and len(_get_current_dispatch_mode_stack()) <= 1:  # no mode beyond that of fakes
            with unset_fake_temporarily():
                values = func(*args, **{**kwargs, "device": "cpu"})
            if values.numel() <= 1024:  # models read such numbers to choose their sizes
                return torch.tensor(values.tolist(), dtype=values.dtype, device=self.target)
        return func(*args, **kwargs)

    def _turn(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            elsewhere = value.device.type not in ("cpu", "meta", self.target.type)
            return self._stand_in(value) if elsewhere and not isinstance(value, FakeTensor) else value
        if type(value) in (tuple, list):
            return type(value)([self._turn(one) for one in value])
        named = isinstance(value, torch.device) or (isinstance(value, str) and _names_a_device(value))
        return self.target if named else value

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor for a real one that a function of the program refers to: the same each time."""
        if id(tensor) not in self.stand_ins:
            self.stand_ins[id(tensor)] = tensor, as_fake(tensor, self.target)
        return self.stand_ins[id(tensor)][1]


@contextmanager
def _kernels_of_cuda(recorder: Recorder) -> Generator[None]:
    """Inside, attention and recurrent layers on fake CPU tensors are the kernels that CUDA would choose."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "scaled_dot_product_attention", functools.partial(_attention, recorder), "AutogradCPU", allow_override=True
    )
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", "CPU"):  # no simulated GPU was ever on
        recurrent.register(library)
    fused_cells.keep_rms_norm(library, "CPU")
    for name in recurrent.NAMES:
        library.impl(name, functools.partial(_recurrent, recorder, name), "AutogradCPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _attention(
    recorder: Recorder, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, **options: Any,
) -> torch.Tensor:  # fmt: skip
    inner = [one for one in (query, key, value, attn_mask) if one is not None]
    if all(isinstance(one, FakeTensor) for one in inner):  # a DTensor does it by its own rules
        formula: Any = torch.ops.aten._scaled_dot_product_attention_math
        recorder.by_capability |= query.dtype is torch.bfloat16
        mixed = attention.fused(
            query, key, value, attn_mask, dropout_p, is_causal, inner=inner, capability=recorder.capability, **options
        )
        return formula(query, key, value, attn_mask, dropout_p, is_causal, **options)[0] if mixed is None else mixed
    return _ATTENTION.decompose(query, key, value, attn_mask, dropout_p, is_causal, **options)


def _recurrent(recorder: Recorder, name: str, *args: Any) -> Any:
    if not isinstance(args[0], FakeTensor):
        return recurrent.composite(name, args)
    recorder.by_capability |= args[0].dtype is torch.bfloat16 and name != "rms_norm"
    return recurrent.run(name, args, recorder.capability)


def _asked_by_a_mesh() -> bool:
    """Return whether a device mesh called the function that a mode sees now; what only passes calls on may lie between.

    A module of such functions says `__passes_on__ = True`.
    """
    caller = sys._getframe(2)
    if caller.f_back is not None and caller.f_globals.get("__passes_on__") is True:
        caller = caller.f_back
    return caller.f_code.co_filename == _MESHES


def _listed(tolist: Callable[[FakeTensor], Any]) -> Callable[[FakeTensor], Any]:
    """Read known values at once: PyTorch reads one after the other, seconds for the ranks of a large mesh."""
    return lambda tensor: tolist(tensor) if tensor.constant is None else tensor.constant.tolist()


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
    """Return a deep copy of a leaf. Each view of PyTorch's own fake copy has another storage, and would be counted."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError("only tensors that are leaves of the graph can be copied with copy.deepcopy")
        new = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        memo[id(tensor)] = new.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


@functools.cache
def _names_a_device(text: str) -> bool:
    kind, _, index = text.partition(":")
    return kind in ("cpu", "cuda", "sim", "mps", "xpu", "meta") and (not index or index.isdecimal())


def _unless_fake(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function of `nn.init` that leaves fake tensors as they are: `trunc_normal_` looks at every value."""

    @functools.wraps(fill)
    def filled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if _is_fake(tensor) else fill(tensor, *args, **kwargs)

    return filled


def _moving(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a `Module._apply` for fake parameters: PyTorch refuses to swap them, so they take each other's data."""

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        if not any(map(_is_fake, (*self._parameters.values(), *self._buffers.values()))):
            return apply(self, fn, recurse)
        for child in self.children() if recurse else ():
            child._apply(fn)
        for parameter in self._parameters.values():
            if parameter is not None:
                with torch.no_grad():
                    moved = fn(parameter)
                if moved is not parameter:
                    parameter.data = moved
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    return _apply


@contextmanager
def _autocast_on_the_cpu(as_on_a_gpu: bool) -> Generator[None]:
    """Inside, `torch.autocast` of any device is that of the CPU; if wanted, it casts what is cast on a GPU."""
    original, libraries, thread = torch.autocast.__init__, [], threading.get_ident()

    @functools.wraps(original)  # Dynamo asks for its arguments by name
    def __init__(self: torch.autocast, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != thread or inductor.is_lowering():
            original(self, device_type, dtype, *args, **kwargs)
            return
        if as_on_a_gpu and dtype is None and device_type != "cpu":
            dtype = torch.get_autocast_dtype(device_type)
        original(self, "cpu", dtype, *args, **kwargs)
        if as_on_a_gpu and self._enabled and not libraries:
            libraries.append(torch.library.Library("aten", "IMPL"))
            register_rules(libraries[0], "cpu")

    with mock.patch.object(torch.autocast, "__init__", __init__):
        try:
            yield
        finally:
            for library in libraries:
                library._destroy()
