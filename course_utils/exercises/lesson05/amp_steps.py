"""Is a step in mixed precision right: its order, its clipping, and what it does when gradients overflow?"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.checks import Case, WrongAnswer, difference
from course_utils.exercises.lesson05.training import (
    Probe,
    WatchedScaler,
    WatchedSGD,
    a_loss,
    batches,
    specification,
    trained,
    with_clearings,
)

__all__ = ["amp_overflow", "amp_steps"]

SCALE = 2.0**10
_WHY_SCALE = "small float16 gradients become 0 without it: scaler.scale(loss).backward()"
# One line for each mistake.
# fmt: off


def amp_steps(
    case: Case, sizes: tuple[int, ...], max_norm: float, scale: float = SCALE, dtype: torch.dtype = torch.float16
) -> None:
    """Steps with batches of these sizes and finite gradients; a `max_norm` from 1 clips none of them."""
    model, data = Probe().to(case.device), batches(sizes)
    start, optimizer = copy.deepcopy(model), WatchedSGD(model)
    scaler = WatchedScaler(optimizer, scale)
    for number, (x, y) in enumerate(data, start=1):
        optimizer.events.clear()
        x, y = x.to(case.device), y.to(case.device)
        try:
            got = case.call(model, optimizer, scaler, x, y, dtype, max_norm, modifies=True)
        except WrongAnswer:
            _name_the_order(case, optimizer.events)
            case.instead("backward" in optimizer.events and "scale" not in optimizer.events, "never scales the loss",
                         _WHY_SCALE)
            raise
        _name_the_format(case, model.dtypes, dtype)
        expected, logits = specification(start, data[:number], max_norm=max_norm, dtype=dtype)
        _amp_loss(case, got, logits[-1], y, scale, optimizer.events)
        case.instead("scale" not in optimizer.events, "never uses the scaler that it is given",
                     _WHY_SCALE)
        if "step" in optimizer.events:
            _name_the_order(case, optimizer.events)
            _name_by_size(case, *(_moved(one, start) for one in (model, expected)), max_norm)
        left_out = "scaler.step" in optimizer.events and "step" not in optimizer.events
        case.instead(left_out, "makes the gradients inf or NaN, so that the scaler leaves the step out",
                     "scaled once, those of this batch are finite")
        case.instead("update" not in optimizer.events, "never calls scaler.update()",
                     "it ends the step: it makes the scale smaller after an overflow, and larger when all goes well")
        trained(case, model, expected, optimizer, number, rtol=2e-2)
        case.budget("host reads", case.counts.host_reads, 1,
                    "scaler.step() looks once whether a gradient is inf; nothing else needs to")
        case.instead(optimizer.backward_in_autocast, "runs the backward pass under autocast",
                     "PyTorch advises against it: backward repeats the formats of the forward pass by itself")
        case.instead(scaler.get_scale() != scale, "sets the scale itself", "scaler.update() knows when to change it",
                     expected=scale, got=scaler.get_scale())


def _name_the_format(case: Case, found: list[torch.dtype], dtype: torch.dtype) -> None:
    """Fail unless the model's last forward pass, of those in the formats `found`, was computed in `dtype`."""
    case.instead(not found, "never calls the model")
    computed = str(found[-1]).removeprefix("torch.")
    reduced = found[-1] in (torch.float16, torch.bfloat16)
    case.instead(found[-1] != dtype, f"computes the forward pass in {computed}",
                 f"the caller asks for {dtype}: give autocast `dtype=dtype`" if reduced else
                 "it belongs into `with torch.autocast(images.device.type, dtype=dtype):`")


def _name_the_order(case: Case, events: list[str]) -> None:
    """Fail with the name of what came before the step and should not, or did not come."""
    events = with_clearings(events)
    first = {name: events.index(name) for name in dict.fromkeys(events)}
    step = min(first.get("scaler.step", len(events)), first.get("step", len(events)))
    case.instead(first.get("update", step) < step, "updates the scaler before the step",
                 "update() ends the step: the scaler then no longer knows that the gradients are unscaled")
    case.instead("zero_grad" in events[first.get("backward", step):step],
                 "clears the gradients before the step has used them", "the order is zero_grad, backward, step")
    stepped = step < len(events)
    case.instead(stepped and step < first.get("backward", len(events)), "steps before the backward pass",
                 "backward() on the scaled loss fills the gradients, the step uses them")


def _name_by_size(case: Case, moved: torch.Tensor, right: torch.Tensor, max_norm: float) -> None:
    """Fail with the name of the mistake that makes the parameters move so, instead of by `right`."""
    ratio = (moved.norm() / right.norm()).item()
    case.instead(ratio < 0.05 and max_norm < 1, "clips the scaled gradients",
                 f"their norm is {SCALE:g} times too large, so that almost nothing is left after the division: "
                 "scaler.unscale_(optimizer) comes before the clipping")
    case.instead(ratio < 0.05, "divides by a scale that it never multiplied by", "scaler.scale(loss).backward()")
    case.instead(ratio > 100, "steps with gradients that are still scaled",
                 f"they are {SCALE:g} times too large: scaler.step(optimizer) divides first, optimizer.step() does not")
    longer = f"takes a step {ratio:.3g} times as long as gradients of norm {max_norm:g} give"
    case.instead(max_norm < 1 and (moved - right).norm() > 0.05 * right.norm(),
                 longer if abs(ratio - 1) > 0.05 else "takes a step in another direction than the gradients",
                 "the norm of all gradients together is clipped to max_norm, after unscale_ and before the step")


def _amp_loss(
    case: Case, got: Any, logits: torch.Tensor, labels: torch.Tensor, scale: float, events: list[str]
) -> None:
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        right = F.cross_entropy(logits.float(), labels)
        case.instead(scale > 1 and torch.allclose(got.float(), right * scale, rtol=1e-2), "returns the scaled loss",
                     "the scale is for the gradients alone", expected=right, got=got)
        case.instead(got.dtype != torch.float32, f"the loss is {got.dtype}",
                     "under autocast cross_entropy returns float32; keep it", got=got)
    reads, case.counts.host_reads = case.counts.host_reads, 0  # scaler.step() itself reads one
    a_loss(case, got, logits, labels, labels.device, events)
    case.counts.host_reads = reads


def _moved(one: nn.Module, start: nn.Module) -> torch.Tensor:
    """Return how the parameters differ from those at the start, as one vector on the CPU."""
    pairs = zip(one.parameters(), start.parameters(), strict=True)
    return torch.cat([(now - before).detach().cpu().flatten() for now, before in pairs])


def amp_overflow(case: Case) -> None:
    """A batch whose gradients overflow float16: the step must be left out, and the scale be halved."""
    model, (batch,) = Probe().to(case.device), batches((4,))
    before, optimizer = copy.deepcopy(dict(model.state_dict())), WatchedSGD(model)
    scaler = WatchedScaler(optimizer, 2.0**40)
    x, y = (part.to(case.device) for part in batch)
    case.call(model, optimizer, scaler, x, y, torch.float16, 1.0, modifies=True)
    case.instead(difference(dict(model.state_dict()), before), "steps without the scaler",
                 "these gradients overflow to inf: scaler.step(optimizer) sees that and leaves the step out, "
                 "optimizer.step() makes every parameter NaN")
    case.instead(scaler.get_scale() >= 2.0**40, "never updates the scaler",
                 "scaler.update() makes the scale smaller after an overflow: without it every step is left out")
