"""`cudnn.benchmark` tries out algorithms for each new size of input, and most steps bring one."""

import weakref

import torch
from torch import nn

from simgpu.reports import events
from simgpu.reports.rule import Rule


class BenchmarkOfChangingSizes(Rule, about="time", often="each step"):
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
