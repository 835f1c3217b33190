"""Trial of an answer on real ranks, and where they wait when they hang.

A check hands `on_ranks` a program: a function that runs on every rank and calls the answer as often as it likes.
Exercises run on the CPU with gloo on every machine, so that messages and bytes are the same everywhere.
"""

import contextlib
import functools
import io
import re
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

import simgpu
from gpu_course.checks import Busy, Case, edges, explained
from gpu_course.common.rank_calls import Call, Drawn, Imported, on_rank
from simgpu import places

_PLACE = re.compile(r"(?:in (?P<called>\w+), called )?at (?P<file>.+), line (?P<line>\d+), in .+\n\s+(?P<source>.*)")
_NOISE = re.compile(  # a warning with its file, and what C++ says when a process dies
    r"^(\[rank \d+\] )(?:\S+\.py:\d+: (\w*Warning: .*)\n.*|(?:terminate called| +what\(\):).*\n?)", re.MULTILINE
)
_LOST = re.compile(r"third_party.gloo|[Cc]onnection (reset|closed)")  # what a rank raises when another has died
_RAISED = re.compile(r"^  (?P<file>.+), line (?P<line>\d+), in (?P<function>\S+)\n    (?P<source>.*)$", re.MULTILINE)
_ABORTED = "was killed by SIGABRT"  # C++ ends a process so that hands gloo, or gets, what does not fit
_SIZES = (
    "what ranks hand to one collective must agree in size and dtype, and all ranks must call the same collectives, in "
    "the same order"
)
_MESSAGES = ("send", "recv", "isend", "irecv", "wait")


def describe(case: Case, called: str, nprocs: int) -> None:
    """Say in the messages that follow which call of the answer they are about."""
    case.about(f"{called}, {nprocs} rank{'s' * (nprocs > 1)},", torch.device("cpu"))


def check_call(case: Case, call: Call, rank: int) -> None:
    """Check what is asked of every call on ranks: that its operations are waited for, and its arguments kept."""
    what = "an operation" if call.unwaited == 1 else f"{call.unwaited} operations"
    case.fail_if(call.unwaited, f"never waits for {what} that rank {rank} started",
                 "with async_op=True, and from isend and irecv, a call returns before anything has arrived or left: "
                 "keep what it returns, and call wait() on each before you use the tensor")  # fmt: skip
    case.fail_if(call.modified, "modifies its input",
                 "collectives and += write into what they get, and parts of a tensor are views: clone it first",
                 )  # fmt: skip


def on_ranks(
    case: Case, program: Callable, *args: Any, nprocs: int, called: str, known: bool = True,
    compiler: bool = False, why: str = "",
) -> list[Any]:  # fmt: skip
    """Run `program(call, *args)` on `nprocs` ranks and return what each rank returned.

    `call(*arguments)` calls the answer and returns a `Call`; `called` is how messages show it; `args` can be hashed.
    The exercise's mistakes, where they are `known`, run in one launch, since each takes a while. `compiler` says that
    DistributedDataParallel is used: it imports torch's compiler, which is not the answer's time. Raises `WrongAnswer`
    when the answer raises on a rank, when ranks wait for ever, and when one dies. `why` is the rule on what ranks hand
    to one collective; it is said where all of them wait in the same one, or gloo has ended one of them.
    """
    if not torch.distributed.is_available():
        raise simgpu.Unavailable(f"{case.task.name} could not be checked: this build of PyTorch has no ranks")
    describe(case, called, nprocs)
    needed = "torch._dynamo" if compiler or _loads_compiler(case.answer) else "torch"
    mistakes, printed = tuple(mistake.answer for mistake in case.mistakes() if known), io.StringIO()
    answers = mistakes if case.answer in mistakes else (case.answer,)
    run = program, answers, args, nprocs, needed, case.task.limit_s
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        failed = _outcome(*run) if answers is mistakes else _launched(*run)
    case.called(_NOISE.sub(lambda noise: f"{noise[1]}{noise[2]}" if noise[2] else "", printed.getvalue()))
    if isinstance(failed, list):
        _note_edges([drawn for _, drawn, _ in failed], nprocs)
        at = answers.index(case.answer)
        for *_, left in failed:
            case.note_left(left[at])
        return [found[at] for found, *_ in failed]
    if answers is mistakes:  # their launch failed: the next wrong answer tries them again
        _outcome.cache_clear()
        raise Busy(f"the known mistakes of {case.task.name} could not be tried: {failed}")
    lost = failed.kind == "raised" and nprocs > 1 and _LOST.search(failed.states.get(failed.rank, ""))
    if lost or failed.kind in ("hang", "slow", "died"):
        _fail_stuck(case, failed, nprocs, why)
    case.fail(_raised(case, failed))


def _note_edges(drawn: list[Drawn | None], nprocs: int) -> None:
    """Note what the ranks drew, and where calls on one rank had tensors of other sizes than on another."""
    noted = [one for one in drawn if one]
    for of_rank in noted:
        edges.merge(of_rank.seen)
    if noted:
        edges.note(*{2: ["two_ranks"], 3: ["three_ranks"], 4: ["four_ranks"]}.get(nprocs, []))
        edges.note(*["uneven"] * any(one.sizes != noted[0].sizes for one in noted))


