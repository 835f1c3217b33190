"""Does the loop train, measure, cast, count and resume as it should? The exercises of lesson 05."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.checks import Case, difference, lesson
from course_utils.exercises.common.numbers import as_float, is_number
from course_utils.exercises.common.places import elsewhere
from course_utils.exercises.lesson05.amp_steps import amp_overflow, amp_steps
from course_utils.exercises.lesson05.averages import average_mistake
from course_utils.exercises.lesson05.resuming import resumes
from course_utils.exercises.lesson05.training import (
    Probe,
    WatchedSGD,
    a_loss,
    batches,
    counted_waits,
    specification,
    trained,
)
from course_utils.exercises.lesson05.training import loader as loader_of

__all__ = ["Progress", "amp_step", "evaluate", "mean_loss", "train_epoch", "train_step"]

exercise = lesson("05")

# One line for each mistake and for each hint.
# fmt: off


@exercise(title="One training step", minutes=10, difficulty=1, hints=(
    "Move the batch, clear the gradients, compute the loss, call backward on it, let the optimizer step.",
    "F.cross_entropy(model(images), labels) is the loss. It takes logits: no softmax before it.",
    "optimizer.zero_grad(); loss = F.cross_entropy(model(images), labels); loss.backward(); optimizer.step(); "
    "return loss.detach()",
))
def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Train `model` on one batch and return its loss, detached, still on `device`."""
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad(set_to_none=True)  # backward() adds to the gradients that it finds
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()  # without the graph, which would keep the batch alive


@train_step.checks
def _(case: Case) -> None:
    for device in dict.fromkeys((case.device, elsewhere(case.device))):
        model, data = Probe().to(device), batches((5, 2))
        optimizer = WatchedSGD(model)
        start = copy.deepcopy(model)
        for number, (x, y) in enumerate(data, start=1):
            optimizer.events.clear()
            given = [x.clone(), y.clone()]
            with counted_waits(device) as waits:
                got = case.call(model, optimizer, x, y, device, modifies=True)
            case.instead(difference([x, y], given), "modifies the batch", "the next epoch sees it again")
            expected, logits = specification(start, data[:number])
            a_loss(case, got, logits[-1], y, device, optimizer.events)
            trained(case, model, expected, optimizer, number)
            case.instead(waits, "lets the host wait", "synchronize() in every step keeps the queue empty")


@exercise(title="Evaluation", minutes=10, difficulty=2, hints=(
    "Two switches: model.eval() for dropout and batch norm, torch.inference_mode() for the graph.",
    "Right answers of a batch: (model(images).argmax(dim=1) == labels).sum(). Count the samples as well.",
    "Keep was = model.training before, and end with model.train(was). Return right / total as a float.",
))
def evaluate(model: nn.Module, loader: Iterable, device: torch.device) -> float:
    """Return the share, 0 to 1, of the samples in `loader` that `model` classifies rightly, and leave it as it was."""
    was = model.training
    model.eval()  # dropout off, batch norm uses its running averages
    right, total = torch.zeros((), device=device), 0
    with torch.inference_mode():  # no graph, no memory for it
        for images, labels in loader:
            logits = model(images.to(device))
            right += (logits.argmax(dim=1) == labels.to(device)).sum()
            total += len(labels)
    model.train(was)
    return right.item() / total


