"""Rules on what stays on the host."""

import re
import weakref
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from simgpu.ground import places, turns
from simgpu.ground.units import seconds_text
from simgpu.reports import events, observer
from simgpu.reports.program import alive
from simgpu.reports.rule import Outcome, Rule

_WORTH = 0.1  # of a step
_WORTH_S = 2e-3  # of a step: less cannot be told from what looks at it
_CURE = "Let a DataLoader's workers do it, or the GPU."
_WRITES = re.compile(  # files, and what programs keep logs with
    r"\b((im)?(save|write)|dump|print|to_(csv|json|parquet)|add_(scalar|image|histogram|figure|text))\w*\(|wandb\.log"
)


class HostWork(Rule, about="time"):
    """The program's own work on the CPU, or its waiting there, takes longer than a tenth of a step."""

    text = (
        "Each step does at least {time} of work on the CPU here, or waits: NumPy, operators on CPU tensors, Python, "
        "files. That is time of this machine; the {step} of a step are without it. {cure}"
    )
    cure = "a DataLoader's workers, or the GPU; a file is written less often, or by a thread"

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        if not self.program.step:  # then that is what the program did to begin with, too
            return []
        worth_s = max(_WORTH * outcome.step_s, _WORTH_S)
        lines = [line for line, seconds in outcome.own.items() if line and seconds >= worth_s][:1]
        return [line for line in lines if ("saved-in-each-step", line) not in self.program.notes]

    def said(self, line: str, outcome: Outcome) -> str:
        time, step = seconds_text(sum(outcome.own.values())), seconds_text(outcome.step_s)
        cure = "Write less often, or let a thread do it." if _WRITES.search(line.partition(": ")[2]) else _CURE
        return self.text.format(time=time, step=step, cure=cure)


class ModelOnTheCpu(Rule, about="time", often="each step", explains=("host-work", "host-waits")):
    """A model, or a part of one, is on the CPU, and learns or gets several samples at once."""

    text = (
        "The model `{name}` is on the CPU: its forward pass takes {time} a {turn} here, and the {step} of a step are "
        "without it. Write `.to(device)` once, before an optimizer gets its parameters."
    )
    cure = "`model.to(device)`"

    def begin(self) -> None:
        self._models: weakref.WeakKeyDictionary[nn.Module, tuple[str, str]] = weakref.WeakKeyDictionary()
        self._seconds = defaultdict[tuple[str, str], dict[int, float]](dict)  # by line and name, of each turn
        self._model, self._begun_s = nn.Module(), 0.0  # the outermost on the CPU that runs, or ran last

    def on_forward(self, event: events.Forward) -> None:
        if self._model not in self.program.running and self._is_left(event):
            self._models.setdefault(event.module, (places.place(), places.called() or type(event.module).__name__))
            self._model, self._begun_s = event.module, turns.elapsed_s()

    def on_forward_end(self, event: events.ForwardEnd) -> None:
        if event.module is self._model:
            times, self._model = self._seconds[self._models[event.module]], nn.Module()
            turn = self.program.step if self.program.optimized else len(times)
            times[turn] = times.get(turn, 0.0) + turns.elapsed_s() - self._begun_s

    def _is_left(self, event: events.Forward) -> bool:
        parameters = list(alive(self.program.parts(event.module).parameters))
        if not parameters or any(one.device.type != "cpu" for one in parameters):
            return False
        tensors = (one for one in tree_leaves((event.args, event.kwargs)) if isinstance(one, torch.Tensor))
        several = any(one.dim() > 1 and one.shape[0] > 1 for one in tensors)  # unlike a policy that plays a game
        kinds = [type(one) for one in event.module.modules() if one._parameters]
        is_table = all(issubclass(kind, nn.Embedding | nn.EmbeddingBag) for kind in kinds)  # perhaps too large a one
        return not is_table and (several or self.program.trains(event.module))

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        return [line for (line, _), times in self._seconds.items() if self.is_habit(len(times))]

    def said(self, line: str, outcome: Outcome) -> str:
        name, times = next((name, times) for (known, name), times in self._seconds.items() if known == line)
        time, turn = seconds_text(median(times.values())), ("call", "step")[self.program.optimized]
        return self.text.format(name=name, time=time, turn=turn, step=seconds_text(outcome.step_s))


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
