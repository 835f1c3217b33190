"""Host's own time by class of operator, from a profiler trace, with all waiting removed.

Of each outermost event of the host (an operator, a call of CUDA) the time is given to the operators in it that start
kernels, to views, and to autograd's nodes. An operator's time is its own, that of what it calls and starts no kernel
(allocations, CUDA's calls), and that of the wrappers around it. Taken out are waits (synchronizing, a launch that takes
four times as long as usual, copies of memory that is not pinned), and gaps and events of more than a millisecond: those
are the program's own work, compiling, loading CUDA, or other ranks.
"""

import gzip
import json
import math
import statistics
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from simgpu.machine.operator_table import takes_host_long

__all__ = ["LONG_US", "NO_OPERATORS", "ODD_US", "OTHER", "Call", "Part", "Profile", "Unit", "read"]

Event: TypeAlias = dict[str, Any]  # as JSON has it

LONG_US = 1000.0  # no operator of the host's takes as long
ODD_US = 15.0  # for an allocation: no release build takes as long
OTHER = "other"  # the class of what neither starts a kernel nor changes a shape
NO_OPERATORS = (OTHER, "view", "node", "accumulate")  # the classes of what starts nothing on a GPU
_OPERATORS, _CALLS = ("cpu_op", "Operator"), ("cuda_runtime", "cuda_driver", "Runtime")
_STARTS = ("LaunchKernel", "MemsetAsync", "ModuleLaunch", "GraphLaunch", "cuLaunch")
_WAITS = ("hipMemcpyWithStream", "cudaMalloc", "cudaFree", "cudaHostAlloc")
_VIEWS = {
    "view", "t", "transpose", "as_strided", "slice", "select", "narrow", "expand", "reshape", "_reshape_alias",
    "detach", "squeeze", "unsqueeze", "permute", "unbind", "split", "chunk", "flatten", "expand_as", "alias",
    "_unsafe_view", "diagonal", "unfold", "split_with_sizes", "lift_fresh", "resolve_conj", "resolve_neg",
}  # fmt: skip
_PACKED = b"\x1f\x8b"  # with which a file of gzip begins, whatever it is called
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LEAVES = 0.01  # of the longest times, which are left out of a mean


@dataclass(eq=False)
class Call:
    """An event of the host: an operator or a call of CUDA, with the events inside it. Times in µs."""

    name: str
    start: float
    end: float
    thread: Any
    of_cuda: bool
    correlation: int | None
    outer: "Call | None" = field(default=None, repr=False)
    inner: "list[Call]" = field(default_factory=list, repr=False)

    @property
    def length(self) -> float:
        return self.end - self.start

    @property
    def own(self) -> float:
        """What no event inside it takes."""
        return max(0.0, self.length - sum(one.length for one in self.inner))

    @property
    def waits(self) -> bool:
        return self.of_cuda and ("Synchronize" in self.name or self.name in _WAITS)

    @property
    def copies(self) -> bool:
        return self.of_cuda and "Memcpy" in self.name

    @property
    def starts(self) -> bool:
        return self.of_cuda and any(part in self.name for part in _STARTS)

    @property
    def operator(self) -> str:
        return self.name.removeprefix("aten::")

    def walk(self) -> "Iterator[Call]":
        yield self
        for call in self.inner:
            yield from call.walk()


@dataclass(slots=True)
class Part:
    """Times of an operator: its class, the µs of the host, its name, and the µs of its kernels."""

    of: str
    host_us: float
    operator: str
    gpu_us: float = 0.0


@dataclass(eq=False)
class Unit:
    """An outermost event, and its parts; `after_gap` µs of nothing."""

    call: Call
    parts: list[Part] = field(default_factory=list)
    after_gap: float = 0.0

    @property
    def own_us(self) -> float:
        return sum(part.host_us for part in self.parts)


