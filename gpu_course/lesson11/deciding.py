"""Which policy brings a training run through a week of failures? The exercise on 512 GPUs."""

import dataclasses
import functools
import itertools
import statistics
import sys
from collections import Counter
from typing import Any

from gpu_course.checks import Case, edit, lesson
from gpu_course.lesson11 import week
from gpu_course.lesson11.week import Decision, Seen, Week

__all__ = ["decide"]

exercise = lesson("11")


@exercise(
    title="A week on 512 GPUs",
    where="a virtual clock",
    minutes=20,
    difficulty=3,
    limit_s=10.0,
    hints=(
        "Run your policy in week.drill(0) and draw the week: which cause took most hours? Print what the policy saw "
        "then.",
        "Only a broken node must be exchanged: one that logs an Xid, one without a heartbeat, one that is slow for "
        "longer than a few looks, one whose link fails again. Nothing is broken after a hang or after one failure of a "
        "link.",
        "How often to save? week.young_s(seen.save_s, mean time between failures), and that mean is the time so far "
        "through the stops so far. Count the stops in `notes`; until there is one, assume one a day.",
        "Save at once when SIGTERM is logged. After a checksum that differs, start from seen.checkpoints[-2].",
    ),
)
def decide(seen: Seen, notes: dict) -> Decision:
    """Return what to do now, given what the cluster shows; `notes` is yours."""
    logged = " ".join(message.text for message in seen.messages)
    failing = tuple(message.node for message in seen.messages if "Xid" in message.text)
    silent = tuple(node for node, seconds in seen.silent_s.items() if seconds > 60)
    flapping = [message.node for message in seen.messages if "link down" in message.text]
    notes["flaps"] = notes.get("flaps", []) + flapping
    usual = statistics.median(seen.step_s.values()) if seen.step_s else 0.0
    slow = [node for node, seconds in seen.step_s.items() if seconds > 1.1 * usual]
    notes["slow"] = {node: notes.get("slow", {}).get(node, 0) + 1 for node in slow}
    lasting = tuple(node for node, looks in notes["slow"].items() if looks >= 4)
    notes["stops"] = notes.get("stops", 0) + (not seen.running)
    if failing:  # also where a GPU only warns: save, and go on without it
        return Decision(save=True, restart=True, exclude=failing, cause="GPU")
    if silent:
        return Decision(restart=True, exclude=silent, cause="node")
    if flapping:  # once is chance, twice is a bad cable
        again = tuple(node for node in flapping if notes["flaps"].count(node) > 1)
        return Decision(restart=True, exclude=again, cause="network")
    if "checksum" in logged:
        return Decision(restart=True, checkpoint=seen.checkpoints[-2], cause="checkpoint")
    if "SIGTERM" in logged:
        return Decision(save=True, cause="preemption")
    if not seen.running:
        return Decision(restart=True)
    if seen.idle_s > 60:  # no step ended, although all nodes are alive
        return Decision(restart=True, cause="hang")
    if lasting and seen.spares:
        return Decision(save=True, restart=True, exclude=lasting, cause="slow")
    between_s = (seen.now_s + 24 * 3600) / (notes["stops"] + 1)
    return Decision(save=seen.unsaved_s >= week.young_s(seen.save_s, between_s))


_DRILL, _OTHER = week.drill(11), week.drill(12)
_OFTEN = {"seed": 5, "times": 4, "save_s": 20}
_SELDOM = {"seed": 5, "save_s": 300}
_AGAIN = "starts again on the nodes that failed", "a broken node stays broken: put a spare in its place"
_DAMAGED = "starts again from the damaged checkpoint", "an older one is whole, and costs the time between them"
_RACKS = "exchanges whole racks", "with no spares left, the job waits for repairs: exchange the node that failed"
_BLIP = "exchanges a node that was slow for a moment", "a restart takes longer than the ten minutes that it was slow"
_SLOW = "keeps the slow node", "all 64 nodes wait for it in each step, and no message says so: compare step_s"
_CABLE = "keeps the bad cable", "a link that fails a second time at the same node fails again: exchange the node"
_LIMIT = "waits for the time limit of the collective", "no step ends: silent_s and idle_s say so before"
_LEAVES = "leaves without saving", "SIGTERM comes ten minutes before the nodes are gone"
_FUTURE = "decides by what has not happened yet", "decisions before that time differ: a cluster shows what has happened"
_LEAST = 0.9
_PARTED_S = next(one.at_s for one in _DRILL if one.kind == "node") - 1


@decide.checks
def _(case: Case) -> None:
    drill = _lived(case, "a drill", events=_DRILL)
    _check_repairs(case, drill)
    _check_repairs(case, _lived(case, "another drill", events=_OTHER))
    _check_interval(case)
    parted = [one for one in _DRILL if one.at_s < _PARTED_S] + [one for one in _OTHER if one.at_s >= _PARTED_S]
    other = _lived(case, "two weeks that begin with the same days", events=parted)
    before, same = ([one for one in found.decisions if one[0] < _PARTED_S] for found in (drill, other))
    case.instead(before != same, *_FUTURE)


def _lived(case: Case, name: str, **options: Any) -> Week:
    """Return a week under the answer, and let the messages be about it."""
    found = case.use(functools.partial(week.run, case.answer, **options), modifies=True)
    case.about(f"decide, in {name}", case.device)
    return found


