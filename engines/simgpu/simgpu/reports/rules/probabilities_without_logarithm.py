"""`nll_loss` takes probabilities for their logarithms."""

from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


class ProbabilitiesWithoutLogarithm(Rule, about="result"):
    text = (
        "`nll_loss` gets probabilities, and takes them for their logarithms, so the model learns slowly. Write "
        "`log_softmax` in the place of `softmax`."
    )
    cure = "`log_softmax` in the place of `softmax`"

    def on_loss(self, event: events.Loss) -> None:
        node = graph_of(event.scores)
        if event.name == "nll_loss" and node is not None and node.name().startswith("SoftmaxBackward"):
            self.note()
