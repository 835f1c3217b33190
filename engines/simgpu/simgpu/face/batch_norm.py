"""Operators of `SyncBatchNorm` that PyTorch has for CUDA alone, computed by the CPU.

Each rank computes its own mean and spread, gathers those of all, and normalises by the common ones; backward, two sums
are reduced over all ranks between the last two operators.
"""

import torch


def register(library: torch.library.Library) -> None:
    """Give the CPU the five operators."""
    for function in (_stats, _gather_stats_with_counts, _elemt, _backward_reduce, _backward_elemt):
        library.impl(f"batch_norm{function.__name__}", function, "CPU")


def _others(x: torch.Tensor) -> list[int]:
    """Return all dimensions but the channels."""
    return [at for at in range(x.dim()) if at != 1]


def _wide(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return one number a channel in a shape that is combined with `x`."""
    return row.view(-1, *(1,) * (x.dim() - 2))


def _precise(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(_precise(x), _others(x), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats_with_counts(
    x: torch.Tensor, means: torch.Tensor, invstds: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, momentum: float, eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shares = (counts / counts.sum()).view(-1, 1).to(means.dtype)
    mean = (shares * means).sum(0)
    variance = (shares * (invstds.pow(-2) - eps + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (counts.sum() / (counts.sum() - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _elemt(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:  # fmt: skip
    scale = invstd if weight is None else invstd * weight
    result = (_precise(x) - _wide(mean, x)) * _wide(scale, x)
    return (result if bias is None else result + _wide(bias, x)).to(x.dtype)


def _backward_reduce(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: torch.Tensor | None,
    *needed: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    precise = _precise(grad)
    total = precise.sum(_others(x))
    times_x = (precise * (_precise(x) - _wide(mean, x))).sum(_others(x))
    kind = invstd.dtype if weight is None else weight.dtype
    return total, times_x, (times_x * invstd).to(kind), total.to(kind)


def _backward_elemt(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: torch.Tensor | None,
    total: torch.Tensor, times_x: torch.Tensor, counts: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    count = counts.sum()
    along_x = (_precise(x) - _wide(mean, x)) * _wide(invstd.square() * times_x / count, x)
    scale = invstd if weight is None else invstd * weight
    return ((_precise(grad) - _wide(total / count, x) - along_x) * _wide(scale, x)).to(grad.dtype)
