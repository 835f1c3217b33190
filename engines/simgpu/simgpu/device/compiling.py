"""What does `torch.compile` do on a simulated GPU? PyTorch finds the graphs; their values come operator by operator.

Dynamo is PyTorch's own: graphs, breaks, guards and recompilations are found, counted and logged as on CUDA. Only the
backend "inductor", which writes kernels for a real GPU, gives way here: a graph is run by the operators that the
program named, on the CPU's kernels. The time that PyTorch takes to compile is this machine's, and no part of the
virtual clock.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind, fakes, imports
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

Compiled = Callable[..., Any]
_replaced = Replacements()  # for as long as the process lives


def replace() -> None:
    """Let the backend of `torch.compile` know simulated GPUs, once a process."""
    wrapper = TORCH._TorchCompileInductorWrapper
    wrapper.__call__ = _by_device(wrapper.__call__)
    fakes.replace(_replaced)
    imports.after("torch._dynamo.trace_rules", lambda rules: rules.add("simgpu"))  # no graphs are looked for in here
    imports.after("torch._dynamo.variables.higher_order_ops", lambda module: _register_operators_of_graphs())
    imports.after("torch._dynamo.output_graph", _write_plain_types)
    imports.after("torch.nn.attention.flex_attention", _let_flex_attention_in)


def _by_device(plain: Compiled) -> Compiled:
    """Return Inductor's entry: a graph on a simulated GPU is run by its operators, any other one is compiled."""

    @functools.wraps(plain)
    def compile_graph(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Compiled:
        if not is_ours(graph, inputs):
            return plain(self, graph, inputs, **options)
        return graph.forward

    return compile_graph


def is_ours(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether a graph that Dynamo found computes on a simulated GPU."""
    nodes = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(one, torch.Tensor) and device_kind.is_ours(one.device) for one in (*inputs, *nodes))


def _register_operators_of_graphs() -> None:
    """Let operators whose arguments are graphs, such as flex_attention, do with our tensors what they do with any."""
    for operator in TORCH._ops._higher_order_ops.values():
        plain = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if plain is not None:
            operator.python_key_table.setdefault(SimTensor, plain)


def _let_flex_attention_in(module: Any) -> None:
    """Let flex_attention take tensors on `sim`, which is none of the devices that it knows by name."""
    check = module._validate_device
    module._validate_device = lambda query, *others: query.device.type == "sim" or check(query, *others)


def _write_plain_types(module: Any) -> None:
    """Let a printed graph say `torch.Tensor` of its inputs, as on any device."""
    tracer, create = module.SubgraphTracer, module.SubgraphTracer.create_graph_input

    @functools.wraps(create)
    def create_graph_input(self: Any, name: str, type_expr: Any, *args: Any, **kwargs: Any) -> Any:
        return create(self, name, torch.Tensor if type_expr is SimTensor else type_expr, *args, **kwargs)

    tracer.create_graph_input = create_graph_input
