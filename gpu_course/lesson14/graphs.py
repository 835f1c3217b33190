"""Is it one graph, for all sizes, and which call compiles again? The exercises of lesson 14 on what Dynamo captures."""

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.common.tracing import Alone, breaks, keeping, traced

__all__ = ["clip", "one_graph", "recompiled"]

exercise = lesson("14")
WHERE = "any machine: graphs of CPU tensors"
COMPILES_S = 30.0  # for a call: tracing takes much longer than computing


@exercise(
    title="A function without breaks",
    minutes=8,
    difficulty=2,
    where=WHERE,
    limit_s=COMPILES_S,
    hints=(
        "Which lines need a number in Python, or print? Each can be done on the device, or left out.",
        "Keep the mean and the length as tensors: drop `.item()`. In place of the `if`, compute a factor that is 1 "
        "where x is short enough.",
        "length.clamp(min=limit) is never below limit. limit divided by it is at most 1, and exactly 1 for a short x.",
    ),
)
def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return x minus its mean, shortened to the length `limit` if it is longer."""
    centred = x - x.mean()
    length = centred.norm()
    return centred * (limit / length.clamp(min=limit))  # the factor is 1 where x is short enough


clip.broken(
    '''
         """Return x minus its mean, shortened to the length `limit` if it is longer."""
    -    centred = x - x.mean()
    +    mean = x.mean().item()
    +    centred = x - mean
    ...
    -    return centred * (limit / length.clamp(min=limit))  # the factor is 1 where x is short enough
    +    if length > limit:
    +        print("too long:", length)
    +        centred = centred * (limit / length)
    +    return centred
    '''
)
clip.leaves_out("the text speaks of float32", "formats", "surroundings")
clip.leaves_out("an empty x has no mean", "empty")
clip.leaves_out("inf has no length to shorten", "not_finite")
clip.leaves_out("the text says that limit is above 0", "number_zero", "number_negative")
clip.leaves_out("no length of float32 numbers in a test is that large", "number_large")
clip.leaves_out("the result is where x is, and that is one device", "elsewhere")


def _clipped(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return what the text says, number by number."""
    numbers = x.double().flatten().tolist()
    mean = math.fsum(numbers) / len(numbers)
    length = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers))
    factor = limit / length if length > limit else 1.0
    return torch.tensor([(number - mean) * factor for number in numbers]).view(x.shape)


_SHORT, _LONG = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([9.0, -4.0, 1.0])


@clip.checks
def _(case: Case) -> None:
    square = torch.tensor([[2e4, -3.0], [1e-5, 0.0]])
    for x, limit in (
        (_SHORT, 2.0),
        (_LONG, 2.0),
        (torch.tensor([1.0, -1.0, 1.0, -1.0]), 2.0),  # exactly as long as the limit
        (torch.full((2, 3), 5.0), 0.5),  # equal numbers: a length of 0
        (torch.tensor(4.0), 1.0),
        (torch.tensor([[3.0]]), 1.0),
        (edges.permuted(square), 7.0),
        (edges.sliced(square), 1e6),
        (torch.tensor([0.4, -0.4, 0.4, -0.4]), 0.5),  # longer than the limit, and shorter than 1
        (1e-4 * _LONG, 1e-4),
    ):
        got = case.use(Alone(case.answer, case.task.name), x, limit)
        case.equal(got, _clipped(x, limit), rtol=1e-4, atol=1e-4 * min(limit, 1), why=f"limit is {limit:g}")
    edges.note("limit", "second_call")
    for x, seen in ((_SHORT, "is short enough"), (_LONG, "is too long")):
        lines = breaks(case, x, 2.0)
        case.instead(
            lines,
            f"the values are right, but where x {seen}, the graph breaks at: {'; '.join(lines)}",
            "there the host must wait for a number, or do something that no graph can hold: "
            "let tensors carry the number, and compute what the `if` decides",
        )
    graphs = traced(case, (_SHORT, 2.0), (_LONG, 2.0))
    case.instead(not graphs, "nothing of it is compiled", "the compiler was told to leave the function alone")
    case.instead(
        len(graphs) > 1,
        "is compiled again for another x of the same shape",
        "a decision that Python takes is a guard: when it changes, the function is compiled again",
    )


clip.alternative(
    "torch.where chooses between two finished results: any condition will do, but both sides are always computed",
    edit("""
        -    return centred * (limit / length.clamp(min=limit))  # the factor is 1 where x is short enough
        +    return torch.where(length > limit, centred * (limit / length), centred)
    """),
)


@exercise(
    title="Ten sizes, one graph",
    minutes=5,
    difficulty=1,
    where=WHERE,
    limit_s=COMPILES_S,
    hints=(
        "By default the first size counts as fixed. What tells torch.compile beforehand that sizes will change?",
        "torch.compile takes `dynamic`. Or mark the dimension in each batch before you call.",
        "Compile once, before the loop, with dynamic=True. Then call what you compiled for each batch.",
    ),
)
def one_graph(function: Callable, batches: list, backend: Callable) -> list:
    """Return `function` of each batch, compiled with `backend` into one graph."""
    compiled = torch.compile(function, backend=backend, dynamic=True)
    return [compiled(batch) for batch in batches]


