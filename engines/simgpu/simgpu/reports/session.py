"""Recording session of a program, and where its steps end."""

import math
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from simgpu.accounting import accounts
from simgpu.clock.events import FIRST_BATCH, LOADING, Log
from simgpu.clock.lines import ENDED, IN_A_THREAD, INTERRUPTED, Error, Line
from simgpu.device import communication, state
from simgpu.forecasts.whatif import Optimizer
from simgpu.ground import arguments, device_kind, places
from simgpu.ground.replacements import Replacements
from simgpu.ground.units import seconds_text
from simgpu.reports import events
from simgpu.reports.by_hand import HandSteps
from simgpu.reports.compiled_step import ModelCalls
from simgpu.reports.growth import GrowthWatch
from simgpu.reports.holdings import Holdings
from simgpu.reports.observer import Observer
from simgpu.reports.own_work import OwnWork
from simgpu.reports.passes import Passes
from simgpu.reports.program import Program
from simgpu.reports.reads import Reads
from simgpu.reports.rule import Outcome, Suspect
from simgpu.reports.rules import Rules
from simgpu.reports.rules.compiled_anew import CompiledAnew
from simgpu.reports.trainings import MOST_TIMED, Trainings

STEPS, TELLING = 10, 4  # so many are recorded in detail; of so many the usual ones can be told
EVENTS, MOST_EVENTS = 15_000, 1_000_000  # at most so many of several usual steps, and of all
_PROGRESS_S = 5.0
_LONG_S = 20.0  # without a step: then it is said what the program does, and how a report comes sooner


class Enough(SystemExit):
    """The program has done as many steps as it was to do: it ends, with 0."""


@dataclass
class RunRecord:
    """What a program is and was, beside what is recorded of it."""

    optimizer: Optimizer = field(default_factory=Optimizer)  # the one whose `step` ends a step
    marked: bool = False  # by `simgpu.step()`
    steps: int = 0
    begun_s: float = field(default_factory=time.perf_counter)
    begun_ns: int = 0


