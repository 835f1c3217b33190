"""How does a program for a GPU run with tensors that have shapes and no memory?

PyTorch's FakeTensorMode runs the operators on shapes alone. Fake tensors of a CUDA device need CUDA in the process, so
elsewhere they are fake CPU tensors, made to take the paths that a GPU takes: the number formats of autocast follow
CUDA's lists, and optimizers work on all parameters at once ("foreach").
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils import simulator

__all__ = ["as_fake", "fake_device", "faking", "with_workspace"]

_ATEN = torch.ops.aten


def fake_device(device: torch.device) -> torch.device:
    """Return the device that fake tensors say they are on, for a program on `device`."""
    return device if device.type == "cuda" else torch.device("cpu")


@contextmanager
def faking(device: torch.device) -> Iterator[None]:
    """Inside, tensors are fake, and every device means the fake one."""
    fillers = [name for name in vars(nn.init) if name.startswith("_no_grad_")]
    as_it_is = dict.fromkeys(fillers, lambda tensor, *args, **kwargs: tensor)  # `trunc_normal_` looks at every value
    with warnings.catch_warnings(action="ignore", category=UserWarning), ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        stack.enter_context(mock.patch.multiple(nn.init, **as_it_is))
        if device.type != "cuda":
            stack.enter_context(_autocast_on_the_cpu(as_on_a_gpu=device.type != "cpu"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_OneDevice(fake_device(device), simulated=device.type == "sim"))
        yield


def as_fake(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a fake tensor with the shape, strides and format of `tensor`; call it inside `faking`."""
    made = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=target)
    return made.requires_grad_(tensor.requires_grad)


class _OneDevice(TorchFunctionMode):
    """Turns every device that a program names, and the default one, into `target`."""

    def __init__(self, target: torch.device, simulated: bool) -> None:
        super().__init__()
        self.target, self.simulated = target, simulated
        self.makers = _device_constructors()
        self.stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a real tensor: itself, its fake

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("cuda", "xpu", "cpu") and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _copied(*args)
        args = self._turn(tuple(args))
        kwargs = {name: self._turn(value) for name, value in (kwargs or {}).items()}
        if func in self.makers and kwargs.get("device") is None:
            kwargs["device"] = self.target
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

    def __init__(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu", *args, **kwargs)
        if as_on_a_gpu and self._enabled and not libraries:
            libraries.append(torch.library.Library("aten", "IMPL"))
            simulator.register_rules(libraries[0], "cpu")

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
