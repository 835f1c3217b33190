"""Report of a failed launch: the first failure with the user's line, or where each rank waited."""

import contextlib
import html
import itertools
import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from traceback import FrameSummary as Frame
from typing import Any

import torch

from ranklaunch import places
from ranklaunch.wire import Failure, Look, short

_ROOM = Path(__file__).parent

_SHOWN = 8  # frames of the reader in a message
_LONGEST = 8000  # characters of a message
_LONGEST_STATE = 400  # characters of what one rank was doing


class RankError(RuntimeError):
    """Ranks that failed. Notebooks show the message alone, without the traceback of this process.

    - `rank`: the first rank that failed; of a hang, the first that did not wait for others, if there is one; of slow
      ranks the first that was at work;
    - `kind`: "raised", "died", "hang", "slow", "start" or "result". Of ranks that are late a "hang" means that none of
      them got on between two looks, else they are "slow";
    - `error`: the name of the type of the error that was raised, else an empty text;
    - `states`: what each rank was doing, in words;
    - `busy`: of slow ranks that were not given the whole of their time, since other programs had the machine, a
      sentence that says so; else an empty text.
    """

    def __init__(self, message: str, rank: int, kind: str, error: str = "", states: Any = None, busy: str = "") -> None:
        super().__init__(message, rank, kind, error, states, busy)
        message = short(message, _LONGEST)
        self.message, self.rank, self.kind, self.error = message, rank, kind, error
        self.states: dict[int, str] = states or {}
        self.busy = busy

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        return [f"RankError: {self.message}"]

    def _repr_html_(self) -> str:
        return f"<pre>RankError: {html.escape(self.message)}</pre>"


class NoRanks(RuntimeError):
    """A build of PyTorch without `torch.distributed`. Notebooks show one sentence."""

    def __init__(self) -> None:
        super().__init__(
            f"this build of PyTorch ({torch.__version__}) has no torch.distributed, so that there are no ranks: "
            "take another one, such as the CPU build in an environment of its own (pip install torch)"
        )

    def _render_traceback_(self) -> list[str]:
        return [f"NoRanks: {self}"]


class Interrupted(KeyboardInterrupt):
    """A launch that was interrupted. Notebooks show one sentence, without what this engine was doing."""

    def __str__(self) -> str:
        return "the launch was interrupted, and all ranks were stopped"

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


RankError.__module__ = NoRanks.__module__ = "ranklaunch"


@dataclass
class Seen:
    """What is known of the ranks: each dict has the name of an event, and goes from a rank to what it said."""

    ranks: int
    pid: dict[int, int] = field(default_factory=dict)
    ready: dict[int, None] = field(default_factory=dict)
    returned: dict[int, tuple[bytes, list[str]]] = field(default_factory=dict)  # pickled; slow modules that it imported
    failed: dict[int, Failure] = field(default_factory=dict)
    unsendable: dict[int, tuple[str, Failure]] = field(default_factory=dict)  # type of what it returned, why
    ended: dict[int, tuple[int | None, float]] = field(default_factory=dict)  # exit code of the process, when
    garbled: dict[int, float] = field(default_factory=dict)  # when something came that is no message
    look: dict[int, Look] = field(default_factory=dict)
    crash: dict[int, list[Frame]] = field(default_factory=dict)  # where a rank was that died in compiled code

    def over(self) -> set[int]:
        """Return the ranks that will do nothing more."""
        return {*self.returned, *self.failed, *self.unsendable, *self.ended, *self.garbled}

    def states(self) -> dict[int, str]:
        """Return in words what each rank did last."""
        others = {rank: "had returned" if rank in self.returned else "was running" for rank in range(self.ranks)}
        return others | {rank: trouble.state for rank in others if (trouble := self.trouble(rank))}

    def trouble(self, rank: int) -> "Trouble | None":
        """Return how a rank failed; None if it did not."""
        if rank in self.garbled:
            state = "wrote into the connection of launch to this process: what came from it is no message"
            return Trouble("died", state, f"{state}.", "", False, self.garbled[rank])
        if rank in self.unsendable:
            name, failure = self.unsendable[rank]
            state = f"returned a {name}, which cannot be sent to this process: {failure.words}"
            text = f"{state}\nReturn tensors, numbers, text, or containers of these."
            return Trouble("result", state, text, failure.kind, False, failure.at_s)
        if rank in self.failed:
            failure = self.failed[rank]
            state = f"raised {short(failure.words.partition(chr(10))[0], _LONGEST_STATE)}"
            text = f"raised {failure.kind}:\n{_raised(failure)}"
            return Trouble("raised", state, text, failure.kind, _lost_partner(failure), failure.at_s)
        if rank in self.ended and rank not in self.returned:
            where = f", {_waiting(self.crash[rank])}" if self.crash.get(rank) else ""
            state = _died(self.ended[rank][0]) + where
            return Trouble("died", state, state if where else f"{state}.", "", False, self.ended[rank][1])
        return None


