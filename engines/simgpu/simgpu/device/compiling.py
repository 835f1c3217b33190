"""`torch.compile` on a simulated GPU: PyTorch finds the graphs; their values come operator by operator.

Dynamo is PyTorch's own: graphs, breaks, guards and recompilations are found, counted and logged as on CUDA. Only the
backend "inductor", which writes kernels for a real GPU, gives way here. A graph is run by the operators that the
program named, on the CPU's kernels, and the clock charges the kernels that Inductor would have written for it, in the
forward and in the backward pass (`compiled`). Where these are not known the operators are charged. The time that
PyTorch takes to compile is this machine's, and no part of the virtual clock. Memory is that of the operators.
"""

import functools
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simgpu.clock.clock import Captured
from simgpu.device import compiled, state
from simgpu.device.graph_passes import before_backward
from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind, fakes, imports
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH
from simgpu.machine.prices import Cost

Function = Callable[..., Any]


def replace(put: Replacements) -> None:
    """Register simulated GPUs with the backend of `torch.compile`."""
    put.call(forget_functions)
    wrapper = TORCH._TorchCompileInductorWrapper
    put.put(wrapper, __call__=_by_device(wrapper.__call__))
    fakes.replace(put)
    for name, do in (
        ("torch._dynamo.trace_rules", _look_for_no_graphs_here),
        ("torch._dynamo.variables.higher_order_ops", _register_operators_of_graphs),
        ("torch._dynamo.output_graph", _write_plain_types),
        ("torch.nn.attention.flex_attention", _let_flex_attention_in),
    ):
        put.call(imports.after(name, functools.partial(do, put)))
    forget_functions()


def _look_for_no_graphs_here(put: Replacements, rules: Any) -> None:
    rules.add("simgpu")
    put.call(rules._recompile_re)
    put.call(rules.SKIP_DIRS.remove, rules.SKIP_DIRS[-1])


