"""Does a new lesson touch its own files and five others, is an exercise three by hand, and do the gates accept both?"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests import kernels
from tests.notebooks.test_notebooks import broken
from tools import notebooks

ROOT = notebooks.ROOT
NUMBER = (
    f"{len([path for path in notebooks.lessons() if notebooks.number(path).isdecimal()]):02d}"  # the first free one
)
LAST = [path.name for path in notebooks.lessons() if notebooks.number(path).isdecimal()][-1]
OTHERS = {"README.md", "gpu_course/misconceptions.toml", "gpu_course/ways.toml", "notebooks/00_start_here.ipynb"}
OTHERS |= {f"notebooks/{LAST}"}
SAMPLES = ROOT / "tests" / "samples"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "workbook", "build", "dist")
# The tests that look at lessons and exercises from outside, and those of the lesson and of the exercise themselves.
GATES = [f"tests/notebooks/test_{name}.py" for name in ("notebooks", "plain", "glossary", "storeys", "site")]
GATES += [f"tests/gpu_course/test_{name}.py" for name in ("misconceptions", "recall", "wrong_answers", "right_answers")]
CHOSEN = (
    f"{NUMBER} or 00_start or clip or readme or names or links or there or same or three or contents or slides or plans"
    " or belongs or leads or comes_back or asks or storey or every_exercise or shows_progress"
)
TEXT = """## Exercise: clip on the device

Write `clip`: about 1 line, 5 minutes, difficulty 1. `clip(tensor([3., -0.5]), 1.0)` returns `tensor([1.0, -0.5])`."""


def changed(folder: Path, before: Path) -> set[str]:
    """Return the files under `folder` that are new, or differ from those under `before`, as paths with slashes."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {
        name
        for name, path in names.items()
        if not (before / name).is_file() or path.read_bytes() != (before / name).read_bytes()
    }


def own(name: str) -> bool:
    """Return whether a file belongs to the new lesson."""
    return name.startswith((f"notebooks/{NUMBER}_", f"gpu_course/lesson{NUMBER}/"))


def test_a_new_lesson_passes_every_gate_once_it_is_executed_and_takes_a_free_number(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(nbclient, "NotebookClient", kernels.client)  # what runs here is no lesson
    lessons = {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")}
    for name in {*OTHERS, *lessons, "docs/own_program.md"}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert notebooks.main(["--new", "Memory, at last"]) == 0
    path = tmp_path / "notebooks" / f"{NUMBER}_memory_at_last.ipynb"
    assert {name for name in changed(tmp_path, ROOT) if not own(name)} == OTHERS
    notebooks.write(path, notebooks.execute(path, {}))
    assert broken(path) == set()
    cells = notebooks.read(path).cells
    links = f"Previous: [{notebooks.title(tmp_path / 'notebooks' / LAST)}]({LAST})"
    assert cells[0].source.endswith(links) and cells[-2].source.endswith(links)
    row = f"| [{NUMBER} Memory, at last](notebooks/{path.name}) | … |"
    assert row in (tmp_path / "README.md").read_text(encoding="utf-8"), "a test asks for words in place of the dots"
    capsys.readouterr()
    assert notebooks.main(["--new", "Other"]) == 0
    assert f"{int(NUMBER) + 1:02d}_other.ipynb" in capsys.readouterr().out


def python(copy: Path, *words: str) -> str:
    """Run Python in the copy of the repository, whose packages come first, and return what it printed."""
    path = os.pathsep.join([str(copy), *(f"{copy}/engines/{name}" for name in ("simgpu", "kernelcheck", "ranklaunch"))])
    environment = {**os.environ, "PYTHONPATH": path, "COURSE_DEVICE": "sim"}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_exercise(copy: Path) -> None:
    """Write by hand what docs/contributing/exercises.md says: the exercise, its answers, and two cells."""
    (path,) = (copy / "notebooks").glob(f"{NUMBER}_*.ipynb")
    for name in ("clip.py", "clip.diff"):
        shutil.copy(SAMPLES / name, copy / "gpu_course" / f"lesson{NUMBER}")
    notebook = notebooks.read(path)
    cells = {cell.id: cell for cell in notebook.cells}
    cells["imports"].source += f", lesson{NUMBER}"
    cells["first-claim"].source += "\nassert x.clamp(-2, 2).equal(x)"  # a name that the reference needs
    place = notebook.cells.index(cells["first-claim"]) + 1
    check = f"clip = lesson{NUMBER}.clip.check(clip)"
    notebook.cells[place:place] = [nbformat.v4.new_markdown_cell(TEXT), nbformat.v4.new_code_cell(check)]
    nbformat.write(notebook, path)


@pytest.mark.slow
def test_a_new_lesson_touches_others_and_an_exercise_is_three_files_by_hand_and_all_gates_accept_them(tmp_path):
    copy, lesson, hand = tmp_path / "copy", tmp_path / "lesson", tmp_path / "hand"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    python(copy, "-m", "tools.notebooks", "--new", "One more")
    readme = copy / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace("| … |", "| clip values |"), encoding="utf-8")
    assert {name for name in changed(copy, ROOT) if not own(name)} == OTHERS
    shutil.copytree(copy, lesson, ignore=LEFT_OUT)
    write_exercise(copy)
    assert len(changed(copy, lesson)) == 3
    shutil.copytree(copy, hand, ignore=LEFT_OUT)
    said = python(copy, "-m", "tools.notebooks", "--fix")
    (path,) = (copy / "notebooks").glob(f"{NUMBER}_*.ipynb")
    assert f"notebooks/{path.name} has changed:" in said and "15 minutes · 1 exercise" in said
    written = changed(copy, hand)
    assert {f"gpu_course/lesson{NUMBER}/__init__.py", "README.md", "notebooks/00_start_here.ipynb"} <= written
    assert all(name in said for name in written), said
    assert "has changed" not in python(copy, "-m", "tools.notebooks", "--fix")
    python(copy, "-m", "tools.notebooks", "--execute", f"notebooks/{path.name}", "notebooks/00_start_here.ipynb")
    said = python(copy, "-m", "pytest", "-v", "-p", "no:cacheprovider", *GATES, "-k", CHOSEN)
    assert f"Test{NUMBER}-clip" in said and f"test_lesson[{NUMBER}_one_more" in said and " passed" in said