class Profile:
    """Host's work in a trace of `torch.profiler` or Kineto, `.json` or `.json.gz`.

    `gpu` is the GPU's name, "" where the file does not tell; `units` what the host did, in order; `steps` spans of
    the profiler's steps, in µs. Raises ValueError for a file that is no trace, has no operators of the host, or none
    that started anything on a GPU, and for one of a simulated GPU.
    """

    def __init__(self, path: str | Path) -> None:
        file = read(path)
        if _is_simulated(file["traceEvents"]):
            raise ValueError(f"{Path(path).name} is of a simulated GPU, whose host was given: record it on a real one")
        events = [event for event in file["traceEvents"] if _is_span(event)]
        self.name, self.gpu = Path(path).name.split(".")[0], _gpu(file)
        self._kernels = _kernels(events)
        host = [event for event in events if event.get("cat") in _OPERATORS + _CALLS]
        threads = Counter(event["tid"] for event in host if event["cat"] in _OPERATORS)
        if not threads:
            raise ValueError(f"{Path(path).name} has no operators of the host: record with ProfilerActivity.CPU too")
        self._calls = [call for thread, _ in threads.most_common(2) for call in _nested(host, thread)]
        self._calls.sort(key=lambda call: call.start)
        engine = Counter(call.thread for call in self._calls if call.name.startswith("autograd::engine"))
        self._backward = engine.most_common(1)[0][0] if engine and len(threads) > 1 else None
        named = _named_spans(events)
        self.steps = [span for name, span in named if name.startswith("ProfilerStep")]
        self._optimizer = [span for name, span in named if name.startswith("Optimizer.step")]
        inside = [call for top in self._calls for call in top.walk()]
        if not any(call.starts or call.copies for call in inside):
            words = "has no operator that started anything on a GPU: record with ProfilerActivity.CPU and CUDA, on CUDA"
            raise ValueError(f"{Path(path).name} {words}")
        launches = [call.length for call in inside if call.starts]
        self.launch_us = statistics.median(launches or [5.0])
        self.units = list(self._units())

    # ---- what it says --------------------------------------------------------------------------------------------
    @cached_property
    def by_class(self) -> dict[str, list[float]]:
        """The times of all operators, µs, by class; `OTHER` is none of a host's."""
        values: dict[str, list[float]] = defaultdict(list)
        for unit in self.units:
            for part in unit.parts:
                values[part.of].append(part.host_us)
        return dict(values)

    @property
    def means_us(self) -> dict[str, float]:
        """The mean of each class, without the longest hundredth."""
        return {name: _mean(times) for name, times in self.by_class.items()}

    @property
    def operators(self) -> int:
        """How many operators started something on a GPU."""
        return sum(len(times) for name, times in self.by_class.items() if name not in NO_OPERATORS)

    @property
    def own_us(self) -> float:
        """The host's own time, waits taken out, in µs."""
        return sum(unit.own_us for unit in self.units)

    def speed_us(self, ratios: Mapping[str, float], units: list[Unit] | None = None) -> float:
        """Return the µs of a library operator with which `ratios` give the host's own time in these units, or all.

        Raises ValueError where none of them has a price.
        """
        chosen = self.units if units is None else units
        prices = sum(ratios.get(part.of, 0.0) for unit in chosen for part in unit.parts)
        if not prices:
            raise ValueError(f"{self.name} has no operator that a host has a price for")
        return sum(unit.own_us for unit in chosen) / prices

    def of_step(self, number: int) -> list[Unit]:
        """Return the units that began in a step of the profiler, from 0."""
        start, end = self.steps[number]
        return [unit for unit in self.units if start <= unit.call.start < end]

    @property
    def step_us(self) -> float:
        """How long a step took, the median of the profiler's steps; of a file without steps, all of it."""
        if self.steps:
            return statistics.median(end - start for start, end in self.steps)
        return self.units[-1].call.end - self.units[0].call.start

    @property
    def measured_steps(self) -> int:
        """How many steps of the profiler the file has; one where it has none."""
        return max(1, len(self.steps))

    @cached_property
    def busy(self) -> list[tuple[float, float]]:
        """When something ran on the GPU, as spans in order; those that touch are one."""
        spans: list[tuple[float, float]] = []
        for start, end in sorted((start, end) for ran in self._kernels.values() for _, start, end in ran):
            if spans and start <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(spans[-1][1], end)
            else:
                spans.append((start, end))
        return spans

    @property
    def allocation_us(self) -> float:
        """Host time of an allocation, `aten::empty`; 0 where there is none."""
        times = [call.own for top in self._calls for call in top.walk() if call.name == "aten::empty"]
        return statistics.median(times) if len(times) > 5 else 0.0

    @property
    def odd(self) -> str:
        """Why its host's times mean little for others, or nothing."""
        us = self.allocation_us
        return f"an odd build: an allocation takes {us:.0f} µs, where 2 to 8 are usual" if us > ODD_US else ""

    # ---- how it is read ------------------------------------------------------------------------------------------
    def _units(self) -> Iterator[Unit]:
        end: float | None = None
        for call in self._calls:
            gap = 0.0 if end is None else max(0.0, call.start - end)
            end = max(end or 0.0, call.end)
            unit = Unit(call, after_gap=gap)
            lost = self._spend(call, None, unit)
            unit.parts = unit.parts or [Part(OTHER, 0.0, call.operator)]
            unit.parts[0].host_us += lost + (gap if gap <= LONG_US else 0.0)
            yield unit

    def _phase(self, call: Call) -> str:
        if call.thread == self._backward:
            return "backward"
        index = bisect_right(self._optimizer, (call.start, math.inf)) - 1
        return "optimizer step" if index >= 0 and call.start < self._optimizer[index][1] else "forward"

    def _spend(self, call: Call, owner: Part | None, unit: Unit) -> float:
        """Give the time of a call to parts; return what no part took, that of wrappers."""
        around = owner is None or owner.of in ("node", "accumulate")
        if call.of_cuda:
            return self._spend_on_cuda(call, owner, unit, around)
        name = self._class_of(call, around, owner)
        mine = owner
        if name:
            mine = Part(name, 0.0, call.operator)
            unit.parts.append(mine)
        lost = sum(self._spend(one, mine, unit) for one in call.inner)
        lost += call.own if call.own <= LONG_US else 0.0
        if mine is None:
            return lost
        mine.host_us += lost
        return 0.0

    def _spend_on_cuda(self, call: Call, owner: Part | None, unit: Unit, around: bool) -> float:
        """Give the time of a call of CUDA to the operator around it, or to a part of its own; waits to nobody."""
        waits = call.waits or call.length > LONG_US  # the first calls load CUDA and its kernels
        waited = call.length if waits else 0.0
        if (call.copies or call.starts) and not call.waits:
            if not waits and call.length > 4 * self.launch_us:  # for room in the queue, or for pageable memory
                waited = call.length - self.launch_us
            if around:
                owner = Part("copy" if call.copies else _class(False, self._phase(call)), 0.0, call.name)
                unit.parts.append(owner)
        if owner is None:
            return call.length - waited
        owner.host_us += call.length - waited
        owner.gpu_us += sum(end - start for _, start, end in self._kernels.get(call.correlation, ()))
        return 0.0

    def _class_of(self, call: Call, around: bool, owner: Part | None) -> str:
        """Return the class of an operator that is one for the host, or nothing."""
        if call.name.startswith("autograd::engine::evaluate_function"):
            return "accumulate" if "AccumulateGrad" in call.name else "node"
        direct = [one for one in call.inner if one.starts or one.copies]
        if direct:
            return self._class_of_launching(call, direct[0])
        viewed = call.operator in _VIEWS
        alone = around and not any(one.starts or one.copies for one in call.walk())
        if alone and (owner is None or (viewed and owner.of == "node")):
            return "view" if viewed else OTHER
        return ""

    def _class_of_launching(self, call: Call, first: Call) -> str:
        if first.copies and not any("DtoD" in name for name, _, _ in self._kernels.get(first.correlation, ())):
            return "copy"
        phase = self._phase(call)
        if phase == "forward" and call.name == "aten::copy_" and call.outer and "_to_copy" in call.outer.name:
            return "cast"
        return _class(takes_host_long(call.operator) or "CompiledFunction" in call.name, phase)


