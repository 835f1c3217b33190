"""What does the reader's answer do on real ranks, and where do they wait when they do not end?

A check hands `on_ranks` a program: a function that runs on every rank and calls the answer as often as it likes.
Exercises run on the CPU with gloo on every machine, so that messages and bytes are the same everywhere.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from course_utils.base import places
from course_utils.checks import Case
from course_utils.exercises.common.rank_calls import Imported, nothing, on_rank

__all__ = ["Stuck", "describe", "on_ranks"]

_COMPILER = "torch._dynamo"  # DistributedDataParallel imports it, which takes a second or more in a new process
_imported = {"torch"}  # by the process that starts the ranks

_PLACE = re.compile(r"(?:in (?P<called>\w+), called )?at (?P<file>.+), line (?P<line>\d+), in .+\n\s+(?P<source>.*)")
_NOISE = re.compile(  # a warning with its file, and what C++ says when a process dies
    r"^(\[rank \d+\] )(?:\S+\.py:\d+: (\w*Warning: .*)\n.*|(?:terminate called| +what\(\):).*\n?)", re.MULTILINE
)
_LOST = re.compile(r"third_party.gloo|[Cc]onnection (reset|closed)")  # what a rank raises when another has died
_RAISED = re.compile(r"^  (?P<file>.+), line (?P<line>\d+), in (?P<function>\S+)\n    (?P<source>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Stuck:
    """How ranks failed other than by an error of the answer: `kind` is "hang" or "died"."""

    kind: str
    called: tuple[str, ...]  # for each rank the function it waits in, such as "send", "returned", or nothing
    lines: str  # for each rank the reader's line

    @property
    def collective(self) -> str:
        """The one collective in which all ranks wait, or nothing."""
        alone = ("", "returned", "wait", "send", "recv", "isend", "irecv")
        return self.called[0] if len(set(self.called)) == 1 and self.called[0] not in alone else ""


def describe(case: Case, called: str, nprocs: int) -> None:
    """Say in the messages that follow which call of the answer they are about."""
    case.about(f"{called}, {nprocs} ranks,", torch.device("cpu"))


def on_ranks(
    case: Case,
    program: Callable,
    *args: Any,
    nprocs: int,
    called: str,
    compiler: bool = False,
    stuck: Callable[[Case, Stuck], None] | None = None,
) -> list[Any]:
    """Run `program(call, *args)` on `nprocs` ranks and return what each rank returned.

    `call(*arguments)` calls the answer and returns a `Call`; `called` is how messages show it. `compiler` says that
    DistributedDataParallel is used: it imports torch's compiler, which is not the answer's time. Raises `WrongAnswer`
    when the answer raises on a rank, when ranks wait for ever, and when one dies; `stuck` may know that mistake.
    """
    from course_utils.launch import RankError, launch

    describe(case, called, nprocs)
    needed, printed = _COMPILER if compiler or _loads_compiler(case.answer) else "torch", io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if needed not in _imported:  # where ranks are forked, from then on they have it
                launch(nothing, Imported(needed), nprocs=1, devices=["cpu"])
                _imported.add(needed)
            return launch(
                on_rank, Imported(needed), program, case.answer, args,
                nprocs=nprocs, timeout_s=case.task.limit_s, devices=["cpu"] * nprocs,
            )  # fmt: skip
    except RankError as error:
        failed = error
    finally:
        case.called(_NOISE.sub(_without_place, printed.getvalue()))
    lost = failed.kind == "raised" and _LOST.search(failed.states.get(failed.rank, ""))
    if lost or failed.kind in ("hang", "died"):
        found = _stuck(case, failed, nprocs, "died" if lost else failed.kind)
        if stuck is not None:
            stuck(case, found)
        _stuck_anyhow(case, found)
    case.fail(_raised(case, failed))


def _loads_compiler(answer: Callable) -> bool:
    """Return whether the answer uses functional collectives, which import the compiler at their first call."""
    try:
        return b"_functional_collectives" in cloudpickle.dumps(answer)
    except Exception:  # launch says what cannot be sent
        return False


def _without_place(noise: re.Match) -> str:
    """Return a warning without the file that it came from, and nothing of what C++ says when a process dies."""
    return f"{noise[1]}{noise[2]}" if noise[2] else ""


def _stuck(case: Case, error: Any, nprocs: int, kind: str) -> Stuck:
    called, lines = [], []
    for rank in range(nprocs):
        state = error.states.get(rank, "")
        found = _PLACE.match(state)
        if found is None and state.startswith("in "):  # and no line of the reader: between two calls of the answer
            state = "had returned"
        if found is None:
            called.append("returned" if state == "had returned" else "")
            lines.append(f"    rank {rank} {state.partition(': ')[0].partition(chr(10))[0]}")
            continue
        waits = found["called"] or ("wait" if ".wait(" in found["source"] else "")
        called.append(waits)
        what = f"waits in {waits}" if waits else "was"
        lines.append(f"    rank {rank} {what}, {_line(case, found)}")
    return Stuck(kind, tuple(called), "\n".join(lines))


def _stuck_anyhow(case: Case, found: Stuck) -> None:
    """Raise `WrongAnswer` for ranks that are stuck in a way that the check does not know."""
    if found.kind == "died":
        why = "gloo ends a process when what ranks hand to one collective differs in size or dtype: all ranks must "
        why += "call the same collectives, in the same order"
        case.fail(f"a rank dies\n{found.lines}", why)
    name, why = "deadlock: ranks wait for each other, it does not end" if all(found.called) else "does not end", ""
    if "returned" in found.called and all(found.called):
        name = "deadlock: a rank waits for ranks that have returned, it does not end"
        why = "what one rank sends another must receive, and every rank must call each collective"
    elif found.collective:
        name = f"all ranks wait in {found.collective}, it does not end"
        why = "what ranks hand to one collective must agree in size and dtype"
    case.fail(f"{name} (stopped after {case.task.limit_s:g} s)\n{found.lines}", why)


def _line(case: Case, found: re.Match) -> str:
    """Return the reader's line in words, counted from the first line of the function where that is known."""
    first = getattr(getattr(case.answer, "__code__", None), "co_firstlineno", None)
    number = int(found["line"])
    words = f"line {number - first + 1} of your function" if first and number >= first else f"line {number}"
    return f"{words}: {found['source'].strip()}"


def _raised(case: Case, error: Any) -> str:
    """Return in words what a rank raised, or returned and could not send, with the reader's own line."""
    own = [found for found in _RAISED.finditer(error.message) if places.is_readers(found["file"], found["function"])]
    if not own and "process group has not been initialized" in error.message:
        return "destroys the process group\n  Why it matters: the caller goes on with it; who made it ends it: launch"
    if not own and error.kind == "raised":
        raise error  # in the program of the check: the answer may be right
    state = error.states.get(error.rank, "").partition("\n")[0]
    state = re.sub(r"^returned an? \w+, which", "returned what", state)  # ours, with what the answer returned in it
    where = f"\n  in {_line(case, own[-1])}" if own else ""
    return f"rank {error.rank} {state}{where}"