@evaluate.checks
def _(case: Case) -> None:
    here, there = case.device, elsewhere(case.device)
    for sizes, mode, device in (((4, 3), True, here), ((4, 4, 2), True, there), ((5, 5, 3), False, here)):
        model, data = Probe(dropout=0.5).to(device).train(mode), batches(sizes)
        before = copy.deepcopy(dict(model.state_dict()))
        loader = loader_of(data) if mode else data  # a list of batches is a loader too
        got = case.call(model, loader, device, modifies=True, draws=True)  # dropout draws
        left = {name: module.training for name, module in model.named_modules()}
        other = next((place for place in model.devices if place != device), None)
        case.instead(not model.training_seen, "never calls the model that it is given")
        case.instead(other, f"computes on {other}, expected on {device}", "the device would stand idle")
        case.instead(any(model.training_seen), "evaluates in training mode", "dropout then blots out half of the "
                     "values, and batch norm uses this batch and changes its running averages: call model.eval() first")
        case.instead(any(model.layers_training_seen), "puts the outer module alone into evaluation mode",
                     "dropout and batch norm look at their own switch: model.eval() reaches all layers")
        case.instead(any(model.graph_seen), "builds a graph", "nobody will call backward, and the graph keeps every "
                     "activation of the batch in memory: use torch.inference_mode()")
        part = next((name for name in left if left[name] != mode), None)
        case.instead(part is not None, f"leaves {part or 'the model'} in {'evaluation' if mode else 'training'} mode",
                     f"it came in {'training' if mode else 'evaluation'} mode; the caller goes on with that")
        case.instead(not all(p.requires_grad for p in model.parameters()), "leaves parameters frozen",
                     "the caller goes on training them")
        changed = difference(dict(model.state_dict()), before, where="the model")
        case.instead(changed, f"changes the model: {changed}", "an evaluation changes no parameter")
        model.eval()
        hits = [[int(a) == int(b) for a, b in zip(model(x.to(device)).argmax(dim=1), y, strict=True)]
                for x, y in data]
        right = sum(map(sum, hits)) / sum(sizes)
        if is_number(got):
            name, why = average_mistake(as_float(got), [sum(hit) / len(hit) for hit in hits], sizes, share=True)
            case.instead(name, name, why, expected=right, got=got)
        case.instead(isinstance(got, torch.Tensor), "returns a tensor, expected a float", ".item() reads it", got=got)
        case.equal(as_float(got) if isinstance(got, int) and is_number(got) else got, right)


@exercise(title="The mean loss of uneven batches", minutes=5, difficulty=1, hints=(
    "A batch of 2 must count half as much as a batch of 4.",
    "Multiply each mean by the size of its batch, add, and divide by the number of all samples.",
    "return sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes)",
))
def mean_loss(losses: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """Return the mean loss of all samples from each batch's mean loss and size, on the device of the losses."""
    total = sum(loss * size for loss, size in zip(losses, sizes, strict=True))  # back to sums, which may be added
    return total / sum(sizes)


@mean_loss.checks
def _(case: Case) -> None:
    for values, sizes in (([3.0, 9.0], [4, 2]), ([1.5], [7]), ([0.5, 2.0, 4.0], [8, 8, 3]), ([2.0, 2.5], [3, 3]),
                          ([1.0, 2.5, 4.0], [2, 5, 3])):
        losses = [torch.tensor(value, device=case.device) for value in values]
        got = case.call(losses, sizes)
        right = torch.tensor(sum(v * s for v, s in zip(values, sizes, strict=True)) / sum(sizes), device=case.device)
        case.instead(isinstance(got, int | float), "returns a Python number",
                     "to read it, the host waits for the device: return the tensor", got=got)
        case.instead(case.counts.host_reads or case.counts.copies_d2h, "lets the host read values",
                     "multiply and add on the device; the host need not know the numbers")
        if isinstance(got, torch.Tensor) and got.numel() == 1:
            name, why = average_mistake(got.item(), values, sizes)
            case.instead(name, name, why, expected=right, got=got)
        case.equal(got, right)


@exercise(title="An epoch with one host read", minutes=15, difficulty=2, hints=(
    "Make a tensor of two zeros on the device before the loop and add to it: sums stay where they are computed.",
    "Each batch adds loss.detach() * len(labels) and (logits.argmax(dim=1) == labels).sum().",
    "After the loop: loss, share = (sums / samples).tolist(). That is the one read.",
))
def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable, device: torch.device
) -> tuple[float, float]:
    """Train one epoch; return the mean loss and the share of right answers over its samples, read once."""
    sums, samples = torch.zeros(2, device=device), 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)  # the device adds, the host only asks it to
        sums[1] += (logits.argmax(dim=1) == labels).sum()
        samples += len(labels)
    mean, share = (sums / samples).tolist()  # the one read
    return mean, share


