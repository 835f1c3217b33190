"""Report on the command line: printing, files, and the exit status of `--fail-if`."""

import argparse
import atexit
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import multiprocessing

from simgpu.clock.lines import ENDED
from simgpu.device import communication
from simgpu.ground.replacements import Replacements
from simgpu.machine.profiles import Profile
from simgpu.reports import against, current
from simgpu.reports.forms import Report
from simgpu.reports.gather import Session
from simgpu.reports.limits import limit
from simgpu.reports.ranks import Ranks, Record, save_report
from simgpu.reports.words import nothing_asked

VARIABLE = "SIMGPU_REPORT"  # for child processes that are ranks
BROKEN, UNUSED = 3, 4  # exit statuses with --fail-if: a limit is broken, or nothing was asked of a GPU


@dataclass(frozen=True)
class Wishes:
    """What is to be done at the end of a run, as the command line says it."""

    quiet: bool = False
    steps: int | None = None
    data_ms: float | None = None
    html: str | None = None
    json: str | None = None
    trace: str | None = None
    price: float | None = None
    run_steps: int | None = None
    limits: tuple[str, ...] = ()
    against: str | None = None
    shapes: bool = False
    compiled: bool = False
    folder: str | None = None  # where ranks record what they do

    def start(self, *, shows: bool = True) -> Session:
        """Start the session; where it `shows`, and that was wished, it prints how far the program is."""
        progress = sys.stderr if shows and not self.quiet else None
        return current.start(
            stop_after=self.steps, data_ms=self.data_ms, shapes=self.shapes, compiled=self.compiled, progress=progress
        )  # fmt: skip

    def finish(self, session: Session, error: BaseException | None = None) -> int:
        """Print and write what was wished; return the exit status, 1 where a file could not be written.

        `error` has ended the program. Where it has started ranks, the report is that of rank 0.
        """
        if error is not None and session.failure is None:
            session.failed(error)
        session.stop()
        ranks = Ranks(Path(self.folder or ""))
        report = ranks.report() or session.report(self.price, self.run_steps)
        if ranks:
            first = None if error is None else ranks.first_failure(error) or session.failure
            errors = [one for one in report.errors if one != report.failure]
            report = replace(report, failure=first, errors=[first, *errors] if first else errors, ranks=ranks.steps)
        if report.failure is not None and report.failure.kind == ENDED and not report.steps and not ranks:
            if report.failure.line:  # else no line of it has run, and what was said before says why
                said = f"the program ended by itself at {report.failure.where}, before a first step"
                print(f"simgpu: no report: {said}", file=sys.stderr)
            return 0
        written = self._write(report)
        if not report.used:
            print(f"simgpu: no report: {nothing_asked(report)}", file=sys.stderr)
            return UNUSED if self.limits else int(not written)
        if not self.quiet:
            print(f"\n{report}", file=sys.stderr)
        if self.against:
            print(f"\n{against.text(report, self.against)}", file=sys.stderr)
        broken = list(filter(None, (limit(text).broken(report) for text in self.limits)))
        for sentence in broken:
            print(f"simgpu: {sentence}", file=sys.stderr)
        return BROKEN if broken else int(not written)

    def _write(self, report: Report) -> bool:
        """Write the files that were asked for; return whether all are, and say of one that is not."""
        written = True
        for path, write in ((self.html, report.save), (self.json, report.save), (self.trace, report.trace)):
            try:
                if path:
                    write(path)
            except OSError as error:
                print(f"simgpu: {path} was not written: {error.strerror or error}", file=sys.stderr)
                written = False
        return written


def add_options(reads: argparse.ArgumentParser) -> None:
    """Add the options of a report to a command line."""
    add = reads.add_argument_group("report").add_argument
    add("--report", metavar="FILE.html", help="write the report as a page that needs nothing else")
    add("--json", metavar="FILE.json", help="write the values of the report")
    add("--trace", metavar="FILE.json", help="write what host and GPU did, for https://ui.perfetto.dev")
    add("--against", metavar="TRACE.json", help="compare with a trace of torch.profiler of the same program on a GPU")
    add("--no-report", action="store_true", help="print no report at the end; simgpu.report() still has it")
    add("--steps", type=int, help="stop after so many steps (of the first optimizer, or by simgpu.step())")
    add("--data-ms", type=float, help="what a batch of a DataLoader takes (default: what it takes here)")
    add("--shapes", action="store_true", help="propagate shapes only; printed values are meaningless")
    add("--compiled", action="store_true", help="also say what a step would take with torch.compile; takes seconds")
    add("--price", type=float, help="of a GPU an hour, for the cost of --run-steps")
    add("--run-steps", type=int, help="steps of the whole run, for its hours")
    add(
        "--fail-if",
        action="append",
        default=[],
        metavar="LIMIT",
        help='exit with 3 if "idle>30%%", "peak>12GiB" …, with 4 if no GPU was used',
    )


