"""Does `pytest -p simgpu.pytest` run tests that want CUDA, on a machine that has none?"""

import os

import pytest

import simgpu
from tests import children

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
TESTS = """import pytest
import torch
from conftest import SEEN

needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
pairs = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two")


@needs
def test_a_product():
    a = torch.randn(8, 8, device="cuda")
    torch.testing.assert_close((a @ a).cpu(), a.cpu() @ a.cpu())
    assert SEEN


@pairs
def test_two():
    assert torch.ones(2, device="cuda:1").get_device() == 1


@needs
def test_a_forgotten_move():
    torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2))


@needs
def test_an_index_that_nobody_waits_for():
    torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]


@needs
def test_what_comes_after_it():
    assert torch.ones(2).cuda().sum().item() == 2
"""


def run(folder, *options):
    (folder / "conftest.py").write_text("import torch\n\nSEEN = torch.cuda.is_available()\n")
    (folder / "test_it.py").write_text(TESTS)
    # the summary is not cut off, and plugins that are installed here are no part of this
    wide = {**os.environ, "COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return children.run("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=folder, env=wide)


def test_what_is_skipped_without_it_runs_with_it(tmp_path):
    assert "5 skipped" in run(tmp_path).stdout
    said = run(tmp_path, "-p", "simgpu.pytest", "--simgpu", "A100 80GB", "--simgpu-count", "2").stdout
    assert "simgpu: 2 x Simulated A100 80GB, 80.0 GiB: memory and times are simulated" in said
    assert "1 failed, 4 passed, 1 error" in said
    assert "FAILED test_it.py::test_a_forgotten_move" in said
    assert "ERROR test_it.py::test_an_index_that_nobody_waits_for - torch.AcceleratorError" in said


@pytest.mark.slow
def test_a_wrong_option_is_told_in_a_line(tmp_path):
    """Slow, since the same words are tried of `python -m simgpu`; here they pass through pytest."""
    done = run(tmp_path, "-p", "simgpu.pytest", "--simgpu", "H1000")
    assert done.returncode == 4 and "ERROR: simgpu: " in done.stderr and "H1000" in done.stderr