@train_epoch.checks
def _(case: Case) -> None:
    for sizes, device in (((4, 3), case.device), ((5, 5, 5, 2), elsewhere(case.device))):
        model, data = Probe().to(device), batches(sizes)
        start, optimizer = copy.deepcopy(model), WatchedSGD(model)
        loader = loader_of(data) if len(data) == 2 else data  # a list of batches is a loader too
        with counted_waits(device) as waits:
            got = case.call(model, optimizer, loader, device, modifies=True)
        counts = case.counts
        expected, logits = specification(start, data)
        losses = [F.cross_entropy(z.cpu(), y).item() for z, (_, y) in zip(logits, data, strict=True)]
        hits = [(z.cpu().argmax(dim=1) == y).sum().item() for z, (_, y) in zip(logits, data, strict=True)]
        right = (sum(v * s for v, s in zip(losses, sizes, strict=True)) / sum(sizes), sum(hits) / sum(sizes))
        passes = len(model.training_seen)
        case.instead(passes > len(data), f"runs the model {passes} times for {len(data)} batches",
                     "loss and right answers come from the logits that were trained on: another costs as much again")
        state = dict(model.state_dict())
        if difference(state, dict(expected.state_dict()), rtol=1e-4, atol=1e-5):
            summed = specification(start, data, reduction="sum")[0].state_dict()
            case.instead(not difference(state, dict(summed), rtol=1e-4),
                         "sums the loss over the batch", "the step would grow with the batch: take the mean")
        trained(case, model, expected, optimizer, 1, steps=len(data))
        case.instead(max(model.graphs_alive) > 2, "keeps the graph of every batch",
                     "a sum of losses that are not detached holds all of them: add loss.detach()")
        got = tuple(got) if isinstance(got, list) else got
        if isinstance(got, tuple) and len(got) == 2 and all(isinstance(value, float) for value in got):
            swapped = max(abs(a - b) for a, b in zip(got, reversed(right), strict=True)) < 1e-5
            case.instead(swapped, "swaps loss and share", "the caller takes the first for the loss",
                         expected=right, got=got)
            shares = [hit / size for hit, size in zip(hits, sizes, strict=True)]
            for value, means, share in ((got[0], losses, False), (got[1], shares, True)):
                name, why = average_mistake(value, means, sizes, share=share)
                case.instead(name, f"{name}: the {'share' if share else 'loss'}", why, expected=right, got=got)
        tensors = isinstance(got, tuple) and any(isinstance(value, torch.Tensor) for value in got)
        case.instead(tensors, "returns tensors, expected two floats", "one .tolist() at the end reads both", got=got)
        case.equal(got, right, rtol=1e-4, atol=1e-5)
        case.budget("synchronisations an epoch", counts.host_reads + counts.copies_d2h + len(waits), 1,
                    "synchronize(), .item(), print, float() and an `if` on a tensor make the host wait for all that is "
                    "queued: add up on the device and read once, at the end")


@exercise(title="A step in mixed precision", minutes=15, difficulty=3, hints=(
    "The forward pass and the loss stand under torch.autocast(images.device.type, dtype=dtype), nothing else does.",
    "scaler.scale(loss).backward() gives gradients that are too large by the scale. Unscale before you measure them.",
    "zero_grad first; after backward scaler.unscale_(optimizer), clip_grad_norm_, scaler.step(optimizer), "
    "scaler.update(), in this order.",
))
def amp_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
    images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype, max_norm: float,
) -> torch.Tensor:
    """Take one step under autocast to `dtype`, gradients clipped to `max_norm`, and return the detached loss."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=dtype):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()  # the factor keeps small float16 gradients from becoming 0
    scaler.unscale_(optimizer)  # now their norm means something
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)  # leaves the step out if a gradient is inf or NaN
    scaler.update()  # and then makes the factor smaller
    return loss.detach()


@amp_step.checks
def _(case: Case) -> None:
    amp_steps(case, (8,), max_norm=1e6)  # clips nothing
    amp_steps(case, (8,), max_norm=0.05)
    amp_steps(case, (8, 6), max_norm=1e6, scale=1.0, dtype=torch.bfloat16)  # what was not cleared counts in full
    amp_overflow(case)


@exercise(title="Resume", minutes=15, difficulty=3, hints=(
    "Model, optimizer and scheduler have state_dict and load_state_dict. Random numbers: torch.get_rng_state().",
    "The step is a number: keep it in self.step, which is 0 at the start.",
    "state = {'step': self.step, 'random': torch.get_rng_state(), 'model': self.model.state_dict(), …}; on an "
    "accelerator also torch.get_device_module(device).get_rng_state(device), device = next(model.parameters()).device.",
))
class Progress:
    """What a run needs to go on: `state_dict()` returns it, `load_state_dict(state)` puts it back; `step` counts."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self.device = next(model.parameters()).device
        self.step = 0  # the position in the data follows from it

    def state_dict(self) -> dict:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "random": torch.get_rng_state()}
        if self.device.type != "cpu":  # dropout on the device draws from the device's generator
            state["device_random"] = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def load_state_dict(self, state: dict) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["random"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["device_random"], self.device)


@Progress.checks
def _(case: Case) -> None:
    resumes(case)
