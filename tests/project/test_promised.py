"""Does what README, CONTRIBUTING.md, environment.yml and docs tell people to type work, typed so?"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import notebooks

ROOT = notebooks.ROOT
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "environment.yml")]
PAGES += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "engines").glob("*/README.md")]
PROGRAM = r"(?:cd [\w/]+ && )?(?:make|pytest|python|conda env|jupyter lab)\b"
COMMAND = re.compile(rf"`({PROGRAM}[^`\n]*)`|^({PROGRAM} .*?)(?: +#.*)?$", re.MULTILINE)
PROMISED = sorted({one or two for page in PAGES for one, two in COMMAND.findall(page.read_text(encoding="utf-8"))})
TESTS = [command for command in PROMISED if "pytest" in command and "simgpu.pytest" not in command]  # for others
# What a run of pytest sets for what it starts, or somebody set for it: nobody who types a command has it.
SET = re.compile(r"PYTEST_|COURSE_|OMP_NUM_THREADS$|IPYTHONDIR$|CUDA_VISIBLE_DEVICES$|MPLBACKEND$|JPY_")


def typed(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return how a command line ended that somebody typed in `folder`, in this environment of Python."""
    found = {name: value for name, value in os.environ.items() if not SET.match(name)}
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return subprocess.run(
        command, shell=True, cwd=folder, env=found | environment, capture_output=True, text=True, encoding="utf-8",
        errors="replace", timeout=1800, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The course with a small lesson and a small test of an engine, in a folder whose name few would choose."""
    made = tmp_path_factory.mktemp("typed") / "an öld course"
    left = shutil.ignore_patterns(
        ".*", "__pycache__", "build", "dist", "workbook", "docs", "notebooks", "test_*", "gpu_course"
    )
    shutil.copytree(ROOT, made, ignore=left)
    (made / "notebooks").mkdir()
    cells = [
        notebooks.SETUP,
        "import torch\n\nx = torch.ones(3, device=devices.pick())\nprint(x.sum().item())",
        "assert x.sum() == 3",
    ]
    code = [nbformat.v4.new_code_cell(source, execution_count=at) for at, source in enumerate(cells, start=1)]
    code[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="3.0\n")]
    write(made, "01_small", code)
    (made / "tests" / "simgpu" / "test_small.py").write_text("def test_sum(sim):\n    assert sim.type == 'sim'\n")
    return made


def write(tree: Path, name: str, cells: list[nbformat.NotebookNode]) -> Path:
    """Write a notebook in its canonical form."""
    path = tree / "notebooks" / f"{name}.ipynb"
    notebooks.write(path, notebooks.canonical(nbformat.v4.new_notebook(cells=cells)))
    return path


def green(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether tests ran, and all of them passed."""
    return done.returncode == 0 and re.search(r"\b[1-9]\d* passed", done.stdout) is not None


def test_what_pages_name_is_there():
    assert {"make test", "pytest --nbval notebooks", "cd engines/simgpu && pytest"} <= {*PROMISED}
    assert len(PROMISED) > 50 and len(TESTS) >= 4
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in PROMISED:
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert words[1] in targets, command
        elif words[:2] == ["python", "-m"]:
            assert words[2] == "benchmarks.NAME" or importlib.util.find_spec(words[2]), command
        elif words[0] == "python":
            assert (ROOT / words[1]).exists(), command


def test_every_lesson_is_a_test_as_the_readme_types_it(tree):
    done = typed("pytest --nbval notebooks", tree)
    assert green(done) and "3 passed" in done.stdout, done.stdout + done.stderr


def test_in_the_folder_of_the_lessons_on_the_cpu_with_threads(tree):
    done = typed("pytest --nbval", tree / "notebooks", COURSE_DEVICE="cpu", OMP_NUM_THREADS="3")
    assert green(done) and "stored outputs not compared" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", TESTS)
def test_each_command_that_runs_tests(tree, command):
    done = typed(command, tree)
    assert green(done), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("where", "command", "device", "threads"), [
    ("here", "pytest --nbval notebooks/01_small.ipynb", "sim", "4"),
    ("here", "pytest --nbval-lax -n 2 notebooks", "cpu", "2"),
    ("here/notebooks", "pytest --nbval -n 2", "sim", "3"),
    ("here/notebooks", "pytest --nbval-lax 01_small.ipynb", "sim", "1"),
    ("elsewhere", "pytest --nbval-lax ../here/notebooks", "sim", "2"),
    ("elsewhere", "pytest --nbval -n 2 ../here/notebooks/01_small.ipynb", "cpu", "4"),
])  # fmt: skip
def test_from_any_place_on_any_workers_device_and_threads(tree, where, command, device, threads):
    places = {"here": tree, "here/notebooks": tree / "notebooks", "elsewhere": tree.with_name("elsewhere")}
    places[where].mkdir(exist_ok=True)
    done = typed(command.replace("../here", f'"{tree}"'), places[where], COURSE_DEVICE=device, OMP_NUM_THREADS=threads)
    assert green(done), done.stdout + done.stderr


@pytest.mark.slow
def test_another_output_is_red_where_outputs_are_compared(tree):
    cell = nbformat.v4.new_code_cell("print(1)", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    lesson = write(tree, "02_differs", [cell])
    try:
        assert "1 failed" in typed(f"pytest --nbval {lesson.name}", lesson.parent).stdout
        assert green(typed(f"pytest --nbval-lax {lesson.name}", lesson.parent))
    finally:
        lesson.unlink()


@pytest.mark.slow
def test_all_lessons():
    done = typed("pytest --nbval notebooks", ROOT)
    timed = re.findall(r"^ *[\d.]+ s  \S+\.ipynb", done.stdout, re.MULTILINE)
    assert green(done) and len(timed) == len(notebooks.lessons())
