"""Is the code of a lesson code that a learner can read? What `python -m tests.notebooks.plain notebooks/02*` lists."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from tools import notebooks

WIDTH = 88  # columns of code that a page of the site shows without scrolling


def _trees(notebook: NotebookNode, folded: bool | None = None) -> Iterator[tuple[str, ast.Module]]:
    """Yield the id and the syntax tree of each code cell, of folded or of open ones alone where that is asked."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and folded in (None, notebooks.FOLDED in cell.metadata.get("tags", [])):
            yield cell.id, ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE))


def folded_imports(notebook: NotebookNode) -> list[str]:
    """Return what is wrong with the cell of imports: it must be there, and open."""
    cells = [cell for cell in notebook.cells if cell.get("id") == "imports"]
    if not cells:
        return ["there is no cell with the id imports"]
    return ["imports: the cell is folded"] if notebooks.FOLDED in cells[0].metadata.get("tags", []) else []


def folded_calls(notebook: NotebookNode) -> list[str]:
    """Return the calls in open cells of functions and classes that a folded cell defines."""
    hidden = {
        node.name for _, tree in _trees(notebook, folded=True) for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }  # fmt: skip
    return [
        f"{name}: {node.id} is defined in a folded cell"
        for name, tree in _trees(notebook, folded=False)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in hidden
    ]


def crowded_lines(notebook: NotebookNode) -> list[str]:
    """Return lines that do several things: three values assigned at once, statements joined, named lambdas."""
    found = []
    for name, tree in _trees(notebook):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                pairs = [target for target in node.targets if isinstance(target, ast.Tuple)]
                if any(len(target.elts) > 2 for target in pairs) and isinstance(node.value, ast.Tuple):
                    found.append(f"{name}: several values are assigned at once: {ast.unparse(node)}")
                if isinstance(node.value, ast.Lambda):
                    found.append(f"{name}: a lambda gets a name, use def: {ast.unparse(node)}")
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(node, block, None)
                lines = [one.lineno for one in statements] if isinstance(statements, list) else []
                if len(lines) != len(set(lines)):
                    found.append(f"{name}: two statements stand on line {max(lines, key=lines.count)}")
    return found


def joined_claims(notebook: NotebookNode) -> list[str]:
    """Return assertions that state several claims: joined by `and`, or by a chain of equalities."""
    found = []
    for name, tree in _trees(notebook):
        for node in ast.walk(tree):
            test = node.test if isinstance(node, ast.Assert) else None
            equal = [op for op in getattr(test, "ops", []) if isinstance(op, ast.Eq | ast.Is)]
            if (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)) or len(equal) > 1:
                found.append(f"{name}: several claims in one assertion: {ast.unparse(test)}")
    return found


def unnamed_guards(notebook: NotebookNode) -> list[str]:
    """Return conditions that list kinds of devices: a guard has a name, such as HAS_QUEUE."""
    return [
        f"{name}: a guard without a name: {ast.unparse(node)}"
        for name, tree in _trees(notebook)
        for parent in ast.walk(tree)
        for node in [getattr(parent, "test", None)]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        and ast.unparse(node.left).endswith(".type") and isinstance(node.comparators[0], ast.Tuple)
    ]  # fmt: skip


def wide_lines(notebook: NotebookNode) -> list[str]:
    """Return lines of code that are wider than a page shows; the set-up cell is the same everywhere."""
    return [
        f"{cell.id}: {len(line)} columns: {line.strip()[:60]}…"
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.id != "set-up"
        for line in cell.source.splitlines()
        if len(line) > WIDTH
    ]


# Of a text and a number that a simulated output beside it repeats: what the number is, if not a result
GIVEN = {
    ("throughput", "1024"): "a size that the cell tries",
    ("small-products", "64"): "a size that the cell tries",
    ("tf32-text", "2020"): "a year, and a share of seconds",
    ("waits-notice", "151"): "the parameters of the program",
    ("waits-notice", "256"): "the batch of the program",
    ("cheapest-text", "2.5"): "a price in an example",
    ("test-notice", "12"): "a limit that the reader sets",
    ("workspace", "14.9"): "16 bytes for each of 10⁹ parameters, in GiB",
    ("peek-text", "5.5"): "ln 256",
    ("waves-text", "108"): "the multiprocessors of an A100",
    ("pipelines-deeper-text", "27"): "3 of 11 slots",
    ("shard-text", "16"): "the bytes of a parameter",
    ("room-text", "1.5"): "what the cell leaves free",
}
_NUMBER = re.compile(r"(?<![\w.,`/])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
_NO_RESULT = re.compile(r"\]\([^)]*\)|About \d+ lines?, \d+ minutes|\b\d+ bits?\b")  # addresses, exercises, formats
_OF_THE_CLOCK = re.compile("simulated|predicted|what_if|forecast")
_NEAR = range(-3, 7)  # cells around the one that prints


def repeated_results(notebook: NotebookNode) -> list[str]:
    """Return (cell, number) where a text repeats a number that a simulated device printed: on a real one it is another.

    So do texts that round it to two or three digits. Numbers of one digit are left out, and those that stand in the
    code.
    """
    lines = []
    for at, cell in enumerate(notebook.cells):
        printed = _printed(cell)
        results = set(_NUMBER.findall(printed)) if _OF_THE_CLOCK.search(printed + cell.source) else set()
        results |= {f"{float(one):.{digits}g}" for one in results if "." in one for digits in (2, 3) if "," not in one}
        for near in [at + step for step in _NEAR if 0 <= at + step < len(notebook.cells)]:
            text = notebook.cells[near]
            if text.cell_type != "markdown":
                continue
            told = set(_NUMBER.findall(_NO_RESULT.sub("", text.source))) & results
            lines += [
                f"{text.id}: {number}" for number in sorted(told)
                if len(re.sub(r"\D", "", number).strip("0")) > 1 and number not in cell.source
                and (text.id, number) not in GIVEN
            ]  # fmt: skip
    return lines


def _printed(cell: NotebookNode) -> str:
    """Return the text of what a code cell has stored."""
    outputs = cell.get("outputs", [])
    return "\n".join("".join(one.get("text", "") or one.get("data", {}).get("text/plain", "")) for one in outputs)


RULES = (folded_imports, folded_calls, crowded_lines, joined_claims, unnamed_guards, wide_lines)


def main(paths: list[str]) -> int:
    """Print what breaks a rule in the notebooks at `paths`, or in all lessons; return 1 if anything does."""
    total = 0
    for path in [Path(one) for one in paths] or notebooks.lessons():
        notebook = notebooks.read(path)
        for rule in RULES:
            broken = rule(notebook)
            total += len(broken)
            print(f"{path.name}: {rule.__name__}: {len(broken)}", *(f"    {line}" for line in broken), sep="\n")
    return int(total > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
