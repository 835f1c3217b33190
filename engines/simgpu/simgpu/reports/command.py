"""What does `python -m simgpu` do with a report: print it, write files, and say by its exit status what is too much?"""

import argparse
import atexit
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import multiprocessing

from simgpu.clock.lines import ENDED, Error
from simgpu.device import communication
from simgpu.machine.profiles import Profile
from simgpu.reports import against, current
from simgpu.reports.limits import limit
from simgpu.reports.reporter import Session
from simgpu.reports.words import NOTHING_ASKED

VARIABLE = "SIMGPU_REPORT"  # for child processes that are ranks
_REPORTED = "reported"  # the file by which a rank says so
_FAILED = "failed-*.json"  # the files in which ranks say what has ended them
BROKEN = 3  # the exit status where a limit of --fail-if is broken


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
    folder: str | None = None  # where ranks say that they have reported, and what has ended them

    def start(self, *, shows: bool = True) -> Session:
        """Start the session; where it `shows`, and that was wished, it prints how far the program is."""
        progress = sys.stderr if shows and not self.quiet else None
        return current.start(
            stop_after=self.steps, data_ms=self.data_ms, shapes=self.shapes, compiled=self.compiled, progress=progress
        )  # fmt: skip

    def finish(self, session: Session, *, in_rank: bool = False) -> int:
        """Print and write what was wished, `in_rank` by the one that reports; return the exit status, 0 or 3."""
        session.stop()
        first = self._failed_first() if session.failure is not None and _is_of_a_rank(session.failure) else None
        if first is not None:
            session.failed_first(first)
        if session.failure is not None and session.failure.kind == ENDED and not session.run.steps:
            if session.failure.line:  # else no line of it has run, and what was said before says why
                where = f"at {session.failure.where}, before a first step"
                print(f"simgpu: no report: the program ended by itself {where}", file=sys.stderr)
            return 0
        report = session.report(self.price, self.run_steps)
        if not in_rank and self._rank_has_reported and not (report.peak or report.launches or report.copies):
            return 0  # this process has only started ranks
        if not report.used:
            print(f"simgpu: no report: {NOTHING_ASKED}", file=sys.stderr)
            return 0
        for path in filter(None, (self.html, self.json)):
            report.save(path)
        if self.trace:
            report.trace(self.trace)
        if not self.quiet:
            print(f"\n{report}", file=sys.stderr)
        if self.against:
            print(f"\n{against.text(report, self.against)}", file=sys.stderr)
        broken = list(filter(None, (limit(text).broken(report) for text in self.limits)))
        for sentence in broken:
            print(f"simgpu: {sentence}", file=sys.stderr)
        return BROKEN if broken else 0

    def _failed_first(self) -> Error | None:
        """Return the error of the rank that failed first, None where no rank has told of one."""
        told = [] if self.folder is None else [json.loads(path.read_text()) for path in Path(self.folder).glob(_FAILED)]
        told = sorted((one for one in told if one["kind"] != ENDED), key=lambda one: one.pop("when_s"))
        return Error(**told[0]) if told else None

    def tell_failure(self, error: Error, rank: str) -> None:
        """Let the other processes of a run know what has ended this rank."""
        if self.folder is not None and Path(self.folder).is_dir() and not _is_of_a_rank(error):
            told = asdict(error) | {"rank": int(rank), "when_s": time.time()}
            written = Path(self.folder, f"{rank}.part")
            written.write_text(json.dumps(told))
            written.rename(Path(self.folder, _FAILED.replace("*", rank)))

    @property
    def _rank_has_reported(self) -> bool:
        return self.folder is not None and Path(self.folder, _REPORTED).exists()


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
    add(
        "--shapes",
        action="store_true",
        help="propagate shapes only; printed values are meaningless",
    )
    add(
        "--compiled",
        action="store_true",
        help="also say what a step would take with torch.compile; asking it takes some seconds at the end",
    )
    add("--price", type=float, help="of a GPU an hour, for the cost of --run-steps")
    add("--run-steps", type=int, help="steps of the whole run, for its hours")
    add("--fail-if", action="append", default=[], metavar="LIMIT", help='exit with 3 if "idle>30%%", "peak>12GiB" …')


def wishes(given: argparse.Namespace) -> Wishes:
    """Return what a command line wishes. Raises ValueError that names the option."""
    for text in given.fail_if:
        limit(text)
    for name, path, wanted in (("--report", given.report, ".html"), ("--json", given.json, ".json")):
        if path is not None and not path.endswith(wanted):
            raise ValueError(f"{name} is {path!r}, it must end in {wanted}")
    if given.against is not None:
        Profile(given.against)  # raises where it is none, before the program runs
    return Wishes(
        quiet=given.no_report, steps=given.steps, data_ms=given.data_ms, html=given.report, json=given.json,
        trace=given.trace, price=given.price, run_steps=given.run_steps, limits=tuple(given.fail_if),
        shapes=given.shapes, compiled=given.compiled, against=given.against,
    )  # fmt: skip


def tell_children(wished: Wishes) -> None:
    """Let child processes that are ranks know what is wished; rank 0 reports."""
    os.environ[VARIABLE] = json.dumps(asdict(wished))


def start_in_rank() -> None:
    """Do in a child process what its parent wished, if that was anything and it is a rank, or as soon as it is one."""
    rank, told = os.environ.get("RANK"), os.environ.get(VARIABLE)
    if not told:
        return
    if rank is None:  # as one that `torch.multiprocessing` starts
        communication.at_join.append(lambda number: None if current.records() else _start(told, str(number)))
    else:
        _start(told, rank)


def _start(told: str, rank: str) -> None:
    known: dict[str, Any] = json.loads(told)
    known["limits"] = tuple(known["limits"])
    wished = Wishes(**known)
    session = wished.start(shows=rank == "0")
    is_child = multiprocessing.parent_process() is not None
    if rank != "0" and not is_child:
        atexit.register(_tell_in_rank, wished, session, rank)
    elif rank == "0" and is_child:  # such a child ends without calling atexit
        from multiprocessing import util

        util.Finalize(None, _finish_in_rank, (wished, session), exitpriority=0)
    elif rank == "0":
        atexit.register(_finish_in_rank, wished, session)


def _is_of_a_rank(error: Error) -> bool:
    """Return whether an error says that another process has ended, or left a group."""
    return error.kind == "ChildFailedError" or error.text.startswith(communication.LEFT)


def _tell_in_rank(wished: Wishes, session: Session, rank: str) -> None:
    error = getattr(sys, "last_value", None)
    if error is not None:
        wished.tell_failure(session.failed(error), rank)


def _finish_in_rank(wished: Wishes, session: Session) -> None:
    error = getattr(sys, "last_value", None) or sys.exception()
    if isinstance(error, SystemExit) and error.code:
        error = error.__context__  # `torch.multiprocessing.spawn` ends so while it handles the error of a rank
    if error is not None:
        wished.tell_failure(session.failed(error), "0")
    status = wished.finish(session, in_rank=True)
    if wished.folder is not None and Path(wished.folder).is_dir():
        Path(wished.folder, _REPORTED).touch()
    if status:
        sys.stderr.flush()
        os._exit(status)
