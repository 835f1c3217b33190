"""Do the lines of the engine's README run, and print what their comments say? Each in a process of its own."""

import re
from pathlib import Path

import yaml

from tests import children

README = Path(__file__).parents[2] / "engines" / "simgpu" / "README.md"
REPORT, HERE, FACE, AHEAD = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


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
    said = printed(FACE).splitlines()
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