def forget_functions() -> None:
    """Make Dynamo rebuild its table of allowed functions, which holds the functions themselves."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()


def _by_device(plain: Function) -> Function:
    """Return Inductor's entry: a graph on a simulated GPU is run by its operators, any other one is compiled."""

    @functools.wraps(plain)
    def compile_graph(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Function:
        if not is_ours(graph, inputs):
            return plain(self, graph, inputs, **options)
        return _Graph(graph, bool(self.config.get("triton.cudagraphs")))

    return compile_graph


def is_ours(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether a graph that Dynamo found computes on a simulated GPU."""
    nodes = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(one, torch.Tensor) and device_kind.is_ours(one.device) for one in (*inputs, *nodes))


class _Graph:
    """A compiled graph. With `captured` the host launches all of its kernels at once, as a CUDA graph."""

    def __init__(self, graph: torch.fx.GraphModule, captured: bool) -> None:
        self._graph, self._captured = graph, captured
        self._known: dict[Any, compiled.CompiledGraph] = {}  # by what the inputs are like

    def __call__(self, *inputs: Any) -> Any:
        graph = self._compiled(inputs)
        if not graph.kernels:
            return self._graph.forward(*inputs)
        index = next((one._index for one in inputs if isinstance(one, SimTensor)), state.world.current)
        forward, backward = graph.passes
        self._charge(index, forward)
        with state.world.clock.charged():
            result = self._graph.forward(*inputs)
        if backward.kernels:
            charge = functools.partial(self._charge, index, backward)
            before_backward(result, inputs, charge, state.world.clock)
        return result

    def _compiled(self, inputs: Sequence[Any]) -> compiled.CompiledGraph:
        formats = tuple(
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in (device_kind.kind, "sim")
        )
        key = torch.is_grad_enabled(), formats, tuple(map(_like, inputs))
        if key not in self._known:
            if self._captured and self._known and state.world.on_recorded is not None:
                state.world.on_recorded()
            self._known[key] = graph = compiled.kernels_of(self._graph, inputs)
            metrics: Any = sys.modules.get("torch._inductor.metrics")
            if metrics is not None:  # PyTorch's own counter
                metrics.generated_kernel_count += sum(not one.library for one in graph.kernels)
            if graph.error and "flex_attention" not in str(self._graph.graph):
                words = (
                    f"a compiled graph is charged as if it were not compiled, its kernels are not known: {graph.error}"
                )
                warnings.warn(words, stacklevel=3)
        return self._known[key]

    def _charge(self, index: int, part: compiled.GraphPass) -> None:
        clock = state.world.clock
        for kind, times in part.calls(self._captured):
            clock.called(kind, times)
        if not self._captured:
            for kernel in part.kernels:
                clock.kernel(index, kernel.name, kernel.cost)
            return
        rated = [(one, *clock.rates.kernel(one.cost)) for one in part.kernels]
        clock.replay(index, [Captured(index, one.name, "compute", ns, one.cost, bound) for one, ns, bound in rated])


def _like(value: Any) -> Any:
    """Return the properties of an input on which its graph's kernels depend."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    return value if isinstance(value, int | float | bool | str) else repr(value)


# ---- operators whose arguments are graphs -------------------------------------------------------------------------
def _register_operators_of_graphs(*_: object) -> None:
    """Register simulated tensors with operators that take graphs, such as flex_attention."""
    for name, operator in TORCH._ops._higher_order_ops.items():
        plain = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if plain is not None:
            ours = _as_one_kernel(name, plain) if name.startswith("flex_attention") else plain
            operator.python_key_table.setdefault(SimTensor, ours)


def _as_one_kernel(name: str, plain: Function) -> Function:
    """Return flex_attention, or its backward pass, charged as the one kernel that a compiled program has of it.

    It does the products of the blocks that its mask leaves.
    """

    @functools.wraps(plain)
    def attention(query: SimTensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **options: Any) -> Any:
        masks = [one for one in others if isinstance(one, tuple) and len(one) > 2 and isinstance(one[2], torch.Tensor)]
        pairs = query.shape[-2] * key.shape[-2]
        if masks and isinstance(masks[0][0], int):  # lengths, blocks to compute, and further down blocks without a mask
            pairs = min(pairs, _pairs(masks[0], pairs))
        state.world.clock.kernel(query._index, name, price_of_flex(query, key, value, pairs, name.endswith("backward")))
        with state.world.clock.charged():
            return plain(query, key, value, *others, **options)

    return attention


def price_of_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pairs: int, backward: bool = False
) -> Cost:
    """Return the cost of flex_attention over so many pairs of query and key in each head, or of its backward pass."""
    flops = 2 * math.prod(query.shape[:-2]) * pairs * (query.shape[-1] + value.shape[-1])
    nbytes = 2 * query.nbytes + key.nbytes + value.nbytes
    rate = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(query.dtype, "fp32")
    return Cost(flops * 5 // 2 if backward else flops, 2 * nbytes if backward else nbytes, rate, attention=1.0)


def _pairs(mask: tuple[Any, ...], pairs: int) -> int:
    """Return how many pairs of query and key the blocks of a mask leave, in the mean of its heads."""
    blocks = [one for one in (mask[2], mask[4]) if isinstance(one, SimTensor)]
    counts = sum(float(one._inner.sum()) for one in blocks) / math.prod(blocks[0].shape[:-1])
    return int(counts * mask[-3] * mask[-2]) if isinstance(mask[-2], int) else pairs


# ---- what else asks whether a tensor is one of PyTorch's -----------------------------------------------------------
def _let_flex_attention_in(put: Replacements, module: Any) -> None:
    """Patch flex_attention, which knows its devices by name, to take tensors on `sim`."""
    check = module._validate_device
    put.put(module, _validate_device=lambda query, *others: query.device.type == "sim" or check(query, *others))


def _write_plain_types(put: Replacements, module: Any) -> None:
    """Print the inputs of a graph as `torch.Tensor`, as on any device."""
    tracer, create = module.SubgraphTracer, module.SubgraphTracer.create_graph_input

    @functools.wraps(create)
    def create_graph_input(self: Any, name: str, type_expr: Any, *args: Any, **kwargs: Any) -> Any:
        return create(self, name, torch.Tensor if type_expr is SimTensor else type_expr, *args, **kwargs)

    put.put(tracer, create_graph_input=create_graph_input)