def read(path: str | Path) -> Event:
    """Return the content of a trace file. Raises ValueError for any other file."""
    path = Path(path)
    try:
        text = path.read_bytes()
        content = json.loads(gzip.decompress(text) if text.startswith(_PACKED) else text)
    except (json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error):
        words = "it must be the whole JSON that torch.profiler writes"
        raise ValueError(f"{path.name} is no trace, or a part of one: {words}") from None
    content = {"traceEvents": content} if isinstance(content, list) else content
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError(f"{path.name} is no trace: it has no list traceEvents")
    return content


def _is_span(event: Any) -> bool:
    """Return whether what a file lists is an event with begin and length, as all are that are read here."""
    if not isinstance(event, dict) or event.get("ph") != "X" or "tid" not in event:
        return False
    numbers = isinstance(event.get("ts"), int | float) and isinstance(event.get("dur"), int | float)
    return numbers and event["dur"] >= 0 and isinstance(event.get("name"), str)


def _is_simulated(events: list[Any]) -> bool:
    """Return whether `chrome_trace` wrote events: it names their processes so."""
    heads = [one for one in events if isinstance(one, dict) and one.get("name") == "process_name"]
    return any("(simulated" in str(_arguments(head).get("name")) for head in heads)


def _gpu(file: Event) -> str:
    properties = file.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _arguments(event: Event) -> dict[str, Any]:
    given = event.get("args")
    return given if isinstance(given, dict) else {}


