"""What does each change to a training loop gain? Trains with the loops of lesson 05, live and on simulated GPUs."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

import simgpu
from course_utils import counting, data, models, recorded, timing
from gpu_course.lesson05.training import PINNING

CHANGES = ("naive loop", "decoded once", "2 workers", "final loop", "fused optimizer", "mixed precision")
_ON_THE_STEP = (1, 4, 5, 6)  # how many of the changes a step has: workers and decoding are no part of it
_SAMPLES, _BATCH = 128, 32
Rates = dict[str, float]


@dataclass(frozen=True)
class Loops:
    """The two loops of the lesson, and its choice of a number format for a device."""

    naive: Callable[..., Any]
    final: Callable[..., Any]
    amp_dtype: Callable[[torch.device], torch.dtype | None]

    def trained_with(self, changes: Iterable[str], device: torch.device) -> Callable[[Iterable], Any]:
        """Return a function that trains a new network for an epoch of a loader, with these changes."""
        torch.manual_seed(0)
        network = models.ConvNet(channels_in=3, classes=8, width=32).to(device)
        adamw = torch.optim.AdamW(network.parameters(), lr=3e-3, fused="fused optimizer" in changes or None)
        if "final loop" not in changes:
            return lambda loader: self.naive(network, adamw, loader, device)
        dtype = self.amp_dtype(device) if "mixed precision" in changes else None
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=dtype == torch.float16)
        return lambda loader: self.final(network, adamw, scaler, loader, device, dtype)


def live_rates(loops: Loops, device: torch.device) -> Rates:
    """Return the samples a second of the whole loop, live, after each change; the last one where it is native."""
    number = len(CHANGES) - (loops.amp_dtype(device) is None)
    return {CHANGES[i]: _live_rate(loops, CHANGES[: i + 1], device) for i in range(number)}


def _live_rate(loops: Loops, changes: tuple[str, ...], device: torch.device) -> float:
    samples = data.PhotoCrops(_SAMPLES, size=24, dtype=torch.uint8, decode_once="decoded once" in changes)
    fed = {"num_workers": 2, "persistent_workers": True} if "2 workers" in changes else {}
    pin = device.type in PINNING and "final loop" in changes
    loader = DataLoader(samples, batch_size=_BATCH, shuffle=True, pin_memory=pin, **fed)
    epoch = loops.trained_with(changes, device)
    runs = timing.measure(lambda: epoch(loader), device=device, min_time_s=0.01, repeats=2)
    rate = _SAMPLES / min(runs.times_s)  # the best: other work on the machine only slows a run down
    value = recorded.value(f"05.loop.{changes[-1].replace(' ', '_')}", rate, "samples/s")
    if recorded.load():
        print(f"{changes[-1]:16}", value)
    return rate


def simulated_rates(loops: Loops, specs: Iterable[str]) -> tuple[dict[str, Rates], dict[str, int]]:
    """Return the samples a second of a step on each simulated GPU, by change, and how often the host reads in it."""
    device, rates, reads = torch.device("sim", 0), {}, {}
    crops = data.PhotoCrops(_BATCH, size=24, dtype=torch.uint8)
    ready = next(iter(DataLoader(crops, batch_size=_BATCH)))
    pinned = [part.pin_memory() for part in ready]
    for spec in specs:
        simgpu.configure(spec=spec)
        of_step = rates[f"{spec}, step (simulated)"] = {}
        for number in _ON_THE_STEP:
            change = CHANGES[number - 1]
            epoch = loops.trained_with(CHANGES[:number], device)
            epoch([ready])  # makes the optimizer's state
            with counting.count() as counts, simgpu.timeline() as timeline:
                epoch([ready if number == 1 else pinned])
            reads[change] = counts.host_reads
            of_step[change] = 1e3 * _BATCH / timeline.total_ms
    simgpu.configure(spec="T4")
    return rates, reads


def gains_of(rates: Rates) -> Rates:
    """Return how many times as fast each change is as the one before it."""
    return {name: rates[name] / rates[before] for before, name in itertools.pairwise(rates)}


def show_gains(table: dict[str, Rates]) -> None:
    """Print a row for each change, with rate and gain for each title of `table`, and a sentence for each title."""
    widths = [max(len(title), 21) for title in table]  # of a rate and a gain
    print(f"{'samples/s, gain':15}", *(f"{title:>{width}}" for title, width in zip(table, widths, strict=True)))
    gains = {title: gains_of(rates) for title, rates in table.items()}
    for name in CHANGES:
        cells = []
        for (title, rates), width in zip(table.items(), widths, strict=True):
            cell = f"{rates[name]:,.0f} {gains[title].get(name, 1):6.2f}" if name in rates else "-"
            cells.append(f"{cell:>{width}}")
        print(f"{name:15}", *cells)
    for title, gained in gains.items():
        best, total = max(gained, key=gained.get), math.prod(gained.values())
        worse = [name for name, gain in gained.items() if gain < 0.95]
        print(f"{title}: {best} gains most, {gained[best]:.2f} times; in all {total:.2f} times")
        if worse:
            print(f"  slower with: {', '.join(worse)}")
