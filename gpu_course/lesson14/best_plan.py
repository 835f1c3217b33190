"""The exercise “Ten minutes”."""

from dataclasses import dataclass

from gpu_course.checks import Case, edges, exercise


@dataclass(frozen=True)
class Plan:
    """A way to run a program, as a forecast has it.

    - `graphs`: how many graphs are compiled in the run, one for each size say; 0 if nothing is compiled;
    - `compile_s`: how many seconds the compilation of one graph takes;
    - `step_s`: how many seconds a step takes.
    """

    name: str
    graphs: int
    compile_s: float
    step_s: float


@exercise(
    title="Ten minutes",
    minutes=5,
    difficulty=1,
    where="any machine: numbers of a forecast",
    hints=(
        "The run has run_s seconds. Compiling takes graphs * compile_s of them. Only the rest is for steps.",
        "Only whole steps count, and a plan that compiles longer than the run does none: not a number below 0.",
        "steps = max(0, int((run_s - graphs * compile_s) / step_s)). Keep the first plan with the most steps.",
    ),
)
def best_plan(plans: list, run_s: float) -> tuple[str, int]:
    """Return the plan that does most steps in `run_s` seconds: its name, its steps."""
    name, most = "", -1
    for plan in plans:
        left = run_s - plan.graphs * plan.compile_s
        steps = max(0, int(left / plan.step_s))
        if steps > most:
            name, most = plan.name, steps
    return name, most


best_plan.exempt("there is a plan, and the run takes time", "no_entries", "number_zero", "number_negative")
best_plan.exempt("a run of seconds, not of years", "number_large")

_EAGER = Plan("eager", 0, 0.0, 0.25)
_WHOLE = Plan("the whole model", 1, 64.0, 0.125)
_SIZES = Plan("the whole model, ten sizes", 10, 64.0, 0.125)
_BLOCKS = Plan("each block", 1, 8.0, 0.1875)
_TUNED = Plan("tuned", 1, 512.0, 0.0625)
_PLANS = (
    ([_EAGER], 600.0),
    ([_EAGER, _WHOLE, _TUNED], 600.0),
    ([_EAGER, _SIZES], 600.0),
    ([_EAGER, _WHOLE, _BLOCKS, _TUNED], 60.0),
    ([_EAGER, _BLOCKS, _WHOLE], 128.0),  # each block and the whole model come near
    ([_WHOLE, _BLOCKS, _EAGER, _TUNED], 3600.0),
    ([_TUNED, _WHOLE], 30.0),  # neither ends its compilation
    ([Plan("as many", 1, 300.0, 0.125), Plan("as many, without waiting", 0, 0.0, 0.25)], 600.0),
    ([Plan("rounds down", 0, 0.0, 7.0), Plan("one less", 0, 0.0, 7.75)], 600.0),
    ([Plan("85 and a bit", 0, 0.0, 7.03125), Plan("85 and nearly one", 0, 0.0, 7.0)], 600.0),
    ([_EAGER, Plan("slower", 2, 1.0, 0.5)], 600.0),
    ([_SIZES, _EAGER, _WHOLE], 1200.0),
    ([Plan("parts of a second", 1, 0.5, 0.125), _EAGER], 1.75),
)


def _steps(plan: Plan, run_s: float) -> int:
    """Return how many steps end within the run, one by one."""
    clock, steps = sum(plan.compile_s for _ in range(plan.graphs)), 0
    while clock + plan.step_s <= run_s:
        clock, steps = clock + plan.step_s, steps + 1
    return steps


@best_plan.checks
def _(case: Case) -> None:
    for plans, run_s in _PLANS:
        got = case.call(list(plans), run_s)
        steps = {plan.name: _steps(plan, run_s) for plan in plans}
        name = max(steps, key=steps.__getitem__)
        said = ", ".join(f"{each} does {count}" for each, count in steps.items())
        case.equal(got, (name, steps[name]), why=f"in {run_s:g} s, steps: {said}; of equal ones the first")
    edges.note("order", "limit", "second_call")


@best_plan.alternative(
    "a list of pairs, whose largest number of steps max finds: two lines, and max keeps the first of equal ones",
)
def _(plans, run_s):
    done = [(plan.name, max(0, int((run_s - plan.graphs * plan.compile_s) // plan.step_s))) for plan in plans]
    return max(done, key=lambda pair: pair[1])
