"""Parts of a lesson that follow from its exercises: stubs, the line of minutes, and the door of the room.

An exercise is `gpu_course/lesson05/train_step.py` with its file of answers, and in the notebook a text and the cell
`train_step = lesson05.train_step.check(train_step)`. `python -m tools.notebooks --fix` writes the rest.
"""

import ast
import itertools
import math
import operator
import re
import textwrap
from pathlib import Path

from nbformat import NotebookNode, v4

from tools.address import STATED

__all__ = [
    "CHECK", "FOLDED", "LINKS", "PRACTICE", "STOP", "deeper", "door", "minutes", "with_stubs", "with_title", "words",
]  # fmt: skip

LINKS = re.compile(r"^(?:Previous|Next): \[.*\]\(\w+\.ipynb\)$", re.MULTILINE)
# The end of a recap, the same everywhere.
STOP = "A good place to stop. Tomorrow, click the cell below and choose *Run*, *Run All Above Selected Cell*."
FOLDED = "hide-input"
PRACTICE = "Practice: "  # how the heading of a section begins that no count of minutes includes
# How much longer readers took than `minutes` says: 1.2 to 1.4 times in these lessons, at most 1.1 times in the others.
PACE: dict[str, float] = dict.fromkeys(("06", "07", "08", "08b", "09", "10", "11", "12"), 1.3)
CHECK = re.compile(r"^(?P<name>\w+) = lesson(?P<lesson>\w+)\.(?P=name)\.check\((?P=name)\)$")  # its last cell
_STATED = re.compile(rf"{STATED.pattern}s?(?:, \d+ of them for practice)?")
_COLUMNS = 120


def checked(cell: NotebookNode) -> str:
    """Return the name of the exercise that a cell checks, or ""."""
    found = CHECK.match(cell.source) if cell.cell_type == "code" else None
    return found["name"] if found else ""


def words(cell: NotebookNode) -> int:
    """Return how many words a reader reads of a text: no addresses of links, and nothing that every lesson repeats."""
    return len(re.sub(r"\]\([^)]*\)", "]", LINKS.sub("", cell.source.removesuffix(STOP))).split())


def minutes(notebook: NotebookNode) -> list[float]:
    """Return how long a newcomer needs for each cell: 100 words of text or one exercise's stated minutes, and code."""
    needed, cells = [], notebook.cells
    for place, cell in enumerate(cells):
        if cell.cell_type == "code":
            quick = FOLDED in cell.metadata.get("tags", []) or cell.id == "your-line"  # copied in a few seconds
            needed.append(0.2 if quick else 0.8)
            continue
        needed.append(words(cell) / 100)
        if any(map(checked, cells[place + 2 : place + 3])):
            needed[-1] += int(re.findall(r"(\d+) minutes", cell.source)[-1])
    return needed


def deeper(notebook: NotebookNode, kinds: tuple[str, ...] = ("Deeper: ", PRACTICE)) -> list[bool]:
    """Return for each cell whether it stands in a section whose heading is `## Deeper: …` or `## Practice: …`."""
    inside, found = False, []
    for cell in notebook.cells:
        headings = re.findall(r"^## .*", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        inside = headings[-1][3:].startswith(kinds) if headings else inside
        found.append(inside)
    return found


def with_title(notebook: NotebookNode, number: str) -> str:
    """Return the text of the title cell with the minutes and the number of exercises that the cells add up to."""
    needed, left, practice = minutes(notebook), deeper(notebook), deeper(notebook, (PRACTICE,))
    spine, every = (sum(itertools.compress(needed, map(operator.not_, out))) for out in (left, practice))
    stated = [5 * math.ceil(PACE.get(number, 1) * each / 5) for each in (spine, every)]
    more = f", or {stated[1]} with the *Deeper* sections" if any(left) else ""
    count = sum(bool(checked(cell)) for cell in notebook.cells)
    line = f"{stated[0]} minutes{more} · {count} exercise{'' if count == 1 else 's'}"
    extra = sum(bool(checked(cell)) for cell in itertools.compress(notebook.cells, practice))
    line += f", {extra} of them for practice" if extra else ""
    return _STATED.sub(lambda old: line if old[0][0].isdecimal() else f" · {line}", notebook.cells[0].source)


def with_stubs(notebook: NotebookNode, package: Path) -> NotebookNode:
    """Return a notebook whose stubs have the signatures and docstrings of the references in rooms of `package`.

    A stub that has them stays as it is; one that is missing is made, above the cell that checks it.
    """
    from gpu_course.checks import stub  # not above: it loads PyTorch

    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        name, check = checked(cell), CHECK.match(cell.source)
        module = package / f"lesson{check['lesson'] if check else ''}" / f"{name}.py"
        if name and module.exists():
            wanted = stub(module, name)
            if not cells or cells[-1].cell_type != "code" or checked(cells[-1]):
                cells.append(v4.new_code_cell(wanted, id=name.lower().replace("_", "-")))
            elif _dumped(cells[-1].source) != _dumped(wanted):
                cells[-1].source = wanted
        cells.append(cell)
    return NotebookNode({**notebook, "cells": cells})


def _dumped(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return ""


def door(room: Path, notebook: NotebookNode) -> str:
    """Return the text of a room's `__init__.py`: it imports each exercise, and names them in the lesson's order.

    What else it imports stays, and is named behind them.
    """
    text = (room / "__init__.py").read_text(encoding="utf-8")
    there = {path.stem for path in room.glob("*.diff")}
    order = [name for name in map(checked, notebook.cells) if name in there]
    described, *nodes = ast.parse(text).body
    imports: dict[str, list[str]] = {f"gpu_course.{room.name}.{name}": [name] for name in order}
    lines, others = {}, []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module, names = str(node.module), [one.name for one in node.names]
            path = room / f"{module.rpartition('.')[2]}.py"
            if module in imports:
                imports[module] = _sorted({*imports[module], *names})
            elif not module.startswith(f"gpu_course.{room.name}.") or path.exists():
                lines[module] = text.splitlines()[node.lineno - 1] if node.lineno == node.end_lineno else _line(node)
                others += names if module.startswith(f"gpu_course.{room.name}") else []
    others += [name for module, names in imports.items() for name in names if not module.endswith(f".{name}")]
    lines |= {module: _imported(module, names) for module, names in imports.items()}
    body = "\n".join(lines[module] for module in sorted(lines, key=str.lower))
    return f"{ast.get_source_segment(text, described)}\n\n{body}{chr(10) * 2 if body else ''}{_all(order, others)}"


def _line(node: ast.ImportFrom) -> str:
    return _imported(str(node.module), [one.name for one in node.names])


def _imported(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _COLUMNS:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _all(order: list[str], others: list[str]) -> str:
    """Return the lines of `__all__`, with a mark for the linter where they are not in its order."""
    names = [*order, *_sorted(set(others))]
    if not names:
        return "__all__: list[str] = []\n"
    mark = "" if names == _sorted({*names}) else "  # noqa: RUF022, exercises in the order of the lesson"
    quoted = [f'"{name}"' for name in names]
    if len(line := f"__all__ = [{', '.join(quoted)}]") <= _COLUMNS and not mark:
        return f"{line}\n"
    lines = textwrap.wrap(f"{', '.join(quoted)},", _COLUMNS - 5)
    return "\n".join([f"__all__ = [{mark}", *(f"    {line}" for line in lines), "]  # fmt: skip"]) + "\n"


def _sorted(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
