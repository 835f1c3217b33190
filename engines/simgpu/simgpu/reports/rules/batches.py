"""Rules on batches that are small."""

from collections import Counter
from collections.abc import Callable

import torch

from simgpu.reports import events
from simgpu.reports.calls import LOOPED, Pass
from simgpu.reports.rule import Outcome, Rule


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
        # by line: the first input of its last call, with its version
        self._fed: dict[str, tuple[Callable[[], torch.Tensor | None], int]] = {}

    def on_all_judged(self, event: events.AllJudged) -> None:
        """Note the calls of a step that all got few samples, and not all the data that there are."""
        largest = max((call.batch for call in event.used), default=0)
        calls = Counter(call.model for call in event.used)
        whole = any([self._has_all(call) for call in event.used])
        for call in event.used:
            looped = calls[call.model] > LOOPED * self.program.backwards
            if call.batch and largest <= _SMALL and not looped and not whole:
                self.note(call.line)

    def is_habit(self, steps: int) -> bool:
        return super().is_habit(steps) or self.program.step == steps > 1  # what two steps show is no chance

    def said(self, line: str, outcome: Outcome) -> str:
        is_worth = outcome.launching >= _WORTH and outcome.room and line == self._first()
        return self.text.format(launching=f"{outcome.launching:.0%}") if is_worth else ""

    def _first(self) -> str:
        """Return the line that is named for all: the first one that is a habit."""
        noted = self.program.notes.items()
        return next(line for (code, line), at in noted if code == self.code and self.is_habit(len(at)))

    def _has_all(self, call: Pass) -> bool:
        """Return whether a call had all the data that there are: what a step before had, or a loader's only batch."""
        reference, version = call.given[0]
        before, self._fed[call.line] = self._fed.get(call.line, (lambda: None, 0)), call.given[0]
        again = reference() is not None and before[0]() is reference() and before[1] == version
        return again or self.program.only_batch
