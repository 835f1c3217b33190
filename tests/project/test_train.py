"""Does train.py, which readers take home, learn, resume and run on every kind of device, and as two processes?"""

import re
import subprocess
import sys

import pytest
import torch

from course_utils import programs
from tests.project import test_programs
from tests.project.test_programs import ENVIRONMENT, TORCHRUN, needs_torchrun

PROGRAM = programs.path("train.py")
SMALL = ("--samples", "640", "--batch", "16")
FACE = (sys.executable, "-m", "simgpu", "--no-report", "--gpu")


def run(*arguments, start=(sys.executable,)):
    """Return what the program prints: of each epoch its loss and its share of right answers, and all of it."""
    command = [str(word) for word in (*start, PROGRAM, *SMALL, *arguments)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=test_programs.LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^epoch (\d+): loss (\S+), right (\S+)%, [\d,]+ samples/s$", done.stdout, re.MULTILINE)
    return {int(epoch): (float(loss), float(right)) for epoch, loss, right in rows}, done.stdout


@pytest.fixture(scope="module")
def undisturbed():
    """What each of three epochs gives, on the CPU."""
    return run("--epochs", "3")


def test_it_learns_and_says_what_it_knows_of_the_use_of_the_gpu(undisturbed):
    epochs, said = undisturbed
    assert epochs[2][0] < epochs[0][0] / 10 and epochs[2][1] > 95
    assert "Is my GPU used well?\n  device  cpu, float32: no GPU is used\n" in said
    assert re.search(r"the host waited for it \d+% of the time: (it keeps up|more --workers)", said)


def test_a_run_in_two_pieces_has_the_losses_of_one_and_leaves_a_whole_file(undisturbed, tmp_path):
    checkpoint = tmp_path / "run.pt"
    first, said = run("--epochs", "1", "--checkpoint", checkpoint)
    assert "from epoch 0" in said and "Is my GPU" not in said  # the first epoch says little: it also loads
    (tmp_path / "run.pt.new").write_bytes(b"half a file, of a run that was killed while it wrote")
    then, said = run("--epochs", "3", "--checkpoint", checkpoint)
    assert "from epoch 1" in said and {**first, **then} == undisturbed[0] and then.keys() == {1, 2}
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 3


@pytest.mark.parametrize(("gpu", "form"), [("T4", "float16"), ("H100 SXM", "bfloat16")])
def test_on_a_gpu_that_says_cuda_it_takes_the_sixteen_bits_that_the_gpu_has(gpu, form):
    """Unchanged, on CUDA's face of a simulated GPU, with a compiled model left out: the face refuses what traces."""
    epochs, said = run("--epochs", "2", start=(*FACE, gpu))
    assert f"device  cuda:0, {form}\n" in said and re.search(r"memory +0\.\d+ of \d+\.\d GiB at the peak", said)
    assert epochs[1][1] > 95


@needs_torchrun
def test_two_processes_learn_together_and_one_of_them_speaks(undisturbed, tmp_path):
    start = (*TORCHRUN, "--standalone", "--nproc-per-node", "2")
    together, said = run("--epochs", "2", "--checkpoint", tmp_path / "run.pt", start=start)
    assert said.count("2 x cpu, from epoch 0") == 1 and together.keys() == {0, 1}
    assert abs(together[0][0] - undisturbed[0][0][0]) < 0.5 and together[1][1] > 95
    resumed, said = run("--epochs", "3", "--checkpoint", tmp_path / "run.pt", start=start)
    assert resumed.keys() == {2} and "from epoch 2" in said


WITHOUT_CUDA = """import runpy, sys, torch
sys.argv = sys.argv[1:]
torch.accelerator.current_accelerator = lambda check_available=False: torch.device("mps")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_where_a_gpu_is_there_and_does_not_work_it_takes_the_cpu(tmp_path):
    """As on a Mac in a container: PyTorch names `mps`, and the first small kernel fails."""
    shim = tmp_path / "shim.py"
    shim.write_text(WITHOUT_CUDA, encoding="utf-8")
    epochs, said = run("--epochs", "1", start=(sys.executable, shim))
    assert "1 x cpu, from epoch 0" in said and epochs.keys() == {0}
