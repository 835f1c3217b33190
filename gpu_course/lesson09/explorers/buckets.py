"""How much of the gradients' communication does DistributedDataParallel hide behind the backward pass?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider
from gpu_course.lesson09.explorers.ring import Ring

__all__ = ["DEFAULT_CAP_MIB", "MODELS", "Bucket", "Step", "assign", "buckets", "explore"]

DEFAULT_CAP_MIB = 25  # of bucket_cap_mb in DistributedDataParallel
_FIRST_BYTES = 2**20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: a small first bucket, with the default cap alone
_MIB = 2**20

# Sizes of the gradients of each layer in MiB, from input to output: a large layer is one tensor, the others are four.
MODELS: dict[str, tuple[tuple[float, ...], ...]] = {
    "12 equal layers": ((2.0,) * 4,) * 12,
    "large first layer": ((48.0,), *((1.0,) * 4,) * 12),
    "large last layer": (*((1.0,) * 4,) * 12, (48.0,)),
}


@dataclass(frozen=True)
class Bucket:
    """Gradients that are all-reduced together: their bytes, when the last is ready, and when the all-reduce runs."""

    nbytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """One backward pass with its all-reduces, among `ranks` over links of `gbps` GB/s, times from its begin."""

    model: str
    backward_s: float
    cap_bytes: int
    ranks: int
    gbps: float
    latency_s: float
    layers: tuple[tuple[float, float], ...]  # begin and end of each layer's backward, the last layer first
    overlapped: tuple[Bucket, ...]
    apart: tuple[Bucket, ...]  # the same buckets, if the first waits for the end of the backward pass

    communication_s = property(lambda s: sum(b.end_s - b.start_s for b in s.overlapped), doc="Seconds of all-reduces.")
    overlapped_s = property(lambda s: max(s.backward_s, s.overlapped[-1].end_s), doc="Seconds of both with overlap.")
    apart_s = property(lambda s: s.apart[-1].end_s, doc="Seconds of backward and then communication.")
    exposed_s = property(lambda s: s.overlapped_s - s.backward_s, doc="Seconds of communication that nothing hides.")


def assign(sizes: Sequence[int], cap_bytes: int, first_bytes: int | None = None) -> list[list[int]]:
    """Return which gradients share a bucket, as lists of places in `sizes`, which are bytes in the order of readiness.

    A bucket is full as soon as it holds at least its limit: `first_bytes` (default: the cap) for the first one, then
    `cap_bytes`. This is how DistributedDataParallel fills its buckets from the second step on.
    """
    buckets: list[list[int]] = [[]]
    held, limit = 0, cap_bytes if first_bytes is None else first_bytes
    for index, size in enumerate(sizes):
        buckets[-1].append(index)
        held += size
        if held >= limit:
            buckets.append([])
            held, limit = 0, cap_bytes
    return [bucket for bucket in buckets if bucket]


def buckets(*, model: str, backward_ms: float, cap_mib: int, ranks: int, gbps: float, latency_us: float) -> Step:
    """Return one step: each layer takes the same share of the backward pass, the last layer first.

    The gradients of a layer are ready one after the other. Buckets are all-reduced in order, one at a time, each by a
    ring: 2 (n - 1) x (latency + bytes / (n x bandwidth)). Overlap and buckets as in Li et al. 2020
    (https://arxiv.org/abs/2006.15704). Left out: that communication slows the backward pass down, copies into the
    bucket, and the first step, in which DistributedDataParallel has one bucket for all unless it must find unused
    parameters. A cap of 25 MiB means the default, with its small first bucket; `bucket_cap_mb=25` has none.
    """
    cap, end = cap_mib * _MIB, backward_ms / 1e3
    layers, sizes, ready = _backward(MODELS[model], end)
    groups = assign(sizes, cap, _FIRST_BYTES if cap_mib == DEFAULT_CAP_MIB else None)
    full = [(sum(sizes[i] for i in group), ready[group[-1]]) for group in groups]
    times = [Ring(ranks, nbytes, gbps, latency_us * 1e-6, 1).ring_s for nbytes, _ in full]
    both = _schedule(full, times, 0.0), _schedule(full, times, end)
    return Step(model, end, cap, ranks, gbps, latency_us * 1e-6, layers, *both)


def _backward(model: Sequence[Sequence[float]], backward_s: float) -> tuple:
    """Return begin and end of each layer's backward, and sizes and ready times of the gradients, in their order."""
    share = backward_s / len(model)
    layers, sizes, ready = [], [], []
    for turn, layer in enumerate(reversed(model)):
        layers.append((turn * share, (turn + 1) * share))
        for index, mib in enumerate(reversed(layer)):
            sizes.append(round(mib * _MIB))
            ready.append((turn + (index + 1) / len(layer)) * share)
    return tuple(layers), sizes, ready


def _schedule(full: Sequence[tuple[int, float]], times: Sequence[float], begin_s: float) -> tuple[Bucket, ...]:
    """Run the all-reduces in order, each as soon as its bucket is full and the one before is done."""
    free, buckets = begin_s, []
    for (nbytes, ready), seconds in zip(full, times, strict=True):
        start = max(free, ready)
        free = start + seconds
        buckets.append(Bucket(nbytes, ready, start, free))
    return tuple(buckets)


def describe(s: Step) -> str:
    """Return the result in words."""
    n, texts = len(s.overlapped), [plots.seconds_text(t) for t in (s.overlapped_s, s.exposed_s, s.apart_s)]
    count = f"{n} all-reduces" if n > 1 else "1 all-reduce"
    gradients, cap = plots.bytes_text(sum(bucket.nbytes for bucket in s.overlapped)), plots.bytes_text(s.cap_bytes)
    cap += f" (the first {plots.bytes_text(_FIRST_BYTES)})" if s.cap_bytes == DEFAULT_CAP_MIB * _MIB else ""
    return (
        f"{s.model.capitalize()}, {gradients} of gradients in buckets of {cap}: {count} "
        f"among {s.ranks} ranks, {plots.seconds_text(s.communication_s)} in all. Backward takes "
        f"{plots.seconds_text(s.backward_s)}; with overlap both take {texts[0]}, {texts[1]} of it exposed; one after "
        f"the other {texts[2]}. Predicted with rings over {s.gbps:g} GB/s and {plots.seconds_text(s.latency_s)} a "
        "message; that communication slows the backward pass is left out."
    )


def draw(s: Step) -> Any:
    """Return the picture: backward and all-reduces in time, with overlap and one after the other."""
    figure, axes = plots.new("Backward pass and all-reduces", height_in=3.3)
    for buckets, upper, lower in ((s.overlapped, 3, 2), (s.apart, 1, 0)):
        for begin, end in s.layers:
            axes.broken_barh([(begin * 1e3, (end - begin) * 1e3)], (upper - 0.36, 0.72), color=plots.PALE, ec="white")
        for index, bucket in enumerate(buckets):
            colour = plots.PALETTE[index % len(plots.PALETTE)]
            span = (bucket.start_s * 1e3, (bucket.end_s - bucket.start_s) * 1e3)
            axes.broken_barh([span], (lower - 0.36, 0.72), color=colour, ec="white", lw=0.6)
            axes.plot([bucket.ready_s * 1e3] * 2, [upper - 0.36, upper + 0.36], color=colour, linewidth=1.6)
    axes.axvline(s.backward_s * 1e3, color=plots.MUTED, linewidth=1)
    if s.exposed_s > 0:
        ends = (s.backward_s * 1e3, s.overlapped_s * 1e3)
        axes.axvspan(*ends, ymin=0.5, color=plots.RED, alpha=0.12, linewidth=0)
        axes.text(ends[1], 3, " exposed", va="center", fontsize=8, color=plots.RED)
    names = ["all-reduces", "one after the other: backward", "all-reduces", "with overlap: backward"]
    axes.set_yticks(range(4), names)
    words = "ms, predicted; coloured lines: a bucket is full"
    axes.set(xlim=(0, s.apart_s * 1e3 * 1.08), ylim=(-0.6, 3.6), xlabel=words)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


def _cap_text(mib: int) -> str:
    return f"{mib} default" if mib == DEFAULT_CAP_MIB else f"{mib}"


def explore() -> Explorer:
    """Return the explorer of lesson 09."""
    controls = [
        Slider("cap_mib", "Bucket, MiB", (1, 2, 5, 10, 25, 50, 100), DEFAULT_CAP_MIB, _cap_text),
        Choice("model", "Model", tuple(MODELS), "12 equal layers"),
        Slider("ranks", "Ranks", (2, 4, 8, 16, 32, 64), 8),
        Slider("gbps", "GB/s a link", (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0), 5.0),
        Slider("latency_us", "Latency, µs", (0.0, 5.0, 10.0, 50.0, 100.0, 500.0), 10.0),
        Slider("backward_ms", "Backward, ms", (5.0, 10.0, 20.0, 50.0, 100.0, 200.0), 50.0),
    ]
    return Explorer("gradient buckets and overlap", buckets, draw, describe, controls)
