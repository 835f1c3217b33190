"""The exercise “Who is to blame?”."""

import functools
import json
from dataclasses import replace
from typing import Any

from gpu_course.checks import Case, exercise
from gpu_course.lesson11.flight import DUMPS, Hang, programs


@functools.cache
def hangs() -> dict[str, Hang]:
    """Return the programs of `hangs.toml` with the dumps that were recorded."""
    dumps = json.loads(DUMPS.read_text(encoding="utf-8"))
    return {name: replace(hang, dumps=tuple(dumps[name])) for name, hang in programs().items()}


@exercise(
    minutes=10,
    difficulty=3,
    hints=(
        "For each rank that left a dump, make a dictionary from the number of a call to its entry. Begin at the "
        "largest of the ranks' first numbers: what came before, some rank has forgotten.",
        "At each number, collect what each rank did: None, or the name, sizes and types of its entry. The usual one is "
        "`max(kinds, key=kinds.count)`. The first rank that did something else is to blame, and you can stop.",
        "Does no rank differ, up to the last number? Then the rank without a dump is to blame, and the others wait for "
        "it in their last call. The line: the first frame of the entry whose file name does not contain /torch/.",
    ),
)
def blame(dumps: list[dict | None]) -> tuple[int, str, int]:
    """Return the rank to blame for a hang, and the call and line where it differs."""

    def kind(entry):
        return entry and (entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"])

    calls_by_rank = {
        rank: {entry["collective_seq_id"]: entry for entry in dump["entries"] if not entry["is_p2p"]}
        for rank, dump in enumerate(dumps)
        if dump
    }
    first = max(min(calls, default=1) for calls in calls_by_rank.values())  # older calls are forgotten on some rank
    last = max(max(calls, default=1) for calls in calls_by_rank.values())
    for number in range(first, last + 1):
        here = {rank: calls.get(number) for rank, calls in calls_by_rank.items()}
        kinds = [kind(entry) for entry in here.values()]
        usual = max(kinds, key=kinds.count)
        odd = [rank for rank, entry in here.items() if kind(entry) != usual]
        if odd:
            break
    blamed = odd[0] if odd else dumps.index(None)  # all dumps agree: the others wait for the rank that left none
    entry = here.get(blamed) or next(filter(None, here.values()))  # it made no such call: that in which others wait
    frame = next(frame for frame in entry["frames"] if "/torch/" not in frame["filename"])
    return blamed, entry["profiling_name"].split(":")[1], frame["line"]


blame.exempt("a number of a call is met by an equal one", "limit")


@blame.checks
def _(case: Case) -> None:
    cases = {name: list(hang.dumps) for name, hang in hangs().items()}  # "the dump of each rank, or None"
    cases["fewer batches"] = _with_messages(cases["fewer batches"])  # "leave out entries with `is_p2p`"
    long_run = cases["a long run"]
    long_run[1] = {**long_run[1], "entries": long_run[1]["entries"][1:]}  # then only rank 2 has forgotten call 12
    short = [{**dump, "entries": dump["entries"][-1:]} for dump in cases["shown"]]  # then the first call is the odd one
    for name, dumps, turned in [
        *((name, dumps, turned) for turned in (False, True) for name, dumps in cases.items()), ("shown", short, False)
    ]:  # fmt: skip
        hang = hangs()[name]
        (rank, call, line), called = hang.to_blame, f"{name!r}, {hang.ranks} ranks"
        if turned:
            dumps, rank, called = dumps[::-1], hang.ranks - 1 - rank, f"{called} in reverse order"
        called += ", the last call of each" * (dumps is short)
        got = case.call(dumps, called=f"blame(dumps of {called})")
        three = isinstance(got, tuple) and len(got) == 3
        case.fail_if(not three, "is not a rank, a call and a line", f"({rank}, {call!r}, {line}), say", got=got)
        named = three and isinstance(got[1], str) and got[1] == f"gloo:{call}"
        case.fail_if(named, "keeps the name of the backend", "gloo:all_reduce is gloo's all_reduce: split at the colon")
        case.equal(got, (rank, call, line), why=f"if ranks stand in their order, {hang.why}" if turned else hang.why)


def _with_messages(dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the dumps as if rank 0 had sent to rank 1 after the first call, as NCCL records it; gloo does not.

    Such an entry has the number of the last collective.
    """
    changed = list(dumps)
    for rank, way in enumerate(("send 0->1", "recv 1<-0")):
        first, *rest = dumps[rank]["entries"]
        message = {**first, "profiling_name": f"gloo:{way}", "is_p2p": True, "p2p_seq_id": 1}
        changed[rank] = {**dumps[rank], "entries": [first, message, *rest]}
    return changed
