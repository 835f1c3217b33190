"""Do the commands that print figures work, each in a process of its own?"""

import re
import subprocess
import sys

import pytest

import kernelcheck
from tests.course_utils.training_programs import CASES, PROGRAMS
from tools import notebooks

pytestmark = pytest.mark.slow


def printed(*arguments: str) -> str:
    """Return what Python prints when it is started with `arguments`; fail where its exit status is not 0."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True, encoding="utf-8", timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_all_operators():
    assert "listed, but agree: none" in printed("-m", "benchmarks.operators")


def test_the_gain_of_the_compiler_stands_beside_measured_ones():
    found = printed("-m", "benchmarks.compiled")
    assert "RTX 5090" in found and "RTX 4090" in found


def test_the_figures_of_memory_are_reached():
    found = printed("-m", "benchmarks.memory")
    assert all(f"  {name} " in found for name in [*CASES, *PROGRAMS]) and len(CASES) == 10 and len(PROGRAMS) >= 10


def test_the_command_of_launches_works():
    """One round: how fast ranks start on a busy machine is not judged here."""
    found = printed("-c", "from benchmarks import launch as f; f.speed(1); raise SystemExit(not f.reliable(2, 2, 1))")
    words = r"first launch.*launch, later.*debug_launcher.*spawn.*none failed.*named each time.*left behind: nothing"
    assert re.search(words, found, re.DOTALL), found


def test_the_command_of_costs_works():
    """Which of them are beyond their limits is not judged here."""
    found = printed("-c", "from benchmarks import costs; costs.main()")
    words = r"check of 00 double.*notes and puts back.*item .*recall.*import of simgpu.*twice the text.*limits?$"
    assert re.search(words, found, re.DOTALL | re.MULTILINE), found


@pytest.mark.parametrize(("command", "said"), [
    (("benchmarks.views", "20"), "silent difference        0"),
    (("benchmarks.published", "0"), "The worst ten of training and inference"),
    (("benchmarks.splits",), "first choice, with five numbers"),
    (("benchmarks.wrong_answers", "00"), "1 of 1 show something"),
    (("tests.gpu_course.sizes", "11"), "11 decide"),
], ids=lambda given: given[0] if isinstance(given, tuple) else "")  # fmt: skip
def test_the_command_works(command, said):
    assert said in printed("-m", *command)


def test_nothing_is_said_of_clones_that_are_not_there(tmp_path):
    assert printed("-m", "benchmarks.unchanged", str(tmp_path)).startswith("program  bare CPU")


@pytest.mark.parametrize(
    ("name", "said"), [("benchmarks.kernels", "histogram"), ("benchmarks.simulator", "training step")]
)
def test_the_command_prints_its_figures(name, said):
    """Whether they are beyond their limits is not judged here."""
    if name == "benchmarks.kernels" and (why := kernelcheck.why_not()):
        pytest.skip(why)
    assert said in printed("-c", f"import importlib; importlib.import_module({name!r}).main()")


def test_the_command_of_models_works():
    for library in ("timm", "torchvision", "transformers"):
        pytest.importorskip(library)
    assert "1 of 1 models have the CPU's losses" in printed("-m", "benchmarks.models", "timm resnet18")


def test_the_late_one_of_eight_simulated_ranks_is_found():
    """With HTA beside it where that is installed."""
    assert "all wait for rank 5" in printed("-m", "benchmarks.traces")
