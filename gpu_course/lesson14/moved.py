"""The exercise “The bytes of a fused chain”."""

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=6,
    difficulty=1,
    where="any machine: counted bytes",
    hints=(
        "One by one: each operator reads each of its inputs, and writes its output.",
        "One kernel reads what comes from outside, each tensor once. What it made itself it still has. It writes only "
        "what is in `kept`.",
        "With sets: from outside come all inputs of all operators, minus all outputs. Add the sizes of these and of "
        "`kept`.",
    ),
)
def moved(operators: list, kept: list, nbytes: dict) -> tuple[int, int]:
    """Return the bytes that `operators` move one by one, and as one kernel."""
    separate = sum(nbytes[name] for inputs, output in operators for name in (*inputs, output))
    read = {name for inputs, _ in operators for name in inputs}
    outputs = {output for _, output in operators}
    fused = sum(nbytes[name] for name in (read - outputs) | set(kept))
    return separate, fused


moved.exempt("sizes of tensors are whole numbers", "numbers")

_BYTES = {"x": 4000, "y": 4000, "bias": 40, "a": 4000, "b": 4000, "c": 4000, "mask": 1000, "mean": 4, "wide": 8000}
_CHAINS = (
    ([(("x",), "a")], ["a"]),
    ([(("x", "bias"), "a"), (("a",), "b"), (("b",), "c")], ["c"]),
    ([(("x",), "a"), (("x", "a"), "b"), (("x", "b"), "c")], ["c"]),  # x is read three times, or once
    ([(("x", "y"), "a"), (("a",), "mask"), (("a", "mask"), "b")], ["mask", "b"]),  # two results are needed later
    ([(("x",), "mean"), (("x", "mean"), "a")], ["a"]),
    ([(("x",), "a"), (("a", "bias"), "wide"), (("wide",), "b")], ["b", "a"]),
    ([(("x",), "a"), (("y",), "b")], ["a"]),  # b is made, and nobody needs it
    ([], []),
)


@moved.checks
def _(case: Case) -> None:
    for operators, written in _CHAINS:
        got = case.call(operators, written, dict(_BYTES))
        separate = 0
        for inputs, output in operators:
            separate += sum(_BYTES[name] for name in inputs) + _BYTES[output]
        outputs = [output for _, output in operators]
        outside = [name for name in _BYTES if name not in outputs and any(name in inputs for inputs, _ in operators)]
        fused = sum(_BYTES[name] for name in outside) + sum(_BYTES[name] for name in written)
        why = f"one kernel reads {', '.join(outside) or 'nothing'} and writes {written or 'nothing'}"
        case.equal(got, (separate, fused), why=why)
    edges.note("order")
