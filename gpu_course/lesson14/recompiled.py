"""The exercise “Which calls compile again?”."""

import functools
from collections.abc import Callable

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.tracing import Alone, keeping


@exercise(
    minutes=8,
    difficulty=2,
    where="any machine: graphs of CPU tensors",
    limit_s=30.0,  # tracing takes much longer than computing
    hints=(
        "A backend is called once for each graph. Let yours put each graph into a list, as `keep` does.",
        "Compile `function` once. For each call, compare the length of the list before and after.",
        "Go through enumerate(calls). If the list has grown, and it was not empty before, append the number of the "
        "call.",
    ),
)
def recompiled(function: Callable, calls: list) -> list[int]:
    """Return the numbers of the calls, from 0, that compile `function` again."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(function, backend=keep)
    again = []
    for number, args in enumerate(calls):
        before = len(graphs)
        compiled(*args)
        if len(graphs) > before > 0:  # the first compilation is none again
            again.append(number)
    return again


recompiled.exempt("of a tensor, its shape and format count here", "huge", "tiny", "not_finite", "zero", "negative")
recompiled.exempt("CPU tensors, on every machine", "elsewhere", "surroundings")
recompiled.exempt("two formats are enough", "half", "bfloat16", "whole", "bool", "complex")
recompiled.exempt("how large a number is makes no difference", "numbers")
recompiled.exempt("strides are guarded as shapes are", "permuted", "sliced")


def _mode(x: torch.Tensor, training: bool) -> torch.Tensor:
    return torch.relu(x) * 2 if training else torch.relu(x)


def _scaled(x: torch.Tensor, rate: float) -> torch.Tensor:
    return x * rate


def _rows(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + 1


def _broken(x: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    torch._dynamo.graph_break()
    return doubled + 1


def _rounds() -> list[tuple[Callable, list[tuple]]]:
    """Return functions, and calls of each."""
    row = torch.ones(3)
    tables = [torch.ones(size, 4) for size in (3, 3, 5, 7, 1)]
    return [
        (_mode, [(row, True), (row, True), (row, False), (row, True)]),
        (_rows, [(table,) for table in tables]),
        (_scaled, [(row, 0.5), (row, 0.25), (row, 0.125)]),
        (_rows, [(row,), (row.double(),), (row,)]),
        (_broken, [(table,) for table in tables[1:3]]),
        (_rows, [(torch.tensor(1.0),), (torch.ones(0, 2),)]),
        (_rows, [(row,)]),
        (_rows, []),
    ]


@recompiled.checks
def _(case: Case) -> None:
    for (function, calls), expected in zip(_rounds(), _again(), strict=True):
        torch._dynamo.reset()
        got = case.use(Alone(case.answer, case.task.name), function, calls)
        case.equal(got, list(expected), why=_why(function, calls, expected))
    edges.note("second_call", "order", "no_entries", "one_entry")


@functools.cache
def _again() -> tuple[tuple[int, ...], ...]:
    """Return for each round which calls compile again: Dynamo is asked once."""
    places = []
    for function, calls in _rounds():
        torch._dynamo.reset()
        graphs: list = []
        compiled = Alone(torch.compile(function, backend=keeping(graphs)), "")
        made = []
        for args in calls:
            compiled(*args)
            made.append(len(graphs))
        places.append(tuple(number for number in range(1, len(made)) if made[number] > made[number - 1]))
    return tuple(places)


def _why(function: Callable, calls: list[tuple], expected: tuple[int, ...]) -> str:
    shown = ", ".join(f"{number}: {_shown(args)}" for number, args in enumerate(calls))
    return f"the calls of {function.__name__} are {shown or 'none'}; of these {[*expected] or 'none'} compile again"


def _shown(args: tuple) -> str:
    words = [f"{str(arg.dtype)[6:]} {tuple(arg.shape)}" if torch.is_tensor(arg) else repr(arg) for arg in args]
    return "; ".join(words)
