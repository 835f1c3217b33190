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
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--config",
        notebooks.ROOT / "pyproject.toml",
        "--no-cache",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_each_room_uses_only_rooms_below_it(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    assert (said := lint(tmp_path)).startswith("0 "), said
    late, neighbour = "def late():\n    from course_utils import progress", "from course_utils import gpus"
    for name, line in {"gpus.py": late, "explain.py": neighbour}.items():
        with (tmp_path / "course_utils" / name).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{line}\n")
    said = lint(tmp_path)
    assert said.startswith("1 ") and "gpus -> gpu_course.progress" in said and "explain -> course_utils.gpus" in said


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


def imported(text: str) -> list[str]:
    """Return what a program imports from the course: each name behind its module, or `*` where it takes a module."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Import):
            names += [f"{one.name}.*" for one in node.names]
    return [name for name in names if name.startswith("course_utils.")]


def deep(text: str, room: str = "") -> list[str]:
    """Return what a program imports from inside other rooms than `room`."""
    return [name for name in imported(text) if name.count(".") > 2 and name.split(".")[1] != room]


def test_rooms_take_from_other_rooms_only_what_their_front_door_gives():
    texts = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    taken = {path: deep(text, path.parts[0].removesuffix(".py")) for path, text in texts.items()}
    assert len(taken) > 60 and {path: found for path, found in taken.items() if found} == {}
    inside = "from simgpu.ledger import Ledger\nimport course_utils.gpus"
    assert deep(inside, "timing") == ["simgpu.ledger.Ledger"] and deep(inside, "memory") == []


@pytest.mark.parametrize("path", notebooks.lessons(), ids=lambda path: path.stem)
def test_lessons_import_rooms_and_nothing_deeper(path):
    cells = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    lines = [
        line.strip() for cell in cells for line in cell.splitlines() if "course_utils" in line and "import " in line
    ]
    used = {name.split(".")[1] for name in imported("\n".join(lines))} - {"*"}
    assert deep("\n".join(lines)) == [] and used and used <= rooms()


def test_no_name_says_not_here():
    names = {path.name for path in PACKAGE.rglob("*") if path.suffix != ".pyc"}
    assert len(names) > 60 and {name for name in names if name.startswith("_")} <= {"__init__.py", "__pycache__"}
