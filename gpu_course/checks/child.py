"""Trial of code on the simulated GPU of a child process, within a time limit."""

import contextlib
import importlib
import subprocess
from collections.abc import Callable
from typing import Any

import torch

import ranklaunch
import simgpu
from gpu_course.checks import limits
from gpu_course.checks.case import Busy, Finding, Task, WrongAnswer
from gpu_course.checks.spent import Spent, below


def run_limited(fn: Callable[..., Any], *args: Any, limit_s: float) -> Any:
    """Run as `simgpu.run_in_child` does, limited by the processor time of the child and its own children.

    Raises subprocess.TimeoutExpired where they take more, and `Busy` where the machine never gave them so much.
    """

    def wait(process: subprocess.Popen) -> None:
        spent = Spent(process.pid)
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limits.LOOK_S)
                return
            had_s = spent.look(limits.LOOK_S)
            if had_s >= limit_s or spent.wall_s > limits.last_resort_s(limit_s):
                _end(process)
                if had_s >= limit_s:
                    raise subprocess.TimeoutExpired(process.args, limit_s)
                raise Busy(f"This machine is busy: in {spent.wall_s:.0f} s a process had {had_s:.0f} of {limit_s:g} s")

    return simgpu.run_in_child(fn, *args, wait=wait)


def run_forked(fn: Callable[..., Any], *args: Any, limit_s: float) -> Any:
    """Return `fn(*args)`, run in its own process with two simulated GPUs and no process group.

    `fn` is a function of a module, which is imported once for all calls: on Linux the process is forked from one that
    has it (`ranklaunch`). Raises subprocess.TimeoutExpired where `fn` takes longer than `limit_s`, `Busy` where the
    machine never gave it so much, EOFError where it ends the process, `simgpu.Unavailable` where there can be no
    simulated GPU, and RuntimeError for what `fn` raises.
    """
    if not torch.distributed.is_available():  # nor what forks ranks
        return run_limited(fn, *args, limit_s=limit_s)
    ranklaunch.preload("torch.distributed.tensor", fn.__module__)  # the first is imported by the first operator
    try:
        with simgpu.without_face():
            alone = {"nprocs": 1, "devices": ["cpu"], "start": _simulate}
            return ranklaunch.launch(_alone, fn, args, timeout_s=limit_s, **alone)[0]
    except ranklaunch.RankError as error:
        if error.busy:
            raise Busy(error.busy) from None
        if error.kind in ("hang", "slow"):
            raise subprocess.TimeoutExpired(fn.__name__, limit_s) from None
        if error.kind == "died":
            raise EOFError(str(error)) from None
        if error.error == simgpu.Unavailable.__name__:
            raise simgpu.Unavailable(str(error)) from None
        raise RuntimeError(str(error)) from None


def _simulate() -> None:
    """Give the process its simulated GPUs, also beside a real one."""
    simgpu.hide_accelerators()
    device, reason = simgpu.ready()
    if device is None:
        raise simgpu.Unavailable(reason)


def _alone(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `fn` as in a process that `launch` did not start."""
    torch.distributed.destroy_process_group()
    return fn(*args)


def _end(process: subprocess.Popen) -> None:
    """Kill a process and all below it."""
    for each in (*below(process.pid), process):
        with contextlib.suppress(Exception):  # it has ended
            each.kill()


def examine_in_child(task: Task, reference: Callable, answer: Any) -> None:
    """Run the check on the simulated GPU of a child process.

    Raises `WrongAnswer` if it is wrong, and `simgpu.Unavailable` with the reason where the child cannot tell.
    """
    asked = reference.__module__, task.name, simgpu.sources(answer), answer
    try:
        finding = run_limited(_examine, *asked, limit_s=simgpu.CHILD_LIMIT_S)
    except subprocess.TimeoutExpired:
        limit_s = f"{simgpu.CHILD_LIMIT_S:g}"
        raise WrongAnswer(task, f"{task.name} does not end within {limit_s} s, and was stopped") from None
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1]
        raise simgpu.Unavailable(f"{task.name} could not be checked on the simulated GPU: {last}") from None
    if finding:
        raise WrongAnswer(task, finding)


def _examine(module: str, name: str, sources: dict[str, list[str]], answer: Any) -> Finding | None:
    """Return, in the child, what the check finds wrong with `answer`; None if it is right."""
    simgpu.remember_sources(sources)
    exercise = getattr(importlib.import_module(module), name)
    try:
        exercise.examine(answer, torch.device("sim", 0))
    except WrongAnswer as wrong:
        return wrong.finding
    return None
