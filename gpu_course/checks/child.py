"""How is an answer checked on the simulated GPU where this process has a real one? In a child process."""

import importlib
import pickle
import subprocess
from collections.abc import Callable
from typing import Any

import torch

import simgpu
from gpu_course.checks.case import Finding, Task, WrongAnswer


def examine_in_child(task: Task, reference: Callable, answer: Any) -> None:
    """Run the check on the simulated GPU of a child process.

    Raises `WrongAnswer` if it is wrong, and `simgpu.Unavailable` with the reason where the child cannot tell.
    """
    import cloudpickle

    stored = reference.__module__, task.name, simgpu.sources(answer), cloudpickle.dumps(answer)
    try:
        found = simgpu.run_in_child(_examine, *stored)
    except subprocess.TimeoutExpired:
        limit_s = f"{simgpu.CHILD_LIMIT_S:g}"
        raise WrongAnswer(task, f"{task.name} does not end: it was stopped after {limit_s} s") from None
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1]
        raise simgpu.Unavailable(f"{task.name} could not be checked on the simulated GPU: {last}") from None
    if found:
        raise WrongAnswer(task, found)


def _examine(module: str, name: str, sources: dict[str, list[str]], answer: bytes) -> Finding | None:
    """Return, in the child, what the check finds wrong with the pickled `answer`; None if it is right."""
    simgpu.remember_sources(sources)
    exercise = getattr(importlib.import_module(module), name)
    try:
        exercise.examine(pickle.loads(answer), torch.device("sim", 0))
    except WrongAnswer as wrong:
        return wrong.finding
    return None
