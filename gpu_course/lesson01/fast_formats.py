"""The exercise “Which formats are fast?”."""

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=6,
    difficulty=1,
    hints=(
        "Write down for each format the first capability that has it, as a dictionary of tuples.",
        "Python compares tuples as you need it: (8, 6) >= (8, 0) is True, and so is (10, 0) >= (8, 9).",
        "Go through the items of the dictionary; keep each name whose first capability is not above this one.",
    ),
)
def fast_formats(capability: tuple[int, int]) -> set[str]:
    """Return the formats that the tensor cores of this compute capability multiply."""
    since = {"fp16": (7, 0), "int8": (7, 5), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
    return {name for name, first in since.items() if capability >= first}


fast_formats.exempt("no capability is so", "number_negative number_large")


@fast_formats.checks
def _(case: Case) -> None:
    edges.note("limit")  # each first capability itself
    for capability in (
        (8, 0), (7, 0), (7, 5), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0), (12, 1), (6, 0), (6, 1),
        (10, 3),  # whose exception the text leaves aside
        (13, 0),  # "a later capability keeps the formats of earlier ones", one that is still to come too
    ):  # fmt: skip
        got = case.call(capability)
        expected = {
            name
            for name, first in (("fp16", 70), ("int8", 75), ("bf16", 80), ("tf32", 80), ("fp8", 89), ("fp4", 100))
            if capability[0] * 10 + capability[1] >= first
        }
        case.fail_if(
            isinstance(got, list | tuple | dict),
            f"returns a {type(got).__name__}, not a set",
            "{} is an empty dictionary; the empty set is set()",
            expected=expected,
            got=got,
        )
        strange = isinstance(got, set) and got - {"fp16", "int8", "bf16", "tf32", "fp8", "fp4"}
        case.fail_if(strange, "returns a format that was not asked for", "the task lists six", got=got)
        case.equal(got, expected)
