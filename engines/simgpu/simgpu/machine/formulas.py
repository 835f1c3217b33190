"""Formulas for operators that PyTorch's own table lacks, computes slowly, or has wrong.

Each formula takes the arguments of its operator, and its result as `out_val`, as those of
`torch.utils.flop_counter.flop_registry` do.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Formula: TypeAlias = Callable[..., int]


def product(first: int) -> Formula:
    """Return the formula of an operator that multiplies two matrices, of which the first stands at this place.

    PyTorch's gives the same. Before that it walks through all arguments, which takes longer than a small product.
    """
    return lambda *args, **kwargs: 2 * args[first].numel() * args[first + 1].shape[-1]


def by_result(first: int) -> Formula:
    """Return the formula of a product with a packed second matrix, whose columns the result shows."""
    return lambda *args, out_val=None, **kwargs: 2 * args[first].numel() * out_val.shape[-1]


def list_product(first: list[torch.Tensor], second: list[torch.Tensor], **kwargs: Any) -> int:
    """Return the operations of a list of products."""
    return sum(2 * a.numel() * b.shape[-1] for a, b in zip(first, second, strict=True))


def grouped_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Return the operations of products by group: a row, or a column, of a matrix without groups belongs to one."""
    groups = first.shape[0] if first.dim() == 3 and second.dim() == 2 else 1
    return 2 * first.numel() // groups * second.shape[-1]


def distances(first: int) -> Formula:
    """Return the formula of distances between all rows of two matrices, a multiplication and an addition a column."""
    return lambda *args, **kwargs: 2 * args[first].numel() * args[first + 1].shape[-2]


def pairs(first: int) -> Formula:
    """Return the formula of distances between all pairs of rows of one matrix."""
    return lambda *args, **kwargs: args[first].numel() * (args[first].shape[0] - 1)


def convolution_in_time(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    """Return the operations of conv_tbc, whose weight has (width, channels, channels of the result)."""
    return 2 * out_val.numel() * math.prod(args[1].shape[:2])


def trilinear(
    i1: torch.Tensor, i2: torch.Tensor, i3: torch.Tensor, expand1: list[int], expand2: list[int], expand3: list[int],
    *args: Any, **kwargs: Any,
) -> int:  # fmt: skip
    """Return the operations of F.bilinear's sum of products over three tensors, each without some of its dimensions."""
    shapes = [list(i1.shape), list(i2.shape), list(i3.shape)]
    for shape, dims in zip(shapes, (expand1, expand2, expand3), strict=True):
        for dim in sorted(dims):
            shape.insert(dim, 1)
    return 2 * math.prod(map(max, *shapes))


def convolution(transposed: bool = False) -> Formula:
    """Return the formula of a convolution of one library, which PyTorch's table has for the common operator alone."""

    def formula(x: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return 2 * (x if transposed else out_val).numel() * math.prod(weight.shape[1:])

    return formula


def attention(tail: str = "") -> Formula:
    """Return PyTorch's formula of fused attention, whose table has not all of its kinds (the CPU's from 2.15 on)."""
    formula: Any = flop_registry[getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention{tail}")]
    return formula


def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, *args: Any, **kwargs: Any,
) -> int:  # fmt: skip
    """As many as forward for each of the two gradients; PyTorch's formula leaves groups out of account."""
    places = x if transposed else grad
    wanted = args[-1]
    return 2 * places.numel() * math.prod(weight.shape[1:]) * (wanted[0] + wanted[1])


def encoder(width: int, *weights: int) -> Formula:
    """Return the formula of attention with its projections in one operator, whose width and weights stand there.

    Two operations for each weight and token, and the two products of attention.
    """

    def formula(x: torch.Tensor, *args: Any, **kwargs: Any) -> int:
        values: tuple[Any, ...] = (x, *args)
        products = sum(values[index].numel() for index in weights)
        return x.numel() // values[width] * (2 * products + 4 * x.shape[-2] * values[width])

    return formula


def recurrent(name: str, gradients: int = 0) -> Formula:
    """Return the formula of a fused recurrent layer: two operations for each token and weight, or for each gradient.

    Sums and gates are left out, as in PyTorch's formulas of other layers.
    """

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        values = _by_name(f"aten::{name}", args)
        weights = [value for key, value in values.items() if key == "params" or key.startswith("weight")]
        numbers = sum(one.numel() for one in tree_leaves(weights) if isinstance(one, torch.Tensor) and one.dim() == 2)
        tokens = values["input"]
        return 2 * (gradients or 1) * (tokens.numel() // tokens.shape[-1]) * numbers

    return formula


def chunked_loss(name: str) -> Formula:
    """Return the formula of a layer and its loss in one operator: a product for the loss, and one for each gradient
    that it makes besides."""

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        values = _by_name(name, args) | kwargs
        products = 1 + sum(values.get(f"compute_{one}_grad", False) for one in ("input", "linear_weight"))
        return 2 * products * values["input"].numel() * values["linear_weight"].shape[:-1].numel()

    return formula


def _by_name(operator: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of an operator by their names."""
    namespace, _, name = operator.partition("::")
    arguments = getattr(getattr(torch.ops, namespace), name).default._schema.arguments
    return {argument.name: value for argument, value in zip(arguments, args, strict=False)}
