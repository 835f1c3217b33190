"""How does a program for a GPU run with tensors that have shapes and no memory, and which kernels does it start?

PyTorch's FakeTensorMode runs the operators on shapes alone. Fake tensors of a CUDA device need CUDA in the process, so
elsewhere they are fake CPU tensors, made to take the paths that a GPU takes: the number formats of autocast follow
CUDA's lists, and optimizers work on all parameters at once ("foreach").
"""

import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map

from simgpu import collectives, fake_ranks, places
from simgpu.autocast import register_rules
from simgpu.recording import Recorder

_ATEN = torch.ops.aten
_MESHES = torch.distributed.device_mesh.__file__


def fake_device(device: torch.device | None) -> torch.device:
    """Return the device that fake tensors say they are on, for a program on `device`."""
    return device if device is not None and device.type == "cuda" else torch.device("cpu")


@contextmanager
def fake_program(
    device: torch.device | None,
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
    recorder: Recorder,
    ranks: int | None = None,
) -> Iterator[tuple[nn.Module, Any, torch.optim.Optimizer | None]]:
    """Inside, tensors are fake: yield the model, the batch and the optimizer, None where none is made.

    `recorder` notes messages and streams, and kernels while it is entered. `device` None means a GPU that need not be
    here. With `ranks` the program is rank 0 of so many, of which no other exists: `torch.distributed` is set up, and
    messages have sizes and no values.

    Raises TypeError or ValueError that names what returned something else, and RuntimeError in the words of this course
    where the program needs the values of tensors.
    """
    rank = fake_ranks.Rank(recorder)
    outside, lower = (torch.is_grad_enabled(), torch.is_inference_mode_enabled()), _format_of_autocast()
    with ExitStack() as stack:
        for context in (torch.random.fork_rng(devices=()), _clear_errors(), torch.inference_mode(False)):
            stack.enter_context(context)
        stack.enter_context(torch.enable_grad())
        stack.callback(rank.leave)
        if ranks is not None:
            stack.enter_context(fake_ranks.fake_group(ranks, rank))
        batch = _batch(make_batch, device, rank)
        with faking(device, rank):
            model = make_model()
            if not isinstance(model, nn.Module):
                raise TypeError(f"make_model must return a torch.nn.Module, not {model!r}")
            if not all(isinstance(getattr(one, "_local_tensor", one), FakeTensor) for one in model.parameters()):
                raise ValueError("make_model returned a model that exists already: build it inside the function")
            target = fake_device(device)
            batch = tree_map(lambda x: as_fake(x, target) if isinstance(x, torch.Tensor) else x, batch)
            optimizer = None if make_optimizer is None else make_optimizer(list(model.parameters()))
            if not isinstance(optimizer, torch.optim.Optimizer | None):
                raise TypeError(f"make_optimizer must return a torch.optim.Optimizer, not {optimizer!r}")
            kinds = {type(getattr(one, "_local_tensor", 0)) for one in model.parameters()}  # PyTorch refuses a mixture
            on_gpu = optimizer and (device is None or device.type != "cpu") and len(kinds) < 2
            for group in optimizer.param_groups if on_gpu else ():
                if group.get("foreach", 0) is None and not group.get("fused") and not group.get("differentiable"):
                    group["foreach"] = True  # what optimizers choose on a GPU where the caller leaves it to them
            cast = torch.autocast("cuda", lower) if lower and device is None else nullcontext()
            with torch.inference_mode(outside[1]), torch.set_grad_enabled(outside[0]), cast:
                yield model, batch, optimizer


def _format_of_autocast() -> torch.dtype | None:
    """Return the number format of the autocast that the caller is in, None where there is none."""
    for kind in ("cuda", "xpu", "mps", "cpu", torch._C._get_privateuse1_backend_name()):
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    entered = getattr(_switched_off, "entered", ())
    return entered[-1].fast_dtype if entered else None


_switched_off = threading.local()  # the contexts `torch.autocast("cuda")` that PyTorch did not switch on, without CUDA


