"""`torch.profiler` on a simulated GPU: a row for each kernel, with its virtual time.

PyTorch's own profiler looks at the host, whose times are those of this machine's CPU. The kernels come from the
journal, each with the operator that launched it.
"""

import functools
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent

from simgpu.clock import chrome_trace
from simgpu.clock.journal import Record
from simgpu.device import state
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

_COPIES = {"H2D": "Memcpy HtoD (Host -> Device)", "D2H": "Memcpy DtoH (Device -> Host)", "D2D": "Memcpy PtoP"}


def replace(put: Replacements) -> None:
    """Patch new profilers to record the kernels of simulated GPUs."""
    profile = torch.autograd.profiler.profile
    changed = {
        "__init__": _make, "_start_trace": _start, "__exit__": _end, "_parse_kineto_results": _parse,
        "export_chrome_trace": _export,
    }  # fmt: skip
    put.put(torch.autograd.profiler.emit_nvtx, __enter__=_ranges, __exit__=lambda self, *error: False)
    put.put(profile, **{name: _around(getattr(profile, name), function) for name, function in changed.items()})
    put.put(torch.autograd, _supported_activities=_supported)


def _around(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `plain` as `function` changes it, which is given it as second argument."""

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, plain, *args, **kwargs)

    return method


def _make(
    self: Any, plain: Callable[..., Any], *args: Any, use_device: str | None = None, use_cpu: bool = True, **kwargs: Any
) -> None:
    """Ask C++ for the host alone: it would time kernels by events of CUDA or XPU, for which it finds no driver."""
    if kwargs.pop("use_cuda", False):  # as programs of old say it
        use_device = "cuda"
    ours = use_device == device_kind.current.name
    plain(self, *args, use_device=None if ours else use_device, use_cpu=use_cpu or ours, **kwargs)
    self._simulated, self._records, self._shows_host = ours and self.enabled, [], use_cpu


def _supported() -> set[Any]:
    """Return the activities that `profile()` records where a program names none: on MPS those of the CPU alone."""
    kinds = torch.profiler.ProfilerActivity
    names = ["CPU", *[device_kind.current.name.upper()] * (not device_kind.current.is_single)]
    return {getattr(kinds, name) for name in names}


def _ranges(self: Any) -> Any:
    """Of `emit_nvtx`, which marks operators for Nsight, that does not listen here."""
    TORCH.sim.synchronize()
    return self


def _start(self: Any, plain: Callable[..., None]) -> None:
    plain(self)
    if _sees_gpus(self):
        self._records = state.world.journal.open()
        self._start_ns = state.world.clock.host_ns


def _end(self: Any, plain: Callable[..., Any], *error: Any) -> Any:
    if _sees_gpus(self):
        TORCH.sim.synchronize()
        state.world.journal.close(self._records)
    return plain(self, *error)


def _parse(self: Any, plain: Callable[..., list[FunctionEvent]], *args: Any, **kwargs: Any) -> list[FunctionEvent]:
    events = plain(self, *args, **kwargs)
    if _sees_gpus(self):
        self.use_device = device_kind.current.name
        work = [record for record in self._records if record.kind in ("kernel", "copy")]
        _give_to_operators(events, work)
        events = events if self._shows_host else []
        events += [_row(record, self._start_ns, number) for number, record in enumerate(work, len(events))]
    return events


def _export(self: Any, plain: Callable[..., None], path: str, *more: Any) -> None:
    """Write the host's events as PyTorch does, and beside them what the simulated GPUs did, on the virtual clock."""
    plain(self, path, *more)
    if not _sees_gpus(self):
        return
    file = Path(path)
    written = json.loads(file.read_text(encoding="utf-8"))
    begin_us = min((event["ts"] for event in written["traceEvents"] if event.get("ph") == "X"), default=0.0)
    written["traceEvents"] += chrome_trace.calls_and_kernels(self._records, self._start_ns, begin_us)
    file.write_text(json.dumps(written), encoding="utf-8")


def _sees_gpus(profiler: Any) -> bool:
    """Return whether a profiler looks at simulated GPUs; one that was made before the face was on does not."""
    return getattr(profiler, "_simulated", False)


def _row(record: Record, start_ns: int, number: int) -> FunctionEvent:
    """Return a kernel or a copy as an event of the GPU; microseconds since the profiler began, on the virtual clock."""
    begin, end = (record.start_ns - start_ns) / 1000, (record.end_ns - start_ns) / 1000
    name = _COPIES[record.direction] if record.kind == "copy" else record.name
    where: dict[str, Any] = {"device_index": int(record.row.partition(":")[2]), "device_resource_id": record.stream}
    name_of_kind = device_kind.current.name
    rest: dict[str, Any] = {
        "device_type": getattr(TORCH.autograd.DeviceType, name_of_kind.upper()),
        "use_device": name_of_kind,
        "stack": [],
        "input_shapes": [],
    }
    return FunctionEvent(number, name, record.stream, begin, end, flops=record.flops, **rest, **where)


def _give_to_operators(events: list[FunctionEvent], work: list[Record]) -> None:
    """Give each operator the kernels that it launched: the n-th of a name to the n-th call of that name."""
    calls: dict[str, deque[FunctionEvent]] = defaultdict(deque)
    ends: dict[tuple[str, int], float] = {}
    for event in sorted(events, key=lambda one: (one.time_range.start, -one.time_range.end)):
        event.use_device = device_kind.current.name
        if event.name.startswith("aten::") and event.time_range.start >= ends.get(
            (event.name, event.thread), -math.inf
        ):
            ends[event.name, event.thread] = event.time_range.end  # what the CPU computes inside has the same name
            calls[event.name].append(event)
    for record in work:
        name = "aten::copy_" if record.kind == "copy" else f"aten::{record.name}"
        if calls[name]:
            calls[name].popleft().append_kernel(record.name, 0, record.duration_ns / 1000)
