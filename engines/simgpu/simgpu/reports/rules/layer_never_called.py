"""Nothing calls a layer of the model, in the whole run."""

import sys
import weakref
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.program import tells_modes_apart
from simgpu.reports.rule import Outcome, Rule, Suspect

_BETWEEN = ("torch.nn.modules.module", "simgpu.")  # frames between a registration and the reader's line
_GIVEN = 3  # steps that a model gets to call its layers


class LayerNeverCalled(Rule, about="result"):
    text = "Nothing has called this layer in the whole run, so it does nothing. Call it in `forward`, or take it out."
    in_part = (
        "Nothing has called this layer in the {steps} steps seen. If no later one does, call it in `forward`, or take "
        "it out."
    )
    cure = "call it in `forward`, or take it out"

    def begin(self) -> None:
        self._whole = False  # whether the program has ended by itself
        self._idle: dict[tuple[str, str], None] = {}  # lines and names of layers that no step of their model has called
        self._used: set[tuple[str, str]] = set()  # those that have called a layer
        self._holders = WeakIdKeyDictionary()  # lists of idle ones, by each layer and parameter that is in them
        self._looks = {_GIVEN}  # the numbers of steps after which layers are looked for that nothing has called
        self._made: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], str, str]] = (
            weakref.WeakKeyDictionary()
        )  # layers: whose they are, their names there, and the lines that made them
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._reached = WeakIdKeyDictionary()  # parameters that have got a gradient

    def on_registered(self, event: events.Registered) -> None:
        """Keep in mind the reader's line that has made a layer part of a module."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            frame = frame.f_back
        if frame is None or not isinstance(event.part, nn.Module):
            return
        code = frame.f_code
        if places.is_readers(code.co_filename, code.co_name):
            self._looks.add(self.program.step + _GIVEN)
            line = places.named(code.co_filename, frame.f_lineno)
            self._made[event.part] = weakref.ref(event.owner), event.name, line

    def on_forward(self, event: events.Forward) -> None:
        self._called.add(event.module)
        if self._idle:
            self._mark_used(event.module)

    def on_update(self, event: events.Update) -> None:
        """See which parameters have gradients now that had none."""
        if self.program.updates[event.optimizer] == 1:
            self._looks.add(self.program.step + _GIVEN)
        for parameter in self.program.reached:
            self._reached[parameter] = True
            self._mark_used(parameter)

    def on_step_end(self, event: events.StepEnd) -> None:
        """After the first steps of a model, find layers that none has called."""
        if self.program.step + 1 not in self._looks:
            return
        self._looks.discard(self.program.step + 1)
        unreached = {id(one()) for waiting in self.program.waiting.values() for one in waiting}
        for part, (reference, name, line) in list(self._made.items()):
            owner = reference()
            if owner is None or owner._modules.get(name) is not part or (line, name) in self._used:
                continue
            if self._is_idle(part, owner, unreached):
                self._idle[line, name] = None
                for inner in (*part.modules(), *part.parameters()):
                    self._holders[inner] = [*(self._holders.get(inner) or ()), (line, name)]
            elif self._is_reached(part):
                self._use(line, name)

    def on_run_end(self, event: events.RunEnd) -> None:
        self._whole = event.whole

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        said = super().suspect(line, outcome)
        if said is None or self._whole:
            return said
        return replace(said, text=self.in_part.format(steps=self.program.step))

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        """Return the lines that made layers which nothing has called or used, in models that are trained."""
        return dict.fromkeys(line for line, _ in self._idle)

    def _mark_used(self, inner: nn.Module | torch.Tensor) -> None:
        """Note a call of a layer, or a gradient of its parameter: it and those around it are not idle."""
        for line, name in self._holders.pop(inner, ()):
            self._use(line, name)

    def _use(self, line: str, name: str) -> None:
        self._used.add((line, name))
        self._idle.pop((line, name), None)

    def _is_idle(self, part: nn.Module, owner: nn.Module, unreached: set[int]) -> bool:
        """Return whether nothing has called a layer, and no function has used it.

        What uses its weights gives them gradients; one of dropout may lend its rate to a function.
        """
        if self._is_reached(part):
            return False
        own = list(part.parameters())
        if own and not any(id(one) in unreached for one in own):
            return False  # no optimizer has it
        if not own and (self.program.drops_by_function or not tells_modes_apart(part)):
            return False
        return any(one in self._reached for one in owner.parameters())

    def _is_reached(self, part: nn.Module) -> bool:
        """Return whether something has called a layer or one inside of it, or given it a gradient."""
        called = any(one in self._called for one in part.modules())
        return called or any(one in self._reached for one in part.parameters())
