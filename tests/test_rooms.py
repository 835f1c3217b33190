"""Does the plan of course_utils hold: layers, no circles, and nothing taken from inside another room?"""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import networkx
import pytest

from tools import notebooks

PACKAGE = notebooks.ROOT / "course_utils"
CONTRACTS = tomllib.loads((notebooks.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]


def lint(folder: Path) -> str:
    """Return what lint-imports says of the package in `folder`; its exit status stands first."""
    command = [Path(sys.executable).with_name("lint-imports"), "--config", notebooks.ROOT / "pyproject.toml"]
    command += ["--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_each_room_uses_only_rooms_below_it(tmp_path):
    assert lint(notebooks.ROOT).startswith("0 ")
    shutil.copytree(PACKAGE, tmp_path / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    assert lint(tmp_path).startswith("0 ")
    table = tmp_path / "course_utils" / "gpus.py"
    text = table.read_text(encoding="utf-8")
    for forbidden in ("def late():\n    from course_utils import progress\n", "from course_utils import explain\n"):
        table.write_text(f"{text}\n\n{forbidden}", encoding="utf-8")
        assert lint(tmp_path).startswith("1 ") and "gpus" in lint(tmp_path)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    graph = networkx.DiGraph([(user, used) for user, found in imports.items() for used in found])
    return [group for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def test_no_modules_import_each_other():
    graph = grimp.build_graph("course_utils", exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 60 and circles(imports) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def rooms() -> set[str]:
    """Return the names of the rooms, as the contract lists them."""
    (contract,) = CONTRACTS["contracts"]
    return {room.strip(" ()") for layer in contract["layers"] for room in layer.split("|")}


def deep(text: str, room: str = "") -> list[str]:
    """Return the modules inside other rooms than `room` that a program imports."""
    nodes = list(ast.walk(ast.parse(text)))
    found = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    found += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    parts = [name.split(".") for name in found]
    return [".".join(path) for path in parts if path[0] == "course_utils" and len(path) > 2 and path[1] != room]


def test_rooms_take_from_other_rooms_only_what_their_front_door_gives():
    files = list(PACKAGE.rglob("*.py"))
    inside = [(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path) for path in files]
    assert len(files) > 60
    assert [
        (path.name, found) for room, path in inside if (found := deep(path.read_text(encoding="utf-8"), room))
    ] == []
    assert deep("from course_utils.memory.ledger import Ledger\nimport course_utils.gpus", "timing") == [
        "course_utils.memory.ledger"
    ]


@pytest.mark.parametrize("path", notebooks.lessons(), ids=lambda path: path.stem)
def test_lessons_import_rooms_and_nothing_deeper(path):
    cells = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    text = "\n".join(
        line for cell in cells for line in cell.splitlines() if "course_utils" in line and "import " in line
    )
    lines = "\n".join(line.strip() for line in text.splitlines())
    used = {
        name.name
        for node in ast.walk(ast.parse(lines))
        if isinstance(node, ast.ImportFrom) and node.module == "course_utils"
        for name in node.names
    }
    assert deep(lines) == [] and used and used <= rooms()


def test_no_name_says_not_here():
    names = [path.name for path in PACKAGE.rglob("*") if path.name != "__pycache__" and path.suffix != ".pyc"]
    assert len(names) > 60
    assert [name for name in names if name.startswith("_") and name != "__init__.py"] == []
