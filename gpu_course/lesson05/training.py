"""Record of a training loop's use of model, optimizer and scaler, and the expected result."""

import copy
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpu_course.checks import Case, Exercise, difference, edges
from gpu_course.common.probes import named, state_of, unchanged

_RATE = 0.01
_ADDS = "backward() adds to the gradients that it finds: the step would use the sum over several batches"

# of a batch of float32 images, and a model all of whose parameters are trained, in the mode that its caller chose
DATA = "scalar empty huge tiny not_finite bool complex default_type evaluation frozen all_frozen unchanged second_call"


def a_loss(case: Case, got: Any, expected: torch.Tensor, rtol: float = 1e-4) -> None:
    """Fail unless `got` is this loss, a detached tensor."""
    why = "to read it, the host waits for the device at every step; return the tensor"
    case.fail_if(isinstance(got, int | float), "returns a Python number", why, got=got)
    holds = isinstance(got, torch.Tensor) and got.requires_grad
    why = "whoever keeps the loss then keeps all that its backward pass needs: return loss.detach()"
    case.fail_if(holds, "returns a loss that still holds its graph", why)
    if isinstance(got, torch.Tensor) and got.dtype == expected.dtype == torch.float64 and difference(got, expected):
        rounded = torch.equal(got, got.float().to(got.dtype))
        case.fail_if(rounded, "rounds the loss to float32", "model and batch are in float64", got=got)
    case.equal(got, expected, rtol=rtol, why="it is the mean loss of the batch before the step")


