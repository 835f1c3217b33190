"""In what order did a training step work, and what should have come out? Tools for the checks of training loops."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils.checks import Case, difference
from course_utils.exercises.common.places import IGNORED

__all__ = [
    "LEARNING_RATE", "MOMENTUM", "Probe", "WatchedSGD", "WatchedScaler", "a_loss", "batches", "counted_waits", "loader",
    "order_mistake", "specification", "trained", "with_clearings",
]  # fmt: skip

LEARNING_RATE, MOMENTUM = 0.1, 0.9
Batch = tuple[torch.Tensor, torch.Tensor]


class Probe(nn.Module):
    """A small classifier, (batch, 6) -> (batch, 3) logits, that notes how it was called."""

    def __init__(self, dropout: float = 0.0, *, norm: bool = False) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
        self.layers = nn.Sequential(nn.Linear(6, 8), middle, nn.Dropout(dropout), nn.Linear(8, 3))
        self.training_seen: list[bool] = []
        self.layers_training_seen: list[bool] = []
        self.graph_seen: list[bool] = []
        self.dtypes: list[torch.dtype] = []
        self.devices: list[torch.device] = []
        self.graphs_alive: list[int] = []  # those of earlier calls, at each call
        self.cleared: Callable[[], None] = lambda: None
        self._graphs: list[weakref.ref] = []

    def __repr__(self) -> str:
        return "model"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.layers(x)
        self.training_seen.append(self.training)
        self.layers_training_seen.append(any(module.training for module in self.layers.modules()))
        self.graph_seen.append(logits.requires_grad)
        self.dtypes.append(logits.dtype)
        self.devices.append(x.device)
        self.graphs_alive.append(sum(graph() is not None for graph in self._graphs))
        if logits.grad_fn is not None:  # what is in its metadata lives as long as the graph
            logits.grad_fn.metadata["probe"] = graph = _Graph()
            self._graphs.append(weakref.ref(graph))
        return logits

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared()
        super().zero_grad(set_to_none)


class _Graph:
    """Stands for the graph of one call."""


class _Event(str):
    """What happened, with a copy of the first gradient just before it; None where there was none."""

    gradient: torch.Tensor | None


class WatchedSGD(torch.optim.SGD):
    """SGD with momentum that notes the order of zero_grad (the model's too), backward and step in `events`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.events: list[str] = []
        self.backward_in_autocast = False
        self.start = [parameter.detach().clone() for parameter in model.parameters()]
        model.cleared = lambda: self.events.append("zero_grad")
        self._first = next(model.parameters())
        self._first.register_hook(lambda _: self._remember())
        self._first.register_post_accumulate_grad_hook(lambda _: self.note("backward", self._before))

    def __repr__(self) -> str:
        return "optimizer"

    def _remember(self) -> None:
        self._before = copy_of(self._first.grad)
        self.backward_in_autocast |= torch.is_autocast_enabled(self._first.device.type)

    def note(self, name: str, gradient: torch.Tensor | None) -> None:
        """Add an event to `events`."""
        event = _Event(name)
        event.gradient = gradient
        self.events.append(event if self.state or name != "backward" else name)  # the first finds none in any case

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.events.append("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure=None):
        self.note("step", copy_of(self._first.grad))
        return super().step(closure)


class WatchedScaler(torch.amp.GradScaler):
    """A GradScaler that notes scale, scaler.step and update in the `events` of its optimizer."""

    def __init__(self, optimizer: WatchedSGD, init_scale: float) -> None:
        super().__init__(optimizer.start[0].device.type, init_scale=init_scale)
        self.events, self.watched = optimizer.events, optimizer

    def __repr__(self) -> str:
        return "scaler"

    def scale(self, outputs):
        self.events.append("scale")
        return super().scale(outputs)

    def step(self, optimizer, *args, **kwargs):
        self.watched.note("scaler.step", copy_of(self.watched._first.grad))
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None) -> None:
        self.events.append("update")
        super().update(new_scale)


class _Loader(DataLoader):
    def __repr__(self) -> str:
        return "loader"


def batches(sizes: Iterable[int], scale: float = 1.0) -> list[Batch]:
    """Return batches of these sizes on the CPU: float32 (size, 6) and labels 0 to 2 that can be learned."""
    made = [scale * torch.randn(size, 6) for size in sizes]
    return [(x, x[:, :3].argmax(dim=1)) for x in made]


def copy_of(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy of a gradient, if there is one."""
    return None if gradient is None else gradient.detach().clone()


def with_clearings(events: list[str]) -> list[str]:
    """Return `events` with "zero_grad" also where somebody cleared p.grad by hand, to None or to zeros."""
    found: list[str] = []
    for event in events:
        if isinstance(event, _Event) and (event.gradient is None or not event.gradient.any()):
            found.append("zero_grad")
        found.append(event)
    return found


def order_mistake(events: list[str], steps: int = 1) -> tuple[str, str]:
    """Return the name of the mistake in the order of training steps and why it matters, or two empty texts."""
    events = [event for event in with_clearings(events) if event in ("zero_grad", "backward", "step")]
    for name, shown in (("backward", "backward() on the loss"), ("step", "optimizer.step()")):
        if name not in events:
            return f"never calls {shown}", "backward() fills the gradients, step() uses them"
    backward, step = events.index("backward"), events.index("step")
    if step < backward:
        return "steps before the backward pass", "the step then uses the gradients of the batch before, or none"
    if "zero_grad" in events[backward:step]:
        return "clears the gradients before the step has used them", "the order is zero_grad, backward, step"
    if "zero_grad" not in events:
        return "never clears the gradients", "backward() adds to them: each step would use the sum over all batches"
    for name in ("step", "backward"):
        if (number := events.count(name)) != steps:
            return f"calls {name}() {number} time(s), not {steps}", "each batch takes one backward pass and one step"
    cleared = [event for event in events if event != "backward"]
    if any(pair == ("step", "step") for pair in itertools.pairwise(cleared)):
        return "clears the gradients once, not for each batch", "backward() adds to those of the batches before"
    return "", ""


def specification(
    model: nn.Module, data: list[Batch], *, max_norm: float = 0, dtype: torch.dtype | None = None, reduction="mean"
) -> tuple[nn.Module, list[torch.Tensor]]:
    """Return what SGD with momentum makes of a copy of `model`, step by step and by hand, and each batch's logits.

    With `max_norm`, gradients are clipped to that norm; with `dtype`, the forward pass runs under autocast.
    """
    model = copy.deepcopy(model)
    parameters = list(model.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    device, seen = parameters[0].device, []
    for x, y in data:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            logits = model(x.to(device))
            loss = F.cross_entropy(logits, y.to(device), reduction=reduction)
        gradients = torch.autograd.grad(loss, parameters)
        if max_norm:
            norm = sum(g.square().sum() for g in gradients).sqrt().item()
            gradients = [g * min(1.0, max_norm / norm) for g in gradients]
        velocities = [MOMENTUM * v + g for v, g in zip(velocities, gradients, strict=True)]
        with torch.no_grad():
            for p, v in zip(parameters, velocities, strict=True):
                p.sub_(LEARNING_RATE * v)
        seen.append(logits.detach())
    return model, seen


@contextmanager
def counted_waits(device: torch.device) -> Iterator[list[str]]:
    """Give a list to which each `synchronize` is added: of the device's module, its streams and events, or general."""
    waits: list[str] = []

    def noting(wait: Callable) -> Callable:
        return lambda *args, **kwargs: (waits.append("synchronize"), wait(*args, **kwargs))[1]

    backend = torch.get_device_module(device)
    owners = [backend, torch.accelerator, *(getattr(backend, name, None) for name in ("Stream", "Event"))]
    with ExitStack() as patches:
        for owner in owners if device.type != "cpu" else ():
            if hasattr(owner, "synchronize"):
                patches.enter_context(mock.patch.object(owner, "synchronize", noting(owner.synchronize)))
        yield waits


def loader(data: list) -> DataLoader:
    """Return a DataLoader that gives these batches, the last one smaller."""
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    return _Loader(TensorDataset(x, y), batch_size=len(data[0][0]), generator=torch.Generator())


def a_loss(
    case: Case, got: Any, logits: torch.Tensor, labels: torch.Tensor, device: torch.device, events: list[str]
) -> None:
    """Fail unless `got` is the detached loss of these logits, on `device`, and nobody looked at it."""
    logits, labels = logits.float().cpu(), labels.cpu()
    right = F.cross_entropy(logits, labels).to(device)
    case.instead(
        isinstance(got, int | float),
        "returns a Python number",
        "to read it, the host waits for the device at every step; return the tensor",
        got=got,
    )
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        case.instead(got.device != device, f"the loss is on {got.device}, expected on {device}", IGNORED[1])
        case.instead(
            got.requires_grad,
            "returns a loss that still holds its graph",
            "who keeps the loss then keeps what its backward pass needs: loss.detach()",
        )
        soft = F.cross_entropy(logits.softmax(dim=1), labels)
        total = F.cross_entropy(logits, labels, reduction="sum")
        for wrong, name, why in (
            (soft, "applies softmax before cross_entropy", "cross_entropy does that itself: it takes logits"),
            (total, "sums the loss over the batch", "the step would grow with the batch: take the mean"),
        ):
            case.instead(
                torch.allclose(got.detach().cpu().float(), wrong, rtol=1e-4), name, why, expected=right, got=got
            )
        if difference(got, right, rtol=1e-3, atol=1e-6):
            name, why = order_mistake(events)
            case.instead(name, name, why)
    case.equal(got, right, rtol=1e-3, why="it is the loss of the batch before the step")
    case.instead(case.counts.host_reads, "lets the host read a value", "print and .item() make the host wait")


def trained(
    case: Case,
    model: Probe,
    expected: nn.Module,
    optimizer: WatchedSGD,
    number: int,
    rtol: float = 1e-4,
    steps: int = 1,
) -> None:
    """Fail with the name of the mistake unless `model` has the parameters of `expected` after call `number`."""
    events = optimizer.events
    case.instead(not model.training_seen, "never calls the model that it is given")
    device = next(expected.parameters()).device
    elsewhere = next((place for place in model.devices if place != device), device)
    case.instead(elsewhere != device, f"computes on {elsewhere}, expected on {device}", "the device would stand idle")
    case.instead(not all(model.training_seen), "trains in evaluation mode", "the model came in training mode")
    case.instead(not model.training, "leaves the model in evaluation mode", "it came in training mode")
    frozen = next((name for name, parameter in model.named_parameters() if not parameter.requires_grad), "")
    case.instead(frozen, f"freezes {frozen}", "all parameters are to be trained")
    rates = [group["lr"] for group in optimizer.param_groups if group["lr"] != LEARNING_RATE]
    case.instead(rates, "changes the learning rate", "the caller has chosen it", expected=LEARNING_RATE, got=rates[:1])
    problem = difference(dict(model.state_dict()), dict(expected.state_dict()), rtol=rtol, atol=rtol / 10)
    if problem or "step" not in events:
        moved = any(not torch.equal(*pair) for pair in zip(model.parameters(), optimizer.start, strict=True))
        case.instead("step" not in events and moved, "takes the step without the optimizer that it is given",
                     "learning rate, momentum and running averages are in there")  # fmt: skip
        name, why = order_mistake(events, steps)
        parameter = next(iter(model.state_dict()))
        show = {"expected": expected.state_dict()[parameter][0], "got": model.state_dict()[parameter][0]}
        case.instead(name, name, why, **show)
        case.fail(f"the parameters are wrong after call {number}", f"{parameter}[0] is shown", **show)
