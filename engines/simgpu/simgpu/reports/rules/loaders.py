"""Rules on loaders, samplers and batches that are small."""

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils.data import SequentialSampler, TensorDataset

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.calls import LOOPED, Pass, Then
from simgpu.reports.program import has_several
from simgpu.reports.rule import LOOKED_AT, Outcome, Rule

_SAMPLES = 8  # of a batch: fewer are of one class by chance


class EpochNotSet(Rule, about="result"):
    """A sampler of ranks gives each epoch the same order."""

    text = "Every epoch sees the samples in the same order. Call `sampler.set_epoch(epoch)` before each epoch."
    cure = "`sampler.set_epoch(epoch)` before each epoch"

    def begin(self) -> None:
        self._orders: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()  # epoch, step
        self._same = ""  # the line whose sampler has the order of the epoch before

    def on_ordered(self, event: events.Ordered) -> None:
        """Take an order for one of training where gradients are on, until a backward pass proves it."""
        sampler, self._same = event.sampler, ""
        if sampler.shuffle and torch.is_grad_enabled():
            epoch, step = self._orders.get(sampler, (-1, -1))
            if epoch == sampler.epoch and step < self.program.step:
                self._same = places.place()
            self._orders[sampler] = sampler.epoch, self.program.step

    def on_backward(self, event: events.Backward) -> None:
        if self._same:
            self.note(self._same)
        self._same = ""


class LoaderBegunAnew(Rule, about="time", often="each step", explains=("constant-copied-in-each-step",)):
    """The loader begins anew for each batch, as by `next(iter(loader))`."""

    text = (
        "This begins the loader anew for each batch: its sampler and any workers start again, and most samples may "
        "never come. Write `for batch in loader:`, or keep one iterator until it ends."
    )
    cure = "`for batch in loader:`, or one iterator that is kept"

    def begin(self) -> None:
        # by loader: how many batches it has given since it has begun, and in which step that was
        self._batches: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def on_loader_begun(self, event: events.LoaderBegun) -> None:
        batches, step = self._batches.get(event.loader, (0, 0))
        if batches == 1 and step < self.program.step and has_several(event.loader):
            self.note()
        self._batches[event.loader] = 0, self.program.step

    def on_loaded(self, event: events.Loaded) -> None:
        loader = self.program.loader(event.iterator)
        if loader in self._batches:
            batches, step = self._batches[loader]
            self._batches[loader] = batches + 1, step


class LoaderBuiltAnew(Rule, about="time"):
    """The DataLoader, and its workers, start again."""

    text = "This builds the DataLoader again and again; any workers start each time. Build it once, before the loop."
    cure = "build it once, before the loop"

    def begin(self) -> None:
        self._loaders: dict[str, tuple[list[weakref.ref[Any]], int]] = {}  # by line: their data, and groups until then
        self._used: set[str] = set()  # lines whose last loader has begun

    def on_loader_built(self, event: events.LoaderBuilt) -> None:
        """Note a loader that has the data of the one before, which was used, for the same optimizers.

        A sampler may choose another part of the same data, as in cross-validation.
        """
        line = places.place()
        before, groups = self._loaders.get(line, ([], -1))
        data = [] if event.sampled else _data_of(event.dataset)
        same = len(before) == len(data) > 0 and all(old() is new for old, new in zip(before, data, strict=True))
        if same and groups == self.program.groups and line in self._used:
            self.note(line)
        self._used.discard(line)
        self._loaders[line] = [weakref.ref(one) for one in data], self.program.groups

    def on_loader_begun(self, event: events.LoaderBegun) -> None:
        if torch.is_grad_enabled() or event.loader.num_workers:  # that of an evaluation costs next to nothing
            self._used.add(self.program.built.get(event.loader, ""))


