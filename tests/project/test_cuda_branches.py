"""Does each branch that CUDA takes and the simulated GPU does not run? On faces; lessons in the weekly workflow."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import simgpu
from tests.notebooks import on_face
from tests.project import cuda_branches
from tools import notebooks

needs_face = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TAKEN_BY = {**_DATA["taken_by"], "layer_norm": on_face.LAYER_NORM}
ELSEWHERE = {  # branches that the face does not take, and the tests that pretend a real GPU
    "recorded.py._record: device.type in ('cpu', 'sim') or simulated or simgpu.is_simulated(device) else": (
        "tests/course_utils/test_recorded.py"
    )
}


def _short(name):
    """Return the name of a branch without the folders of its file."""
    file, python, rest = name.partition(".py")
    return f"{file.rpartition('/')[2]}{python}{rest}"


def test_branches_that_cuda_takes_and_the_simulated_gpu_does_not_say_so():
    text, found = cuda_branches.marked(_DATA["sample"], "lesson", {})
    assert found == [
        "lesson: ON_CUDA and first",
        "lesson: DEVICE.type in ('cuda', 'xpu')",
        "lesson: torch.cuda.is_available()",
        "lesson.label: kind == 'sim' or (not ON_CUDA and kind in ('cpu', 'sim')) else",
        "lesson.label: kind == 'sim' else",
    ]
    assert text.count("_mark_branch(") == 6
    compile(text, "sample", "exec")
    assert cuda_branches.marked("x = 1", "lesson", {}) == ("x = 1", [])


def test_lessons_have_such_branches(tmp_path):
    shutil.copytree(
        notebooks.ROOT / "notebooks", tmp_path, ignore=shutil.ignore_patterns("programs"), dirs_exist_ok=True
    )
    found = [name for path in tmp_path.glob("[0-9]*.ipynb") for name in cuda_branches.mark_notebook(path)]
    assert len(found) > 40 and len(set(found)) == len(found)


@needs_face
def test_each_branch_of_packages_and_programs_is_listed_and_runs(tmp_path):
    leave = shutil.ignore_patterns("__pycache__", "*.png")
    for folder in on_face.FOLDERS:
        shutil.copytree(notebooks.ROOT / folder, tmp_path / folder, ignore=leave)
    found = set(map(_short, cuda_branches.mark_tree(tmp_path)))
    listed = {name for names in TAKEN_BY.values() for name in names} | set(ELSEWHERE)
    assert found == listed - set(on_face.LAYER_NORM)
    ran = tmp_path / "ran"
    ran.touch()
    command = [sys.executable, "-m", "tests.project.cuda_callers", str(tmp_path), str(ran), *TAKEN_BY]
    environment = {**os.environ, **on_face.environment(tmp_path, ran)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]
    taken = json.loads(done.stdout)
    missing = {by: [name for name in names if name not in map(_short, taken[by])] for by, names in TAKEN_BY.items()}
    assert not any(missing.values()), missing


@needs_face
@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_the_first_lesson_and_its_exercises_run_on_a_macs_gpu_and_intels(kind, tmp_path):
    seen = on_face.run("00", tmp_path, kind=kind)
    assert (seen.failed, seen.missing) == ({}, []), seen.log[-3000:]
    right, wrong, _, otherwise = on_face.exercises("00", kind)
    assert otherwise == [] and right > 2 and wrong > 2


def test_exercises_are_checked_where_nothing_knows_of_a_simulated_gpu():
    """As beside a real GPU, which never has one in its process."""
    right, _, _, otherwise = on_face.exercises("02", "cpu")
    assert otherwise == [] and right > 20
