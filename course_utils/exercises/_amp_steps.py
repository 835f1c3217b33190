"""Is a step in mixed precision right: its order, its clipping, and what it does when gradients overflow?"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils._compare import difference
from course_utils.exercise import Case
from course_utils.exercises._training import Probe, WatchedScaler, WatchedSGD, a_loss, batches, specification, trained

__all__ = ["amp_overflow", "amp_steps"]

SCALE = 2.0**10
# One line for each mistake.
# fmt: off


def amp_steps(
    case: Case, sizes: tuple[int, ...], max_norm: float, scale: float = SCALE, dtype: torch.dtype = torch.float16
) -> None:
    """Steps with batches of these sizes and finite gradients; a `max_norm` from 1 clips none of them."""
    model, data = Probe().to(case.device), batches(sizes)
    start, optimizer = copy.deepcopy(model), WatchedSGD(model)
    scaler = WatchedScaler(case.device.type, init_scale=scale)
    for number, (x, y) in enumerate(data, start=1):
        optimizer.events.clear()
        x, y = x.to(case.device), y.to(case.device)
        got = case.call(model, optimizer, scaler, x, y, dtype, max_norm, modifies=True)
        case.expect(model.dtypes, "never calls the model")
        computed = str(model.dtypes[-1]).removeprefix("torch.")
        case.mistake(model.dtypes[-1] != dtype, f"computes the forward pass in {computed}",
                     "it belongs into `with torch.autocast(images.device.type, dtype=dtype):`")
        expected, logits = specification(start, data[:number], max_norm=max_norm, dtype=dtype)
        _amp_loss(case, got, logits[-1], y, scale)
        case.mistake(not scaler.scaled, "never uses the scaler that it is given",
                     "small float16 gradients become 0 without it: scaler.scale(loss).backward()")
        moved = [_distance(one, start) for one in (model, expected)]
        _name_by_size(case, moved[0] / moved[1], max_norm, optimizer.events)
        case.mistake(not scaler.updates, "never calls scaler.update()",
                     "it ends the step: it makes the scale smaller after an overflow, and larger when all goes well")
        trained(case, model, expected, optimizer.events, number, rtol=2e-2)


def _name_by_size(case: Case, ratio: float, max_norm: float, events: list[str]) -> None:
    """Fail with the name of the mistake that makes the parameters move `ratio` times as far as they should."""
    if "step" not in events:
        return  # the order is wrong, or the scaler left the step out
    case.mistake(ratio < 0.05 and max_norm < 1, "clips the scaled gradients",
                 f"their norm is {SCALE:g} times too large, so that almost nothing is left after the division: "
                 "scaler.unscale_(optimizer) comes before the clipping")
    case.mistake(ratio < 0.05, "divides by a scale that it never multiplied by", "scaler.scale(loss).backward()")
    case.mistake(ratio > 100, "steps with gradients that are still scaled",
                 f"they are {SCALE:g} times too large: scaler.step(optimizer) divides first, optimizer.step() does not")
    case.mistake(max_norm < 1 and ratio > 2, "does not clip the gradients",
                 f"nn.utils.clip_grad_norm_(model.parameters(), {max_norm:g}), after unscale_ and before the step")


def _amp_loss(case: Case, got: Any, logits: torch.Tensor, labels: torch.Tensor, scale: float) -> None:
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        right = F.cross_entropy(logits.float(), labels)
        case.mistake(scale > 1 and torch.allclose(got.float(), right * scale, rtol=1e-2), "returns the scaled loss",
                     "the scale is for the gradients alone", expected=right, got=got)
        case.mistake(got.dtype != torch.float32, f"the loss is {got.dtype}",
                     "under autocast cross_entropy returns float32; keep it", got=got)
    reads, case.counts.host_reads = case.counts.host_reads, 0  # scaler.step() itself reads one
    a_loss(case, got, logits, labels, labels.device)
    case.budget("host reads", reads, 1, "scaler.step() looks once whether a gradient is inf; nothing else needs to")


def _distance(one: nn.Module, other: nn.Module) -> float:
    return sum((a - b).square().sum() for a, b in zip(one.parameters(), other.parameters(), strict=True)).sqrt().item()


def amp_overflow(case: Case) -> None:
    """A batch whose gradients overflow float16: the step must be left out, and the scale be halved."""
    model, (batch,) = Probe().to(case.device), batches((4,))
    before, optimizer = copy.deepcopy(dict(model.state_dict())), WatchedSGD(model)
    scaler = WatchedScaler(case.device.type, init_scale=2.0**40)
    x, y = (part.to(case.device) for part in batch)
    case.call(model, optimizer, scaler, x, y, torch.float16, 1.0, modifies=True)
    case.mistake(difference(dict(model.state_dict()), before), "steps without the scaler",
                 "these gradients overflow to inf: scaler.step(optimizer) sees that and leaves the step out, "
                 "optimizer.step() makes every parameter NaN")
    case.mistake(scaler.get_scale() >= 2.0**40, "never updates the scaler",
                 "scaler.update() makes the scale smaller after an overflow: without it every step is left out")
