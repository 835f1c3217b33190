"""The exercise “The backward pass of bias and GELU”."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=8,
    difficulty=2,
    hints=(
        "By the chain rule, multiply `grad`, which comes in, by the slope of GELU at z = x + bias. Both terms count.",
        "x has the slope's shape. `bias` was added to every row, so each of its gradients is a sum over the rows: dim "
        "0.",
        "Recompute z from ctx.saved_tensors, then the slope with torch.erf and torch.exp. ctx.needs_input_grad holds "
        "two truth values: put None in the place of what is not needed, before it is computed.",
    ),
)
def bias_gelu_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients for x and bias, and None for one that is not needed."""
    x, bias = ctx.saved_tensors
    z = x + bias
    slope = 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    grad_x = grad * slope
    grad_bias = grad_x.sum(0) if ctx.needs_input_grad[1] else None  # bias was added to every row
    return grad_x if ctx.needs_input_grad[0] else None, grad_bias


@dataclass
class _Context:
    """What autograd hands to a backward function, as far as this exercise needs it."""

    saved_tensors: tuple[torch.Tensor, torch.Tensor]
    needs_input_grad: tuple[bool, bool]

    def __repr__(self) -> str:
        return f"ctx of x {tuple(self.saved_tensors[0].shape)}, needs_input_grad={self.needs_input_grad}"


_NOBODY = (
    "computes a gradient of bias that nobody needs",
    "ctx.needs_input_grad says so: each costs a pass over memory",
)


bias_gelu_backward.exempt("x has rows and columns", "scalar")
bias_gelu_backward.exempt("gradients are ordinary numbers", "huge tiny not_finite zero")
bias_gelu_backward.exempt(
    "the slope needs more digits than 16 bits have, and real numbers", "half bfloat16 whole bool complex"
)
bias_gelu_backward.exempt("two places show that none is named", "elsewhere")
bias_gelu_backward.exempt("no default is asked", "default_type")
bias_gelu_backward.exempt("it is handed a context, which cannot be kept for later", "second_call")


@bias_gelu_backward.checks
def _(case: Case) -> None:
    both = 0
    for shape, needs, form in (
        ((1, 1), (True, True), "dense"),
        ((3, 2), (True, True), "dense"),
        ((2, 3), (True, False), "dense"),
        ((3, 2), (False, True), "dense"),
        ((3, 2), (True, True), "expanded"),
        ((4, 7), (True, True), "transposed"),
    ):
        x, bias = torch.randn(shape), torch.randn(shape[1])
        grad = {
            "dense": torch.randn(shape),
            "expanded": torch.tensor(0.7).expand(shape),  # what sum() sends back
            "transposed": torch.randn(shape[::-1]).t(),
        }[form]
        exact = [tensor.double().requires_grad_(need) for tensor, need in zip((x, bias), needs, strict=True)]
        F.gelu(exact[0] + exact[1]).backward(grad.double())
        expected = tuple(tensor.grad.float().to(case.device) if tensor.grad is not None else None for tensor in exact)
        ctx = _Context((x.to(case.device), bias.to(case.device)), needs)
        given = grad.to(case.device) if form == "dense" else _like(grad, case.device)
        got = case.call(ctx, given)
        both = case.counts.operators if all(needs) else both
        case.fail_if(not needs[1] and case.counts.operators >= both, *_NOBODY)
        case.equal(
            tuple(got) if isinstance(got, list) else got, expected, rtol=1e-4, atol=1e-5,
            why=f"gradients of x and bias, None where not needed; the incoming gradient is {form}",
        )  # fmt: skip
    wide = torch.float64  # which gradcheck needs: nothing is rounded to float32
    for shape, scale, dtype, device, rtol in (
        ((4, 3), 20.0, torch.float32, case.device, 1e-4),
        ((0, 3), 1.0, torch.float32, case.device, 1e-4),
        ((2, 3), 1.0, wide, edges.supporting(case.device, wide), 1e-8),
        ((2, 3), 1.0, torch.float32, torch.device("cpu"), 1e-4),
    ):
        x, bias, grad = (scale * torch.randn(size, dtype=dtype) for size in (shape, shape[1:], shape))
        exact = [tensor.double().requires_grad_() for tensor in (x, bias)]
        F.gelu(exact[0] + exact[1]).backward(grad.double())
        got = case.call(_Context((x.to(device), bias.to(device)), (True, True)), grad.to(device))
        expected = tuple(tensor.grad.to(device, dtype) for tensor in exact)
        case.equal(tuple(got) if isinstance(got, list) else got, expected, rtol=rtol, atol=rtol / 10)


def _like(grad: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a two-dimensional `grad` on `device` with strides of the same kind: expanded, or transposed."""
    if 0 in grad.stride():
        return grad[0, 0].to(device).expand(grad.shape)
    return grad.t().contiguous().to(device).t()