@functools.cache
def remember_autocast() -> None:
    """Let `_format_of_autocast` know of them: where a GPU is not here, a program for it is priced all the same.

    PyTorch forgets which region it did not switch on, so `torch.autocast` notes it from now on, and does the same else.
    """
    init, enter, leave = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__

    @functools.wraps(init)
    def __init__(self, device_type, dtype=None, enabled=True, *args, **kwargs):
        off = bool(enabled) and device_type == "cuda" and torch.cuda.amp.common.amp_definitely_not_available()
        if off:  # what PyTorch does, said of the line that PyTorch would name
            warnings.warn("CUDA is not available or torch_xla is imported. Disabling autocast.", stacklevel=2)
        init(self, device_type, dtype, enabled and not off, *args, **kwargs)
        self._switched_off = off

    @functools.wraps(enter)
    def __enter__(self):
        if getattr(self, "_switched_off", False):
            _switched_off.entered = [*getattr(_switched_off, "entered", ()), self]
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *error):
        _switched_off.entered = [one for one in getattr(_switched_off, "entered", ()) if one is not self]
        return leave(self, *error)

    torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__ = __init__, __enter__, __exit__


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Say in the words of this course what fake tensors cannot do."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        line = places.place_of(error)
        raise RuntimeError(
            f"the estimate has shapes and no values, and the program needs values for {error}"
            f"{f' ({line})' if line else ''}: leave .item(), print, if and masks by value out of it"
        ) from None
    except RuntimeError as error:
        if "UninitializedParameter" not in str(error):
            raise
        words = "make_model must give every layer its sizes: lazy layers get theirs from a real batch"
        raise TypeError(words) from None


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
def faking(device: torch.device | None, rank: fake_ranks.Rank) -> Iterator[None]:
    """Inside, tensors are fake, every device means the fake one, and `rank` notes messages."""
    kind = "sim" if device is None else device.type
    fillers = [name for name in vars(nn.init) if name.startswith("_no_grad_")]
    as_it_is = dict.fromkeys(fillers, lambda tensor, *args, **kwargs: tensor)  # `trunc_normal_` looks at every value
    with warnings.catch_warnings(action="ignore", category=UserWarning), ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        stack.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 1024))  # 1, for `linspace` of depths
        stack.enter_context(mock.patch.multiple(nn.init, **as_it_is))
        if kind != "cuda":
            stack.enter_context(_autocast_on_the_cpu(as_on_a_gpu=kind != "cpu"))
        stack.enter_context(_Fake(rank))
        stack.enter_context(_OneDevice(fake_device(device), simulated=kind == "sim"))
        yield


