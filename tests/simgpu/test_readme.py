"""Do the lines of the engine's README run, and print what their comments say? Each in a process of its own."""

import re
from pathlib import Path

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
