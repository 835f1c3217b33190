"""Do the simulated GPU's tools work on machines unlike this one? Each is imitated in a process of its own."""

from functools import partial

import pytest

from tests import imitated
from tests.imitated import BROWSER, MAC, THREE_GPUS, WITHOUT_RANKS
from tests.simgpu.simulated import read_programs

PROGRAM = read_programs("machines")["program"]
TEST = read_programs("machines")["test"]
LACKING = read_programs("machines")["lacking"]
PICK = "from course_utils import devices; import torch; print(devices.pick(), torch.backends.mps.is_available())"


@pytest.fixture
def start(tmp_path):
    """Starts Python on an imitated machine, in the folder of the programs above."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_it.py").write_text(TEST)

    return partial(imitated.start, tmp_path)


@pytest.mark.parametrize("machine", [MAC, THREE_GPUS], ids=["a Mac", "three GPUs"])
def test_a_program_and_its_children_see_simulated_gpus_alone(start, machine):
    done = start(machine, "-m", "simgpu", "--gpus", "2", "program.py", CUDA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    once = "2 cuda:0 False False 0,1"
    assert done.stdout.splitlines() == [once, "0 cuda:0", "1 cuda:0", once], done.stdout
    hidden = "the GPU of this Mac" if machine == MAC else "a GPU of NVIDIA or AMD"
    said = f"python -m simgpu: {hidden} is hidden from this process, which sees simulated GPUs alone"
    assert done.stderr.count(said) == 1


def test_tests_run_on_a_mac_and_a_quiet_summary_says_what_is_hidden(start):
    done = start(MAC, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "simgpu.pytest", "test_it.py")
    assert "simgpu: the GPU of this Mac is hidden" in done.stdout and "1 failed, 1 passed" in done.stdout, done.stdout


def test_a_quiet_summary_says_why_nothing_ran_on_simulated_gpus(start):
    other = "import torch\ntorch.utils.rename_privateuse1_backend('npu')\n"
    done = start(other, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "simgpu.pytest", "test_it.py")
    said = "simgpu: off, so that nothing ran on simulated GPUs: another package has taken PyTorch's extension point"
    assert said in done.stdout and "2 skipped" in done.stdout, done.stdout


@pytest.mark.parametrize(("choice", "device", "says"), [("sim", "sim:0", 1), ("cpu", "cpu", 0)])
def test_course_device_hides_the_gpu_of_a_mac(start, choice, device, says):
    done = start(MAC, "-c", PICK, COURSE_DEVICE=choice)
    assert done.stdout.split() == [device, str(choice != "sim")], done.stderr
    assert done.stderr.count("COURSE_DEVICE=sim: the GPU of this Mac is hidden from this process") == says


def test_a_refusal_names_the_way_out(start):
    done = start(MAC, "-c", "import simgpu; simgpu.cuda()")
    assert "call simgpu.hide_accelerators() first, or run the program by `python -m simgpu`" in done.stderr
    way = "import simgpu; print(simgpu.hide_accelerators()); print(simgpu.cuda() and simgpu.enabled())"
    assert "the GPU of this Mac is hidden" in (said := start(MAC, "-c", way)).stdout and "True" in said.stdout


@pytest.mark.parametrize("machine", [WITHOUT_RANKS, BROWSER], ids=["PyTorch without ranks", "a browser"])
def test_lessons_and_a_training_step_on_a_machine_that_lacks(start, machine):
    done = start(machine, "-c", LACKING)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line[:17] for line in said if " - NoRanks" in line] == ["09 - NoRanks: thi", "10 - NoRanks: thi"]
    assert {"sim:0", "cuda:0"} <= set(said) and "has no torch.distributed, so that there are no ranks" in said[-1]
    assert "double: right" in done.stdout, done.stdout
    assert "average could not be checked: this build of PyTorch has no ranks. The lesson goes on" in done.stdout
