"""Passes of a program: the calls of its models since the last step, judged when it ends."""

import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._pytree import tree_leaves

from simgpu.ground import places
from simgpu.ground.nodes import graph_of
from simgpu.reports import events, observer
from simgpu.reports.calls import Mark, Pass, Then
from simgpu.reports.program import Parts, Program, alive
from simgpu.reports.reads import Reads

_MOST_PASSES = 256  # calls of models between two steps that are looked at: a program may make none
_FEW_CALLS = 3  # of a line, in a program that trains nothing


class Passes:
    """Calls of models since the last step, judged when a step ends but for those whose results may still be used."""

    def __init__(self, program: Program, reads: Reads, tell: Callable[[events.Event], None]) -> None:
        self._program, self._reads, self._tell = program, reads, tell
        self.calls: Counter[str] = Counter()  # before the first backward pass, by line
        self._dropped: list[bool] = []  # whether calls of `dropout` by the model, not by layers, drop
        self._set_to_train: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # layers that `train()` was called for

    def on_mode_set(self, event: events.ModeSet) -> None:
        if event.training:
            self._set_to_train.add(event.module)

    def on_dropout(self, event: events.Dropout) -> None:
        if self._program.in_own_code and event.rate > 0:
            self._dropped.append(event.training is not False)

    def on_forward_end(self, event: events.ForwardEnd) -> None:
        """A call of a module from outside is one of a model if it has parameters."""
        if self._program.running:
            return
        dropped, self._dropped = self._dropped, []
        if event.result is None or isinstance(event.module, ParametrizationList):  # which makes a weight
            return
        parts = self._program.parts(event.module)
        first = next(alive(parts.parameters), None)
        if first is None or next(iter(event.module.parameters()), None) is not first:
            return  # or it has other weights for this call alone, as `torch.func.functional_call` gives
        given = [one for one in tree_leaves((event.args, event.kwargs)) if isinstance(one, torch.Tensor)]
        results = list(_tensors(event.result))
        made = [one for one in results if one.requires_grad]
        call = self._pass(event.module, parts, dropped, given, results)
        if not self._program.graphs_used:
            self.calls[call.line] += 1
        earlier = self._program.passes
        self._tell(events.Called(call, earlier[-1] if earlier else None))
        call.before = next((one for one in earlier if one.had_the_tensors_of(call)), None)
        self._program.passes = [*earlier[-_MOST_PASSES:], call]
        for output in made:
            observer.on_gradient(output, functools.partial(self._use, call))
        graph = graph_of(made[0]) if made else None
        if graph is not None:
            graph.metadata[__name__] = mark = Mark()
            call.graph = weakref.ref(mark)

    def _pass(
        self,
        model: nn.Module,
        parts: Parts,
        dropped: list[bool],
        given: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> Pass:
        modes, fed = [*self._modes(model, parts), *dropped], any(one.requires_grad for one in given)
        recorded = any(one.requires_grad for one in results)
        uses = not (torch.is_grad_enabled() or observer.is_dropped())  # the result, in a way that is no training
        samples = _samples(given, results)
        batch = 0 if given and given[0].is_leaf and given[0].requires_grad else samples
        trained = self._program.optimized and self._program.trains(model)
        alone = batch == 1 and not self._reads.lines and not fed
        return Pass(
            weakref.ref(model), model if trained else None, places.stack(), model.training,
            random=any(modes) if modes and (recorded or uses) else None,
            recorded=recorded,
            samples=samples,
            batch=batch,
            given=[Then.of(one) for one in [*given, *list(alive(parts.parameters))[:1]]],
            early=not trained,
            alone=given[0].shape if alone else None,
            fed=fed,
            double=any(one.dtype is torch.float64 and one.dim() for one in [*given, *alive(parts.parameters)]),
        )  # fmt: skip

    def _use(self, call: Pass, gradient: torch.Tensor) -> None:
        """A backward pass comes through the result of a call: those made since belong to the same step."""
        call.used, call.filled = True, call.filled or self._program.fills
        for later in itertools.takewhile(lambda one: one is not call, reversed(self._program.passes)):
            later.inside = True

    def _modes(self, model: nn.Module, parts: Parts) -> list[bool]:
        """Return whether layers that tell the modes apart are in training mode, of each.

        In a model in evaluation mode those count as well that were put into it later, and were set to train since.
        """
        return [one.training and (model.training or one in self._set_to_train) for one in alive(parts.random)]

    def on_cut(self, event: events.Cut) -> None:
        graph = graph_of(event.tensor)
        mark = None if graph is None else graph.metadata.get(__name__)
        for call in [one for one in self._program.passes if mark is not None and one.graph and one.graph() is mark]:
            call.cut = places.place()

    def on_clear(self, event: events.Clear) -> None:
        """Gradients that are cleared before a step train nothing, such as those of an attack on the inputs."""
        known = set(map(id, event.parameters))
        for call in self._program.passes:
            call.cleared = call.cleared or (call.filled and id(call.given[-1].tensor()) in known)

    def on_update(self, event: events.Update) -> None:
        self._step(event.parameters)

    def on_hand_step(self, event: events.HandStep) -> None:
        self._step(event.weights)

    def _step(self, weights: Iterable[torch.Tensor]) -> None:
        known = set(map(id, weights))
        for call in [one for one in self._program.passes if one.filled]:
            own = any(id(one) in known for one in alive(self._program.parts(call.model).parameters))
            call.trains = call.trains or (own and not call.cleared)
            call.stepped = call.stepped or (call.filled and id(call.given[-1].tensor()) in known)

    # ---- judging ------------------------------------------------------------------------------------------------
    def on_step_end(self, event: events.StepEnd) -> None:
        self.judge()

    def on_run_end(self, event: events.RunEnd) -> None:
        """A program that has ended uses no more what it has called after its last step."""
        program = self._program
        if not event.whole:
            program.passes = [call for call in program.passes if call.used or not call.recorded]
        elif not program.optimized and not program.graphs_used:
            lines = Counter(call.line for call in program.passes)
            for call in program.passes:
                if lines[call.line] >= _FEW_CALLS:
                    self._tell(events.Inferred(call))
        self.judge(last=True)

    def judge(self, last: bool = False) -> None:
        """Tell what the calls since the last step were, but for those whose results may still be used."""
        program = self._program
        self._tell(events.Judging())
        used = [call for call in program.passes if call.used]
        program.training_lines.update(line for call in used for line in call.lines)
        for call in program.passes:
            call.judged += 1
            if not call.may_be_used or (last and call.judged == 1):
                self._tell(events.Judged(call, program.trains(call.model)))
        self._tell(events.AllJudged(used))
        program.passes = [call for call in program.passes if call.may_be_used]


def _tensors(value: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, and of objects in it such as a distribution."""
    for one in tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield one
        elif depth and hasattr(one, "__dict__") and not isinstance(one, nn.Module | type):
            yield from _tensors(vars(one), depth - 1)


def _samples(given: list[torch.Tensor], results: list[torch.Tensor]) -> int:
    """Return the samples that a model got: the rows of its first tensor, 0 if nobody can say.

    A vector of numbers is one sample, unless the result has as many rows. Where another tensor has as many as the
    result, and the first has not, it is that one: edges of a graph may come before its nodes.
    """
    if not given or not given[0].dim():
        return 0
    made = {one.shape[0] for one in results if one.dim()}
    others = given if given[0].dim() > 1 else []
    rows = next((one.shape[0] for one in others if one.dim() and one.shape[0] in made), given[0].shape[0])
    is_vector = given[0].dim() == 1 and given[0].is_floating_point()
    return 1 if is_vector and all(one.shape[:1] != (rows,) for one in results) else rows
