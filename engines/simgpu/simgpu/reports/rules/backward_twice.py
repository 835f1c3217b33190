"""`backward()` runs twice from the same loss, so its gradients count twice."""

import weakref
from typing import Any

from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.calls import Mark
from simgpu.reports.rule import Rule


class BackwardTwice(Rule, about="result", often="twice"):
    text = (
        "This is the second backward pass from the same loss before a step, and its gradients add to those of the "
        "first, so that they count twice. Leave one out."
    )
    cure = "call it once"

    def begin(self) -> None:
        self._mark: weakref.ref[Mark] | None = None  # of the loss of the last backward pass

    def on_backward(self, event: events.Backward) -> None:
        node: Any = graph_of(event.roots[0]) if len(event.roots) == 1 and not event.roots[0].dim() else None
        known = None if node is None else node.metadata.get(__name__)
        if known is not None and self._mark is not None and self._mark() is known and not event.creates:
            self.note()
        elif node is not None and not event.creates:
            node.metadata[__name__] = mark = Mark()
            self._mark = weakref.ref(mark)

    def on_clear(self, event: events.Clear) -> None:
        self._mark = None

    def on_updated(self, event: events.Updated) -> None:
        self._mark = None
