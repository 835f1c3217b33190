"""How many lines does each exercise cost: its reference, check and mistakes, their helpers, and its wrong answers?

    python -m tests.gpu_course.sizes          all of them, the largest last
    python -m tests.gpu_course.sizes 02 11    those of lessons 02 and 11

A helper is a top-level statement of the lesson's room, or of its wrong answers, that the exercise reaches by name; what
several exercises reach is divided evenly among them. What cells of the lesson call by name, with all that this reaches,
is no cost of an exercise: the lesson shows it. Edits in `mistakes.diff` and in the files of wrong answers count for the
exercise that they belong to.
"""

from __future__ import annotations

import ast
import functools
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from gpu_course import catalogue
from tests.notebooks import walls

ROOT = Path(__file__).parents[2]
CELLS = "the cells of the lesson"
Place = tuple[str, str]  # a module and a name in it


@dataclass
class Cost:
    """Lines of an exercise."""

    reference: float = 0
    check: float = 0
    mistakes: float = 0
    helpers: float = 0
    wrong_answers: float = 0
    other_styles: float = 0  # right answers that `solution()` shows

    @property
    def total(self) -> float:
        """All that it takes to check an answer: all but the other styles."""
        return sum(astuple(self)) - self.other_styles


def lines(node: ast.AST) -> int:
    """Return how many lines a statement has, its decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return node.end_lineno - first + 1


def root(node: ast.AST) -> tuple[str, str]:
    """Return the name with which an expression begins, and its first attribute: `a.b(c)` gives `a` and `b`."""
    attribute = ""
    while isinstance(node, ast.Call | ast.Attribute):
        attribute = node.attr if isinstance(node, ast.Attribute) else attribute
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", ""), attribute


class Room:
    """The top-level statements of some modules, and what each name in them stands for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.statements: dict[ast.stmt, str] = {}  # with their module
        self._meant: dict[Place, list[ast.stmt]] = {}
        self._elsewhere: dict[Place, Place] = {}
        for module, text in modules.items():
            for node in ast.parse(text).body:
                if isinstance(node, ast.ImportFrom):
                    for one in node.names:
                        inside = (f"{node.module}.{one.name}", "") if f"{node.module}.{one.name}" in modules else None
                        self._elsewhere[module, one.asname or one.name] = inside or (node.module, one.name)
                elif not isinstance(node, ast.Import):
                    self.statements[node] = module
                    for name in bound(node):
                        self._meant.setdefault((module, name), []).append(node)

    def meant(self, module: str, name: str, attribute: str = "") -> list[ast.stmt]:
        """Return the statements that a name in a module, or an attribute of a module so named, stands for."""
        while (module, name) in self._elsewhere:
            module, name = self._elsewhere[module, name]
            name = name or attribute
        return self._meant.get((module, name), [])

    def reached(self, module: str, start: ast.AST, owned: Iterable[ast.stmt] = ()) -> set[ast.stmt]:
        """Return the statements that a piece of a module leads to by name, without and not through those in `owned`."""
        found, ahead, owned = set(), [(module, start)], set(owned)
        while ahead:
            module, node = ahead.pop()
            for name, attribute in used(node):
                new = set(self.meant(module, name, attribute)) - found - owned
                found |= new
                ahead += [(self.statements[statement], statement) for statement in new]
        return found


