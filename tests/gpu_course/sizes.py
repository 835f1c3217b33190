"""How many lines does each exercise cost: its module, and the mistakes and wrong answers beside it?

    python -m tests.gpu_course.sizes          all of them, the largest last
    python -m tests.gpu_course.sizes 02 11    those of lessons 02 and 11

Empty lines do not count. Other modules of the room are divided evenly among the exercises that import them, but for
those from which the lesson's own cells take something: the lesson shows these. Right answers in other styles, those in
the file beside and those that `solution()` shows, are counted, and are no part of the total.
"""

from __future__ import annotations

import ast
import functools
import re
import statistics
import sys
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from gpu_course import catalogue

PACKAGE = Path(catalogue.__file__).parent


@dataclass
class Cost:
    """Lines of an exercise."""

    module: float = 0
    helpers: float = 0
    mistakes: float = 0
    wrong_answers: float = 0
    other_styles: float = 0

    @property
    def total(self) -> float:
        """All that it takes to check an answer: all but the other styles."""
        return sum(astuple(self)) - self.other_styles


def lines(text: str) -> int:
    """Return how many lines of a text are not empty."""
    return sum(bool(line.strip()) for line in text.splitlines())


def alternatives(module: str) -> int:
    """Return the lines of the other styles in the module of an exercise."""
    found = 0
    for node in ast.parse(module).body:
        began = [*getattr(node, "decorator_list", []), getattr(node, "value", None)]
        if any(re.match(r"\w+\.alternative\(", ast.unparse(one)) for one in began if one is not None):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            found += lines("\n".join(module.splitlines()[first - 1 : node.end_lineno]))
    return found


def cost(module: str, answers: str) -> Cost:
    """Return what an exercise costs by itself: the text of its module, and of the file with its answers."""
    head, *rows = re.split(r"^(?=== )", answers, flags=re.MULTILINE)
    kinds = {"mistakes": lines(head), "== right: ": 0, "== wrong: ": 0}
    for row in rows:
        kinds[row[:10] if row[:10] in kinds else "mistakes"] += lines(row)
    styles = alternatives(module)
    return Cost(lines(module) - styles, 0, kinds["mistakes"], kinds["== wrong: "], kinds["== right: "] + styles)


def imported(text: str, lesson: str) -> set[str]:
    """Return the modules of the room that a text takes something from."""
    room = rf"^from gpu_course\.lesson{lesson}"
    whole = " ".join(re.findall(rf"{room} import (.+)", text, re.MULTILINE))
    return {*re.findall(rf"{room}\.(\w+) import", text, re.MULTILINE), *re.findall(r"(?<!as )\b(?!as )\w+", whole)}


@functools.cache
def every() -> dict[str, Cost]:
    """Return what each exercise of the course costs, by its lesson and name."""
    found = {}
    for lesson, names in catalogue.names().items():
        room = PACKAGE / f"lesson{lesson}"
        texts = {path.stem: path.read_text(encoding="utf-8") for path in room.glob("*.py")}
        users = {name: imported(texts[name], lesson) - imported(texts["__init__"], lesson) for name in names}
        for name in names:
            made = cost(texts[name], (room / f"{name}.diff").read_text(encoding="utf-8"))
            made.helpers = sum(lines(texts[one]) / sum(one in each for each in users.values()) for one in users[name])
            found[f"{lesson} {name}"] = made
    return found


def main(lessons: list[str]) -> None:
    """Print a row for each exercise, and the median and the maximum of all."""
    heads = [field.name.replace("_", " ") for field in fields(Cost)]
    print(f"{'exercise':28}" + "".join(f"{head:>15}" for head in [*heads, "total"]))
    for name, one in sorted(every().items(), key=lambda pair: pair[1].total):
        if not lessons or name.split()[0] in lessons:
            print(f"{name:28}" + "".join(f"{count:15.0f}" for count in (*astuple(one), one.total)))
    totals = [one.total for one in every().values()]
    print(f"median {statistics.median(totals):.0f}, maximum {max(totals):.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
