"""The model that is trained, or a part of it, is not the one that the optimizer was made for."""

from simgpu.reports import events
from simgpu.reports.program import alive, is_set
from simgpu.reports.rule import LOOKED_AT, Rule


class OptimizerOfOtherParameters(Rule, about="result", often="twice", explains=("gradients-not-used", "not-detached")):
    text = (
        "Parameters of this optimizer get no gradient: the model that is trained, or a part of it, is not the one that "
        "it was made for. Make the optimizer last, from the parameters of the model that you train."
    )
    cure = "make the optimizer last"

    def on_update(self, event: events.Update) -> None:
        program = self.program
        if program.clear_line and not any(is_set(one.grad) for one in event.parameters):
            return  # they were cleared
        if program.backward_line and all(one.grad is None for one in event.parameters):
            self.note()
        elif program.step < LOOKED_AT and any(one.requires_grad and one.grad is None for one in event.parameters):
            used = (call.model for call in program.passes if call.used)
            parameters = (one for model in used for one in alive(program.parts(model).parameters))
            if any(one.grad is not None and one not in program.trained for one in parameters):
                self.note()
