"""Do the storeys stand: each on those below, no circles, and nothing taken past a door? `walls` reads the texts."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import networkx
import pytest

from tests.notebooks import walls
from tools import notebooks

ROOT = notebooks.ROOT
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
SAMPLE = (ROOT / "tests" / "samples" / "past_the_doors.py").read_text(encoding="utf-8")
COPIED = ("arguments", "places", "tables")
GENERIC = ("text",)  # of a table, and of an argument
LESSONS = [path for path in walls.texts("notebooks") if path.endswith(".ipynb")]


# ---- imports --------------------------------------------------------------------------------------------------------
def lint(folder: Path) -> str:
    """Return what lint-imports says of the packages in `folder`; its exit status stands first."""
    program = Path(sys.executable).with_name("lint-imports")
    command = [program, "--config", ROOT / "pyproject.toml", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    return f"{done.returncode} {done.stdout}{done.stderr}"


PLANTED = {  # what each file may not import, and how the contract says it
    "simgpu/machine/gpus.py": ("course_utils.plots", "simgpu.machine.gpus -> course_utils.plots"),
    "ranklaunch/places.py": ("simgpu", "ranklaunch.places -> simgpu"),
    "kernelcheck/tables.py": ("ranklaunch", "kernelcheck.tables -> ranklaunch"),
    "simgpu/ground/tables.py": ("kernelcheck", "simgpu.ground.tables -> kernelcheck"),
    "simgpu/ground/units.py": ("simgpu.machine.gpus", "simgpu.ground.units -> simgpu.machine.gpus"),
    "simgpu/machine/cluster.py": ("simgpu.clock.clock", "simgpu.machine.cluster -> simgpu.clock.clock"),
    "simgpu/clock/clock.py": ("simgpu.accounting.ledger", "simgpu.clock.clock -> simgpu.accounting.ledger"),
    "simgpu/accounting/owners.py": ("simgpu.device.state", "simgpu.accounting.owners -> simgpu.device.state"),
    "simgpu/device/ranks.py": ("simgpu.forecasts.forecast", "simgpu.device.ranks -> simgpu.forecasts.forecast"),
    "simgpu/forecasts/workspaces.py": ("simgpu.reports.text", "simgpu.forecasts.workspaces -> simgpu.reports.text"),
    "simgpu/reports/text.py": ("simgpu.face.smi", "simgpu.reports.text -> simgpu.face.smi"),
    "simgpu/face/smi.py": ("simgpu.reports.text", "simgpu.face.smi -> simgpu.reports.text"),  # it does not install
    "kernelcheck/faults.py": ("kernelcheck.triton.memory", "kernelcheck.faults -> kernelcheck.triton.memory"),
    "kernelcheck/triton/memory.py": ("kernelcheck.cuda.gpu", "kernelcheck.triton.memory -> kernelcheck.cuda.gpu"),
    "course_utils/gpus.py": ("gpu_course.progress", "course_utils.gpus -> gpu_course.progress"),
    "course_utils/explain.py": ("course_utils.gpus", "course_utils.explain -> course_utils.gpus"),  # its neighbour
    "gpu_course/predict.py": ("gpu_course.catalogue", "gpu_course.predict -> gpu_course.catalogue"),
    "gpu_course/lesson00/__init__.py": ("gpu_course.lesson01", "gpu_course.lesson00 -> gpu_course.lesson01"),
}


@pytest.mark.needs("lint-imports")
def test_each_storey_and_each_room_uses_only_those_below(tmp_path):
    for name in walls.STOREYS:
        folder = ROOT / "engines" / name / name if name in walls.ENGINES else ROOT / name
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert (said := lint(tmp_path)).startswith("0 "), said
    for name, (module, _) in PLANTED.items():
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(f"\n\ndef late():\n    import {module}\n")
    said = lint(tmp_path)
    assert said.startswith("1 ") and [told for _, told in PLANTED.values() if told not in said] == []


def test_no_room_of_simgpu_asks_for_the_name_of_a_module_above_it():
    """Which import contracts cannot see, as in `frame.f_globals["__name__"] == "simgpu.face.factories"`."""
    (contract,) = [one for one in CONTRACTS if one.get("containers") == ["simgpu"]]
    height = {name.strip(): at for at, layer in enumerate(contract["layers"]) for name in layer.split("|")}
    named = []
    for path, text in walls.texts("simgpu").items():
        room = Path(path).relative_to("engines/simgpu/simgpu").parts[0].removesuffix(".py")
        quoted = re.findall(r"""["']simgpu\.(\w+)[\w.]*["']""", text) if room in height else []
        named += [f"{path}: {other}" for other in quoted if other in height and height[other] < height[room]]
    assert len(height) > 8 and named == []


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    graph = networkx.DiGraph([(user, used) for user, found in imports.items() for used in found])
    return [group for group in networkx.strongly_connected_components(graph) if len(group) > 1]


@pytest.mark.needs("grimp")
def test_no_modules_import_each_other():
    import grimp

    graph = grimp.build_graph(*walls.STOREYS, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 150 and {name.split(".")[0] for name in imports} == set(walls.STOREYS)
    assert circles(imports) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


# ---- doors ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("top", [*walls.STOREYS, "notebooks", "tools"])
def test_what_is_taken_is_what_a_door_shows(top):
    """From another storey and, in course_utils and gpu_course, from another room."""
    texts = walls.texts(top)
    taken = {path: walls.forbidden(text, walls.home_of(path)) for path, text in texts.items()}
    assert len(taken) > 7 and {path: found for path, found in taken.items() if found} == {}


@pytest.mark.parametrize("top", ["benchmarks", "tests"])
def test_only_the_tests_of_an_engine_look_inside_it(top):
    """What tries or measures a room of the course may look into the room."""
    texts = {path: text for path, text in walls.texts(top).items() if not path.startswith("tests/samples")}
    taken = {path: walls.forbidden(text, walls.home_of(path), walls.ENGINES) for path, text in texts.items()}
    assert len(taken) > 10 and {path: found for path, found in taken.items() if found} == {}
    assert {walls.home_of(path) for path in texts} == ({"", *walls.ENGINES} if top == "tests" else {""})


def test_every_way_past_a_door_is_found():
    said = {number: line.partition("  # past: ")[2] for number, line in enumerate(SAMPLE.splitlines(), 1)}
    expected = [f"{number}: {what}" for number, names in said.items() for what in names.split(", ") if what]
    assert len(expected) > 20 and walls.forbidden(SAMPLE) == expected


def test_a_text_may_use_its_own_room_and_its_own_engine():
    own = "from simgpu.accounting.accounts import Gpu\nfrom simgpu.device import enabling\n"
    own += "print(enabling.world()._inner, Gpu._x)"
    assert walls.forbidden(own, "simgpu") == [] and len(walls.forbidden(own)) > 2
    room = "from course_utils.memory.budgets import Limited\nprint(Limited._x)"
    assert walls.forbidden(room, "course_utils.memory") == []
    assert walls.forbidden(room, "course_utils.timing") == ["1: course_utils.memory.budgets.Limited"]
    assert walls.forbidden("import simgpu\nprint(simgpu.__file__, simgpu.ledger.Ledger, simgpu.gpus.get('T4'))") == []


def test_an_engine_shows_what_it_has_and_explains_it():
    """Each name of a door is there; each function and class behind it has a docstring, public modules have doors."""
    for engine in walls.ENGINES:
        package, names = importlib.import_module(engine), walls.shown(engine)
        things = {f"{engine}.{name}": getattr(package, name) for name in names}
        for module in [one for one in things.values() if inspect.ismodule(one)]:
            assert hasattr(module, "__all__"), module
            things |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
        told = [thing for thing in things.values() if inspect.isfunction(thing) or inspect.isclass(thing)]
        assert told and [name for name, thing in things.items() if thing in told and not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("path", LESSONS)
def test_lessons_import_rooms_and_nothing_deeper(path):
    text = walls.texts("notebooks")[path]
    used = {name for name in walls.taken(text).values() if name.startswith("course_utils.")}
    assert walls.forbidden(text) == [] and used
    assert {name.split(".")[1] for name in used} <= walls.rooms("course_utils")


NAMES = re.compile(r"(?<!of )\b(?:the|this|a) course\b|\bcourse[-_]|\bgpu_course\b|\blessons?\b", re.IGNORECASE)


def naming(text: str) -> list[str]:
    """Return the words in which a text speaks of the course."""
    return NAMES.findall(text)


def test_no_file_of_an_engine_names_the_course():
    """Its documents included. The sample shows that each way to name it is found."""
    paths = [path for path in (ROOT / "engines").rglob("*") if path.suffix in (".py", ".toml", ".h", ".md", ".json")]
    paths = [path for path in paths if not {"build", "dist", ".venv"} & {*path.parts}]
    named = {str(path.relative_to(ROOT)): naming(path.read_text(encoding="utf-8")) for path in paths}
    assert len(paths) > 100 and {path: words for path, words in named.items() if words} == {}
    sample = "as this course says, course_utils has it; lesson 05, gpu_course and COURSE_LAUNCH; of course not"
    assert len(naming(sample)) == 5


def test_what_stands_in_several_storeys_under_one_name_is_the_same():
    """An engine stands alone, so three small modules stand in several: what two of them call the same, is the same."""
    found: dict[str, dict[str, str]] = {}
    for top in ("course_utils", *walls.ENGINES):
        for path, text in walls.texts(top).items():
            for node in ast.parse(text).body if Path(path).stem in COPIED else ():
                for name in [getattr(node, "name", None)] if hasattr(node, "name") else _assigned(node):
                    key = f"{Path(path).stem if name in GENERIC else ''}{name}"
                    found.setdefault(key, {})[path] = ast.unparse(node)
    several = {name: texts for name, texts in found.items() if len(texts) > 1}
    assert {"number", "device", "cell", "_UNITS"} <= several.keys()
    assert {name: [*texts] for name, texts in several.items() if len({*texts.values()}) > 1} == {}


def _assigned(node: ast.stmt) -> list[str]:
    """Return the names that a statement gives values, but for a module's door."""
    names = [one.id for one in getattr(node, "targets", []) if isinstance(one, ast.Name)]
    return [name for name in names if name != "__all__"]


# ---- the small helper -----------------------------------------------------------------------------------------------
def test_each_room_of_course_utils_is_called_by_a_lesson_or_shared_by_rooms():
    """The lowest rooms that no lesson calls (arguments of all, tables, a setting of torch) each serve two others."""
    texts = walls.texts("notebooks")
    called = {name for path in LESSONS for name in walls.taken(texts[path]).values()}
    shared = walls.rooms("course_utils") - {name.split(".")[1] for name in called if name.startswith("course_utils.")}
    above = {**walls.texts("course_utils"), **walls.texts("gpu_course")}
    uses = {path: {name for name in walls.taken(text).values()} for path, text in above.items()}
    users = {room: {walls.home_of(path) for path in uses if f"course_utils.{room}" in uses[path]} for room in shared}
    (contract,) = [one for one in CONTRACTS if one.get("containers") == ["course_utils"]]
    assert shared <= {room.strip() for room in contract["layers"][-1].split("|")}
    assert {room: len(found) for room, found in users.items() if len(found) < 2} == {}
    assert sum(len(text.splitlines()) for path, text in above.items() if Path(path).stem in shared) < 300


def test_a_file_of_code_opens_with_what_it_is_and_not_with_a_question():
    """Rooms and explorers keep the question that they answer; the site shows that of an explorer."""
    texts = {path: text for top in (*walls.STOREYS, *walls.ENGINES) for path, text in walls.texts(top).items()}
    opened = {path: (ast.get_docstring(ast.parse(text)) or "?").partition("\n\n")[0] for path, text in texts.items()
              if not path.endswith("__init__.py") and "explorers" not in path}  # fmt: skip
    assert len(opened) > 300
    assert [path for path, said in opened.items() if "?" in said and not said.startswith("The exercise “")] == []


def test_no_file_of_a_storey_says_not_here():
    names = {path.name for top in walls.STOREYS for path in map(Path, walls.texts(top))}
    assert len(names) > 100 and {name for name in names if name.startswith("_")} == {"__init__.py", "__main__.py"}
