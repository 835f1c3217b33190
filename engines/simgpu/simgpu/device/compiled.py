"""Graphs, breaks and kernels that `torch.compile` would make of a function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from simgpu.clock.events import Event, Kernel
from simgpu.device.graph_passes import before_backward, run_backward
from simgpu.device.operator_log import OperatorLog
from simgpu.device.operators import Plan
from simgpu.ground import inductor, tables
from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.ground.units import bytes_text
from simgpu.machine.prices import Cost, price

__all__ = ["Compiled", "CompiledGraph", "CompiledKernel", "GraphBreak", "GraphPass", "compiled", "kernels_of"]


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a compiled graph.

    - `operators`: the program's operators that it computes, several where they were fused;
    - `library`: whether it is a call of a library, such as cuBLAS and cuDNN, and not written by the compiler;
    - `backward`: whether it belongs to the backward pass;
    - `nbytes`, `flops`: what it reads and writes, and computes;
    - `lines`: the program's lines, as "file:line".
    """

    name: str
    operators: tuple[str, ...]
    library: bool
    backward: bool
    nbytes: int
    flops: int
    lines: tuple[str, ...]
    cost: Cost = field(repr=False)


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that PyTorch found, with its kernels, or in `error` why they are not known.

    `inputs` is how many tensors it takes, parameters among them.
    """

    kernels: tuple[CompiledKernel, ...]
    error: str = ""
    inputs: int = 0

    @property
    def passes(self) -> tuple["GraphPass", "GraphPass"]:
        """Its forward and its backward pass."""
        return GraphPass(self, False), GraphPass(self, True)


@dataclass(frozen=True)
class GraphPass:
    """The forward or the backward pass of a graph runs, with its part of the graph's kernels."""

    graph: CompiledGraph
    backward: bool

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        return tuple(kernel for kernel in self.graph.kernels if kernel.backward is self.backward)

    def calls(self, captured: bool = False) -> tuple[tuple[str, int], ...]:
        """Return the host work besides launching kernels, as classes of `hosts.CLASSES` and counts.

        `captured` kernels are one CUDA graph.
        """
        recorded = any(kernel.backward for kernel in self.graph.kernels)
        calls = {
            "graph": not self.backward, "guard": 0 if self.backward else self.graph.inputs, "recorded graph": recorded,
            "graph tree": captured,
        }  # fmt: skip
        return tuple((kind, int(times)) for kind, times in calls.items() if times)


@dataclass(frozen=True)
class GraphBreak:
    """Where a graph ended before the function did: `line`, as "file:line", and PyTorch's `reason`."""

    line: str
    reason: str


