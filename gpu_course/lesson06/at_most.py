"""The exercise “What it brings at most”."""

from gpu_course.checks import Case, edit, exercise


@exercise(
    title="What it brings at most",
    minutes=6,
    difficulty=1,
    hints=(
        "How much time is left when everything that these causes take is gone?",
        "Divide the time before by the time after.",
        "The time after is total_ms minus the sum of idle_ms[cause] over the causes that are removed.",
    ),
)
def at_most(total_ms: float, idle_ms: dict[str, float], removed: list[str]) -> float:
    """Return how many times as fast it gets at most without the causes in `removed`."""
    return total_ms / (total_ms - sum(idle_ms[cause] for cause in removed))


at_most.exempt("a time is not below 0, and what the kernels take remains", "number_negative number_large limit")


@at_most.checks
def _(case: Case) -> None:
    for total, idle, removed in (
        (10.0, {"loader": 5.0}, ["loader"]),
        (20.0, {"loader": 8.0, "copies": 4.0}, ["copies"]),
        (12.0, {"reads": 3.0}, []),
        (50.0, {"loader": 20.0, "reads": 10.0, "copies": 5.0}, ["loader", "reads"]),
        (30.0, {"a": 3.0, "b": 6.0, "c": 9.0}, ["a", "b", "c"]),
        (30.0, {"c": 9.0, "a": 3.0, "b": 6.0}, ["c", "a"]),
        (30.0, {"a": 3.0, "b": 0.0, "c": 9.0}, ["b"]),
        (30.0, {}, []),
        (1000.0, {"a": 999.0}, ["a"]),
        (2.0, {"a": 1.75}, ["a"]),  # less than a millisecond is left
    ):
        left = total
        for cause in removed:
            left -= idle[cause]
        case.equal(case.call(total, idle, removed), total / left, rtol=1e-9)


at_most.alternative(
    "the form in which Amdahl's law is quoted: shares of the time",
    edit("""
        -    return total_ms / (total_ms - sum(idle_ms[cause] for cause in removed))
        +    return 1 / (1 - sum(idle_ms[cause] / total_ms for cause in removed))
    """),
)
