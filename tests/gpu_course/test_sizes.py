"""Can an exercise be read at a sitting, module, mistakes and wrong answers together?"""

import re
import statistics
from pathlib import Path

from gpu_course import catalogue

SITTING, USUAL = 270, 135  # lines: of one exercise, and of the one in the middle


def lines(text):
    return sum(bool(line.strip()) for line in text.splitlines())


def cost(file):
    """Return the lines of an exercise that are not empty, but for those of right answers in other styles."""
    module, rows = file.read_text(encoding="utf-8"), file.with_suffix(".diff").read_text(encoding="utf-8")
    answers = [
        row for row in re.split(r"^(?=== )", rows, flags=re.MULTILINE) if not re.match("== (style|right): ", row)
    ]
    return lines(module) + sum(map(lines, answers))


def test_an_exercise_can_be_read_at_a_sitting():
    folder = Path(catalogue.__file__).parent
    costs = {f"{number} {name}": cost(folder / f"lesson{number}" / f"{name}.py")
             for number, names in catalogue.names().items() for name in names}  # fmt: skip
    assert len(costs) > 50 and statistics.median(costs.values()) <= USUAL
    assert {name: count for name, count in costs.items() if count > SITTING} == {}


def test_lines_of_other_styles_and_empty_ones_do_not_count(tmp_path):
    (tmp_path / "one.py").write_text("\n\ndef one(x):\n    return x\n", encoding="utf-8")
    rows = (
        "forgets [a]\n# why\n~ x → 1",
        "style: it costs more\n~ x → +x",
        "right: adds\n~ x → 0 + x",
        "wrong: p\n~ x → 2",
    )
    (tmp_path / "one.diff").write_text("\n\n".join(f"== {row}" for row in rows), encoding="utf-8")
    assert cost(tmp_path / "one.py") == 2 + 3 + 2
