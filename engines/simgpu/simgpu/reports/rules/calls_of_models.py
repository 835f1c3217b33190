"""Rules on calls of models: their modes, and whether a backward pass comes through them."""

import weakref
from collections import defaultdict

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simgpu.clock.lines import Line
from simgpu.ground import places
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.calls import Mark, Pass
from simgpu.reports.rule import Outcome, Rule

_LARGE_BYTES = 2**20  # of the weights of all heads


class DropoutInEvaluation(Rule, about="result"):
    """`F.dropout` is not told the mode, or a layer of dropout is no part of the model, and drops in evaluation."""

    text = (
        "This drops in evaluation too: `model.eval()` reaches no `F.dropout` without `training=self.training`, and no "
        "layer outside of the model's attributes. Give the function its mode, or make an `nn.Dropout` in `__init__`."
    )
    cure = "`training=self.training`, or `nn.Dropout` as an attribute"

    def on_forward(self, event: events.Forward) -> None:
        layer, model = event.module, self.program.running[0]
        drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training and layer.p > 0
        if drops and not model.training and layer not in set(model.modules()):
            self.note()

    def on_dropout(self, event: events.Dropout) -> None:
        program = self.program
        if event.training is None and event.rate > 0 and program.in_own_code and not program.running[-1].training:
            self.note()


class EvaluationInTrainingMode(Rule, about="result"):
    """Dropout is on, and batch norm learns from the validation data."""

    text = (
        "The model is evaluated in training mode, in which dropout drops and batch norm learns from the data. Call "
        "`model.eval()` before, and `model.train()` afterwards."
    )
    cure = "`model.eval()` before, `model.train()` after"

    def begin(self) -> None:
        self._ahead: dict[str, set[int]] = defaultdict(set)  # by line, the steps in which it runs before the training

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and not call.used and self._is_wrong(call):
            self.note(line := self.program.own_line(call))
            if any(_way(call) < _way(one) for one in self.program.passes if one.used):
                self._ahead[line].add(self.program.step)

    def said(self, line: str, outcome: Outcome) -> str:
        """Say nothing of what stands ahead of the training in each step, as pictures for a critic, or labels."""
        return super().said(line, outcome) if 2 * len(self._ahead[line]) < max(self.program.step, 1) else ""

    def on_inferred(self, event: events.Inferred) -> None:
        if self._is_wrong(event.call):
            self.note(event.call.line)

    def _is_wrong(self, call: Pass) -> bool:
        """Return whether a call had better be in evaluation mode: not the same input again, as samples of dropout."""
        again = (one.before is not None for one in self.program.passes if one.line == call.line)
        return bool(call.random and call.training and not call.recorded) and not (call.inside or any(again))


def _way(call: Pass) -> list[tuple[str, int]]:
    """Return the lines that led to a call, the outermost first."""
    return [Line.of(one).parts[:2] for one in reversed(call.lines)]


class EvaluationWithGradients(Rule, about="time"):
    """An evaluation records a graph."""

    text = (
        "This evaluation records a graph that no backward pass uses, which takes time and memory. Write "
        "`with torch.inference_mode():` around it."
    )
    cure = "`torch.inference_mode()` around it"

    def on_judged(self, event: events.Judged) -> None:
        if event.in_vain and not event.call.training:
            self.note(self.program.own_line(event.call))

    def on_inferred(self, event: events.Inferred) -> None:
        if event.call.recorded and not event.call.training:
            self.note(event.call.line)


class ForwardNotUsed(Rule, about="time", often="seldom"):
    """A forward pass records a graph that nothing uses."""

    text = (
        "This forward pass records a graph, and no backward pass uses it. Use the result that you have, or write "
        "`with torch.no_grad():` around it."
    )
    cure = "use the result that you have, or `torch.no_grad()`"

    def on_judged(self, event: events.Judged) -> None:
        if event.in_vain and event.call.training:
            self.note(self.program.own_line(event.call))


class ForwardRepeated(Rule, about="time", often="twice"):
    """The same model computes the same from the same tensors twice in a step."""

    text = "The model has computed this before in this step, from the same tensors. Call it once; use its result twice."
    cure = "call it once"

    def on_judged(self, event: events.Judged) -> None:
        """Note a call that repeats one before without chance, if backward passes use both, and for the same."""
        call, before = event.call, event.call.before
        if before is not None and call.used and before.used and call.fed == before.fed and not call.random:
            self.note(call.line)


class TrainingInEvaluationMode(Rule, about="result"):
    """Dropout is off, and batch norm learns nothing."""

    text = "This trains in evaluation mode: no dropout drops, no batch norm learns. Call `model.train()` before."
    cure = "`model.train()` before the training loop"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and call.trains and call.random is False and not call.training:
            self.note(call.line)


class AttentionWeightsNotUsed(Rule, about="time", often="each step"):
    """A layer of attention returns its weights, which nothing uses."""

    text = (
        "This layer of attention also makes the weights of all pairs of positions, averages them over the heads and "
        "returns them, and nothing uses them. With `need_weights=False` PyTorch takes the faster "
        "`scaled_dot_product_attention`, which need not keep them."
    )
    cure = "`need_weights=False`"

    def begin(self) -> None:
        self._made: list[tuple[str, weakref.ref[torch.Tensor], weakref.ref[Mark]]] = []

    def on_forward_end(self, event: events.ForwardEnd) -> None:
        """Note weights that have gone, and that no graph has taken."""
        self._look()
        if event.result is None or not isinstance(event.module, nn.MultiheadAttention):
            return
        weights: torch.Tensor | None = event.result[1]
        graph = None if weights is None else graph_of(weights)
        if weights is not None and graph is not None and weights.nbytes * event.module.num_heads >= _LARGE_BYTES:
            graph.metadata[__name__] = mark = Mark()
            self._made.append((places.place(), weakref.ref(weights), weakref.ref(mark)))

    def on_backward(self, event: events.Backward) -> None:
        self._look()
        self._made.clear()

    def on_read(self, event: events.Event) -> None:
        self._made.clear()  # as where they are shown

    on_cut = on_read

    def _look(self) -> None:
        for line, _, mark in [one for one in self._made if one[1]() is None]:
            if mark() is None:
                self.note(line)
        self._made = [one for one in self._made if one[1]() is not None]


class DdpBypassed(Rule, about="result", often="twice"):
    """The model inside of `DistributedDataParallel` is called, so no gradients are averaged."""

    text = (
        "This calls the model inside of DistributedDataParallel, so no gradients are averaged and each rank trains a "
        "model of its own. Call the wrapper."
    )
    cure = "call the wrapper"

    def begin(self) -> None:
        self._wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models inside a wrapper
        self._averaged: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of these, those whose wrapper was called

    def on_wrapped(self, event: events.Wrapped) -> None:
        self._wrapped.add(event.model)

    def on_forward(self, event: events.Forward) -> None:
        if isinstance(event.module, DistributedDataParallel) and torch.is_grad_enabled():
            self._averaged.add(event.module.module)

    def on_judged(self, event: events.Judged) -> None:
        model = event.call.model
        if event.call.used and event.trained and model in self._wrapped and model not in self._averaged:
            lines = event.call.lines  # a method of the model may be what calls it
            self.note(next((one for one in lines if ".module." in one), event.call.line))
