"""Do the simulated GPU's tools work on machines unlike this one? Each is imitated in a process of its own."""

import os
import subprocess
import sys

import pytest

import simgpu

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))

MAC = """import torch
torch._C._mps_is_available = lambda: True
torch.mps.is_available = lambda: torch.backends.mps.is_available()
"""
THREE_GPUS = """import torch
torch.version.cuda = "13.0"
asked = []
torch._C._cuda_getDeviceCount = lambda: asked.append(1) or 3
torch.cuda._cached_device_count = 3
"""
PROGRAM = """import os, subprocess, sys
import torch
print(torch.cuda.device_count(), torch.ones(2, device="cuda").device, torch.backends.mps.is_available(),
      torch.mps.is_available(), os.environ.get("CUDA_VISIBLE_DEVICES"))
if "child" not in sys.argv:
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.arange(2), num_workers=1)):
        print(number, batch.cuda().device)
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""
TEST = """import pytest
import torch

@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants CUDA")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_it(device):
    torch.cuda.set_sync_debug_mode("error")
    torch.rand(1, device=device).item()
"""
PICK = "from course_utils import devices; import torch; print(devices.pick(), torch.backends.mps.is_available())"


@pytest.fixture
def start(tmp_path):
    """Starts Python on an imitated machine, in the folder of the programs above."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_it.py").write_text(TEST)

    def run(machine, *command, **variables):
        (tmp_path / "machine").mkdir(exist_ok=True)
        (tmp_path / "machine" / "sitecustomize.py").write_text(machine)
        path = os.pathsep.join([str(tmp_path / "machine"), *sys.path])
        env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
        )

    return run


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