class Recording:
    """Records from its start until `stop`. Steps are those of the optimizer that leads, or end at `simgpu.step()`."""

    def __init__(
        self,
        *,
        stop_after: int | None = None,
        data_ms: float | None = None,
        progress: TextIO | None = None,
        shapes: bool = False,
        compiled: bool = False,
    ) -> None:
        if stop_after is not None:
            arguments.whole("steps", stop_after)
        if data_ms is not None and arguments.number("data_ms", data_ms) < 0:
            raise ValueError(f"data_ms must be a number of milliseconds from 0, not {data_ms!r}")
        self.shapes = shapes
        self.log, self.run, self.errors = Log(), RunRecord(), []
        self.failure: Error | None = None  # what ended the program
        self.exiting: Error | None = None  # its last `sys.exit`, unless it has gone on
        self.on_step: Callable[[], object] = lambda: None
        self.on_caught: Callable[[], object] = lambda: None  # the program has caught `Enough`, and goes on
        self.loads = False  # whether a DataLoader has given a batch
        self.epochs: dict[str, int] = {}  # by the line that asks a loader for batches: the most that one has
        self._cut = False  # whether the program was ended after so many steps
        self.world, self.on = state.world, True
        self.kind = device_kind.kind if device_kind.kind in ("mps", "xpu") else "cuda"
        self._stop_after, self.data_ms, self._progress = stop_after, data_ms, progress
        self.trainings = Trainings(self.log)
        self._told_s = self.run.begun_s
        self._hinted = False  # whether it was said that the first step takes long
        self._events_before = self._steps_before = 0  # the step that runs; the training that does
        self._put = Replacements()
        with self.world.lock:
            self.machine = self.world.clock.machine
            self.run.begun_ns = self.world.clock.done_ns()
            self.holdings = Holdings(self.world.memory, self.world.devices)
            self.holdings.often = self._show_inside
            self._put.put(self.world.memory, watcher=self.holdings)
            self._put.put(self.world.clock, log=self.log)
            self._put.put(self.world, only_shapes=shapes)
            self._put.put(accounts.Gpu, require=self._asking(accounts.Gpu.require))
            self._put.put(self.world, fail=self._noting(self.world.fail))
            self.growth = GrowthWatch(self.holdings)
            self._observer = Observer(self._put)
        self.own_work = OwnWork(lambda: (self.log.last_s, self.log.number, len(self.world.memory.dead)))
        self.log.now_s = self.own_work.asked_s
        self._put.put(threading, excepthook=self._telling(threading.excepthook))
        self.program = Program()
        self.reads = Reads(self.program)
        self.passes = Passes(self.program, self.reads, self._observer.tell)
        # In this order each event is told: where a step by hand ends is known before the backward pass counts, and what
        # analyses find before rules ask them; the session ends steps when all have been told of what ended them.
        by_hand = HandSteps(self.program, self._observer.tell)
        for listener in (by_hand, self.program, self.reads, self.passes, self.growth):
            self._observer.listen(listener)
        self.rules = Rules(self.program, self._observer.listen)
        self.model_calls = ModelCalls(self.log) if compiled else None
        if self.model_calls is not None:
            self._observer.listen(self.model_calls)
        self._observer.listen(self)

    def stop(self) -> None:
        """Record no more; what was recorded stays."""
        if not self.on:
            return
        self._ended_bytes = self.capacities
        self.on, self._ended_s = False, time.perf_counter()
        communication.finish()
        self.growth.end()
        self._ended_ns = self.world.clock.done_ns()
        self.own_work.stop()
        self._put.undo()
        self._observer.tell(events.RunEnd(whole=not self._cut and self.failure is None))
        if self.model_calls is not None:
            self.model_calls.ask()

    def found(self, outcome: Outcome) -> list[Suspect]:
        """Return the remarks on what was seen until now."""
        self.passes.judge()
        return self.rules.found(outcome)

    # ---- how long it took ---------------------------------------------------------------------------------------
    @property
    def simulated_s(self) -> float:
        """How long the program took on the virtual clock, in seconds."""
        return ((self.world.clock.done_ns() if self.on else self._ended_ns) - self.run.begun_ns) / 1e9

    @property
    def real_s(self) -> float:
        """How long it took here, in seconds."""
        return (time.perf_counter() if self.on else self._ended_s) - self.run.begun_s

    @property
    def has_compiled(self) -> bool:
        """Whether PyTorch has compiled anything of the program."""
        rule = self.rules["compiled-anew"]
        return isinstance(rule, CompiledAnew) and rule.compiles

    @property
    def capacities(self) -> list[int]:
        """How many bytes each GPU has, or had when recording ended."""
        return [gpu.room_bytes for gpu in self.world.memory.gpus] if self.on else self._ended_bytes

    # ---- steps --------------------------------------------------------------------------------------------------
    def mark(self) -> None:
        """A step ends here, and those of optimizers end none any more."""
        if self.on:
            self.run.marked = True
            self._end_step()

    def _end_step(self) -> None:
        if self._cut and not isinstance(sys.exception(), Enough):
            self.on_caught()
        self.run.steps += 1
        self._observer.tell(events.StepEnd())
        self.program.end_step()
        self.growth.step(self.run.steps)
        self.own_work.step()
        self.holdings.step = self.run.steps
        if self.world.clock.log is self.log:
            self.log.step()
        if self.run.steps == 1:
            self._events_first = len(self.log)
        most = EVENTS + self._events_first if self.run.steps >= TELLING else MOST_EVENTS
        if self.run.steps - self._steps_before >= STEPS or (self.run.steps > 1 and len(self.log) > most):
            self._pause()
        self.exiting = None
        self.on_step()
        self._show(f"step {self.run.steps:,}")
        self._events_before = len(self.log)
        if self.run.steps >= (self._stop_after or math.inf) and not isinstance(sys.exception(), Enough):
            self._cut = True
            raise Enough(0)

    def _pause(self) -> None:
        """Record no further events; steps and memory go on being counted."""
        if self.world.clock.log is self.log:
            self.world.clock.log = None
        self.own_work.stop()

    def _show(self, where: str) -> None:
        now_s = time.perf_counter()
        if self._progress is not None and now_s - self._told_s > _PROGRESS_S:
            self._told_s = now_s
            times = f"{seconds_text(self.simulated_s)} on the GPU's clock, {self.real_s:.0f} s here"
            print(f"simgpu: {where}, {times}", file=self._progress, flush=True)

    def _show_inside(self) -> None:
        """Show where the program is while a step is not done yet."""
        self._hint()
        where = f"in step {self.run.steps + 1:,}"
        if self.world.clock.log is self.log:
            where += f", {len(self.log) - self._events_before:,} operations so far"
        self._show(where)

    def _hint(self) -> None:
        """Say once what a program does that has made no step for long."""
        if self._progress is not None and not self.run.steps and not self._hinted and self.real_s > _LONG_S:
            self._hinted = True
            print(self._before_first_step(), file=self._progress, flush=True)

    def _before_first_step(self) -> str:
        """Say what a program has done that has not made a step for long, and how its report comes sooner."""
        said = f"simgpu: no step has ended in {self.real_s:.0f} s, and the report needs one."
        line, calls = next(iter(self.passes.calls.most_common(1)), ("", 0))
        if calls > 1:
            said += f" So far {Line.of(line).where} has called a model {calls:,} times, without a backward pass."
        fewer = "fewer of these calls, " if calls > 1 else ""
        values = "" if self.shapes else " Or add --shapes, which computes shapes and no values."
        return f"{said} To see one sooner, ask the program for {fewer}a smaller model or a smaller batch.{values}"

    # ---- events -------------------------------------------------------------------------------------------------
    def on_forward(self, event: events.Forward) -> None:
        if not self.run.steps:
            self._hint()
        self.holdings.module(event.module)
        if self.run.steps == 0 and len(self.log) > MOST_EVENTS:
            self._pause()

    def on_called(self, event: events.Called) -> None:
        self.growth.called(event.call.lines)
        self.holdings.given(one.tensor() for one in event.call.given)

    def on_update(self, event: events.Update) -> None:
        self.log.stepping = self.holdings.stepping = True
        self.log.closure = self.holdings.closure = event.closure
        self.holdings.changed(event.parameters)

    def on_updated(self, event: events.Updated) -> None:
        self.log.stepping = self.holdings.stepping = False
        self.holdings.after_step(event.optimizer)
        self.program.end_update()
        if self.run.marked:
            self.run.optimizer = Optimizer.of(event.optimizer)
        elif self.trainings.leads(event.optimizer):
            if self.trainings.now is self.trainings.first:
                self.run.optimizer = Optimizer.of(event.optimizer)
            self._follow()
            self._end_step()

    def _follow(self) -> None:
        """Record what the training that runs asks for, where it has begun, and no more of the one before."""
        training = self.trainings.now
        if training.log is self.log:
            return
        self._pause()
        self.log, self._steps_before, self._events_before = training.log, self.run.steps, 0
        if not len(self.log) and self.trainings.all.index(training) < MOST_TIMED:
            self.world.clock.log = self.log

    def on_hand_step(self, event: events.HandStep) -> None:
        self.holdings.changed(event.weights)
        if not self.run.marked:
            self._end_step()

    def on_loaded(self, event: events.Loaded) -> None:
        """Let the host be busy for as long as a batch took here.

        The first batch of all takes what is done once, and the first one of new workers also their start.
        """
        is_first = (event.starts or not self.loads) and self.data_ms is None
        took_ms = event.seconds * 1e3 if self.data_ms is None else self.data_ms
        self.world.clock.work(FIRST_BATCH if is_first else LOADING, math.ceil(took_ms * 1e6))
        self.loads = True
        self._hint()
        try:
            batches = len(event.iterator)
        except TypeError:  # of an endless stream of data
            return
        line = places.place()
        self.epochs[line] = max(batches, self.epochs.get(line, 0))

    def _noting(self, plain: Callable[[int], None]) -> Callable[[int], None]:
        """Return `World.fail`, which notes the line whose kernel failed: the error may come at a later one."""

        def fail(index: int) -> None:
            line, kind = Line.of(places.place()), "a kernel failed"
            if not self.errors or self.errors[-1].kind != kind:  # others come of the first, until a line says so
                self.errors.append(Error(*line.parts, kind, "an impossible value, such as an index too large"))
            plain(index)

        return fail

    def _asking(self, plain: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Return `Gpu.require`, which notes the line that asks for memory where there is none."""

        def require(gpu: Any, nbytes: int) -> None:
            try:
                plain(gpu, nbytes)
            except torch.OutOfMemoryError:
                self.holdings.refused(nbytes)
                raise

        return require

    # ---- errors -------------------------------------------------------------------------------------------------
    def failed(self, error: BaseException, thread: bool = False) -> Error:
        """The program ended with `error`, by itself with a status that is not 0 (SystemExit), or was interrupted.

        `thread`: a thread ended, the program goes on. Returns what the report says of it.
        """
        self.holdings.find_owners(self.world.devices)
        self.growth.cut = not self.run.steps and not isinstance(error, torch.OutOfMemoryError)
        self.growth.end()
        text = _COLOURS.sub("", str(error) or type(error).__name__).strip()
        line = Line.of(places.place() if error.__traceback__ is None else places.place_of(error))
        kind = _kind(error, text)
        if isinstance(error, SyntaxError) and error.lineno and Path(error.filename or "").is_file():
            line, text = Line.of(places.named(error.filename or "", error.lineno)), error.msg
        elif _TRACEBACK in text:
            line, kind, text = _of_process(text, line, kind)
        said = text.partition("\n")[0]
        cause = _cause(error)
        if cause is not error:
            first, place = _COLOURS.sub("", str(cause)).strip().partition("\n")[0], Line.of(places.place_of(cause))
            where = f"at {place.where}:" if place.line else "with"
            said += f"{'.' * (said[-1] not in '.!?')} It began {where} {_kind(cause, first)}: {first}"
        self.failure = Error(*line.parts, kind + IN_A_THREAD * thread, said)
        if kind not in (ENDED, INTERRUPTED):
            self.errors.append(self.failure)
        return self.failure

    def noting_exit(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return `sys.exit`, which also notes the line that asks for it, for a process whose end nobody here sees."""

        def exits(status: Any = None) -> Any:
            self.exiting = Error(*Line.of(places.place()).parts, ENDED, str(status)) if status else None
            return plain(status)

        return exits

    def _telling(self, plain: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return `threading.excepthook`, which also tells the report what has ended a thread."""

        def ended(thread: Any) -> object:
            if isinstance(thread.exc_value, Exception):
                self.failed(thread.exc_value, thread=True)
            return plain(thread)

        return ended

    def raced(self, line: str, text: str) -> None:
        """Nothing orders two uses of the same memory, the second of which is `line`."""
        self.errors.append(Error(*Line.of(line).parts, "a race", text))


def _cause(error: BaseException) -> BaseException:
    """Return the first of the errors that have led to one: it was raised from them, or while the program had them."""
    for _ in range(20):  # they may go in a circle
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        handled = isinstance(before, Exception) and Line.of(places.place_of(before)).line
        error = before if before is not None and (handled or before is error.__cause__) else error
    return error


_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of terminals, in PyTorch's messages
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (\S+)', re.MULTILINE)


def _of_process(text: str, line: Line, kind: str) -> tuple[Line, str, str]:
    """Return the line, the kind and the message of an error of another process, such as a worker of a DataLoader.

    PyTorch raises it again in the program, with the process's traceback as a part of the message.
    """
    told = text.rpartition(_TRACEBACK)[2].strip()
    frames = [(file, int(number)) for file, number, name in _FRAME.findall(told) if places.is_readers(file, name)]
    name, _, said = told.splitlines()[-1].partition(": ")
    where = Line.of(places.named(*frames[-1])) if frames else line
    return where, kind if text.startswith("Caught ") else name.rpartition(".")[2], said or name


def _kind(error: BaseException, text: str) -> str:
    """Return what kind of error ended a program, in the words of a report."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    if isinstance(error, SystemExit):
        return ENDED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if "same device" in text:
        return "tensors on different devices"
    if "device-side assert" in text:
        return "a kernel failed, and a later line says so"
    return type(error).__name__
