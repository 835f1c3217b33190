"""Does `pytest -p simgpu.pytest` run tests that want CUDA, on a machine that has none?"""

import os

import pytest

from tests import children
from tests.simgpu.simulated import read_programs

TESTS = read_programs("cuda_pytest")["tests"]


def run(folder, *options):
    (folder / "conftest.py").write_text("import torch\n\nSEEN = torch.cuda.is_available()\n")
    (folder / "test_it.py").write_text(TESTS)
    # the summary is not cut off, and plugins that are installed here are no part of this
    wide = {**os.environ, "COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return children.run("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=folder, env=wide)


def test_what_is_skipped_without_it_runs_with_it(tmp_path):
    assert "5 skipped" in run(tmp_path).stdout
    said = run(tmp_path, "-p", "simgpu.pytest", "--simgpu", "A100 80GB", "--simgpu-count", "2").stdout
    assert "simgpu: 2 x Simulated A100 80GB, 79.1 GiB: memory and times are simulated" in said
    assert "1 failed, 4 passed, 1 error" in said
    assert "FAILED test_it.py::test_a_forgotten_move" in said
    assert "ERROR test_it.py::test_an_index_that_nobody_waits_for - torch.AcceleratorError" in said


HABITS = read_programs("cuda_pytest")["habits"]
HABITUAL = read_programs("cuda_pytest")["habitual"]


@pytest.mark.parametrize(("options", "bare", "simulated"), [
    ((), "2 passed, 2 skipped", "6 passed"),
    (("--device", "cuda"), "1 passed, 3 skipped", "6 passed"),
    (("-m", "gpu"), "1 skipped, 3 deselected", "1 passed, 5 deselected"),
    (("-k", "cuda:1"), "4 deselected", "1 passed, 5 deselected"),
], ids=lambda given: " ".join(given) if isinstance(given, tuple) else "")  # fmt: skip
def test_the_habits_of_projects(tmp_path, options, bare, simulated):
    (tmp_path / "conftest.py").write_text(HABITS)
    (tmp_path / "test_it.py").write_text(HABITUAL)
    alone = {**os.environ, "COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-rA", *options)
    assert bare in children.run(*command, cwd=tmp_path, env=alone).stdout
    plugin = ("-p", "simgpu.pytest", "--simgpu-gpu", "H100 SXM", "--simgpu-count", "2")
    assert simulated in children.run(*command, *plugin, cwd=tmp_path, env=alone).stdout


@pytest.mark.slow
def test_a_wrong_option_is_told_in_a_line(tmp_path):
    """Slow, since the same words are tried of `python -m simgpu`; here they pass through pytest."""
    done = run(tmp_path, "-p", "simgpu.pytest", "--simgpu", "H1000")
    assert done.returncode == 4 and "ERROR: simgpu: " in done.stderr and "H1000" in done.stderr
