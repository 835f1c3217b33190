"""Which branches of the course does CUDA, or MPS or XPU, take and the simulated GPU not, and which did a run take?

`marked` rewrites a text so that each such branch writes its name to a file when it runs.
"""

import ast
import json
import re
from pathlib import Path

FILE = "COURSE_BRANCHES"  # the variable of the environment that names the file
_MARK = f"""
def _mark_branch(name):
    import os
    with open(os.environ["{FILE}"], "a", encoding="utf-8") as file:
        file.write(name + "\\n")
"""


KINDS = frozenset({"cpu", "cuda", "meta", "mps", "sim", "xpu"})
_ASKED = re.compile(r"torch\.(?:backends\.)?(cuda|mps|xpu)\.is_available\(\)")
_NAMED = re.compile(r"\b(\w*type|kind)$")  # what a kind of device is compared with ends in


def answer(test: ast.expr, kind: str, names: dict[str, ast.expr]) -> bool | None:
    """Return what a condition says where the device is of this kind, None where that alone does not decide.

    `names` are those of conditions, with what they were assigned.
    """
    if isinstance(test, ast.Name) and test.id in names:
        known = {name: value for name, value in names.items() if name != test.id}
        return answer(names[test.id], kind, known)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = answer(test.operand, kind, names)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decides = isinstance(test.op, ast.Or)  # one such part decides the whole
        parts = [answer(value, kind, names) for value in test.values]
        return decides if decides in parts else None if None in parts else not decides
    if isinstance(test, ast.Call):
        asked = _ASKED.fullmatch(ast.unparse(test))
        return kind == asked[1] if asked else None
    return _compared(test, kind) if isinstance(test, ast.Compare) and len(test.ops) == 1 else None


def _compared(test: ast.Compare, kind: str) -> bool | None:
    left, (operator,), (right,) = ast.unparse(test.left), test.ops, test.comparators
    if left == "torch.cuda.device_count()" and isinstance(operator, ast.Gt | ast.GtE | ast.Eq) and kind != "cuda":
        return False
    listed = right.elts if isinstance(right, ast.Tuple | ast.Set | ast.List) else [right]
    words = {node.value if isinstance(node, ast.Constant) else None for node in listed}
    if not words <= KINDS or not _NAMED.search(left):
        return None
    if isinstance(operator, ast.Eq | ast.In):
        return kind in words
    return kind not in words if isinstance(operator, ast.NotEq | ast.NotIn) else None


class _Marker(ast.NodeTransformer):
    def __init__(self, where: str, names: dict[str, ast.expr], kind: str) -> None:
        self.names, self.found, self._place, self._kind = names, [], [where], kind

    def _inside(self, node: ast.AST) -> ast.AST:
        self._place.append(node.name)
        self.generic_visit(node)
        self._place.pop()
        return node

    visit_FunctionDef = visit_ClassDef = _inside

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if any(answer(node.value, kind, self.names) is not None for kind in (self._kind, "sim")):
            self.names.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        for side, mark in self._marks(node.test).items():
            block = getattr(node, side)
            block.insert(0, ast.copy_location(ast.Expr(mark), node))
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        for side, mark in self._marks(node.test).items():
            both = ast.Tuple([mark, getattr(node, side)], ast.Load())
            setattr(node, side, ast.Subscript(both, ast.Constant(1), ast.Load()))
        return self.generic_visit(node)

    def _marks(self, test: ast.expr) -> dict[str, ast.Call]:
        """Return a call that says its name for each side of a condition that the kind takes and `sim` does not."""
        sides = {"body": False, "orelse": True}
        takes = {side: answer(test, "sim", self.names) is skips for side, skips in sides.items()}
        wanted = [
            side for side, skips in sides.items() if takes[side] and answer(test, self._kind, self.names) is not skips
        ]
        return {side: self._name(test, " else" * (side == "orelse")) for side in wanted}

    def _name(self, test: ast.expr, side: str) -> ast.Call:
        name = f"{'.'.join(self._place)}: {ast.unparse(test)}{side}"
        again = sum(other.partition(" #")[0] == name for other in self.found)
        self.found.append(f"{name} #{again + 1}" if again else name)
        return ast.Call(ast.Name("_mark_branch", ast.Load()), [ast.Constant(self.found[-1])], [])


def marked(text: str, where: str, names: dict[str, ast.expr], kind: str = "cuda") -> tuple[str, list[str]]:
    """Return a Python text in which each branch for a kind of device says its name, `where: condition`, and the names.

    `names`, of conditions, grows by those that the text assigns. A text without such a branch stays as it is.
    """
    tree = ast.parse(text)
    marker = _Marker(where, names, kind)
    tree = ast.fix_missing_locations(marker.visit(tree))
    if not marker.found:
        return text, []
    first = bool(ast.get_docstring(tree)) + sum(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    tree.body[first:first] = ast.parse(_MARK).body
    return ast.unparse(tree), marker.found


def mark_notebook(path: Path, kind: str = "cuda") -> list[str]:
    """Mark the branches of a notebook in its place; return their names, `lesson:cell: condition`."""
    content, names, found = json.loads(path.read_text(encoding="utf-8")), {}, []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        magic = any(line.lstrip().startswith(("%", "!")) for line in source.splitlines())
        if cell["cell_type"] != "code" or magic:
            continue
        cell["source"], here = marked(source, f"{path.stem.partition('_')[0]}:{cell['id']}", names, kind)
        found += here
    path.write_text(json.dumps(content), encoding="utf-8")
    return found


def mark_tree(root: Path, kind: str = "cuda") -> list[str]:
    """Mark the branches of the helper, of what stands behind the lessons, and of their programs, in their places."""
    found = []
    for folder in ("course_utils", "gpu_course", "notebooks/programs"):
        for path in sorted((root / folder).rglob("*.py")):
            text, here = marked(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix(), {}, kind)
            if here:
                path.write_text(text, encoding="utf-8")
            found += here
    return found
