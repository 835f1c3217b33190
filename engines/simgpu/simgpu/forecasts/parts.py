"""Parts of a step and their times: data, copies, forward, backward, optimizer."""

from bisect import bisect_left
from collections import Counter

from simgpu.clock.events import FIRST_BATCH, GRADIENTS, LOADING, OPTIMIZER
from simgpu.device.timelines import Gap, Timeline

_PARTS = {"recomputation": "backward", GRADIENTS: "optimizer", OPTIMIZER: "optimizer"}  # else the phase itself
_ORDER = ("data", "copy", "forward", "backward", "optimizer", "other")


def seconds_by_part(timeline: Timeline, row: str, gaps: list[Gap], steps: int = 1) -> dict[str, float]:
    """Return the seconds of a step by part: where the GPU computes that of its kernels, in a gap what it waits for.

    They add up to the step. Empty without a backward pass, which is what tells the parts apart.
    """
    kernels = sorted(timeline.select("kernel", row), key=lambda record: record.start_ns)
    if not any(record.phase == "backward" for record in kernels):
        return {}
    times: Counter[str] = Counter()
    until = 0
    for record in kernels:
        times[_PARTS.get(record.phase, record.phase)] += max(0, record.end_ns - max(record.start_ns, until))
        until = max(until, record.end_ns)
    starts, parts = [r.start_ns for r in kernels], [_PARTS.get(r.phase, r.phase) for r in kernels]
    for gap in gaps:
        times[_part_of(gap, starts, parts)] += gap.duration_ns
    return {part: times[part] / steps / 1e9 for part in _ORDER if times[part]}


def _part_of(gap: Gap, starts: list[int], parts: list[str]) -> str:
    """Return the part of a step that a gap belongs to: data, copies, or that of the kernel after it.

    `starts` and `parts` are those of the kernels, in order.
    """
    if gap.cause in (LOADING, FIRST_BATCH):
        return "data"
    if "H2D" in gap.cause:
        return "copy"
    following = bisect_left(starts, gap.start_ns + gap.duration_ns)
    return parts[following] if following < len(parts) else "other"
