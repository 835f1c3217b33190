"""The exercise “Seven diagnoses”."""

from collections.abc import Set

from gpu_course.checks import Case, exercise
from gpu_course.lesson06.cases import CASES, CAUSES, evidence, lost_ms, original


@exercise(
    minutes=12,
    difficulty=2,
    simulated=True,
    limit_s=20,
    hints=(
        "Ask three questions. Does the GPU compute nearly all the time? If not, what does the host do in the gaps: "
        "does it wait, work or launch? If it waits, does it wait for a small value or for a large copy?",
        "Look at the number of calls. Some causes are a few long calls, others are thousands of short ones. If the "
        "data goes back to the host before the host works on it, that work is not loading.",
        "One case has two kinds of bars in its gaps. In another the host waits for a long time, but for a GPU that is "
        "never idle.",
    ),
)
def diagnose() -> dict[int, set[str]]:
    """Return for each case, 1 to 7, the set of its causes, or {"none"}."""
    return {
        1: {"tiny operators"},
        2: {"synchronisation"},
        3: {"copies"},
        4: {"loader"},
        5: {"host work"},
        6: {"loader", "synchronisation"},
        7: {"none"},
    }


diagnose.exempt("it takes no argument", "other_input")
diagnose.exempt("an answer in words stays what it is", "second_call")


@diagnose.checks
def _(case: Case) -> None:
    got = case.call()
    case.fail_if(not isinstance(got, dict), "returns no dict", "a set of causes for each number is asked for", got=got)
    strange = [number for number in got if number not in CASES or isinstance(number, float)]
    case.fail_if(strange, f"has the key {strange[:1]}", "the cases have the numbers 1 to 7", got=got)
    other = next((number for number in got if not isinstance(got[number], Set)), 0)
    kind = type(got.get(other)).__name__
    case.fail_if(other, f"gives case {other} a {kind}, not a set", "a set of causes is asked for: {…}", got=got)
    given = {number: _causes(got.get(number)) for number in CASES}
    for number, causes in given.items():
        case.fail_if(not causes, f"case {number}: no cause is named", f"choose from {', '.join(CAUSES)}")
        unknown = sorted(causes - set(CAUSES))
        why = f"choose from {', '.join(CAUSES)}"
        case.fail_if(unknown, f"case {number}: {', '.join(unknown)} is none of the causes", why)
    for number, causes in given.items():
        right = CASES[number][0]
        for cause in sorted((causes & set(CAUSES)) - right):
            case.fail_if(True, f"case {number}: {cause} is not what keeps it back", evidence(number, cause))
        if not right <= causes:  # what would be left takes seconds to compute
            left = _left(number, causes & right)
            why = f"with this one repaired it would still be idle for {left} of the time"
            case.fail_if(True, f"case {number}: that is not all", f"more than one cause keeps its GPU idle: {why}")


def _causes(given: object) -> set[str]:
    return {str(cause) for cause in given} if isinstance(given, Set) else set()


def _left(number: int, causes: set[str]) -> str:
    lost, total = lost_ms(original(number).timeline), original(number).timeline.total_ms
    saved = sum(lost[cause] for cause in causes)
    return f"{(sum(lost.values()) - saved) / (total - saved):.0%}"