@dataclass(frozen=True)
class Trouble:
    """How a rank failed: see RankError. `text` is what a message says after the name of the rank."""

    kind: str
    state: str
    text: str
    error: str
    lost_partner: bool
    at_s: float


def cause_known(seen: Seen) -> bool:
    """Return whether a rank failed for another reason than that it lost the connection to one that failed."""
    return any(trouble and not trouble.lost_partner for trouble in map(seen.trouble, range(seen.ranks)))


def first_failure(seen: Seen) -> RankError:
    """Return the error of the rank that failed first. Ranks that lost the connection to another failed after it.

    Ranks that raised the same error at the same line have one cause: they are named together, the lowest first.
    """
    troubles = {rank: trouble for rank in range(seen.ranks) if (trouble := seen.trouble(rank))}
    first = min(troubles.values(), key=lambda trouble: (trouble.lost_partner, trouble.at_s))
    alike = first.kind in ("raised", "result")
    same = [rank for rank, trouble in troubles.items() if trouble is first or (alike and trouble.text == first.text)]
    states = seen.states()
    others = [rank for rank in range(seen.ranks) if rank not in same]
    own = [rank for rank in others if rank in troubles and not troubles[rank].lost_partner]
    more = [f"rank {rank} {states[rank].splitlines()[0]}" for rank in own]
    lines = [f"{_ranks(same)} {first.text}"]
    if others:
        lines.append(f"{_ranks(others)} ended because of it." if not more else "After it, " + "; ".join(more) + ".")
    return RankError("\n".join(lines), same[0], first.kind, first.error, states)


def not_ready(seen: Seen, limit_s: float, busy: str) -> RankError:
    """Return the error of ranks that had not joined the others in time; `busy` is a sentence or nothing."""
    rank = min(set(range(seen.ranks)) - seen.ready.keys())
    lines = [f"rank {rank} was not ready after {limit_s:.0f} s; all were stopped.", busy]
    return RankError("\n".join(filter(None, lines)), rank, "start", busy=busy)


def late(seen: Seen, looks: dict[int, Look], at_work: list[int], timeout_s: float, said: str, busy: str) -> RankError:
    """Return the error of the ranks in `looks`, which did not return in time; it says where each of them was.

    `at_work` are those that got on between two looks; `said` is a sentence on the machine or nothing, and `busy` the
    same, where the ranks were not given the whole of their time.
    """
    states = seen.states()
    for rank, look in looks.items():
        states[rank] = _waiting(look.frames) if look.frames else "gave no answer"
    lines = [f"{len(looks)} of {seen.ranks} ranks had not returned after {timeout_s:g} s; all were stopped."]
    if at_work:
        were, they = ("was", "it only needs") if len(at_work) == 1 else ("were", "they only need")
        lines.append(f"{_ranks(at_work)} {were} still at work. If {they} more time, raise timeout_s.")
    lines += [said] if said else []
    lines += [f"rank {rank}: {state}" for rank, state in states.items()]
    first = min(at_work or looks, key=lambda rank: _waits(looks[rank].frames))
    return RankError("\n".join(lines), first, "slow" if at_work else "hang", "", states, busy)