def _loads_compiler(answer: Callable) -> bool:
    """Return whether the answer uses functional collectives, which import the compiler at their first call."""
    try:
        return b"_functional_collectives" in cloudpickle.dumps(answer)
    except Exception:  # launch says what cannot be sent
        return False


def _launched(program: Callable, answers: tuple, args: tuple, nprocs: int, needed: str, limit_s: float) -> Any:
    """Return for each rank what the program returned for each of the answers, or the error."""
    from ranklaunch import RankError, launch, preload

    preload(needed, __name__, program.__module__)
    try:
        return launch(
            on_rank, Imported(needed), program, answers, args, edges.watched(),
            nprocs=nprocs, timeout_s=limit_s * len(answers), devices=["cpu"] * nprocs,
        )  # fmt: skip
    except RankError as error:
        return error


_outcome = functools.cache(_launched)  # of an exercise's mistakes, which do the same each time


def _fail_stuck(case: Case, error: Any, nprocs: int, why: str) -> None:
    """Raise `WrongAnswer` where a rank died or did not end; the message says only what was seen.

    Raises `Busy` where they were still at work, and other programs had the machine.
    """
    places = [_place(case, error.states.get(rank, "")) for rank in range(nprocs)]
    lines = "".join(f"\n    rank {rank} {line}" for rank, (_, line) in enumerate(places))
    after = f" (stopped after {case.task.limit_s:g} s)"
    if error.kind not in ("hang", "slow"):
        case.fail(f"a rank dies{lines}", why or _SIZES if _ABORTED in lines else "")
    if error.busy:
        raise Busy(f"{error.busy} {case.task.name} could not be judged.")
    if error.kind == "slow":  # some rank was at work: that is no deadlock
        case.fail(f"does not end{after}{lines}")
    name, rule = _deadlock([called for called, _ in places], why)
    case.fail(f"{name}{after}{lines}", rule)


def _deadlock(called: list[str], why: str) -> tuple[str, str]:
    """Return a name for ranks that wait for ever, by what each of them waits in, and the rule that holds there."""
    joint = [name for name in called if name not in ("", "returned", *_MESSAGES)]
    returned = "returned" in called
    if set(called) in ({"send"}, {"recv"}):
        return (
            f"deadlock: every rank {'sends, none receives' if called[0] == 'send' else 'receives, none sends'}",
            "send waits until the other side receives, and recv until it sends: start with isend, which does not wait",
        )
    if len(joint) == len(called) and len(set(joint)) == 1:
        return f"all ranks wait in {joint[0]}, it does not end", why or _SIZES
    if joint:
        where = "for ranks that have returned" if returned else "in a collective that another does not call"
        return (
            f"deadlock: a rank waits {where}, it does not end",
            "every rank must call each collective, in the same order and with tensors of the same size",
        )
    if all(called):
        whom = "a rank waits for ranks that have returned" if returned else "ranks wait for each other"
        return f"deadlock: {whom}", "what one rank sends another must receive"
    return "does not end", ""


def _place(case: Case, state: str) -> tuple[str, str]:
    """Return what a rank waits in, "send", "returned" or nothing say, and where that is, in words."""
    match = _PLACE.search(state)
    if match is None:
        if state == "had returned" or state.startswith("in "):  # no line of the reader: between two calls of the answer
            return "returned", "had returned"
        if _LOST.search(state):
            return "", "lost its connection to a rank that died"
        return "", state.partition(": ")[0].partition("\n")[0]
    waits, died = match["called"] or ("wait" if ".wait(" in match["source"] else ""), state[: match.start()]
    where = f"in {waits}, {_line(case, match)}" if waits else _line(case, match)
    how = died or ("waits " if waits else "was, ")  # "was killed by SIGABRT, " stands before its place
    return waits, how + where


def _line(case: Case, match: re.Match) -> str:
    """Return the reader's line in words, counted from the first line of the function where that is known."""
    first = getattr(getattr(case.answer, "__code__", None), "co_firstlineno", None)
    number = int(match["line"])
    words = f"line {number - first + 1} of your function" if first and number >= first else f"line {number}"
    return f"{words}: {match['source'].strip()}"


def _raised(case: Case, error: Any) -> str:
    """Return in words what a rank raised, or returned and could not send, with the reader's own line."""
    own = [found for found in _RAISED.finditer(error.message) if places.is_readers(found["file"], found["function"])]
    if not own and "process group has not been initialized" in error.message:
        return "destroys the process group\n  Because: the caller goes on with it; who made it ends it: launch"
    if not own and error.kind == "raised":
        raise error  # in the program of the check: the answer may be right
    state = error.states.get(error.rank, "").partition("\n")[0]
    state = re.sub(r"^returned an? \w+, which", "returned what", state)  # ours, with what the answer returned in it
    where = f"\n  in {_line(case, own[-1])}" if own else ""
    meaning = explained(RuntimeError(state.partition(": ")[2])) if error.kind == "raised" else ""
    return f"rank {error.rank} {state}{where}{meaning}"
