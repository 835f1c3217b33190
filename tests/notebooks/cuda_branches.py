"""Which branches of the course run on CUDA alone, and which of them did a run go through?

`marked` rewrites a text so that each such branch writes its name to a file when it runs.
"""

import ast
import json
from pathlib import Path

FILE = "COURSE_BRANCHES"  # the variable of the environment that names the file
_MARK = f"""
def _mark_branch(name):
    import os
    with open(os.environ["{FILE}"], "a", encoding="utf-8") as file:
        file.write(name + "\\n")
"""


def for_cuda_alone(test: ast.expr, names: set[str]) -> bool:
    """Return whether a condition holds on CUDA and on no simulated GPU; `names` stand for such conditions."""
    if isinstance(test, ast.Name):
        return test.id in names
    if isinstance(test, ast.BoolOp):
        return any(for_cuda_alone(value, names) for value in test.values)
    if isinstance(test, ast.Call):
        return ast.unparse(test) == "torch.cuda.is_available()"
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.In):
        words = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
        return "cuda" in words and "sim" not in words and "type" in ast.unparse(test.left)
    return False


class _Marker(ast.NodeTransformer):
    def __init__(self, where: str, names: set[str]) -> None:
        self.where, self.names, self.found = where, names, []

    def _name(self, node: ast.AST) -> ast.Call:
        self.found.append(f"{self.where}:{node.lineno}")
        return ast.Call(ast.Name("_mark_branch", ast.Load()), [ast.Constant(self.found[-1])], [])

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if targets and for_cuda_alone(node.value, self.names):
            self.names.update(targets)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if for_cuda_alone(node.test, self.names):
            node.body.insert(0, ast.copy_location(ast.Expr(self._name(node)), node.body[0]))
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if for_cuda_alone(node.test, self.names):
            both = ast.Tuple([self._name(node), node.body], ast.Load())
            node.body = ast.Subscript(both, ast.Constant(1), ast.Load())
        return self.generic_visit(node)


def marked(text: str, where: str, names: set[str], head: str = _MARK) -> tuple[str, list[str]]:
    """Return a Python text in which each branch for CUDA alone says its name, `where:line`, and the names.

    `names`, of conditions, grows by those that the text assigns. A text without such a branch stays as it is.
    """
    tree = ast.parse(text)
    marker = _Marker(where, names)
    tree = ast.fix_missing_locations(marker.visit(tree))
    if not marker.found:
        return text, []
    first = bool(ast.get_docstring(tree)) + sum(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    tree.body[first:first] = ast.parse(head).body
    return ast.unparse(tree), marker.found


def mark_notebook(path: Path) -> list[str]:
    """Mark the branches of a notebook in its place; return their names, `lesson:cell:line`."""
    content, names, found = json.loads(path.read_text(encoding="utf-8")), set(), []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        magic = any(line.lstrip().startswith(("%", "!")) for line in source.splitlines())
        if cell["cell_type"] != "code" or magic:
            continue
        cell["source"], here = marked(source, f"{path.stem.partition('_')[0]}:{cell['id']}", names)
        found += here
    path.write_text(json.dumps(content), encoding="utf-8")
    return found


def mark_tree(root: Path) -> list[str]:
    """Mark the branches of the helper, of what stands behind the lessons, and of their programs, in their places."""
    found = []
    for folder in ("course_utils", "gpu_course", "notebooks/programs"):
        for path in sorted((root / folder).rglob("*.py")):
            text, here = marked(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix(), set())
            if here:
                path.write_text(text, encoding="utf-8")
            found += here
    return found
