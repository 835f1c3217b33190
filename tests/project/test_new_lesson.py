"""Does a new lesson touch its own files and five others, a new exercise six, and do the gates accept both?"""

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
SAMPLE = ROOT / "tests" / "samples" / "new_exercise.py"
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
STUB = '''def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return `x` with every value between -limit and limit, on the device of `x`."""
    raise NotImplementedError'''
SLIP = f'''
[[slips]]
id = "planted"
name = "What the planted exercise shows"
what = "Values are limited on one side, or set to something else."
mistakes."{NUMBER}.clip" = ["limits from above only", "sets what is too large to 0", "takes the absolute value"]
'''

# what an exercise of the course has beside: why its check leaves edges out, and right answers in three styles
MORE = '''

clip.leaves_out("a tensor of a few numbers shows it", "empty permuted scalar single sliced huge not_finite tied tiny")
clip.leaves_out("the text speaks of floats", "bfloat16 bool complex double half whole")
clip.leaves_out("a limit is a small number above 0", "limit number_large number_negative number_zero")
clip.leaves_out("there is one device, and nothing is made anew", "cpu elsewhere default_type")
clip.alternative("two calls, one for each side", edit("""
    -    return x.clamp(-limit, limit)
    +    return x.clamp(max=limit).clamp(min=-limit)
"""))
clip.alternative("the function in place of the method", edit("""
    -    return x.clamp(-limit, limit)
    +    return torch.clip(x, -limit, limit)
"""))
'''


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
    path = os.pathsep.join(
        [str(copy), *(str(copy / "engines" / name) for name in ("simgpu", "kernelcheck", "ranklaunch"))]
    )
    environment = {**os.environ, "PYTHONPATH": path, "COURSE_DEVICE": "sim"}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plant_exercise(copy: Path) -> None:
    """Write the exercise of tests/samples into the new lesson, as docs/contributing/exercises.md says."""
    (path,) = (copy / "notebooks").glob(f"{NUMBER}_*.ipynb")
    room = copy / "gpu_course" / f"lesson{NUMBER}"
    module = SAMPLE.read_text(encoding="utf-8").replace('lesson("02")', f'lesson("{NUMBER}")')
    (room / "clipping.py").write_text(module + MORE, encoding="utf-8")
    door = (
        f'"""A question? The exercise of lesson {NUMBER}."""\n\nfrom gpu_course.lesson{NUMBER}.clipping import clip\n'
    )
    (room / "__init__.py").write_text(door + '\n__all__ = ["clip"]\n', encoding="utf-8")
    notebook = notebooks.read(path)
    cells = {cell.id: cell for cell in notebook.cells}
    cells["imports"].source += f", lesson{NUMBER}"
    cells["first-claim"].source += "\nassert x.clamp(-2, 2).equal(x)"
    new = nbformat.v4
    place = notebook.cells.index(cells["first-claim"]) + 1
    notebook.cells[place:place] = [
        new.new_markdown_cell(TEXT, id="clip-text"),
        new.new_code_cell(STUB, id="clip"),
        new.new_code_cell(f"clip = lesson{NUMBER}.clip.check(clip)", id="clip-check"),
    ]
    title = cells["title"]
    title.source = title.source.replace("10 minutes · 0 exercises", "15 minutes · 1 exercise")
    notebooks.write(path, notebooks.canonical(notebook))
    with (copy / "gpu_course" / "misconceptions.toml").open("a", encoding="utf-8") as file:
        file.write(SLIP)
    python(copy, "-m", "tools.notebooks", "--fix")
    python(copy, "-m", "tools.notebooks", "--execute", f"notebooks/{path.name}", "notebooks/00_start_here.ipynb")


@pytest.mark.slow
def test_a_new_lesson_touches_five_other_files_and_an_exercise_six_and_all_gates_accept_them(tmp_path):
    copy, lesson = tmp_path / "copy", tmp_path / "lesson"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    python(copy, "-m", "tools.notebooks", "--new", "One more")
    readme = copy / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace("| … |", "| clip values |"), encoding="utf-8")
    assert {name for name in changed(copy, ROOT) if not own(name)} == OTHERS
    shutil.copytree(copy, lesson, ignore=LEFT_OUT)
    plant_exercise(copy)
    touched = changed(copy, lesson)
    assert len(touched) == 6 and OTHERS - touched == {f"notebooks/{LAST}"}, touched
    said = python(copy, "-m", "pytest", "-v", "-p", "no:cacheprovider", *GATES, "-k", CHOSEN)
    assert f"Test{NUMBER}-clip" in said and f"test_lesson[{NUMBER}_one_more" in said and " passed" in said
