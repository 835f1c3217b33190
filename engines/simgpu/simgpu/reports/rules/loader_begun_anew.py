"""The loader begins anew for each batch, as by `next(iter(loader))`."""

import weakref
from typing import Any

from simgpu.reports import events
from simgpu.reports.program import has_several
from simgpu.reports.rule import Rule


class LoaderBegunAnew(Rule, about="time", often="each step"):
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
