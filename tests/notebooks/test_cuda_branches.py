"""Does each branch of a lesson that is for CUDA alone run? On CUDA's face of the simulated GPU, weekly."""

import os
import shutil
import subprocess
import sys

import pytest

import simgpu
from tests.notebooks import cuda_branches
from tools import notebooks

SAMPLE = """import torch
ON_CUDA = DEVICE.type == "cuda"
HAS_QUEUE = DEVICE.type in ("cuda", "sim")
if ON_CUDA and first:
    print(1)
elif DEVICE.type in ("cuda", "xpu"):
    print(2)
if HAS_QUEUE:
    print(3)
size = 4 if torch.cuda.is_available() else 5
"""
MEMORY = {"01": "1 GiB", "02": "1 GiB", "04": "1 GiB", "05": "1 GiB"}  # of the lessons that are tried
LEFT = {
    "02:overlap-time": "products of 4096 need a GPU that has 4 GiB free, and are slow on a CPU"
}  # branches, and why
# Cells that may fail: no driver takes memory for itself here, and a CPU may be slower than the clock at eight numbers
MAY_FAIL = {"01": 2}


def test_branches_for_cuda_alone_are_found_and_say_so():
    text, found = cuda_branches.marked(SAMPLE, "lesson", set())
    assert found == ["lesson:4", "lesson:6", "lesson:10"] and text.count("_mark_branch(") == 4
    compile(text, "sample", "exec")
    assert cuda_branches.marked("x = 1", "lesson", set()) == ("x = 1", [])


def test_lessons_and_programs_have_such_branches(tmp_path):
    for folder in ("course_utils", "gpu_course", "notebooks"):
        leave = shutil.ignore_patterns("__pycache__", "*.png")
        shutil.copytree(notebooks.ROOT / folder, tmp_path / folder, ignore=leave)
    lessons = sorted((tmp_path / "notebooks").glob("[0-9]*.ipynb"))
    found = [name for path in lessons for name in cuda_branches.mark_notebook(path)]
    found += cuda_branches.mark_tree(tmp_path)
    assert len(found) > 40 and len(set(found)) > 40


@pytest.mark.slow
@pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
@pytest.mark.parametrize("number", MEMORY)
def test_each_branch_of_a_lesson_runs(number, tmp_path):
    shutil.copytree(notebooks.ROOT / "notebooks", tmp_path / "notebooks")
    (path,) = (tmp_path / "notebooks").glob(f"{number}*.ipynb")
    wanted, ran = cuda_branches.mark_notebook(path), tmp_path / "ran"
    ran.touch()
    more = {cuda_branches.FILE: str(ran), "COURSE_DEVICE": "cuda", "COURSE_PROGRESS": str(tmp_path / "progress.json")}
    options = ["--keep-going", "--gpus", "2", "--memory", MEMORY[number]]
    command = [sys.executable, "-m", "simgpu", *options, path.name]
    done = subprocess.run(
        command, cwd=path.parent, env={**os.environ, **more}, capture_output=True, text=True, encoding="utf-8"
    )
    seen = set(ran.read_text(encoding="utf-8").splitlines())
    missing = [name for name in wanted if name not in seen and name.rpartition(":")[0] not in LEFT]
    assert wanted and missing == [], done.stderr[-2000:]
    assert done.stderr.count(" failed\n") <= MAY_FAIL.get(number, 0), done.stderr[-2000:]
