"""What is there to know about an operator before it runs, and what does it cost on the simulated GPU?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from course_utils.simulator import state

__all__ = ["HOST_ARGUMENTS", "PLANS", "SPECIAL", "Plan", "charge", "plan_of"]


@dataclass
class Plan:
    name: str
    special: Any = None
    mutates: tuple[str | int, ...] = ()
    flops: Any = None
    matrix: bool = False
    gathers: bool = False  # reads as many elements as it writes, not its whole input
    overwrites: bool = False  # writes its first argument without reading it
    waits: bool = False  # the host needs the result: its size or its value depends on the data
    mixes: bool = False  # takes CPU tensors beside those of the device: indices
    pointwise: bool = False
    simple: bool = False  # takes tensors and numbers, gives one tensor, and needs none of the above


_GATHERS = {"embedding", "index", "index_select", "gather", "index_put_", "index_put", "_index_put_impl_", "scatter_"}
_OVERWRITES = {"zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "copy_"}
_WAITS = {"nonzero", "masked_select", "equal", "_local_scalar_dense", "is_nonzero", "_unique2", "unique_consecutive"}
_MIXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
HOST_ARGUMENTS = {
    "_pack_padded_sequence": "lengths",
    "_pack_padded_sequence_backward": "batch_sizes",
}  # stay on the CPU
PLANS: dict[int, Plan] = {}
SPECIAL: dict[Any, Any] = {}  # operators that _special.py runs


def plan_of(func) -> Plan:
    packet, schema = func.overloadpacket, func._schema
    name = packet.__name__
    mutates = tuple(
        arg.name if arg.kwarg_only else position
        for position, arg in enumerate(schema.arguments)
        if arg.alias_info is not None and arg.alias_info.is_write
    )
    flops = flop_registry.get(packet, _EXTRA_FLOPS.get(name))
    PLANS[id(func)] = plan = Plan(
        name,
        special=SPECIAL.get(func),
        mutates=mutates,
        flops=flops,
        matrix=flops is not None,
        gathers=name in _GATHERS,
        overwrites=name in _OVERWRITES,
        waits=name in _WAITS or torch.Tag.dynamic_output_shape in func.tags,
        mixes=name in _MIXES,
        pointwise=torch.Tag.pointwise in func.tags,
    )
    special = plan.special or mutates or flops or plan.gathers or plan.overwrites or plan.waits or plan.mixes
    plan.simple = not special and "quantize" not in name and [str(r.type) for r in schema.returns] == ["Tensor"]
    return plan


def charge(plan: Plan, index: int, inputs: list[torch.Tensor], args, kwargs, out) -> None:
    """Advance the virtual clock by what this operator costs."""
    outputs = [t for t in (out if isinstance(out, list | tuple) else (out,)) if isinstance(t, torch.Tensor)]
    written = sum(t.nbytes for t in outputs)
    if plan.name in ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "resize_", "set_"):
        return  # memory only, no kernel
    if plan.gathers:
        read = written + sum(t.nbytes for t in inputs if not t.is_floating_point())
    else:
        result_only = {id(kwargs[name]) for name in plan.mutates if isinstance(name, str)}  # out=
        read = sum(t.nbytes for t in (inputs[1:] if plan.overwrites else inputs) if id(t) not in result_only)
    if plan.mutates and not outputs:
        written = sum(t.nbytes for t in inputs[: max(1, len(inputs) // 2)])
    if plan.flops is not None:
        flops = int(plan.flops(*args, **kwargs, out_val=out))
        dtype = inputs[0].dtype
    else:
        flops = max((t.numel() for t in (*inputs, *outputs)), default=0)
        dtype = torch.float64 if any(t.dtype is torch.float64 for t in outputs) else torch.float32
    steps = len(args[0]) if plan.name in _RECURRENT else 1
    if steps > 1:
        read += (steps - 1) * args[2].nbytes  # each step reads the recurrent weight again
    state.world.kernel(index, plan.name, flops, read + written, _peak_name(dtype, plan.matrix), steps)
    if plan.waits:
        state.world.copy(index, "D2H", 8, pinned=True, blocking=True)


_PEAKS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


def _peak_name(dtype: torch.dtype, matrix: bool) -> str:
    if dtype is torch.float32 and matrix and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return _PEAKS.get(dtype, "fp32")


def _lstm_flops(x, w_ih, w_hh, *args, out_val=None, **kwargs) -> int:
    tokens = math.prod(x.shape[:-1])
    return 2 * tokens * (w_ih.numel() + w_hh.numel())


_RECURRENT = {"mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"}  # input (time, batch, features), one step after another
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_EXTRA_FLOPS = {  # what PyTorch's table lacks: the CPU's attention before torch 2.15, and recurrent layers
    "_scaled_dot_product_flash_attention_for_cpu": flop_registry[_FLASH],
    "_scaled_dot_product_flash_attention_for_cpu_backward": flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ],
    "mkldnn_rnn_layer": _lstm_flops,
    "mkldnn_rnn_layer_backward": lambda *a, **k: 2 * _lstm_flops(a[0], a[1], a[2]),
}