class Log:
    """What happened to a model, in order; copies of the model write here too.

    `passes` holds what each forward pass was like. `text` has a letter for each event: Z zero_grad; B, A a backward
    pass that found no gradients, or some, with w before it under autocast and - after it, 0 if it gave zeros; S, E a
    step with gradients, or without; c, u, s, U the scaler's scale, unscale_, step and update, with W before the last
    three under autocast.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.clear()

    def __deepcopy__(self, memo: dict) -> "Log":
        return self

    def clear(self) -> None:
        """Forget all."""
        self._events: list[tuple[str, torch.Tensor | None]] = []
        self.passes: list[SimpleNamespace] = []

    def note(self, letters: str, gradient: torch.Tensor | None = None) -> None:
        """Add an event: the first letter, or the last where the `gradient` of this moment is None or zero."""
        self._events.append((letters, copy.deepcopy(gradient)))  # looked at later: that would wait for the device

    def note_calls(self, owner: Any, **letters: str) -> None:
        """Add an event at each call of these methods of `owner`."""
        for name, letter in letters.items():
            setattr(owner, name, _after(lambda letter=letter: self._called(letter), getattr(owner, name)))

    def _called(self, letter: str) -> None:
        if letter in "usU" and torch.is_autocast_enabled(next(self.model.parameters()).device.type):
            self.note("W")
        self.note(letter)

    def note_pass(self, model: "Classifier", x: torch.Tensor, logits: torch.Tensor) -> None:
        """Add a forward pass of the model, or of a copy of it, and how many graphs of those before are still there."""
        kept = sum(one.graph() is not None for one in self.passes)
        layers, graph = any(module.training for module in model.layers.modules()), set()  # sets have weak references
        self.passes.append(SimpleNamespace(
            own=model is self.model, device=x.device, training=model.training, layers_training=layers,
            records=logits.requires_grad, dtype=logits.dtype, graphs_kept=kept, graph=weakref.ref(graph),
        ))  # fmt: skip
        if logits.grad_fn is not None:
            logits.grad_fn.metadata["log"] = graph  # it lives as long as the graph

    @property
    def text(self) -> str:
        return "".join(both[0] if found is not None and found.any() else both[-1] for both, found in self._events)


def _after(before: Callable[[], object], function: Callable) -> Callable:
    return lambda *args, **kwargs: (before(), function(*args, **kwargs))[1]


PINNING = "cuda", "xpu", "sim"  # the kinds of device that copy from pinned memory
_Loader, _Scaler = named(DataLoader, "loader"), named(torch.amp.GradScaler, "scaler")


class Classifier(nn.Module):
    """A small classifier, (batch, 6) -> (batch, 3) logits, that notes in `log` how it is called."""

    def __init__(self, dropout: float = 0.0, *, norm: bool = False) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(8) if norm else nn.ReLU()
        self.layers = nn.Sequential(nn.Linear(6, 8), middle, nn.Dropout(dropout), nn.Linear(8, 3))
        self.log = Log(self)

    def __repr__(self) -> str:
        return "model"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.layers(x)
        self.log.note_pass(self, x, logits)
        return logits


class SGD(named(torch.optim.SGD, "optimizer")):
    """SGD with momentum that notes in the log of the model what its first parameter meets."""

    def __init__(self, model: Classifier) -> None:
        super().__init__(model.parameters(), lr=_RATE, momentum=0.9)
        self.log, self.first = model.log, next(model.parameters())
        me = weakref.proxy(self)  # PyTorch never frees a tensor that its own hook holds
        self.first.register_hook(lambda _: setattr(me, "found", copy.deepcopy(me.first.grad)))
        self.first.register_post_accumulate_grad_hook(lambda _: me._backward())

    def _backward(self) -> None:
        if torch.is_autocast_enabled(self.first.device.type):
            self.log.note("w")
        self.log.note("AB", self.found)
        self.log.note("-0", self.first.grad)

    def step(self, closure: Callable | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None  # it may hold the backward pass
        self.log.note("SE", self.first.grad)
        super().step()
        return loss


class Training:
    """A model, its optimizer and its scaler, all watched, and what should become of the model."""

    def __init__(self, device: torch.device, scale: float = 1.0) -> None:
        self.device, self.calls = device, 0
        self.model = Classifier().to(device)
        self.log, self.optimizer = self.model.log, SGD(self.model)
        self.scaler = _Scaler(device.type, init_scale=scale)
        for owner in (self.model, self.optimizer):
            self.log.note_calls(owner, zero_grad="Z")
        self.log.note_calls(self.scaler, scale="c", unscale_="u", step="s", update="U")
        self._right = copy.deepcopy(self.model.layers)
        self._sgd = torch.optim.SGD(self._right.parameters(), lr=_RATE, momentum=0.9)
        self._start = nn.utils.parameters_to_vector(self._right.parameters()).detach()

    def call(self, case: Case, *args: Any) -> tuple[Any, int]:
        """Call the answer with model and optimizer; return its value and how often the host waited for the device."""
        waits, backend = [], torch.get_device_module(self.device)
        owners = [backend, torch.accelerator, *(getattr(backend, name, None) for name in ("Stream", "Event"))]
        self.log.clear()
        with ExitStack() as patches:
            for owner in owners if self.device.type != "cpu" else ():
                if hasattr(owner, "synchronize"):
                    noting = _after(lambda: waits.append("synchronize"), owner.synchronize)
                    patches.enter_context(mock.patch.object(owner, "synchronize", noting))
            got = case.call(self.model, self.optimizer, *args, modifies="training")
        return got, len(waits) + case.counts.host_reads + case.counts.copies_d2h

    def expected(
        self, x: torch.Tensor, y: torch.Tensor, *, dtype: torch.dtype | None = None, max_norm: float = torch.inf
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the step that the answer should have taken; return the loss and which samples are right."""
        self._sgd.zero_grad()
        y = y.to(self.device)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            logits = self._right(x.to(self.device))
            loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self._right.parameters(), max_norm)
        self._sgd.step()
        return loss.detach(), logits.argmax(dim=1) == y

    def moved(self, model: nn.Module | None = None) -> torch.Tensor:
        """Return how far the parameters are from where they began, as one vector."""
        return nn.utils.parameters_to_vector((model or self.model).parameters()).detach() - self._start

    def followed(self, case: Case, steps: int = 1) -> None:
        """Fail with what the model, the optimizer and the log show to be wrong after `steps` training steps."""
        passes, text, parameters = self.log.passes, self.log.text, dict(self.model.named_parameters())
        own, order = [one for one in passes if one.own], re.sub("[^ABSE0]", "", text)
        other, left = (
            next((one.device for one in there if one.device != self.device), None)
            for there in (own, parameters.values())
        )
        frozen = next((name for name, one in parameters.items() if not one.requires_grad), "")
        backward, stepped = len(re.findall("[AB]", order)), len(re.findall("[SE]", order))
        for when, name, why in (
            (not own, "never calls the model that it is given", "train that model, not a copy of it"),
            (other, f"computes on {other}, expected on {self.device}", "the device would stand idle"),
            (left, f"leaves the model on {left}", f"it came on {self.device}, and the caller goes on there"),
            (not all(one.training for one in own), "trains in evaluation mode", "the model came in training mode"),
            (not self.model.training, "leaves the model in evaluation mode", "it came in training mode"),
            (frozen, f"freezes {frozen}", "all parameters are to be trained"),
            (self.optimizer.param_groups[0]["lr"] != _RATE, "changes the learning rate", "the caller has chosen it"),
            (not stepped and not left and self.moved().any(), "takes the step without the optimizer that it is given",
             "learning rate, momentum and running averages are in there"),
            (not stepped and "s" in text, "makes the gradients inf or NaN, so that the scaler leaves the step out",
             "scaled once, those of this batch are finite"),
            (not stepped, "never calls optimizer.step()", "backward() fills the gradients, step() uses them"),
            (stepped != steps, f"calls step() {stepped} time(s), not {steps}", "each batch takes one step"),
            (re.match("[SE][AB]", order), "steps before the backward pass",
             "the step then uses the gradients of the batch before, or none"),
            (re.search("[AB]E", order), "clears the gradients before the step has used them",
             "the order is zero_grad, backward, step"),
            ("E" in order, "takes a step without gradients",
             "loss.backward() fills them, if the loss comes from the model, with no detach() on the way"),
            (backward > steps, f"calls backward() {backward} time(s), not {steps}", "each batch takes one"),
            ("A" in order and "Z" not in text, "never clears the gradients", _ADDS),
            ("A" in order and steps > 1 == text.count("Z"), "clears the gradients once, not for each batch", _ADDS),
            ("A" in order, "does not clear the gradients before each backward pass", _ADDS),
            (len(passes) != steps, f"runs the model {len(passes)} time(s), not {steps}",
             "the loss, and what else is asked for, comes from the logits that were trained on: no second pass"),
        ):  # fmt: skip
            case.fail_if(when, name, why)

    def equal(self, case: Case, tolerance: float = 1e-3) -> None:
        """Fail unless the parameters are what they should be, but for this share of their way; the last are shown."""
        self.calls += 1
        moved, right = self.moved(), self.moved(self._right)
        ratio = (moved.norm() / right.norm()).item()
        how = f"steps {ratio:.3g} times as far as it should" if abs(ratio - 1) > 0.01 else "steps in a wrong direction"
        expected, got = ({"layers.3.bias has moved by": one[-3:]} for one in (right, moved))
        far = not (moved - right).norm() <= tolerance * right.norm()  # or NaN
        why = "the gradients of the mean loss and the optimizer's learning rate and momentum make the step"
        case.fail_if(far, f"{how}, after call {self.calls}", why, expected=expected, got=got)