def bound(node: ast.stmt) -> set[str]:
    """Return the names that a top-level statement makes; functions called `_` stand for nothing."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name} - {"_"}
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}


@functools.cache  # a statement that several lead to is read once
def used(node: ast.AST) -> frozenset[tuple[str, str]]:
    """Return the names, with an attribute or "", that a statement takes from outside."""
    nodes, own = list(ast.walk(node)), set()
    if isinstance(node, ast.FunctionDef):
        own = {inner.arg for inner in nodes if isinstance(inner, ast.arg)} | {
            inner.id for inner in nodes if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
    taken = {root(inner) for inner in nodes if isinstance(inner, ast.Name | ast.Attribute)}
    return frozenset(found for found in taken if found[0] not in own | {""})


def edits(text: str) -> dict[str, int]:
    """Return the lines, but for empty ones, of the edits in a file such as mistakes.diff, by exercise."""
    found: dict[str, int] = {}
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        name = part.partition(":")[0]
        found[name] = found.get(name, 0) + sum(bool(line.strip()) for line in part.splitlines())
    return found


def costs(
    names: Iterable[str],
    modules: Mapping[str, str],
    wrong: str,
    mistakes: str = "",
    wrong_edits: str = "",
    cells: str = "",
) -> tuple[dict[str, Cost], int]:
    """Return what each exercise of a lesson costs, and the lines of statements that none of them reaches.

    `modules` holds the texts of the lesson's modules by their full names, `wrong` is the text with its wrong answers;
    `mistakes` and `wrong_edits` are those of the files with edits, `cells` that of the lesson's own code.
    """
    room, found = Room({**modules, CELLS: cells}), {name: Cost() for name in names}
    for part, text in (("mistakes", mistakes), ("wrong_answers", wrong_edits)):
        for name, count in edits(text).items():
            _add(found[name], part, count)
    owners: dict[ast.stmt, str] = {}
    shown = {node for node, module in room.statements.items() if module == CELLS}
    for node, module in room.statements.items():
        if node in shown:
            continue
        name, part = _owner(room, module, node, found)
        if name:
            owners[node] = name
            _add(found[name], part, lines(node))
    called = room.reached(CELLS, ast.Module(list(shown), []), owners)
    reached = {name: set() for name in found}
    for node, name in owners.items():
        reached[name] |= room.reached(room.statements[node], node, owners) - called
    _divide(reached, found, "helpers")
    rest = room.statements.keys() - owners.keys() - set().union(*reached.values()) - shown

    answers = Room({"wrong": wrong or "WRONG = {}"})
    (table,) = answers.meant("wrong", "WRONG")
    entries = dict(zip((key.value for key in table.value.keys), table.value.values, strict=True))
    for name, entry in entries.items():
        found[name].wrong_answers += lines(entry)
    reached = {name: answers.reached("wrong", entry, [table]) for name, entry in entries.items()}
    _divide(reached, found, "wrong_answers")
    rest |= answers.statements.keys() - {table} - set().union(*reached.values())
    return found, sum(lines(node) for node in rest)


def _owner(room: Room, module: str, node: ast.stmt, names: Iterable[str]) -> tuple[str, str]:
    """Return the exercise whose reference, other style, check or mistake a statement is, and which of them; or ""."""
    decorators = getattr(node, "decorator_list", [])
    if decorators and node.name in names:
        return node.name, "reference"
    for name, attribute in map(root, decorators or ([node.value] if isinstance(node, ast.Expr) else [])):
        for meant in room.meant(module, name):
            if attribute and bound(meant) & set(names):
                return meant.name, {"checks": "check", "alternative": "other_styles"}.get(attribute, "mistakes")
    return "", ""


def _divide(reached: Mapping[str, set[ast.stmt]], found: Mapping[str, Cost], part: str) -> None:
    """Add to the costs of each exercise its share of the statements that it reaches."""
    for name, statements in reached.items():
        for node in statements:
            _add(found[name], part, lines(node) / sum(node in others for others in reached.values()))


def _add(cost: Cost, part: str, count: float) -> None:
    setattr(cost, part, getattr(cost, part) + count)


@functools.cache  # reading all rooms takes seconds
def every() -> tuple[dict[str, Cost], int]:
    """Return what each exercise of the course costs, by its lesson and name, and the lines that none reaches."""
    package, stored = Path(catalogue.__file__).parent, Path(__file__).parent / "wrong_answers"
    totals, unreached = {}, 0
    shown = {Path(path).stem.partition("_")[0]: text for path, text in walls.texts("notebooks").items()}
    for lesson, names in catalogue.names().items():
        room = package / f"lesson{lesson}"
        texts = {_module(path): _text(path) for path in room.glob("*.py")}
        files = stored / f"lesson{lesson}.py", room / "mistakes.diff", stored / f"lesson{lesson}.diff"
        found, rest = costs(names, texts, *map(_text, files), shown[lesson])
        totals |= {f"{lesson} {name}": cost for name, cost in found.items()}
        unreached += rest
    return totals, unreached


def main(lessons: list[str]) -> None:
    """Print a row for each exercise, and the median and the maximum of all."""
    found, unreached = every()
    heads = [field.name.replace("_", " ") for field in fields(Cost)]
    print(f"{'exercise':28}" + "".join(f"{head:>15}" for head in [*heads, "total"]))
    for name, cost in sorted(found.items(), key=lambda pair: pair[1].total):
        if not lessons or name.split()[0] in lessons:
            print(f"{name:28}" + "".join(f"{count:15.0f}" for count in (*astuple(cost), cost.total)))
    totals = [cost.total for cost in found.values()]
    print(f"reached by no exercise, explorers among them: {unreached} lines")
    print(f"median {statistics.median(totals):.0f}, maximum {max(totals):.0f}")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    main(sys.argv[1:])
