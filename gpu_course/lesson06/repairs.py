"""Check of a repaired case: its results against the case, its trace against the expected gain."""

import textwrap
from collections.abc import Callable

import torch

from course_utils import devices
from gpu_course.checks import Case, Task, WrongAnswer, difference
from gpu_course.lesson06.cases import CASES, CaseRun, lost_ms, original


def repaired(number: int, program: Callable) -> None:
    """Print whether `program` repairs a case, or what is wrong: the checks of `repair_reads` for any case."""

    def judge() -> str:
        task = Task("06", "repair", "A repair", minutes=5, difficulty=2, hints=(), draws=True, limit_s=20)
        case = Case(task, program, torch.device("sim", 0))
        try:
            run = tried(case, number)
            needed = original(number).got
            shown = ", ".join(f"{one:.4f}" for one in (needed if isinstance(needed, tuple) else (needed,)))
            case.fail_if(difference(run.got, needed, rtol=1e-4), "returns something else", f"the case returns {shown}")
        except WrongAnswer as wrong:
            name, why = wrong.finding.name, wrong.finding.why
            return f"not repaired: it {name} ({why})" if why else f"not repaired: it {name}"
        before_ms, now_ms = original(number).timeline.total_ms, run.timeline.total_ms
        label = textwrap.fill(str(run.timeline.evidence), 88, initial_indent="  ", subsequent_indent="  ")
        return f"repaired, {before_ms:.2f} ms before, {now_ms:.2f} ms now\n{label}"

    print(f"case {number}: {devices.on_simulated(judge)}")


def tried(case: Case, number: int) -> CaseRun:
    """Let the answer run in place of the program of a case, and check all but what it returned."""
    run = CaseRun(number, case.device).do(lambda *given: case.call(*given, modifies="training"))
    compare(case, number, run)
    return run


def compare(case: Case, number: int, run: CaseRun) -> None:
    """Fail with what a program does not do of what the case does, what it does otherwise, and which cause it leaves."""
    before = original(number)
    for what, did, needed in (
        ("batches loaded", run.photos.loaded, before.photos.loaded),
        ("samples through the model", sum(run.samples), sum(before.samples)),
        ("backward passes", run.backwards, before.backwards),
        ("optimizer steps", len(run.steps), len(before.steps)),
    ):
        case.fail_if(did < needed, "is faster by doing less", f"{what}: {did} instead of {needed}")
        case.fail_if(did > needed, "does more than before", f"{what}: {did} instead of {needed}")
    mode = all(module.training for module in run.model.modules())
    case.fail_if(not mode, "leaves the model in evaluation mode", "it came in training mode, and the caller goes on")
    other = (run.learned() - before.learned()).norm() / before.learned().norm()
    case.fail_if(
        other > 0.01,
        "changes the result",
        "the parameters move elsewhere than before",
        expected="the updates of the case, within 1 %",
        got=f"updates that are {other:.0%} away from them",
    )
    steps = len(before.steps)
    waits = [[wait for wait in one.timeline.select("wait") if "H2D" not in wait.name] for one in (run, before)]
    reads, were = map(len, waits)
    computing = (launch.start_ns for launch in run.timeline.select("launch") if "copy" not in launch.name)
    last_ns = max(computing, default=0)
    behind = sum(wait.start_ns > last_ns for wait in waits[0])  # when nothing is left to compute
    for cause in sorted(CASES[number][0] - {"none"}):
        left, lost = lost_ms(run.timeline)[cause], lost_ms(before.timeline)[cause]
        launches = [len(one.timeline.select("launch")) for one in (run, before)]
        same = f"{left:.2f} ms of idle GPU are put down to this cause, {lost:.2f} ms before"
        why = f"the host waits {behind} times there: make one tensor of all of them, and read that once"
        case.fail_if(
            cause == "synchronisation" and steps <= behind, "reads one number after the other behind the loop", why
        )
        case.fail_if(
            cause == "synchronisation" and steps <= reads < 0.9 * were,
            "moves the synchronisation, does not remove it",
            f"the host waits {reads} times in {steps} steps: one read at the end is enough",
        )
        case.fail_if(
            left > 0.25 * lost and launches[0] < 0.9 * launches[1] and len(CASES[number][0]) == 1,
            "repairs another cause",
            f"{launches[0]} launches instead of {launches[1]}, but {same}",
        )
        case.fail_if(0.25 * lost < left < 0.8 * lost, f"leaves part of a cause: {cause}", same)
        case.fail_if(left > 0.25 * lost, f"leaves a cause as it is: {cause}", same)
        why = f"the host waits {reads} times in {steps} steps: the device can compute this itself"
        case.fail_if(cause == "host work" and reads >= steps, "brings the data back to the host in every step", why)
    gained = sum(lost_ms(before.timeline)[cause] for cause in CASES[number][0])
    total, allowed = run.timeline.total_ms, before.timeline.total_ms - 0.6 * gained
    why = (
        f"{total:.2f} ms, expected at most {allowed:.2f}; before {before.timeline.total_ms:.2f}. The host launches "
        f"{len(run.timeline.select('launch'))} times, before {len(before.timeline.select('launch'))}"
    )
    case.fail_if(total > allowed, "removes the cause, and is slow for another reason", why)
