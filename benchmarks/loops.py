"""How much faster is the final loop of lesson 05 than the naive one on this machine, and which change is it?

    python -m benchmarks.loops

The loops are the lesson's own cells. Each variant has one change more than the one before; all take turns, and the best
of the rounds counts, because other work on the machine only ever slows a loop down. The final loop takes mixed
precision only where that is faster here. Exit status 1 if the final loop is slower than the naive one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from course_utils import data, devices, models
from tools import notebooks

SAMPLES, BATCH = 256, 32


@dataclass(frozen=True)
class Variant:
    """A training loop: what it has beyond the one above, and how it is made."""

    change: str
    final: bool = True  # the final loop, else the naive one
    threads: int = 1
    decode_once: bool = False
    workers: int = 0
    fused: bool = False
    mixed: bool = False


DEFAULT_THREADS = torch.get_num_threads()
VARIANTS = (
    Variant("naive loop", final=False, threads=DEFAULT_THREADS),
    Variant("one thread for the small network", final=False),
    Variant("sums on the device, bytes to the device"),
    Variant("fused optimizer", fused=True),
    Variant("photographs decoded once", fused=True, decode_once=True),
    Variant("two workers that live on", fused=True, decode_once=True, workers=2),
    Variant("mixed precision where it is native", fused=True, decode_once=True, workers=2, mixed=True),
)


def lesson() -> dict:
    """Return the loops and the choice of a number format as lesson 05 shows them."""
    path = next(path for path in notebooks.lessons() if path.name.startswith("05_"))
    cells = {cell.id: cell.source for cell in notebooks.read(path).cells}
    made = {"torch": torch, "F": F, "nn": torch.nn, "models": models}
    for name in ("naive-loop", "final-loop"):
        exec(cells[name], made)
    exec(cells["amp-dtype"].partition("\n\n\n")[0], made)  # the function alone
    return made


def epoch_of(variant: Variant, device: torch.device, cells: dict) -> Callable[[], object]:
    """Return a function that trains one epoch and returns its mean loss and share of right answers."""
    torch.manual_seed(0)
    crops = data.PhotoCrops(SAMPLES, size=24, dtype=torch.uint8, decode_once=variant.decode_once)
    pin = variant.workers > 0 and device.type in ("cuda", "xpu")
    loader = DataLoader(
        crops, batch_size=BATCH, shuffle=True, num_workers=variant.workers, persistent_workers=variant.workers > 0,
        pin_memory=pin, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    net = models.ConvNet(channels_in=3, classes=8, width=32).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, fused=variant.fused or None)
    dtype = cells["amp_dtype"](device) if variant.mixed else None
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)

    def epoch():
        torch.set_num_threads(variant.threads)
        if variant.final:
            return cells["final_epoch"](net, optimizer, scaler, loader, device, dtype)
        return cells["naive_epoch"](net, optimizer, loader, device)

    return epoch


def measured(device: torch.device, rounds: int) -> dict[Variant, list[float]]:
    """Return the samples a second of every variant, round by round; the first round, a warm-up, is left out."""
    cells = lesson()
    epochs = {variant: epoch_of(variant, device, cells) for variant in VARIANTS}
    losses = {variant: epoch() for variant, epoch in epochs.items()}
    assert all(abs(loss[0] - losses[VARIANTS[0]][0]) < 0.05 for loss in losses.values()), losses  # the same training
    rates = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant, epoch in epochs.items():
            devices.synchronize(device)
            start = time.perf_counter()
            epoch()
            devices.synchronize(device)
            rates[variant].append(SAMPLES / (time.perf_counter() - start))
    return rates


def main(arguments: list[str] | None = None) -> int:
    """Print each variant's rate and what its change brought; return 0 if the final loop is not slower."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    device = devices.pick()
    device = torch.device("cpu") if device.type == "sim" else device
    rates = measured(device, options.rounds)
    before = max(rates[VARIANTS[0]])
    naive = max(max(rates[variant]) for variant in VARIANTS if not variant.final)  # the better number of threads
    print(f"{SAMPLES} samples an epoch, live on {device}, best of {options.rounds} rounds (median in brackets)")
    for variant, found in rates.items():
        best = max(found)
        gain = f"{best / before:5.2f} x the line above, {best / naive:5.2f} x the better naive loop"
        print(f"{variant.change:42} {best:7,.0f} samples/s ({statistics.median(found):7,.0f})  {gain}")
        before = best
    final = max(VARIANTS[-2:], key=lambda variant: max(rates[variant]))
    ratio = max(rates[final]) / naive
    precision = "mixed precision" if final.mixed else "float32"
    print(f"final loop, {precision}: {ratio:.2f} times the better naive one (must be at least 1)")
    return int(ratio < 1)


if __name__ == "__main__":
    raise SystemExit(main())
