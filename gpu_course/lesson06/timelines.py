"""Timelines of the seven cases, and the text of their programs."""

import inspect

import simgpu
from gpu_course.lesson06.cases import CASES, original, program


def timelines() -> dict[int, simgpu.Timeline]:
    """Return what host and GPU did in each case, by number. Call it through `devices.on_simulated`."""
    return {number: original(number).timeline for number in CASES}


def source(number: int) -> None:
    """Print the program of a case."""
    print(inspect.getsource(program(number)))
