"""The exercise “The line that waits”."""

from gpu_course.checks import Case, exercise


@exercise(
    where="any machine: reports",
    minutes=5,
    difficulty=1,
    hints=(
        "While the GPU computes, it does not wait. Which of the three lists says how long it does nothing?",
        'report["waits"] has a row for each line, in any order. Which row has the most seconds?',
        'max(rows, key=lambda row: row["seconds"]) is that row. Without its wait a step takes step_time - seconds. '
        "Divide step_time by that.",
    ),
)
def first_line(report: dict) -> tuple[str, float]:
    """Return the line to repair first, and how many times as fast a step then is."""
    if not report["waits"]:
        return "", 1.0
    longest = max(report["waits"], key=lambda row: row["seconds"])
    left = report["step_time"] - longest["seconds"]
    return f"{longest['file']}:{longest['line']}", report["step_time"] / left


first_line.exempt("seconds are not below 0, and no limit is named", "number_negative number_large limit")
first_line.exempt("rows come in any order, which a case shows", "order")


@first_line.checks
def _(case: Case) -> None:
    for report in _REPORTS:
        got, expected = case.call(report), _first(report)
        other_line = isinstance(got, tuple) and got[:1] != expected[:1]
        why = "without this line's wait a step is shorter by that wait, and the rest of the step stays"
        rows = "the rows stand in any order, and `seconds` holds all `count` waits of a line"
        case.equal(got, expected, rtol=1e-3, why=rows if other_line else why)


def _row(line: int, seconds: float, count: int, nbytes: int = 0, file: str = "train.py") -> dict:
    return {"file": file, "line": line, "seconds": seconds, "count": count, "bytes": nbytes}


def _report(step_time: float, waits: list[dict], copies: list[dict], launches: list[dict]) -> dict:
    return {"step_time": step_time, "waits": waits, "copies": copies, "launches": launches}


_REPORTS = (
    _report(
        0.010,
        [_row(30, 0.004, 12)],
        [_row(25, 0.0005, 1, 512), _row(30, 0.0006, 12, 48), _row(39, 1e-5, 1, 4)],
        [_row(33, 0.008, 400), _row(30, 0.0001, 12)],
    ),
    _report(
        0.050,
        [_row(61, 0.001, 200), _row(44, 0.020, 1, 9000), _row(72, 0.005, 1)],
        [_row(40, 0.002, 1, 9999), _row(44, 0.019, 1, 9000), _row(61, 0.001, 200, 800), _row(72, 0.0001, 1, 4)],
        [_row(50, 0.030, 900), _row(61, 0.001, 200)],
    ),
    _report(
        0.025,  # "in any order"; a line is one of a file; a copy may take longer than any wait
        [
            _row(80, 0.003, 1, 4),
            _row(12, 0.002, 4, 4_000, "model.py"),
            _row(15, 0.008, 24, 96, "parts/model.py"),
            _row(15, 0.004, 30, 120),
            _row(90, 0.0045, 1, 4),
        ],
        [_row(70, 0.009, 2, 4_000), _row(15, 0.0003, 24, 96, "parts/model.py"), _row(80, 1e-5, 1, 4)],
        [_row(75, 0.011, 300), _row(15, 0.0002, 24, 0, "parts/model.py")],
    ),
    _report(0.030, [], [_row(20, 0.004, 1, 5000)], [_row(22, 0.025, 700)]),
)


def _first(report: dict) -> tuple[str, float]:
    """Return the line that would leave the shortest step, each tried, and how many times as fast that is."""
    best = "", report["step_time"]
    for row in report["waits"]:
        left = report["step_time"] - row["seconds"]
        if left < best[1]:
            best = f"{row['file']}:{row['line']}", left
    return best[0], report["step_time"] / best[1]