def _class(library: bool, phase: str) -> str:
    kind = "library" if library and phase != "optimizer step" else "light"
    if phase == "optimizer step":
        return "optimizer"
    return f"{kind} backward" if phase == "backward" else kind


def _mean(times: list[float]) -> float:
    shortest = sorted(times)[: max(1, math.ceil((1 - _LEAVES) * len(times)))]
    return sum(shortest) / len(shortest)


def _kernels(events: list[Event]) -> dict[Any, list[tuple[str, float, float]]]:
    """Return name, begin and end of what ran on a GPU, by the number of the call that started it."""
    kernels: dict[Any, list[tuple[str, float, float]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_GPU:
            start = float(event["ts"])
            ran = event["name"], start, start + float(event["dur"])
            kernels[_arguments(event).get("correlation")].append(ran)
    return dict(kernels)


def _named_spans(events: list[Event]) -> list[tuple[str, tuple[float, float]]]:
    """Return name and span of what the program marked on the host, in order."""
    marked = [event for event in events if event.get("cat") == "user_annotation"]
    spans = [(event["name"], (float(event["ts"]), float(event["ts"]) + float(event["dur"]))) for event in marked]
    return sorted(spans, key=lambda one: one[1])


def _nested(host: list[Event], thread: Any) -> list[Call]:
    """Return the outermost events of a thread, each with those inside it."""
    tops: list[Call] = []
    stack: list[Call] = []
    for event in sorted((e for e in host if e["tid"] == thread), key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        start = float(event["ts"])
        while stack and stack[-1].end <= start + 1e-9:
            stack.pop()
        number, of_cuda = _arguments(event).get("correlation"), event["cat"] in _CALLS
        outer = stack[-1] if stack else None
        call = Call(event["name"], start, start + float(event["dur"]), thread, of_cuda, number, outer)
        (tops if outer is None else outer.inner).append(call)
        stack.append(call)
    return tops
