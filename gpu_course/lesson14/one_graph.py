"""The exercise “Ten sizes, one graph”."""

from collections import Counter
from collections.abc import Callable

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.tracing import Alone, keeping


@exercise(
    minutes=5,
    difficulty=1,
    where="any machine: graphs of CPU tensors",
    limit_s=30.0,  # tracing takes much longer than computing
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


one_graph.exempt("the text hands over batches of rows", "scalar", "empty", "single")
one_graph.exempt("strides are guarded as sizes are, and the batches lie in memory alike", "permuted")
one_graph.exempt("sizes are asked about, not numbers", "formats", "surroundings")
one_graph.exempt("sizes are asked about, not numbers", "huge", "tiny", "not_finite", "zero", "tied")
one_graph.exempt("CPU tensors, on every machine", "elsewhere")
one_graph.exempt("a list without batches makes no graph", "no_entries")


def _centred(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x - x.mean(0))


def _shares(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(0) * x.shape[0]


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
        case.fail_if(not made, "`backend` gets no graph", "pass it to torch.compile, and call what that returns")
        case.fail_if(
            made == 2 and many > 2,
            "is compiled twice",
            "the first call takes the size as fixed, and only the second size shows that it changes: say so beforehand",
        )
        case.budget("graphs", made, 1, f"there are {many} sizes, and each graph costs a compilation")
        rows = [len(first) for first, _ in runs]
        case.budget("calls of it", len(rows), len(sizes), "call it for each batch once")
        left_out = Counter(sizes) - Counter(rows)
        examples = [node.meta.get("example_value") for node in graphs[0].graph.nodes]
        types = {example.dtype for example in examples if isinstance(example, torch.Tensor)}
        why = "it casts nothing: compile it as it is"
        case.fail_if(types - {torch.float32}, "compiles more than `function`", why, got=types)
        given, results = {_memory(first) for first, _ in runs}, {_memory(*result) for _, result in runs}
        case.fail_if(  # "call it for each batch as it is"
            {_memory(batch) for batch in batches} - given,
            "not every batch goes through the graph as it is",
            "the compiled function is called with each batch, which is neither padded nor cast nor copied",
            expected=f"batches of {sizes} rows" if left_out else ...,
            got=f"of {rows} rows" if left_out else ...,
        )
        why = "the results are those of the compiled function"
        case.fail_if({_memory(result) for result in got} - results, "returns what no graph has computed", why)
    edges.note("second_call", "order")