def _ranks(ranks: list[int]) -> str:
    *names, last = [str(rank) for rank in ranks]
    return f"ranks {', '.join(names)} and {last}" if names else f"rank {last}"


def _lost_partner(failure: Failure) -> bool:
    """Return whether this failure says that another rank is gone."""
    pattern = r"onnection (closed|reset|refused|was)|Broken pipe|Socket (Closed|closed)|remote process exited"
    return bool(re.search(pattern, failure.words)) and _communicates(_split(failure.frames)[1])


def _raised(failure: Failure) -> str:
    """Return the error with the reader's lines, innermost last, and what it was caused by."""
    parts = [_raised(failure.cause), "which led to:"] if failure.cause else []
    own, inner = _split(failure.frames)
    repeated = [(frame, len(list(same))) for frame, same in itertools.groupby(own or inner)]  # it may call itself
    for frame, times in repeated[-_SHOWN:]:
        parts.append(f"  {_place(frame)}" + (f"\n    {times} times" if times > 1 else ""))
    if own and inner:
        parts.append(f"  raised {_function(inner[-1])}")
    parts.append(failure.words)
    if "initialize the default process group twice" in failure.words:
        parts.append("launch has set up the process group: leave the call out.")
    return "\n".join([*parts, *(f"one of these:\n{_raised(part)}" for part in failure.parts)])


def _waiting(frames: list[Frame]) -> str:
    """Return where a rank was: the reader's innermost line first, then the function it had called, then the callers."""
    own, inner = _split(frames)
    if not own:
        return _function(inner[-1]) if inner else "outside Python"
    called = next((frame for frame in inner if frame.name not in ("wrapper", "inner")), None)
    where = f"in {called.name}, called at " if called else "at "
    callers = [f"    called from {_place(frame, code=False)}" for frame in own[-2::-1]]
    return "\n".join([where + _place(own[-1]), *callers[: _SHOWN - 1]])


def _waits(frames: list[Frame]) -> int:
    """Return 2 for a rank that waits for others, 1 where it may, in a backward pass or a `wait()`, else 0."""
    own, inner = _split(frames)
    if _communicates(inner):
        return 2
    backward = any(frame.name == "_engine_run_backward" for frame in inner)
    return int(backward or any(".wait(" in (frame.line or "") for frame in [*own, *inner][-1:]))


def _communicates(inner: list[Frame]) -> bool:
    """Return whether what the reader called is in torch.distributed, so that the rank waits for others."""
    root = str(Path(torch.__file__).absolute().parent / "distributed")
    return any(os.path.abspath(frame.filename).startswith(root) for frame in inner)


def _split(frames: list[Frame]) -> tuple[list[Frame], list[Frame]]:
    """Return the reader's frames, and those of what the innermost of them had called; the launch's own in neither."""
    own, inner = [], []
    for frame in frames:
        if places.is_readers(frame.filename, frame.name):
            own.append(frame)
            inner = []
        elif Path(frame.filename).parent != _ROOM and not places.is_generated(frame.filename, frame.name):
            inner.append(frame)
    return own, inner


def _died(code: int | None) -> str:
    """Return how a process ended that did not say so itself: by a signal or by leaving."""
    if code is None:
        return "ended with the process that starts the ranks"
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
        return f"was killed by {name}" + ("; the system sends it when memory runs out" if name == "SIGKILL" else "")
    return f"ended the process with exit code {code if code < 256 else hex(code)} before the function returned"


def _function(frame: Frame) -> str:
    return f"in {frame.name} ({Path(frame.filename).name})"


def _place(frame: Frame, *, code: bool = True) -> str:
    """Return a line of a stack in words, with its source."""
    file = places.cell(frame.filename) or frame.filename
    with contextlib.suppress(ValueError, OSError):  # it is elsewhere, or there is no current folder
        file = str(Path(file).relative_to(Path.cwd()))
    source = f"\n    {frame.line}" if code and frame.line else ""
    return f"{file}, line {frame.lineno}, in {frame.name}{source}"
