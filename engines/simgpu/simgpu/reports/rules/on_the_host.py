"""Rules on what stays on the host."""

from collections.abc import Iterable
from dataclasses import replace

from simgpu.ground.units import seconds_text
from simgpu.reports import events
from simgpu.reports.program import alive
from simgpu.reports.rule import Outcome, Rule, Suspect

_WORTH = 0.1  # of a step
_WORTH_S = 2e-3  # of a step: less cannot be told from what looks at it


class HostWork(Rule, about="time"):
    """The program's own work on the CPU takes longer than a tenth of a step."""

    text = (
        "Each step does {time} of work on the CPU here: NumPy, operators on CPU tensors, or Python. That is time of "
        "this machine, and the {step} of a step are without it. Let a DataLoader's workers do it, or the GPU."
    )
    cure = "a DataLoader's workers, or the GPU"

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        if not self.program.step:  # then that is what the program did to begin with, too
            return []
        worth_s = max(_WORTH * outcome.step_s, _WORTH_S)
        return [line for line, seconds in outcome.own.items() if line and seconds >= worth_s][:1]

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        said = super().suspect(line, outcome)
        times = {"time": seconds_text(sum(outcome.own.values())), "step": seconds_text(outcome.step_s)}
        return said and replace(said, text=self.text.format(**times))


class ModelOnTheCpu(Rule, about="time", often="each step", explains=("host-work", "host-waits")):
    """A model that learns has stayed on the CPU."""

    text = (
        "This model is on the CPU, and so is all that it computes, forwards and backwards: no time here counts it. "
        "Write `model.to(device)` before the optimizer is made."
    )
    cure = "`model.to(device)`"

    def on_judged(self, event: events.Judged) -> None:
        parameters = list(alive(self.program.parts(event.call.model).parameters))
        if event.call.used and event.trained and all(one.device.type == "cpu" for one in parameters):
            self.note(event.call.line)