def as_fake(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a fake tensor with the shape, strides and format of `tensor`; call it inside `faking`."""
    made = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=target)
    return made.requires_grad_(tensor.requires_grad)


class _Fake(FakeTensorMode):
    """FakeTensorMode also for operators that C++ code calls, as that of DistributedDataParallel does: what it asks for
    on `meta` is no device of the program."""

    def __init__(self, rank: fake_ranks.Rank) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.rank = rank

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            result = super().__torch_dispatch__(func, types, args, kwargs)
        return self.rank.talk(func, args, result) if collectives.is_one(func) else result


class _OneDevice(TorchFunctionMode):
    """Turns every device that a program names, and the default one, into `target`."""

    def __init__(self, target: torch.device, simulated: bool) -> None:
        super().__init__()
        self.target, self.simulated = target, simulated
        self.makers = _device_constructors()
        self.stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a real tensor: itself, its fake

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if sys._getframe(1).f_code.co_filename == _MESHES:  # a mesh is made of numbers, which must be known
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("cuda", "xpu", "cpu") and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _copied(*args)
        args = self._turn(tuple(args))
        kwargs = {name: self._turn(value) for name, value in (kwargs or {}).items()}
        if func in self.makers and kwargs.get("device") is None:
            kwargs["device"] = self.target
        if func in (torch.linspace, torch.arange) and not _dispatch_modes_beyond_fake():
            with unset_fake_temporarily():
                values = func(*args, **{**kwargs, "device": "cpu"})
            if values.numel() <= 1024:  # models read such numbers to choose their sizes
                return torch.tensor(values.tolist(), dtype=values.dtype, device=self.target)
        by_step = self.simulated and func in _RECURRENT and not torch.is_autocast_enabled("cpu")
        with _NotOnTheCPU() if by_step else nullcontext():
            return func(*args, **kwargs)

    def _turn(self, value):
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


def _copied(tensor: FakeTensor, memo: dict) -> torch.Tensor:
    """Return a deep copy of a leaf. Each view of PyTorch's own fake copy has another storage, and would be counted."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError("only tensors that are leaves of the graph can be copied with copy.deepcopy")
        new = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        memo[id(tensor)] = new.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _dispatch_modes_beyond_fake() -> bool:
    return len(_get_current_dispatch_mode_stack()) > 1


_RECURRENT = (torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)


class _NotOnTheCPU(TorchDispatchMode):
    """Answers PyTorch's C++ code that asks whether a tensor is on the CPU as a simulated tensor does: it is not.

    On the CPU these layers multiply the inputs of all time steps at once, elsewhere one after the other. Not under
    autocast: its conversions would remember the answer.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return torch.device("meta") if func is torch.ops.prim.device.default else func(*args, **(kwargs or {}))


@functools.cache
def _names_a_device(text: str) -> bool:
    kind, _, index = text.partition(":")
    return kind in ("cpu", "cuda", "sim", "mps", "xpu", "meta") and (not index or index.isdecimal())


def _apply(self: nn.Module, fn: Callable, recurse: bool = True) -> nn.Module:
    """`Module.to` swaps fake parameters, which PyTorch refuses: exchange their data instead, they stay the same."""
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


@contextmanager
def _autocast_on_the_cpu(as_on_a_gpu: bool) -> Iterator[None]:
    """Inside, `torch.autocast` of any device is that of the CPU; if wanted, it casts what is cast on a GPU."""
    original, libraries = torch.autocast.__init__, []

    def __init__(self: torch.autocast, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
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


def with_workspace(func, args: tuple, result: Any) -> Any:
    """Return what an operator returned, with the memory that PyTorch's shape function leaves out.

    That is the workspace of the CPU's LSTM, and the loss of each element, which some losses keep behind their mean.
    """
    if isinstance(result, torch.Tensor) and not result.ndim and _keeps_elements(func):
        elements = torch.empty(torch.broadcast_shapes(args[0].shape, args[1].shape), dtype=result.dtype)
        return elements.resize_(())
    if func is not torch.ops.aten.mkldnn_rnn_layer.default or not args[-1]:
        return result
    time, batch, _ = args[0].shape
    size = _lstm_workspace(time, batch, tuple(args[1].shape), args[10])
    return (*result[:3], torch.empty(size, dtype=torch.uint8))


_LOSSES = (_ATEN.mse_loss, _ATEN.smooth_l1_loss, _ATEN.soft_margin_loss, _ATEN.binary_cross_entropy)


@functools.cache
def _keeps_elements(func) -> bool:
    """Return whether this loss is a view of the storage in which it computed each element's: a small real run says."""
    if func.overloadpacket not in _LOSSES:
        return False
    with unset_fake_temporarily():
        loss = func(torch.zeros(2), torch.zeros(2))
        return loss.untyped_storage().nbytes() > loss.nbytes


def _lstm_workspace(time: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    """Return its bytes: linear in the number of steps, so two short real runs give it."""
    one, two = (_real_workspace(steps, batch, shape, hidden) for steps in (4, 8))
    return one + math.ceil((two - one) / 4 * (time - 4))


@functools.cache
def _real_workspace(steps: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    with unset_fake_temporarily(), torch.enable_grad():  # without gradients there is no workspace
        x, state = torch.zeros(steps, batch, shape[1]), torch.zeros(batch, hidden)
        weights = torch.zeros(shape), torch.zeros(shape[0], hidden), torch.zeros(shape[0]), torch.zeros(shape[0])
        result = torch.ops.aten.mkldnn_rnn_layer(
            x, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True
        )
    return result[3].nbytes
