"""What would a GPU do with this program? A simulated GPU, device type `sim`, for machines that have none.

Simulated: where a tensor is, the errors that CUDA gives, memory that runs out, queues, copies and a virtual clock.
On request (`configure`): the caching allocator of PyTorch for CUDA, and errors of kernels that come later, as on CUDA.
Not simulated: the values. The CPU's own kernels compute them, so they and the random numbers are the CPU's.
Left out of the time model: caches, occupancy, most of the choice among kernels, the host's own work between two
operations unless `host_work` says it. All that is not a product, convolution, norm or attention is priced as reading
its inputs once and writing its results once. Peak rates come from data sheets (`simgpu.gpus`); which share of them
kernels reach, and fixed costs, stand in `Costs`, what the host takes in `hosts`. How far the clock is from published
measurements depends on what decides a time: `error_bar()` says it, and each timeline and forecast of itself.
An operator of your own (`torch.library.custom_op`) gets CPU tensors in its body, where nothing is counted. It is priced
as one kernel: the bytes of its inputs and results, and the FLOPs of its formula
(`torch.utils.flop_counter.register_flop_formula`), else one for each element.
Several ranks, each with a GPU: `simgpu.launch(..., cluster=Cluster(...))`; what links and messages cost says `cluster`.
More lenient than CUDA: a copy to the device takes its values at the call, also a non-blocking one from pinned
memory. Refused with an error: quantized and nested tensors, operators that PyTorch has for the
CPU alone, sending tensors to other processes, `device=` beside `out=` (leave `device=` out: PyTorch compares the two
below the level where Python is asked).

`cuda()` gives the simulated GPUs the face of CUDA, so that programs which say `cuda` run on them unchanged;
`python -m simgpu program.py` and `pytest -p simgpu.pytest` do so for a whole program and for tests. `mps()` and `xpu()`
do the same for programs that say `mps` or `xpu`. With `record=True`,
and from the command line, `report()` says what the program's lines cost, and what would be otherwise on other GPUs.

What others may use is in `__all__`: functions, classes, and ten modules whose own `__all__` says what is theirs.

- `evidence`: how far the clock is from published runs, by what decides a time;
- `gpus`: the data sheets of GPUs that were built;
- `hosts`: what hosts take for an operation that they hand to a GPU;
- `profiles`: what a host did, by a trace of PyTorch's profiler;
- `ledger`: which storages a program makes on any device, how large, whose, and where;
- `composite`: modes that see every operator, those that PyTorch would take apart included;
- `collectives`: which operation between ranks an operator is, and its bytes;
- `flops`: formulas of floating-point operations beside PyTorch's own;
- `places`: whether a line of code is the reader's or a library's;
- `tables`: rows and cells as text and as HTML.

Everything else, and every name that begins with an underscore, is inside: it may change without notice.
"""

import importlib
from typing import TYPE_CHECKING, Any

from simgpu.accounting import ledger
from simgpu.accounting.accounts import out_of_memory
from simgpu.clock import evidence
from simgpu.clock.evidence import ErrorBar, Evidence, error_bar
from simgpu.clock.journal import Record
from simgpu.device import collectives
from simgpu.device.child_process import LIMIT_S as CHILD_LIMIT_S
from simgpu.device.child_process import Unavailable, remember_sources, run_in_child, sources, without_face
from simgpu.device.compiled import Compiled, CompiledGraph, CompiledKernel, GraphBreak, GraphPass, compiled
from simgpu.device.enabling import clock_ms, configure, disable, enable, enabled, host_work, ready, reset, unavailable
from simgpu.device.hiding import hide_accelerators
from simgpu.device.races import RaceError
from simgpu.device.ranks import launch
from simgpu.device.readings import Memory, Settings, forgive, idle, is_simulated, memory, restore, settings
from simgpu.device.tensor import values_of
from simgpu.device.timelines import ClusterTimeline, Gap, Timeline, timeline
from simgpu.face.notebooks import load_ipython_extension, unload_ipython_extension
from simgpu.face.notebooks import run as run_notebook
from simgpu.face.switch import Face, cuda, mps, xpu
from simgpu.forecasts.forecast import CompiledForecast, Forecast, forecast
from simgpu.forecasts.memory_forecast import MemoryForecast
from simgpu.forecasts.time_forecast import Share, TimeForecast
from simgpu.ground import composite, places, tables
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.machine import flops, gpus, hosts, profiles
from simgpu.machine.cluster import LINKS, Cluster, Link
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.machine.rates import AT_PEAK, Costs, Rates
from simgpu.reports.current import report, step

if TYPE_CHECKING:
    from simgpu.reports.forms import Report
    from simgpu.reports.rules import RULES

__all__ = [
    "AT_PEAK", "CHILD_LIMIT_S", "LINKS", "RULES", "Cluster", "ClusterTimeline", "Compiled", "CompiledForecast",
    "CompiledGraph", "CompiledKernel", "Costs", "ErrorBar", "Evidence", "Face", "Forecast", "Gap", "GraphBreak",
    "GraphPass", "Host",
    "Link", "Machine", "Memory", "MemoryForecast", "RaceError", "Rates", "Record", "Report", "Settings", "Share",
    "TimeForecast", "Timeline", "Unavailable", "bytes_text", "clock_ms", "collectives", "compiled", "composite",
    "configure", "cuda", "disable", "enable", "enabled", "error_bar", "evidence", "flops", "forecast", "forgive",
    "gpus", "hide_accelerators", "host_work", "hosts", "idle", "is_simulated", "launch", "ledger",
    "load_ipython_extension", "memory", "mps", "out_of_memory", "places", "profiles", "ready", "remember_sources",
    "report", "reset", "restore",
    "run_in_child", "run_notebook", "seconds_text", "settings", "sources", "step", "tables", "timeline", "unavailable",
    "unload_ipython_extension", "values_of", "without_face",
    "xpu",
]  # fmt: skip

__tracebackhide__ = True  # for stacks this package is a library, wherever it is installed


_LATE = {"Report": "simgpu.reports.forms", "RULES": "simgpu.reports.rules"}


def __getattr__(name: str) -> Any:
    """Import what makes reports when it is first asked for: it would be a third of this import."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
    return globals()[name]
