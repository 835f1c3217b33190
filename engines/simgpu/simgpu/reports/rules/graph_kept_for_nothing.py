"""`retain_graph=True` keeps the activations of a step that no other backward pass uses."""

import weakref
from typing import Any

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.reports import events
from simgpu.reports.calls import Mark
from simgpu.reports.rule import Rule

_MOST_NODES = 1000  # of a graph, that are marked


class GraphKeptForNothing(Rule, about="memory", often="each step"):
    text = (
        "`retain_graph=True` keeps the activations of this step, and no other backward pass uses them: they are still "
        "there while the next forward pass makes its own. Leave it out."
    )
    cure = "leave it out"

    def begin(self) -> None:
        self._retained: tuple[str, weakref.ref[Mark]] | None = None  # the last graph that was kept, by its line

    def on_backward(self, event: events.Backward) -> None:
        self._look()
        node = graph_of(event.roots[0]) if len(event.roots) == 1 else None
        if node is not None and event.retains and not event.creates:
            self._retained = places.place(), weakref.ref(_mark(node))

    def on_forward(self, event: events.Forward) -> None:
        """Forget a graph that has gone before the next forward pass: it has kept nothing."""
        if self._retained is not None and self._retained[1]() is None:
            self._retained = None

    def on_grad(self, event: events.Grad) -> None:
        self._look()

    def _look(self) -> None:
        """Note a graph that was kept if it has gone without another backward pass."""
        if self._retained is not None and self._retained[1]() is None:
            self.note(self._retained[0])
        self._retained = None


def _mark(node: Any) -> Mark:
    """Mark a node and those behind it, so that another loss of the same layers keeps the mark alive."""
    mark = Mark()
    for inner in graph_nodes([node], most=_MOST_NODES):
        if not is_leaf(inner):  # which may live longer than any graph
            inner.metadata[__name__] = mark
    return mark
