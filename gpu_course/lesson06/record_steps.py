"""The exercise “Profile some steps alone”."""

import warnings
from collections.abc import Callable

from torch.profiler import ProfilerAction, schedule

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=7,
    difficulty=1,
    hints=(
        "Steps are counted from 0. The warm-up is the step just before the first one that you want.",
        "wait + warmup is the number of steps before the first recorded one. active is the number of recorded steps.",
        "There are last - first + 1 steps from first to last. One step of warm-up leaves first - 1 steps to wait. "
        "Without repeat=1 it would begin again.",
    ),
)
def record_steps(first: int, last: int) -> Callable[[int], ProfilerAction]:
    """Return a schedule: a step of warm-up, then `first` to `last` recorded, once."""
    return schedule(wait=first - 1, warmup=1, active=last - first + 1, repeat=1)


record_steps.exempt("a step is a small number, from 1 on", "number_negative number_large")
record_steps.exempt("it returns a function", "second_call")


@record_steps.checks
def _(case: Case) -> None:
    edges.note("limit")  # "`first` is at least 1"
    for first, last in ((5, 7), (1, 1), (3, 10), (2, 3), (1, 4), (40, 40)):
        with warnings.catch_warnings():  # torch warns of a schedule without a warm-up; the check says it better
            warnings.simplefilter("ignore", UserWarning)
            made = case.call(first, last)
        case.fail_if(not callable(made), "returns no schedule", "torch.profiler.schedule(…) makes one", got=made)
        actions = [case.use(made, step) for step in range(2 * last + 8)]  # a second round would end there
        case.fail_if(
            not all(isinstance(action, ProfilerAction) for action in actions),
            "the schedule returns no ProfilerAction",
            got=actions[0],
        )
        names = {ProfilerAction.NONE: "-", ProfilerAction.WARMUP: "w"}
        shown = "".join(names.get(action, "R") for action in actions)
        saves = [step for step, action in enumerate(actions) if action == ProfilerAction.RECORD_AND_SAVE]
        expected = ("-" * (first - 1) + "w" + "R" * (last - first + 1)).ljust(len(actions), "-")
        why = "ProfilerAction.RECORD_AND_SAVE does that: return it for the step `last`"
        case.fail_if(shown == expected and last not in saves, "does not hand the profile over after the last step", why)
        why = "each RECORD_AND_SAVE ends a recording: return it for the step `last` alone"
        case.fail_if(
            shown == expected and saves != [last], f"hands the profile over after {len(saves)} steps", why, got=saves
        )
        case.equal(shown, expected, why="one letter a step: - nothing, w warm-up, R recorded")
        again = [case.use(made, step) for step in reversed(range(len(actions)))]
        why = "the same steps, asked for in another order: what is done depends on the step's number alone"
        case.equal("".join(names.get(action, "R") for action in again[::-1]), expected, why=why)
