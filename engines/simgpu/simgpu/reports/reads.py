"""Lines that must read a value of the GPU, and lines where PyTorch itself reads one."""

import sys

import torch

from simgpu.clock.lines import Line
from simgpu.ground import nodes, places
from simgpu.reports import events
from simgpu.reports.program import Program


class Reads:
    """Reads and copies since the last call of a model: what decides over its next input, such as an action, must be.

    Evaluation looks the same, but has no gradients, and more than one sample in a batch.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.must: set[str] = set()  # lines whose steps need values: of a scaler, or with a closure, or as said above
        # why PyTorch itself reads or copies something, by line: "check" for the arguments of a distribution, "size" for
        # what an operator needs, such as how many values a mask picks, "value" where the line reads one as well, "mask
        # …" where it is the gradient of such lines, "layer" where a layer calls it, "index" for indices that are on the
        # CPU, "backward" for gradients of what the forward pass has copied; "library …"
        self.asking: dict[str, str] = {}
        self.lines: set[str] = set()  # that have read a value since the model's last call
        self._answers: set[str] = set()  # lines that have copied something to a GPU since then
        self._deciding: set[str] = set()
        self._sized = False  # whether the read that comes is that of a size
        self._masks: dict[str, None] = {}  # lines of the forward pass that have asked for a size in this step

    def on_read(self, event: events.Read) -> None:
        self.lines.add(places.place())
        sized, self._sized = self._sized, False
        if not sized and self.asking.get(places.place()) == "size":
            self.asking[places.place()] = "value"
        elif event.asker.startswith("torch.distributions"):
            self.asking[places.place()] = "check"
        elif nodes.phase() == "backward":
            self.asking.setdefault(places.place(), "anomaly" if torch.is_anomaly_enabled() else "backward")
        elif package := _library(event.asker):
            self.asking.setdefault(places.place(), f"library {package}")

    def on_asked(self, event: events.Asked) -> None:
        self._sized = event.why == "size"
        if self._sized and nodes.phase() != "backward":
            self._masks[places.place()] = None
        elif self._sized:
            self.asking.setdefault(places.place(), f"mask {' and '.join(Line.of(line).where for line in self._masks)}")
        self.asking.setdefault(places.place(), "layer" if event.asker.startswith("torch.nn.modules.") else event.why)

    def on_copied(self, event: events.Copied) -> None:
        if nodes.phase() == "backward":
            self.asking.setdefault(places.place(), "backward")
        if self.lines and event.source.dim() and not self._program.running:
            self._answers.add(places.place())

    def on_called(self, event: events.Called) -> None:
        last = event.last
        again = any(one.model is event.call.model for one in self._program.passes)  # or its first layer, in `forward`
        if last is not None and not last.used and again and self._answers:
            self._deciding |= self.lines | self._answers if last.recorded or last.batch == 1 else set()
        self._forget()

    def on_backward(self, event: events.Backward) -> None:
        self.must |= self._deciding
        self._forget()

    def on_update(self, event: events.Update) -> None:
        if event.closure:
            self.must.add(places.place())

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        if event.method == "step":
            self.must.add(places.place())

    def on_step_end(self, event: events.StepEnd) -> None:
        self._deciding.clear()
        self._masks.clear()

    def _forget(self) -> None:
        self.lines, self._answers = set(), set()


def _library(name: str) -> str:
    """Return the package of a module that is neither the reader's nor PyTorch's, "" for these."""
    package, file = name.partition(".")[0], getattr(sys.modules.get(name), "__file__", None)
    return package if file and package != "torch" and not places.is_readers(file, "") else ""