def wishes(given: argparse.Namespace) -> Wishes:
    """Return what a command line wishes. Raises ValueError that names the option."""
    for text in given.fail_if:
        limit(text)
    for name, path, wanted in (("--report", given.report, ".html"), ("--json", given.json, ".json")):
        if path is not None and not path.endswith(wanted):
            raise ValueError(f"{name} is {path!r}, it must end in {wanted}")
    for path in filter(None, (given.report, given.json, given.trace)):
        if not os.access(Path(path).parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: there is no folder for it that can be written to")
    if given.against is not None:
        Profile(given.against)  # raises where it is none, before the program runs
    same = {name: value for name, value in vars(given).items() if name in Wishes.__dataclass_fields__}
    return Wishes(quiet=given.no_report, html=given.report, limits=tuple(given.fail_if), **same)


def tell_children(wished: Wishes) -> None:
    """Let child processes that are ranks know what is wished; the launcher reports, with what rank 0 has recorded."""
    os.environ[VARIABLE] = json.dumps(asdict(wished))


_ENDING = {one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")}
STUCK_S = 3.0  # so long the main thread may take to heed a signal


@contextmanager
def ends(finish: Callable[[BaseException | None], object]) -> Generator[None]:
    """Let a process that is asked to end, or ends at once, finish its report first.

    Signals that `timeout`, Slurm and a closed terminal send raise an interruption as Ctrl-C does, unless the program,
    or whoever has started it, handles them. Python heeds one between two instructions: where one operator on the CPU
    takes longer than that, a thread finishes. `os._exit` and `os.abort` finish, but for a child.
    """
    put, here, signals = Replacements(), os.getpid(), _Signals(finish)

    def at_once(plain: Callable[..., Any]) -> Callable[..., Any]:
        def end(*status: int) -> Any:
            put.undo()
            if os.getpid() == here:
                finish(SystemExit(f"os.{plain.__name__}({', '.join(map(str, status))})"))
                sys.stderr.flush()
            return plain(*status)

        return end

    put.put(os, _exit=at_once(os._exit), abort=at_once(os.abort))
    put.put(signal, default_int_handler=signals.handler)  # asyncio asks whether Ctrl-C has its usual handler
    put.put(signal, getsignal=signals.hidden(signal.getsignal), signal=signals.hidden(signal.signal))
    try:
        yield
    finally:
        put.undo()
        signals.close()


class _Signals:
    """Handlers of the signals that end a process, until they are closed."""

    def __init__(self, finish: Callable[[BaseException | None], object]) -> None:
        self._finish, self._process, self._exit, self._file = finish, os.getpid(), os._exit, -1
        self._get, self._set = signal.getsignal, signal.signal
        self._heeded_s = -math.inf  # when the main thread has last heeded a signal
        usual: dict[int, Any] = {**dict.fromkeys(_ENDING, signal.SIG_DFL), signal.SIGINT: signal.default_int_handler}
        in_main = threading.current_thread() is threading.main_thread()
        self._handled = {number for number, kind in usual.items() if in_main and signal.getsignal(number) is kind}
        self.handler = self._stop  # one object, which can be compared
        for number in self._handled:
            signal.signal(number, self.handler)
        if self._handled and hasattr(os, "register_at_fork"):
            reads, self._file = os.pipe()
            os.set_blocking(self._file, False)
            signal.set_wakeup_fd(self._file, warn_on_full_buffer=False)
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # its signals are its own affair
            threading.Thread(target=self._hear, args=(reads,), name="simgpu", daemon=True).start()

    def hidden(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return `signal.getsignal` or `signal.signal` for the program, to which these handlers are the usual ones."""

        def asked(number: int, *handlers: Any) -> Any:
            mine = number in _ENDING & self._handled
            found = plain(number, *(self.handler if mine and one == signal.SIG_DFL else one for one in handlers))
            return signal.SIG_DFL if mine and found is self.handler else found

        return asked

    def close(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # of a rank that does not heed a signal: its process ends at once
        if self._file >= 0 and signal.set_wakeup_fd(-1) == self._file:
            os.close(self._file)
        self._ignore()
        if signal.SIGINT in self._handled and signal.getsignal(signal.SIGINT) is self.handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ignore(self) -> None:
        for number in _ENDING & self._handled:  # `timeout` sends its signal to the process and to its group
            signal.signal(number, signal.SIG_IGN)
        if self._heeded_s > -math.inf and hasattr(signal, "SIGCHLD"):  # it also ends workers, of which PyTorch would
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # raise an error wherever the program is, as in its report

    def _stop(self, number: int, frame: object) -> None:
        """Raise an interruption, between two instructions of the main thread."""
        if os.getpid() != self._process and number in _ENDING:
            self._set(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._heeded_s = time.monotonic()
        if number != signal.SIGINT:
            self._ignore()
        raise _interruption(number)

    def _hear(self, file: int) -> None:
        """Finish in a thread where the main thread does not heed a signal for long."""
        while number := os.read(file, 1):
            heard_s, is_mine = time.monotonic(), self._get(number[0]) is self.handler
            time.sleep(STUCK_S)
            if is_mine and self._heeded_s < heard_s - 2 * STUCK_S:
                self._finish(_interruption(number[0]).with_traceback(_running()))
                sys.stdout.flush()
                self._exit(128 + number[0])


def _interruption(number: int) -> KeyboardInterrupt:
    return Stopped(signal.Signals(number).name) if number in _ENDING else KeyboardInterrupt()


def _running() -> TracebackType | None:
    """Return what the main thread runs, as a traceback."""
    trace, frame = None, sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        trace, frame = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno or 1), frame.f_back
    return trace


class Stopped(KeyboardInterrupt):
    """An interruption by a signal, whose name it has."""

    @property
    def status(self) -> int:
        """The exit status by which a shell tells the signal."""
        return 128 + signal.Signals[str(self)]


def start_in_rank() -> None:
    """Do in a child process what its parent wished, if that was anything and it is a rank, or as soon as it is one."""
    rank, told = os.environ.get("RANK"), os.environ.get(VARIABLE)
    if not told:
        return
    if rank is None:  # as one that `torch.multiprocessing` starts
        communication.at_join.append(lambda number: None if current.records() else _start(told, number))
    else:
        _start(told, int(rank))


def _start(told: str, rank: int) -> None:
    """Record in a rank: how far it is after each step, how it ends, and for rank 0 its report."""
    known: dict[str, Any] = json.loads(told)
    os.environ.pop(VARIABLE, None)  # a rank's own children, such as workers of a DataLoader, are no ranks
    known["limits"] = ()
    wished, folder = Wishes(**known), Path(known["folder"])
    session, record = wished.start(shows=rank == 0), Record.begin(rank, folder)
    record.write(folder)

    def on_step() -> None:
        record.steps = session.run.steps
        record.write(folder)

    def finish(error: BaseException | None) -> None:
        exits.__exit__(None, None, None)
        failure = session.exiting if error is None else session.failed(error)
        if failure is not None:
            record.failure, record.when_s = replace(failure, rank=rank), time.time()
        record.steps = session.run.steps or record.steps
        record.write(folder)
        session.stop()
        if rank == 0 and folder.is_dir() and (session.run.steps or not record.steps):
            save_report(session.report(wished.price, wished.run_steps), folder)

    session.on_step, sys.exit = on_step, session.noting_exit(sys.exit)
    exits = ends(finish)
    exits.__enter__()
    if multiprocessing.parent_process() is not None:  # such a child ends without calling atexit
        sys.modules["multiprocessing.util"].Finalize(None, lambda: finish(_error_of_child()), exitpriority=0)
    else:
        atexit.register(lambda: finish(getattr(sys, "last_value", None)))


def _error_of_child() -> BaseException | None:
    """Return what ends a child of `torch.multiprocessing.spawn`, which exits while it handles the error of a rank."""
    error = getattr(sys, "last_value", None) or sys.exception()
    return error.__context__ or error if isinstance(error, SystemExit) and error.code else error
