"""Calls of compiled functions by checks, with their graphs and graph breaks."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from gpu_course.checks import Case
from simgpu.ground.composite import without_modes

__all__ = ["Alone", "breaks", "keeping", "traced"]


class Alone:
    """Calls a function while no mode of PyTorch looks on, and without the warnings of the compiler.

    Dynamo would compile the functions of a mode too, such as the one that counts operators, and count their graphs.
    Messages name the function as `called`.
    """

    def __init__(self, function: Callable, called: str) -> None:
        self.function, self.__called__ = function, called

    def __call__(self, *args: Any) -> Any:
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with without_modes():
                return self.function(*args)
        finally:
            logging.disable(before)


def keeping(graphs: list[GraphModule], runs: list[tuple[torch.Tensor, Any]] | None = None) -> Callable:
    """Return a backend that puts each graph into `graphs`, and computes it operator by operator.

    Each time that a graph runs, `runs` gets its first tensor, and what it returns.
    """

    def keep(graph: GraphModule, inputs: list) -> Callable:
        graphs.append(graph)
        if runs is None:
            return graph.forward

        def run(*args: Any) -> Any:
            result = graph.forward(*args)
            first = next(arg for arg in args if isinstance(arg, torch.Tensor))
            runs.append((first, result))  # pyright: ignore[reportOptionalMemberAccess]
            return result

        return run

    return keep


def traced(case: Case, *calls: tuple) -> list[GraphModule]:
    """Compile the answer, call it with the arguments of each of `calls`, and return the graphs that this made."""
    torch._dynamo.reset()
    graphs: list[GraphModule] = []

    def program(*args: Any) -> Any:  # of the answer itself torch.compile takes torch.compiler.disable off
        return case.answer(*args)

    compiled = Alone(torch.compile(program, backend=keeping(graphs)), f"torch.compile({case.task.name})")
    for args in calls:
        case.use(compiled, *args)
    return graphs


def breaks(case: Case, *args: Any) -> list[str]:
    """Return the lines of the answer, called with `args`, at which its graph ends before the function does."""
    torch._dynamo.reset()
    explained = case.use(Alone(torch._dynamo.explain(case.answer), f"torch._dynamo.explain({case.task.name})"), *args)
    stacks = [reason.user_stack for reason in explained.break_reasons]
    if not stacks:  # a break before the first operator divides nothing, and explain does not tell it
        torch._dynamo.reset()
        whole = torch.compile(case.answer, backend="eager", fullgraph=True)
        error = case.use(Alone(_error_of(whole), f"torch.compile({case.task.name}, fullgraph=True)"), *args)
        stacks = [getattr(error, "real_stack", None) or []] if error else []
    own = inspect.unwrap(case.answer).__code__.co_filename
    lines = [[frame.line or "" for frame in stack if frame.filename == own] for stack in stacks]
    return list(dict.fromkeys(line[-1].strip() if line else case.task.name for line in lines))


def _error_of(compiled: Callable) -> Callable:
    """Return a function that returns the error with which Dynamo refuses to make one graph, None where it does not."""

    def call(*args: Any) -> Exception | None:
        try:
            compiled(*args)
        except torch._dynamo.exc.TorchDynamoException as error:  # pyright: ignore[reportAttributeAccessIssue]
            return error
        return None

    return call
