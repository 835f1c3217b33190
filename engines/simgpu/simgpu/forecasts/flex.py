"""flex_attention in a forecast: the kernel of a compiled program, on tensors that have shapes and no values."""

from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import flex_attention as module

from simgpu.device.compiling import price_of_flex
from simgpu.forecasts.recorder import Recorder
from simgpu.ground.composite import without_modes
from simgpu.ground.nodes import graph_nodes, is_leaf


def patched(recorder: Recorder) -> Any:
    """Return a context in which flex_attention is a kernel of the program that `recorder` follows."""

    def run(query: Any, key: Any, value: Any, score_mod: Any, mask: tuple[Any, ...], *_: Any) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # with all of Dynamo

        tensors = [query, key, value]
        if torch.is_autocast_enabled("cpu"):
            tensors = [one.to(torch.get_autocast_dtype("cpu")) for one in tensors]
        with recorder.charged(), TransformGetItemToIndex():
            score = score_mod(query.new_zeros(()), *(query.new_zeros((), dtype=torch.int32) for _ in range(4)))
        learned = [node.variable for node in graph_nodes([score.grad_fn]) if is_leaf(node)]
        return _Kernel.apply(recorder, int(_share(mask) * query.shape[-2] * key.shape[-2]), *tensors, *learned)

    flags: dict[str, Any] = {"_validate_device": lambda *_: None, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True}
    return mock.patch.multiple(module, flex_attention_hop=run, create=True, **flags)


class _Kernel(torch.autograd.Function):
    """Forward and backward pass, which keep what PyTorch's do: inputs, result, two statistics of each row."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, pairs: int, *tensors: torch.Tensor) -> Any:
        query, key, value = tensors[:3]
        recorder.kernel("flex_attention", price_of_flex(query, key, value, pairs))
        alike = query.shape[-1] == value.shape[-1]
        out = torch.empty_like(query) if alike else query.new_empty((*query.shape[:-1], value.shape[-1]))
        rows = [query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2)]
        ctx.recorder, ctx.pairs = recorder, pairs
        ctx.mark_non_differentiable(rows[1])
        ctx.save_for_backward(*tensors, out, *rows)
        return out, *rows

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, *learned = ctx.saved_tensors[:-3]
        ctx.recorder.kernel("flex_attention_backward", price_of_flex(query, key, value, ctx.pairs, backward=True))
        return None, None, *map(torch.empty_like, (query, key, value, *learned))


def _share(mask: tuple[Any, ...]) -> float:
    """Return the share of a mask's blocks that are computed, 1 where only values of tensors could tell.

    A block is asked at its corners and its middle, in the first head of the first example.
    """
    try:
        with unset_fake_temporarily(), without_modes():
            i, j = map(_asked, mask[:2], mask[-3:-1])
            left = mask[-1](torch.tensor(0), torch.tensor(0), i[:, None], j).expand(len(i), len(j))
            return float(left.unflatten(0, (-1, 3)).unflatten(2, (-1, 3)).any(3).any(1).float().mean())
    except Exception:  # of the program's own function, on numbers beside its tensors
        return 1.0


def _asked(length: int, block: int) -> torch.Tensor:
    inside = torch.tensor([0, block // 2, block - 1])
    return (torch.arange(0, length, block)[:, None] + inside).flatten().clamp(max=length - 1)
