"""`F.dropout` is not told the mode, and drops in evaluation."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class DropoutInEvaluation(Rule, about="result"):
    text = (
        "`F.dropout` drops in evaluation too, unless it is told the mode. Add `training=self.training`, or use a layer "
        "`nn.Dropout`."
    )
    cure = "`training=self.training`, or `nn.Dropout`"

    def on_dropout(self, event: events.Dropout) -> None:
        program = self.program
        if event.training is None and event.rate > 0 and program.in_own_code and not program.running[-1].training:
            self.note()
