"""Do the lines of the engine's README run, and print what their comments say? Each in a process of its own."""

import re
import shlex
from pathlib import Path

import nbformat
import pytest
import yaml

from tests import children
from tests.simgpu.simulated import read_programs

README = Path(__file__).parents[2] / "engines" / "simgpu" / "README.md"
REPORT, HERE, ON_FACE, AHEAD = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
# the command lines that a shell can be given as they stand, with the exit status that each ends with
COMMANDS = re.findall(r"^python (-m simgpu .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
ENDS = {"--fail-if": 3}
TRAIN = read_programs("readme")["train"]
PACKAGE = "import torch\nprint('trained on', torch.cuda.get_device_name())"


def printed(code: str) -> str:
    """Return what lines of the README print."""
    done = children.run("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_lines_on_a_report():
    said = printed(REPORT).splitlines()
    assert said[:4] == ["True"] * 4 and said[4].startswith("True [") and said[5] == "True"


def test_the_lines_on_a_gpu_meet_its_errors_its_memory_and_its_clock():
    said = printed(HERE)
    assert "same device" in said and "sim out of memory. Tried to allocate 4.00 GiB." in said and "host waits" in said


def test_the_lines_on_a_program_that_says_cuda():
    said = printed(ON_FACE).splitlines()
    assert said[0] == "cuda:0 Simulated T4" and int(said[1]) > 0 and said[2] == "False"


def test_the_lines_on_a_forecast_tell_memory_and_time():
    said = printed(AHEAD)
    assert "optimizer" in said and "a step on one H100 SXM" in said and said.strip().endswith("True")


def test_the_options_of_pytest_and_the_configurations_are_what_they_say():
    text = README.read_text(encoding="utf-8")
    options = set(re.findall(r"--simgpu[a-z-]*", text))
    assert {"--simgpu-gpu", "--simgpu-count", "--simgpu-races"} <= options
    told = children.run("-m", "pytest", "-p", "simgpu.pytest", "--help").stdout
    assert {option for option in options if option not in told} == set()
    workflow, hook = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    assert workflow["jobs"]["cuda"]["steps"][-1]["run"] == "pytest -p simgpu.pytest"
    assert hook[0]["entry"].startswith("pytest -q -p simgpu.pytest") and hook[0]["pass_filenames"] is False


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_does_what_it_is_shown_for(command, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PACKAGE, encoding="utf-8")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PACKAGE)])
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    done = children.run(*shlex.split(command), cwd=tmp_path)
    assert done.returncode == next((code for option, code in ENDS.items() if option in command), 0), done.stderr
    assert "trained on Simulated" in done.stdout
    assert (tmp_path / "report.html").exists() == ("--report" in command)


def test_commands_were_found():
    assert len(COMMANDS) == 7
