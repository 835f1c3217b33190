"""How does a program for a GPU run with tensors that have shapes and no memory?

PyTorch's FakeTensorMode runs the operators on shapes alone. Fake tensors of a CUDA device need CUDA in the process, so
elsewhere they are fake CPU tensors, made to take the paths that a GPU takes: the number formats of autocast follow
CUDA's lists, and optimizers work on all parameters at once ("foreach").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["as_fake", "fake_device", "faking"]


def fake_device(device: torch.device) -> torch.device:
    """Return the device that fake tensors say they are on, for a program on `device`."""
    return device if device.type == "cuda" else torch.device("cpu")


@contextmanager
def faking(device: torch.device, autocast: torch.dtype | None) -> Iterator[object]:
    """Inside, tensors are fake, and every device but the CPU means the fake one. Yields the FakeTensorMode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    target = fake_device(device)
    state = torch.get_rng_state()
    with ExitStack() as stack:
        stack.callback(torch.set_rng_state, state)
        stack.enter_context(_plain_conversions())
        if device.type not in ("cpu", "cuda") and autocast is not None:
            stack.enter_context(_autocast_as_on_a_gpu())
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_Workspaces())
        stack.enter_context(_OneDevice(target))
        yield mode


def as_fake(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a fake tensor like `tensor`; call it inside `faking`."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        return tensor if tensor.device == target else tensor.to(target)
    return torch.empty_strided(
        tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=target
    ).requires_grad_(tensor.requires_grad)


class _OneDevice(TorchFunctionMode):
    """Turns every device that a program names, and the default one, into `target`."""

    def __init__(self, target: torch.device) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("cuda", "xpu", "cpu") and isinstance(args[0], torch.Tensor):
            return args[0]
        args = tuple(self._turn(arg) for arg in args)
        kwargs = {name: self._turn(value, name) for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)

    def _turn(self, value, name: str = ""):
        named = isinstance(value, str) and (name == "device" or _names_a_device(value))
        if named or (isinstance(value, torch.device) and value.type != "meta"):
            return self.target
        return value


@functools.cache
def _names_a_device(text: str) -> bool:
    kind, _, index = text.partition(":")
    return kind in ("cpu", "cuda", "sim", "mps", "xpu") and (not index or index.isdecimal())


@contextmanager
def _plain_conversions() -> Iterator[None]:
    """`Module.to` swaps fake parameters, which PyTorch refuses: exchange their data instead, they stay the same."""
    original = nn.Module._apply

    def _apply(self, fn, recurse=True):
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

    nn.Module._apply = _apply
    try:
        yield
    finally:
        nn.Module._apply = original


@contextmanager
def _autocast_as_on_a_gpu() -> Iterator[None]:
    """Inside, `torch.autocast("cpu")` casts what it casts on a GPU."""
    from course_utils.simulator import _autocast

    library = torch.library.Library("aten", "IMPL")
    try:
        _autocast.register_rules(library, "cpu")
        yield
    finally:
        library._destroy()


class _Workspaces(TorchDispatchMode):
    """The CPU's LSTM keeps a workspace for the backward pass, of which PyTorch's shape function knows nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default and args[-1]:
            time, batch, _ = args[0].shape
            size = _lstm_workspace(time, batch, tuple(args[1].shape), args[10])
            return (*result[:3], torch.empty(size, dtype=torch.uint8))
        return result


def _lstm_workspace(time: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    """Return its bytes: linear in the number of steps, so two short real runs give it."""
    one, two = (_real_workspace(steps, batch, shape, hidden) for steps in (4, 8))
    return one + math.ceil((two - one) / 4 * (time - 4))


@functools.cache
def _real_workspace(steps: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), torch.enable_grad():  # without gradients there is no workspace
        x, state = torch.zeros(steps, batch, shape[1]), torch.zeros(batch, hidden)
        weights = torch.zeros(shape), torch.zeros(shape[0], hidden), torch.zeros(shape[0]), torch.zeros(shape[0])
        result = torch.ops.aten.mkldnn_rnn_layer(
            x, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True
        )
    return result[3].nbytes
