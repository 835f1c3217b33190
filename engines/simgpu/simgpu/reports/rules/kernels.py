"""Rules on lines whose kernels take long."""

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from simgpu.reports import events
from simgpu.reports.rule import Outcome, Rule


class DoublePrecision(Rule, about="time", often="each step"):
    """float64 is many times slower on most GPUs."""

    text = (
        "This computes with float64 numbers, for which most GPUs take many times longer. Unless you need their digits, "
        "convert them with `.float()`."
    )
    cure = "`.float()`"

    def begin(self) -> None:
        self._is_chosen = False  # as the default

    def on_called(self, event: events.Called) -> None:
        self._is_chosen |= torch.get_default_dtype() is torch.float64
        if event.call.double and not self._is_chosen:
            self.note(event.call.line)

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        """Return lines whose kernels take long, where no model is named."""
        return () if self.habits() or self._is_chosen else outcome.doubles


class OddRows(Rule, about="time", often="each step"):
    """A product in 16 bits of matrices with rows of no multiple of 8 elements is slow on some GPUs."""

    text = (
        "This multiplies matrices in 16 bits whose rows are no multiple of 8 elements: tensor cores read them in "
        "small pieces. Round the size up, such as 50,257 to 50,304, and leave the rest unused."
    )
    cure = "sizes that are multiples of 8"

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        return outcome.odd_rows


class BenchmarkOfChangingSizes(Rule, about="time", often="each step"):
    """`cudnn.benchmark` tries out algorithms for each new size of input, and most steps bring one."""

    text = (
        "With `torch.backends.cudnn.benchmark` a GPU tries out its algorithms for each size of input that is new, and "
        "here most steps bring one. Set it to False, or pad the inputs to a few sizes."
    )
    cure = "set it to False, or pad to a few sizes"

    def begin(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[nn.Module, set[torch.Size]] = weakref.WeakKeyDictionary()

    def on_forward(self, event: events.Forward) -> None:
        if isinstance(event.module, nn.modules.conv._ConvNd) and event.args and torch.backends.cudnn.benchmark:
            known, size = self._sizes.setdefault(event.module, set()), event.args[0].shape
            if known and size not in known:
                self.note()
            known.add(size)
