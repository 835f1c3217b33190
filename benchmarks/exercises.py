"""How many lines does each exercise cost: its reference, check and mistakes, their helpers, and its wrong answers?

    python -m benchmarks.exercises

A helper is a top-level statement of the lesson's room, or of its wrong answers, that the exercise reaches by name; what
several exercises reach is divided evenly among them. What all lessons share is counted on a line of its own. Exit
status 1 if the median is above 100 lines or an exercise above 220.
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from gpu_course import catalogue

MEDIAN, MAXIMUM = 100, 220
ROOT = Path(__file__).parents[1]
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


def used(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names, with an attribute or "", that a statement takes from outside."""
    nodes, own = list(ast.walk(node)), set()
    if isinstance(node, ast.FunctionDef):
        own = {inner.arg for inner in nodes if isinstance(inner, ast.arg)} | {
            inner.id for inner in nodes if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
    for inner in nodes:
        if isinstance(inner, ast.Name | ast.Attribute) and (found := root(inner))[0] not in own | {""}:
            yield found


def costs(names: Iterable[str], modules: Mapping[str, str], wrong: str) -> tuple[dict[str, Cost], int]:
    """Return what each exercise of a lesson costs, and the lines of statements that none of them reaches.

    `modules` holds the texts of the lesson's modules by their full names, `wrong` is the text with its wrong answers.
    """
    room, found = Room(modules), {name: Cost() for name in names}
    owners: dict[ast.stmt, str] = {}
    for node, module in room.statements.items():
        name, part = _owner(room, module, node, found)
        if name:
            owners[node] = name
            _add(found[name], part, lines(node))
    reached = {name: set() for name in found}
    for node, name in owners.items():
        reached[name] |= room.reached(room.statements[node], node, owners)
    _divide(reached, found, "helpers")
    rest = room.statements.keys() - owners.keys() - set().union(*reached.values())

    answers = Room({"wrong": wrong})
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


def main() -> int:
    """Print the table, the median and the maximum; return 0 if both are within their limits."""
    lessons: dict[str, list[str]] = {}
    for exercise in catalogue.registry():
        lessons.setdefault(exercise.lesson, []).append(exercise.name)
    package, stored = Path(catalogue.__file__).parent, ROOT / "tests" / "gpu_course" / "wrong_answers"
    heads = [field.name.replace("_", " ") for field in fields(Cost)]
    print(f"{'exercise':28}" + "".join(f"{head:>15}" for head in [*heads, "total"]))
    totals, unreached = [], 0
    for lesson, names in lessons.items():
        texts = {_module(path): _text(path) for path in (package / f"lesson{lesson}").glob("*.py")}
        found, rest = costs(names, texts, _text(stored / f"lesson{lesson}.py"))
        unreached += rest
        for name, cost in found.items():
            totals.append(cost.total)
            print(f"{lesson} {name:25}" + "".join(f"{count:15.0f}" for count in (*astuple(cost), cost.total)))
    shared = [*(package / "common").glob("*.py"), *(p for p in stored.glob("*.py") if "lesson" not in p.stem)]
    print(f"shared by all lessons: {sum(len(_text(path).splitlines()) for path in shared)} lines")
    print(f"reached by no exercise: {unreached} lines")
    median, maximum = statistics.median(totals), max(totals)
    print(f"median {median:.0f} (at most {MEDIAN}), maximum {maximum:.0f} (at most {MAXIMUM})")
    return int(median > MEDIAN or maximum > MAXIMUM)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
