"""Comparison of a simulated run with a trace of a real GPU, by operator and by gap."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from simgpu.device.timelines import Timeline
from simgpu.forecasts.time_forecast import TimeForecast
from simgpu.ground import tables
from simgpu.ground.units import seconds_text
from simgpu.machine.profiles import NO_OPERATORS, Profile
from simgpu.reports.report import Values

_MOST = 12  # operators that differ most
_ALIKE = 0.5  # of a trace's operators: so many at least has the same program, on any version of PyTorch
_GAP_US = 5.0  # shorter ones lie between any two kernels


@dataclass
class _Operator:
    """What an operator takes in a step: how often, µs of the host, µs of the GPU."""

    calls: float = 0.0
    host_us: float = 0.0
    gpu_us: float = 0.0


def text(report: Values, path: str | Path) -> str:
    """Return a report's last step beside a trace of `torch.profiler`, what differs most first.

    Of the trace all steps count, of each operator its own time on the host without waits. Raises ValueError for a file
    that is no trace.
    """
    profile, step = Profile(path), TimeForecast.of(report.basis)
    lines = [
        f"Measured ({Path(path).name}, {profile.gpu or 'GPU not named'}) beside simulated ({step.spec}, "
        f"host {step.machine.host.name}), a step",
        tables.text(_wholes(profile, step), ("", "measured", "simulated"), right=(1, 2)),
        "",
        "Operators that differ most, measured and simulated; without views and autograd's nodes",
        tables.text(
            _operators(profile, step),
            ("operator", "calls", "simulated", "host", "simulated", "GPU", "simulated"),
            right=range(1, 7),
        ),
    ]
    lines += _doubts(profile, step)
    lines.append(
        "The profiler makes the host slower, 1.15 to 1.5 times. `simgpu.Host.from_trace` gives the host of this trace."
    )
    return "\n".join(lines)


def _doubts(profile: Profile, step: TimeForecast) -> list[str]:
    """Say why the trace and the simulated step may not be comparable."""
    doubts = [f"The trace is of {profile.odd}."] if profile.odd else []
    if not profile.steps:
        doubts.append(
            "The trace marks no steps, so that all of it stands beside one step: call profiler.step() after each."
        )
    measured, simulated = _measured(profile), _simulated(step.timeline)
    calls = sum(operator.calls for operator in measured.values())
    common = sum(min(operator.calls, simulated[name].calls) for name, operator in measured.items() if name in simulated)
    if common < _ALIKE * calls:
        doubts.append(
            f"Of the trace's {calls:,.0f} operators a step, {common:,.0f} are among the simulated ones: it may be of "
            "another program, or of other steps."
        )
    return doubts


def _wholes(profile: Profile, step: TimeForecast) -> list[list[str]]:
    """Return what is said of a whole step: its time, how busy GPU and host are, and the gaps of the GPU."""
    steps, us = profile.measured_steps, profile.step_us
    busy_us = sum(end - start for start, end in profile.busy) / steps
    gaps = [after[0] - before[1] for before, after in zip(profile.busy, profile.busy[1:], strict=False)]
    long_gaps = [gap for gap in gaps if gap >= _GAP_US]
    simulated = [gap.duration_ns / 1e3 for gap in step.timeline.gaps(step.timeline.rows[0])]
    there = [gap for gap in simulated if gap >= _GAP_US]
    return [
        ["step", seconds_text(us / 1e6), seconds_text(step.total_s)],
        ["GPU busy", f"{busy_us / us:.0%}", f"{step.utilisation:.0%}"],
        ["host's own time", seconds_text(profile.own_us / steps / 1e6), seconds_text(step.host_s)],
        [f"gaps from {_GAP_US:g} µs", f"{len(long_gaps) / steps:,.0f}", f"{len(there):,}"],
        ["idle in them", seconds_text(sum(long_gaps) / steps / 1e6), seconds_text(sum(there) / 1e6)],
    ]


def _operators(profile: Profile, step: TimeForecast) -> list[list[str]]:
    measured, simulated = _measured(profile), _simulated(step.timeline)
    none = _Operator()
    pairs = {name: (measured.get(name, none), simulated.get(name, none)) for name in {*measured, *simulated}}
    apart = {name: abs(a.host_us - b.host_us) + abs(a.gpu_us - b.gpu_us) for name, (a, b) in pairs.items()}
    most = sorted(pairs, key=lambda name: (-apart[name], name))[:_MOST]
    return [
        [name, *(f"{one.calls:,.0f}" for one in pairs[name]),
         *(seconds_text(one.host_us / 1e6) for one in pairs[name]),
         *(seconds_text(one.gpu_us / 1e6) for one in pairs[name])]
        for name in most
    ]  # fmt: skip


def _measured(profile: Profile) -> dict[str, _Operator]:
    operators: dict[str, _Operator] = defaultdict(_Operator)
    for unit in profile.units:
        for part in unit.parts:
            if part.of not in NO_OPERATORS:
                operator = operators[_plain(part.operator)]
                operator.calls += 1 / profile.measured_steps
                operator.host_us += part.host_us / profile.measured_steps
                operator.gpu_us += part.gpu_us / profile.measured_steps
    return operators


def _simulated(timeline: Timeline) -> dict[str, _Operator]:
    operators: dict[str, _Operator] = defaultdict(_Operator)
    for record in timeline.records:
        if record.kind == "launch":
            operators[_plain(record.name)].calls += 1
            operators[_plain(record.name)].host_us += record.duration_ns / 1e3
        elif record.kind in ("kernel", "copy", "message"):
            operators[_plain(record.name)].gpu_us += record.duration_ns / 1e3
    return operators


def _plain(name: str) -> str:
    """Return how an operator is called on any device: "cudnn_convolution" and "convolution" are one."""
    for library in ("cudnn_", "miopen_", "mkldnn_", "native_"):
        name = name.removeprefix(library)
    return "copy over the bus" if name.startswith(("copy ", "cudaMemcpy", "hipMemcpy")) else name.strip("_")