one_graph.leaves_out("the text hands over batches of rows", "scalar", "empty", "single")
one_graph.leaves_out("strides are guarded as sizes are, and the batches lie in memory alike", "permuted")
one_graph.leaves_out("sizes are asked about, not numbers", "formats", "surroundings")
one_graph.leaves_out("sizes are asked about, not numbers", "huge", "tiny", "not_finite", "zero", "tied")
one_graph.leaves_out("CPU tensors, on every machine", "elsewhere")
one_graph.leaves_out("a list without batches makes no graph", "no_entries")


def _centred(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x - x.mean(0))


def _shares(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(0) * x.shape[0]


def _example(node: torch.fx.Node) -> Any:
    """Return the stand-in, without numbers, of what a node of a graph gives."""
    return node.meta.get("example_value")


def _memory(tensor: torch.Tensor) -> tuple[int, torch.Size]:
    """Return where the numbers of a tensor stand, and their shape."""
    return tensor.data_ptr(), tensor.shape


@one_graph.checks
def _(case: Case) -> None:
    ten = [33, 5, 8, 21, 3, 12, 7, 16, 9, 40]
    for function, sizes in ((_centred, ten), (_shares, ten[::-1]), (_centred, [6]), (_shares, [4, 4, 4])):
        torch._dynamo.reset()
        graphs: list = []
        runs: list = []
        batches = [torch.randn(size, 4) for size in sizes]
        batches[0] = edges.sliced(batches[0]) if len(sizes) == 1 else batches[0]
        got = case.use(Alone(case.answer, case.task.name), function, batches, keeping(graphs, runs))
        case.equal(got, [function(batch) for batch in batches], why="the compiled function gives what it gave before")
        made, many = len(graphs), len(set(sizes))
        case.instead(not made, "`backend` gets no graph", "pass it to torch.compile, and call what that returns")
        case.instead(
            made == 2 and many > 2,
            "is compiled twice",
            "the first call takes the size as fixed, and only the second size shows that it changes: say so beforehand",
        )
        case.budget("graphs", made, 1, f"there are {many} sizes, and each graph costs a compilation")
        rows = [len(first) for first, _ in runs]
        case.budget("calls of it", len(rows), len(sizes), "call it for each batch once")
        left_out = Counter(sizes) - Counter(rows)
        types = {value.dtype for node in graphs[0].graph.nodes if isinstance(value := _example(node), torch.Tensor)}
        case.instead(
            types - {torch.float32}, "compiles more than `function`", "it casts nothing: compile it as it is", got=types
        )
        given, results = {_memory(first) for first, _ in runs}, {_memory(*result) for _, result in runs}
        case.instead(  # "call it for each batch as it is"
            {_memory(batch) for batch in batches} - given,
            "not every batch goes through the graph as it is",
            "the compiled function is called with each batch, which is neither padded nor cast nor copied",
            expected=f"batches of {sizes} rows" if left_out else ...,
            got=f"of {rows} rows" if left_out else ...,
        )
        case.instead(
            {_memory(result) for result in got} - results,
            "returns what no graph has computed",
            "the results are those of the compiled function",
        )
    edges.note("second_call", "order")


@one_graph.alternative("says which dimension changes: all others stay numbers, which the compiler can use")
def _(function, batches, backend):
    compiled = torch.compile(function, backend=backend)
    results = []
    for batch in batches:
        torch._dynamo.mark_dynamic(batch, 0)
        results.append(compiled(batch))
    return results


@exercise(
    title="Which calls compile again?",
    minutes=8,
    difficulty=2,
    where=WHERE,
    limit_s=COMPILES_S,
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


@recompiled.alternative("PyTorch's tests have such a backend: CompileCounter counts graphs, but is not for the public")
def _(function, calls):
    from torch._dynamo.testing import CompileCounter

    counter, again = CompileCounter(), []
    compiled = torch.compile(function, backend=counter)
    for number, args in enumerate(calls):
        before = counter.frame_count
        compiled(*args)
        if number > 0 and counter.frame_count != before:
            again.append(number)
    return again


recompiled.leaves_out("of a tensor, its shape and format count here", "huge", "tiny", "not_finite", "zero", "negative")
recompiled.leaves_out("CPU tensors, on every machine", "elsewhere", "surroundings")
recompiled.leaves_out("two formats are enough", "half", "bfloat16", "whole", "bool", "complex")
recompiled.leaves_out("how large a number is makes no difference", "numbers")
recompiled.leaves_out("strides are guarded as shapes are", "permuted", "sliced")


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