def _check_repairs(case: Case, found: Week) -> None:
    """Check what was done after each kind of failure, and what it was called."""
    of_kind = {kind: [one for one in found.incidents if one.kind == kind] for kind in week.CAUSES}
    case.instead(any(one.failed_starts > 1 for one in of_kind["GPU"] + of_kind["node"]), *_AGAIN)
    case.instead(any(one.failed_starts > 0 for one in of_kind["checkpoint"]), *_DAMAGED)
    at_once = Counter(at_s for at_s, _, _ in found.excluded)
    case.instead(max(at_once.values(), default=0) > week.SPARES, *_RACKS)
    wrong_with = Counter(why for _, _, why in found.excluded)
    case.instead(wrong_with["blip"], *_BLIP)
    case.instead(
        wrong_with[""] > 2,
        "exchanges nodes that are well",
        "each takes a spare for a day, and the next failure finds none",
    )
    case.instead(any((one.end_s or week.WEEK_S) - one.at_s > 3 * week.HOUR_S for one in of_kind["slow"]), *_SLOW)
    case.instead(len(of_kind["network"]) > 5, *_CABLE)
    stuck_s = [span.end_s - span.start_s for span in found.spans if span.doing == "stuck"]
    case.instead(max(stuck_s, default=0) >= week.WATCHDOG_S, *_LIMIT)
    case.instead(any(one.lost_s > week.WATCHDOG_S + week.SAVE_S for one in of_kind["preemption"]), *_LEAVES)
    unnamed = [one for one in found.incidents if one.kind != one.named]
    case.instead(
        unnamed,
        "names another cause",
        "a Decision has one of week.CAUSES, given with the restart or the save that answers the failure",
        expected=[one.kind for one in unnamed],
        got=[one.named for one in unnamed],
    )
    case.instead(found.goodput < _LEAST, f"loses more than a tenth of the week: {found}")


def _check_interval(case: Case) -> None:
    """Check that saves follow what they cost, and how often something fails."""
    often = _lived(case, "a week with many failures and fast saves", **_OFTEN)
    seldom = _lived(case, "a week with few failures and slow saves", **_SELDOM)
    between = [
        statistics.median(b - a for a, b in itertools.pairwise([0, *one.saves_s, week.WEEK_S]))
        for one in (often, seldom)
    ]
    case.about("decide, in two weeks: fast saves and many failures, slow saves and few", case.device)
    case.instead(
        between[1] < 2 * between[0],
        "saves as often, whatever that costs and however often something fails",
        f"{between[0] / 60:.0f} and {between[1] / 60:.0f} minutes from save to save; the square root of "
        "2 x time of a save x time between failures says about 30 and 190",
    )
    for one in (often, seldom):
        case.instead(one.goodput < _LEAST, f"loses more than a tenth of the week: {one}")


decide.alternative(
    "the middle of a sorted list: no library, and of an even number the larger of the two in the middle",
    edit("""
        -    usual = statistics.median(seen.step_s.values()) if seen.step_s else 0.0
        +    usual = sorted(seen.step_s.values())[len(seen.step_s) // 2] if seen.step_s else 0.0
    """),
)


@decide.mistake(*_FUTURE)
def _(seen, notes):
    events = sys._getframe(1).f_locals["cluster"]._events
    soon = any(0 < event.at_s - seen.now_s < 400 and event.kind in ("GPU", "node") for event in events)
    decision = decide.reference(seen, notes)
    return dataclasses.replace(decision, save=soon or decision.save) if not decision.restart else decision


decide.broken(
    """
    -    logged = " ".join(message.text for message in seen.messages)
         failing = tuple(message.node for message in seen.messages if "Xid" in message.text)
    -    silent = tuple(node for node, seconds in seen.silent_s.items() if seconds > 60)
    -    flapping = [message.node for message in seen.messages if "link down" in message.text]
    -    notes["flaps"] = notes.get("flaps", []) + flapping
    -    usual = statistics.median(seen.step_s.values()) if seen.step_s else 0.0
    -    slow = [node for node, seconds in seen.step_s.items() if seconds > 1.1 * usual]
    -    notes["slow"] = {node: notes.get("slow", {}).get(node, 0) + 1 for node in slow}
    -    lasting = tuple(node for node, looks in notes["slow"].items() if looks >= 4)
    -    notes["stops"] = notes.get("stops", 0) + (not seen.running)
    -    if failing:  # also where a GPU only warns: save, and go on without it
    -        return Decision(save=True, restart=True, exclude=failing, cause="GPU")
    -    if silent:
    -        return Decision(restart=True, exclude=silent, cause="node")
    -    if flapping:  # once is chance, twice is a bad cable
    -        again = tuple(node for node in flapping if notes["flaps"].count(node) > 1)
    -        return Decision(restart=True, exclude=again, cause="network")
    -    if "checksum" in logged:
    -        return Decision(restart=True, checkpoint=seen.checkpoints[-2], cause="checkpoint")
    -    if "SIGTERM" in logged:
    -        return Decision(save=True, cause="preemption")
    +    if failing:
    +        return Decision(restart=True, exclude=failing, cause="GPU")
    ...
    -    if seen.idle_s > 60:  # no step ended, although all nodes are alive
    -        return Decision(restart=True, cause="hang")
    -    if lasting and seen.spares:
    -        return Decision(save=True, restart=True, exclude=lasting, cause="slow")
    -    between_s = (seen.now_s + 24 * 3600) / (notes["stops"] + 1)
    -    return Decision(save=seen.unsaved_s >= week.young_s(seen.save_s, between_s))
    +    return Decision(save=seen.unsaved_s >= 3600)
    """
)
