"""`torch.accelerator`, `torch.Stream`, `torch.Event` and `get_device_module` while a face is on."""

import functools
from collections.abc import Callable, Set
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.state import Device
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

_NAMES = """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 complex32 complex64"""
FORMATS = frozenset(getattr(torch, name) for name in _NAMES.split())  # that MPS and XPU say they support


def replace(
    put: Replacements, stream: type, event: type, of_module: dict[str, str], formats: Set[torch.dtype] | None = None
) -> None:
    """Redirect them to the kind whose face is on, with its types of streams and events.

    `of_module`: functions of `torch.accelerator` and, of each, the one of the kind's module that it is. `formats` are
    those that `get_device_capability` names; CUDA has no such answer.
    """
    kind = device_kind.kind
    module = getattr(torch, kind)
    put.put(
        torch._C,
        _accelerator_getAccelerator=lambda: torch.device(kind),
        _get_accelerator=lambda check=None: torch.device(kind, state.world.current),
        _accelerator_getDeviceIndex=lambda: state.world.current,
    )
    if formats is not None and hasattr(torch.accelerator, "get_device_capability"):
        put.put(torch._C, _accelerator_getDeviceCapability=lambda index: {"supported_dtypes": set(formats)})
        put.forget(torch.accelerator.get_device_capability)
    streams, events = _kind_of("Stream", torch.Stream, stream), _kind_of("Event", torch.Event, event)
    put.put(torch, Stream=streams, Event=events)
    put.put(torch.accelerator, **{name: another(getattr(module, other)) for name, other in of_module.items()})
    ask, asks_autocast = torch.get_device_module, _of_kind(torch.is_autocast_enabled)
    put.put(torch, is_autocast_enabled=asks_autocast)
    put.put_item(TORCH.jit._builtins._get_builtin_table(), id(asks_autocast), "aten::is_autocast_enabled")
    put.put(torch, get_device_module=functools.wraps(ask)(lambda device=None: ask(kind if device is None else device)))


def another(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of its own that does the same: dynamo tells functions apart by what they are."""
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


def _kind_of(name: str, plain: type, ours: type) -> type:
    """Return the stand-in for `torch.Stream` or `torch.Event`: it makes the kind's, knows both, and may be a base."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, plain | ours)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, plain | ours)

        def __call__(cls, device: Device = None, *args: Any, **kwargs: Any) -> Any:
            chosen = torch.accelerator.current_accelerator() if device is None else torch.device(device)
            if chosen is None or chosen.type != device_kind.kind:
                return plain(device, *args, **kwargs)
            before, state.world.current = state.world.current, state.device_of(chosen)
            try:
                return ours(chosen, *args, **kwargs) if name == "Stream" else ours(*args, **kwargs)
            finally:
                state.world.current = before

    return Kind(name, (), {"__module__": "torch", "__doc__": plain.__doc__})


def _of_kind(function: Callable[[str], bool]) -> Callable[..., bool]:
    """Return a question about a kind of device that is about ours where none is named; C++ means the accelerator."""
    return functools.wraps(function)(lambda kind=device_kind.kind: function(kind))