@dataclass(frozen=True, repr=False)
class Compiled(tables.Table):
    """Compiled form of a function: `graphs` with their kernels, and the `breaks` between them.

    `forward` is what runs, in order: graphs, and between them operators that stay uncompiled, priced as ever.
    `backward` is the same of the backward pass.
    """

    graphs: tuple[CompiledGraph, ...]
    breaks: tuple[GraphBreak, ...]
    forward: tuple[GraphPass | Kernel, ...] = ()
    backward: tuple[GraphPass | Kernel, ...] = ()

    head = ("kernel", "operators", "bytes", "FLOPs")
    right = (2, 3)

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """The kernels of all graphs, in their order."""
        return tuple(kernel for graph in self.graphs for kernel in graph.kernels)

    @property
    def outside(self) -> tuple[str, ...]:
        """The operators that run outside of the graphs in the forward pass, as they would without compiling."""
        return tuple(one.name for one in self.forward if isinstance(one, Kernel))

    @property
    def error(self) -> str:
        """Why it is not known how long the function would take, or nothing."""
        return "; ".join(f"the kernels of a graph are not known: {graph.error}" for graph in self.graphs if graph.error)

    @property
    def remark(self) -> str:
        """What stays uncompiled, and where, or nothing."""
        if not self.outside:
            return ""
        names = list(dict.fromkeys(self.outside))
        some = ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
        where = "".join(f"; a graph breaks at {one.line}" for one in self.breaks[:1])
        return f"{_some(len(self.outside), 'operator')} would run uncompiled: {some}{where}"

    @property
    def nbytes(self) -> int:
        """The bytes that all kernels read and write."""
        return sum(kernel.nbytes for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """The operations that all kernels compute."""
        return sum(kernel.flops for kernel in self.kernels)

    def cells(self) -> list[list[str]]:
        return [
            [
                f"{'library' if one.library else 'written'}{', backward' if one.backward else ''}",
                ", ".join(one.operators), f"{one.nbytes:,}", f"{one.flops:,}",
            ]
            for one in self.kernels
        ]  # fmt: skip

    def caption(self) -> str:
        graphs, kernels, breaks = (_some(len(self.graphs), "graph"), _some(len(self.kernels), "kernel"), self.breaks)
        told = [f"{graphs}, {kernels}, {bytes_text(self.nbytes)} read and written"]
        told += [f"graph break at {one.line}: {one.reason}" for one in breaks]
        return "\n".join([*told, *filter(None, (self.error, self.remark))])


def _some(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def compiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Compiled:
    """Run `torch.compile(function)(*args, **kwargs)`, and return which kernels it would write for a GPU.

        print(simgpu.compiled(lambda x: torch.relu(x * 2 + 1), torch.ones(1000)))

    PyTorch's own compiler says it, up to where it would write code: neither a GPU nor Triton nor a C++ compiler is
    needed. `args` may be on any device, and count as tensors of a GPU. Where they or parameters need gradients, and
    gradients are enabled, the kernels of the backward pass follow. The function runs once, uncompiled. Graphs of a
    function that calls itself are told as often as they run. What was compiled before plays no part, since PyTorch's
    compiler is reset: it compiles again what runs compiled later.

    Kernels are those for an A100's 108 multiprocessors. Where PyTorch's compiler fails, a graph says so in `error`.
    What it leaves to run uncompiled, such as a function under `torch.compiler.disable`, stands in `outside`; to know
    the same of the backward pass, that runs once too, and keeps no gradients.
    """
    run = _Run()
    if not _runs:
        torch.compiler.reset()
    _runs.append(run)
    try:
        with run.outside:
            result = torch.compile(function, backend=_collect)(*args, **kwargs)
            forward = run.take()
            if any(isinstance(one, Kernel) for one in forward):
                run_backward(result, (args, kwargs))
    finally:
        _runs.pop()
    return Compiled(tuple(run.graphs), tuple(run.breaks), forward, run.take() or _backward(forward))


def _backward(forward: Sequence[GraphPass | Kernel]) -> tuple[GraphPass, ...]:
    """Return the backward passes of graphs between which nothing runs."""
    passes = [GraphPass(one.graph, True) for one in reversed(forward) if isinstance(one, GraphPass)]
    return tuple(one for one in passes if one.kernels)


class _Run:
    """What a function does that runs compiled: its graphs, and the operators `outside` of them."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []
        self.breaks: list[GraphBreak] = []
        self.outside = _Outside()
        self._passes: list[tuple[int, GraphPass]] = []  # with the number of events that were logged before

    def graph(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Run a graph, uncompiled."""
        self.graphs.append(kernels_of(graph, inputs))
        self.breaks.extend(break_of(graph))
        forward, backward = self.graphs[-1].passes
        self._begins(forward)
        result = graph.forward(*inputs)
        if backward.kernels:
            before_backward(result, inputs, lambda: self._begins(backward), self.outside)
        return result

    def _begins(self, one: GraphPass) -> None:
        self._passes.append((len(self.outside.log), one))

    def take(self) -> tuple[GraphPass | Kernel, ...]:
        """Return what has run since the last call, in order."""
        events: list[Event] = list(self.outside.log.events)
        order: list[GraphPass | Event] = []
        done = 0
        for number, one in self._passes:
            order += [*events[done:number], one]
            done = number
        order += events[done:]
        self.outside.log.clear()
        self._passes.clear()
        return tuple(one for one in order if isinstance(one, GraphPass | Kernel))


_runs: list[_Run] = []
_NAMED = 3  # operators that a sentence names


class _Outside(OperatorLog):
    """Logs the operators outside of graphs; inside of one it is off."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Say that what PyTorch's compiler does is none of its business."""
        return True

    def __torch_dispatch__(self, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Do as ever: what `_should_skip_dynamo` says counts for a method of the class itself alone."""
        return super().__torch_dispatch__(func, types, args, kwargs)


def _collect(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that tells of the kernels of a graph whenever it runs."""

    def run(*values: Any) -> Any:
        with _disable_current_modes():
            return _runs[-1].graph(graph, values) if _runs else graph.forward(*values)

    return run


def break_of(graph: torch.fx.GraphModule) -> list[GraphBreak]:
    """Return the break at which a graph ends, if it does at one."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return []
    frame = reason.user_stack[-1] if reason.user_stack else None
    line = "" if frame is None else f"{Path(frame.filename).name}:{frame.lineno}"
    return [GraphBreak(line, str(reason.reason).strip().splitlines()[0])]


def kernels_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
    """Return the kernels of a graph that Dynamo found, called with `inputs`, in the autocast that is on."""
    kinds = ["cpu", "cuda", *(["sim"] if hasattr(torch, "sim") else [])]
    formats = [torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)]
    try:
        lowered = inductor.lower(graph, inputs, next(iter(formats), None))
    except Exception as error:  # of the inside of PyTorch's compiler, which may raise anything
        return CompiledGraph((), f"{type(error).__name__}: {error}".strip().splitlines()[0])
    tensors = sum(isinstance(one, torch.Tensor) for one in inputs)
    return CompiledGraph(tuple(_kernel(one) for one in lowered if _is_kernel(one)), inputs=tensors)


def _is_kernel(lowered: inductor.Lowered) -> bool:
    plan = None if lowered.call is None else Plan.of(lowered.call.operator)
    return plan is None or not (plan.func.is_view or plan.row.memory_only)


def _kernel(lowered: inductor.Lowered) -> CompiledKernel:
    call = lowered.call
    if call is None:
        cost = Cost(lowered.elements, lowered.nbytes, lowered.rate, host="launch")
    else:
        plan = Plan.of(call.operator)
        inputs = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(call.result) if isinstance(leaf, torch.Tensor)]
        cost = price(plan, inputs, outputs, call.args, call.kwargs, call.result)
        cost = replace(cost, host="light", tensors=0)  # called by generated code, without autograd or autocast
    lines = tuple(f"{Path(file).name}:{line}" for file, _, line in (text.rpartition(":") for text in lowered.lines))
    nbytes = cost.nbytes + cost.extra_bytes
    return CompiledKernel(
        lowered.name, lowered.operators, lowered.library, lowered.backward, nbytes, cost.flops, lines, cost
    )
