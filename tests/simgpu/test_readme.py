"""Do the lines of the engine's README run, and print what their comments say?"""

import re
from pathlib import Path

import torch

import simgpu

README = Path(__file__).parents[2] / "engines" / "simgpu" / "README.md"
HERE, AHEAD = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def printed(code: str, capsys) -> str:
    """Return what lines of the README print."""
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    return capsys.readouterr().out


def test_the_lines_on_a_gpu_meet_its_errors_its_memory_and_its_clock(sim, capsys):
    code = HERE.replace('simgpu.enable(spec="T4"', 'simgpu.configure(spec="T4"')  # it is enabled already
    try:
        said = printed(code, capsys)
    finally:
        torch.sim.synchronize()
        simgpu.reset()
    assert "same device" in said and "sim out of memory. Tried to allocate 4.00 GiB." in said and "host waits" in said


def test_the_lines_on_a_forecast_tell_memory_and_time(capsys):
    said = printed(AHEAD, capsys)
    assert "optimizer" in said and "a step on one H100 SXM" in said and said.strip().endswith("True")