class _Scaled(nn.Linear):
    """A layer whose results are multiplied by a parameter of shape ()."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


def models() -> Iterator[nn.Module]:
    """Yield models as a caller may have them, (batch, 6) -> (batch, 6) logits, with gradients that somebody left."""
    plain, layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), nn.Linear(6, 6)
    for model in (
        nn.Sequential(layer, nn.Tanh(), layer),
        nn.Sequential(_Scaled(), nn.Tanh(), nn.Linear(6, 6)),
        plain.double(),
    ):
        yield edges.with_old_gradients(model)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of two groups, with a rate for each."""
    parameters = list(model.parameters())
    groups = [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}]
    return named(torch.optim.SGD, "optimizer")(groups, lr=0.1, momentum=0.5)


def follows(case: Case, model: nn.Module, exercise: Exercise, *args: Any, tolerance: float = 1e-5) -> None:
    """Fail unless the answer makes of the model, and returns, what the reference does, with an optimizer and `args`."""
    optimizer = optimizer_of(model)
    twins, before = copy.deepcopy((model, optimizer)), state_of(model)
    again = [copy.copy(given) if isinstance(given, Iterator) else given for given in args]  # it can be read once
    expected, got = exercise.reference(*twins, *again), case.call(model, optimizer, *args, modifies="training")
    unchanged(case, before, model, "train its parameters, and leave all else as the caller had it")
    rtol, atol = (1e-9, 1e-12) if next(model.parameters()).dtype == torch.float64 else (tolerance, tolerance)
    why = "the step of its own optimizer, whichever parameters it has"
    mine, right = (dict(trained.named_parameters()) for trained in (model, twins[0]))
    case.equal(mine, right, rtol=rtol, atol=atol, why=f"these are the trained parameters: {why}")
    if isinstance(expected, torch.Tensor):
        return a_loss(case, got, expected, rtol=1e-9 if expected.dtype == torch.float64 else 10 * tolerance)
    got = tuple(got) if isinstance(got, list) else got
    case.equal(got, expected, rtol=10 * tolerance, why="it is computed from the logits that were trained on")


def batches(sizes: Iterable[int], scale: float = 1.0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of these sizes on the CPU: float32 (size, 6) and labels 0 to 2 that can be learned."""
    made = [scale * torch.randn(size, 6) for size in sizes]
    return [(x, x[:, :3].argmax(dim=1)) for x in made]


def loader(data: list) -> DataLoader:
    """Return a DataLoader that gives these batches, the last one smaller."""
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    return _Loader(TensorDataset(x, y), batch_size=len(data[0][0]), generator=torch.Generator())
