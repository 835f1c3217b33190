"""The exercise “A week on 512 GPUs”."""

import functools
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gpu_course.checks import Case, edit, exercise
from gpu_course.lesson11 import week
from gpu_course.lesson11.week import Decision, Seen, Week


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


_LEAST = 0.9
_WEEKS: dict[str, dict[str, Any]] = {
    "a drill": {"events": week.drill(11)},
    "another drill": {"events": week.drill(12)},
    "a week with four times as many failures, and saves of 20 s": {"seed": 5, "times": 4, "save_s": 20},
    "a week with saves of 5 minutes": {"seed": 5, "save_s": 300},
}
_DOING = {"lost": "training that was done again", "starting": "starts", "stuck": "waiting in a collective"}


decide.exempt("its notes go on from call to call", "second_call")
decide.exempt("a policy is judged by whole weeks", "other_input")
decide.exempt("`notes` is its own to change", "unchanged")


@decide.checks
def _(case: Case) -> None:
    for name, options in _WEEKS.items():  # two drills, and two weeks with other rates and save times
        lived = case.use(functools.partial(week.run, case.answer, **options), modifies=True)
        case.about(f"decide, in {name}", case.device)
        # in each of the four goodput must be at least 90 %
        case.fail_if(lived.goodput < _LEAST, "goodput is too low", expected="90.0 % or more", got=_lost(lived))
        if "events" in options:  # in the drills each failure gets its right cause
            _check_causes(case, lived)


def _check_causes(case: Case, lived: Week) -> None:
    """Fail where the first cause that was named after a failure is another one."""
    wrong = [one for one in lived.incidents if one.kind != one.named]
    first = f", first at hour {wrong[0].at_s / week.HOUR_S:.1f}" if wrong else ""
    case.fail_if(
        wrong,
        f"failures are given another cause, or none{first}",
        "a cause is named by the first decision after a failure that has one",
        expected=[one.kind for one in wrong],
        got=[f"{one.named or 'nothing'} for {one.kind}" for one in wrong],
    )


@dataclass(frozen=True)
class _Lost:
    """What took most of a week, shown with its hours; alike where it is the same."""

    most: str
    told: str = field(compare=False)

    def __repr__(self) -> str:
        return self.told


def _lost(lived: Week) -> _Lost:
    """Return what took most hours of the week, and what the job did in them."""
    spent_s = {name: seconds for name, seconds in lived.spent_s.items() if name != "training"}
    most = max(spent_s, key=lambda name: spent_s[name])
    doing: Counter[str] = Counter()
    for span in lived.spans:
        if span.cause == most and span.doing != "training":
            doing[_DOING.get(span.doing, span.doing)] += span.end_s - span.start_s
    parts = ", ".join(f"{seconds / week.HOUR_S:.1f} h of {name}" for name, seconds in doing.most_common(2))
    hours = f"{spent_s[most] / week.HOUR_S:.1f} h" + (f" ({parts})" if parts else "")
    return _Lost(most, f"{lived.goodput:.1%}; most was lost to {most}: {hours}")


decide.alternative(
    "the middle of a sorted list: no library, and of an even number the larger of the two in the middle",
    edit("""
        -    usual = statistics.median(seen.step_s.values()) if seen.step_s else 0.0
        +    usual = sorted(seen.step_s.values())[len(seen.step_s) // 2] if seen.step_s else 0.0
    """),
)


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
