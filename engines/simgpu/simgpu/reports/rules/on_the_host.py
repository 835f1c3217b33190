"""Rules on what stays on the host."""

from collections.abc import Iterable

from torch import nn
from torch.utils._pytree import tree_leaves

from simgpu.ground.units import seconds_text
from simgpu.reports import events, observer
from simgpu.reports.program import alive
from simgpu.reports.rule import Outcome, Rule

_WORTH = 0.1  # of a step
_WORTH_S = 2e-3  # of a step: less cannot be told from what looks at it


class HostWork(Rule, about="time"):
    """The program's own work on the CPU, or its waiting there, takes longer than a tenth of a step."""

    text = (
        "Each step does {time} of work on the CPU here, or waits: NumPy, operators on CPU tensors, Python, files. That "
        "is time of this machine; the {step} of a step are without it. Let a DataLoader's workers do it, or the GPU."
    )
    cure = "a DataLoader's workers, or the GPU"

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        if not self.program.step:  # then that is what the program did to begin with, too
            return []
        worth_s = max(_WORTH * outcome.step_s, _WORTH_S)
        return [line for line, seconds in outcome.own.items() if line and seconds >= worth_s][:1]

    def said(self, line: str, outcome: Outcome) -> str:
        return self.text.format(time=seconds_text(sum(outcome.own.values())), step=seconds_text(outcome.step_s))


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


class HostTensorInForward(Rule, about="time", often="each step"):
    """The forward pass copies a tensor of the CPU to the GPU."""

    text = (
        "The forward pass copies a tensor of the CPU to the GPU. Make it there, as `torch.zeros(…, device=x.device)` "
        "does and `torch.tensor` does not, or keep it as a buffer of the model."
    )
    cure = "make it with `device=x.device`, or keep it as a buffer"

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if not self.program.running or not source.dim() or isinstance(source, nn.Parameter):
            return
        is_input = any(source is one or source._base is one for one in tree_leaves(self.program.inputs))
        if not is_input and observer.asker() != "torch.nn.utils.rnn":  # which needs lengths of a batch on the CPU
            self.note()