class LoaderNotShuffled(Rule, about="result"):
    """Each batch has samples of one class, since the loader keeps the order of the data."""

    text = (
        "This loader keeps the order of the data, in which each batch has samples of one class only, so the model "
        "learns one class and forgets the others. Write `shuffle=True`."
    )
    cure = "`shuffle=True`"

    def begin(self) -> None:
        self._line, self._losses, self._seen = "", 0, -1  # of the step
        self._classes: list[int] = []  # of steps in a row whose only loss had targets of one class

    def on_loaded(self, event: events.Loaded) -> None:
        loader = self.program.loader(event.iterator)
        ordered = isinstance(getattr(loader, "sampler", None), SequentialSampler)
        self._line = self.program.built.get(loader, "") if ordered else ""

    def on_loss(self, event: events.Loss) -> None:
        self._losses, self._seen = self._losses + torch.is_grad_enabled(), -1
        targets = values_of(event.target) if self._line and isinstance(event.target, torch.Tensor) else None
        if state.world.only_shapes or type(targets) is not torch.Tensor or targets.is_floating_point():
            return
        if targets.dim() == 1 and len(targets) >= _SAMPLES and bool((targets == targets[0]).all()):
            self._seen = int(targets[0])

    def on_step_end(self, event: events.StepEnd) -> None:
        alone = self._losses == 1 and self._seen >= 0
        self._classes = [*self._classes, self._seen] if alone else []
        self._losses, self._seen = 0, -1
        if len(self._classes) >= LOOKED_AT and len(set(self._classes)) > 1:
            self.note(self._line)
        self._line = ""


def _data_of(dataset: Any) -> list[Any]:
    """Return the objects that tell the data of a loader from those of another; none where nothing can be kept in mind.

    Two `TensorDataset`s of the same tensors have the same data.
    """
    data = list(dataset.tensors) if isinstance(dataset, TensorDataset) else [dataset]
    return data if all(hasattr(one, "__weakref__") or isinstance(one, torch.Tensor) for one in data) else []


class SamplesOneByOne(Rule, about="time", often="each step"):
    """The model is called for each sample alone, and launches all of its kernels each time."""

    text = (
        "This calls the model for each sample alone, and each call launches all of its kernels. Call it once, with a "
        "batch of all of them."
    )
    cure = "call it once, with a batch"

    def on_all_judged(self, event: events.AllJudged) -> None:
        """Note calls with one sample each that could be a batch: many, of the same shape."""
        alike = Counter((call.model, call.alone) for call in event.used)
        for call in event.used:
            if call.alone is not None and alike[call.model, call.alone] > LOOPED * self.program.backwards:
                self.note(call.line)


_SMALL = 8  # samples
_WORTH = 0.3  # of the time, in which the GPU waits for launches


class SmallBatch(Rule, about="time", often="each step"):
    """At most 8 samples: the GPU mostly waits for launches, and there is room."""

    text = (
        "The batch is so small that the GPU waits for launches {launching} of a step, and there is memory for a larger "
        "one. Raise `batch_size`."
    )
    cure = "a larger `batch_size`"

    def begin(self) -> None:
        self._fed: dict[str, Then] = {}  # by line: the first input of its last call

    def on_all_judged(self, event: events.AllJudged) -> None:
        """Note the calls of a step that all got few samples, and not all the data that there are."""
        largest = max((call.batch for call in event.used), default=0)
        calls = Counter(call.model for call in event.used)
        whole = any([self._has_all(call) or (call.fed and not call.batch) for call in event.used])  # or a picture
        for call in event.used:
            looped = calls[call.model] > LOOPED * self.program.backwards
            if call.batch and largest <= _SMALL and not looped and not whole:
                self.note(call.line)

    def is_habit(self, steps: int) -> bool:
        return super().is_habit(steps) or self.program.step == steps > 1  # what two steps show is no chance

    def said(self, line: str, outcome: Outcome) -> str:
        is_worth = outcome.launching >= _WORTH and outcome.room and line == self.habits()[0]
        return self.text.format(launching=f"{outcome.launching:.0%}") if is_worth else ""

    def _has_all(self, call: Pass) -> bool:
        """Return whether a call had all the data that there are: what a step before had, or a loader's only batch."""
        before, self._fed[call.line] = self._fed.get(call.line, Then.of(None)), call.given[0]
        return before.is_still(call.given[0].tensor()) or self.program.only_batch
