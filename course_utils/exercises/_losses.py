"""What was computed instead of the right loss, or of the right share of lost gradients?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from course_utils.exercises._mistakes import mistake_of

__all__ = ["gradient_cases", "huber_mistake", "huber_of_row", "lost_mistake"]

# One line for each mistake.
# fmt: off


def huber_of_row(prediction: list[float], target: list[float], delta: float) -> float:
    """Return the mean Huber loss of one row, with Python's numbers."""
    errors = [abs(p - t) for p, t in zip(prediction, target, strict=True)]
    return sum(0.5 * e * e if e <= delta else delta * (e - 0.5 * delta) for e in errors) / len(errors)


def huber_mistake(
    got: torch.Tensor, signed: torch.Tensor, delta: float, expected: torch.Tensor
) -> tuple[str, str]:
    """Return the name of the mistake that gives `got` for the errors `signed`, and why it matters, or empty texts."""
    error = signed.abs()
    square, line = 0.5 * error**2, delta * (error - 0.5 * delta)
    each, row = torch.where(error <= delta, square, line), "one number for each row is asked for: mean(dim=1)"
    for wrong, name, why in (
        (torch.where(error <= 1, square, error - 0.5).mean(1), "ignores `delta`",
         "the caller says where the straight line begins"),
        (each.mean(1) / delta, "divides by delta", "that is the smooth L1 loss: huber is delta times as much"),
        (torch.where(signed <= delta, 0.5 * signed**2, delta * (signed - 0.5 * delta)).mean(1),
         "forgets the absolute value", "an error of -5 is as large as one of 5"),
        (torch.where(error <= delta, square, delta * (signed - 0.5 * delta)).mean(1),
         "forgets the absolute value", "an error of -5 is as large as one of 5, in the straight line too"),
        (torch.where(error <= delta, line, square).mean(1), "swaps the two branches",
         "small errors are squared, large ones grow in a straight line"),
        (torch.where(error <= delta, error**2, line).mean(1), "forgets the half of the square",
         "without it the two branches do not meet at delta"),
        (torch.where(error <= delta, square, delta * error).mean(1), "forgets to subtract in the straight line",
         "without it the two branches do not meet at delta"),
        (torch.where(error <= delta, square, delta * error - 0.5 * delta).mean(1),
         "subtracts 0.5 delta in the straight line", "delta stands before the bracket: delta * (error - 0.5 * delta)"),
        (square.mean(1), "squares every error", "beyond delta the loss grows in a straight line"),
        (2 * square.mean(1), "squares every error", "beyond delta the loss grows in a straight line"),
        (error.mean(1), "takes the absolute error", "up to delta the error is squared, beyond it stands 0.5 * delta"),
        (torch.where(error <= delta, square, delta * (error - delta)).mean(1), "forgets the half in the straight line",
         "without it the two branches do not meet at delta"),
        (torch.where(error == delta, square + line, each).mean(1), "counts an error of exactly delta twice",
         "one branch takes <=, the other >"),
        ((each * (error != delta)).mean(1), "leaves out an error of exactly delta", "one branch takes <=, the other >"),
        (line.mean(1), "takes the straight line for every error", "small errors are squared"),
        ((square * (error <= delta)).mean(1), "leaves the large errors out", "beyond delta the loss is a line"),
        ((line * (error > delta)).mean(1), "leaves the small errors out", "up to delta the error is squared"),
        (0.5 * error.clamp(max=delta).square().mean(1), "takes delta for every larger error",
         "beyond delta the loss goes on growing, in a straight line"),
        (each.sum(1), "gives the sum of each row", "the mean is asked for"),
        (each.mean(0), "takes the mean of the columns", row),
        (each.mean(), "takes the mean of all rows in one", row),
        (each, "returns the loss of each element", row),
        (each.mean(1, keepdim=True), "keeps a dimension of size 1", "the shape is (rows,)"),
    ):
        same = got.shape == wrong.shape and got.dtype == wrong.dtype and torch.allclose(got, wrong, atol=1e-5)
        if same and not (wrong.shape == expected.shape and torch.allclose(wrong, expected, atol=1e-5)):
            return name, why
    return "", ""


def gradient_cases() -> list[tuple[torch.Tensor, torch.dtype, float]]:
    """Return gradients, a format and a scale: the smallest that shows each mistake first."""
    wide = torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 10.0 ** torch.linspace(-12, 2, 2000)
    wide[::7] = 0
    half, brain = torch.float16, torch.bfloat16
    return [
        (torch.tensor([1e-3, 1e-8]), half, 1.0),
        (torch.tensor([1e-3, 0.0, 1e-8, 0.0]), half, 1.0),
        (torch.tensor([-2.0, 1e-3]), half, 2.0**16),
        (torch.tensor([4e-8, 1e-6, 65510.0, 1.0]), half, 1.0),
        (torch.tensor([-1e-3, -1e-8, 0.0, 1e-8]), half, 2.0**16),
        (torch.tensor([2.0, -1e-8, 1e-13, 0.0]), half, 2.0**16),
        (torch.tensor([2.0, 1e-8, 1e-13, 0.0]), brain, 2.0**16),
        (wide, half, 2.0**10),
        (wide, brain, 4.0),
    ]


def _bad(x: torch.Tensor) -> torch.Tensor:
    return (x == 0) | x.isinf()


def _beyond(x: torch.Tensor, dtype: torch.dtype, part: float) -> torch.Tensor:
    """Return where `x` is below a `part` of the smallest normal number of the format, or above its largest."""
    return (x.abs() < part * torch.finfo(dtype).tiny) | (x.abs() > torch.finfo(dtype).max)


# Name, why it matters, the share of gradients g stored in a format d with a scale s.
_SHORT = ("keeps them unscaled in the short format",
          "what is too small for it becomes 0 there: scale before .to(dtype), and divide in float32")
_ZEROS = ("counts gradients that were 0 before", "they have lost nothing")
_LIMITS = ("compares with the limits of the format",
           "it has numbers below `tiny`, and storing rounds to the nearest: store them, and look what is left")
_WRONG_SHARES = (
    (*_LIMITS, lambda g, d, s: _share(_beyond(g * s, d, 1.0), g)),
    (*_LIMITS, lambda g, d, s: _share(_beyond(g * s, d, torch.finfo(d).eps), g)),
    ("ignores `dtype`", "each format has its own range", lambda g, d, s: _share(_bad((g * s).to(torch.float16)), g)),
    ("ignores `dtype`", "each format has its own range", lambda g, d, s: _share(_bad((g * s).to(torch.bfloat16)), g)),
    ("divides by the scale", "the loss, and so each gradient, is multiplied by it",
     lambda g, d, s: _share(_bad((g / s).to(d)), g)),
    ("forgets what overflows below zero", "-inf is lost as well: isinf() finds both",
     lambda g, d, s: _share(((g * s).to(d) == 0) | ((g * s).to(d) == math.inf), g)),
    ("scales too late, or not at all", "the loss, and so each gradient, is multiplied before it is stored",
     lambda g, d, s: _share(_bad(g.to(d)), g)),
    (*_SHORT, lambda g, d, s: _share(_bad(g.to(d) * s), g)),
    (*_SHORT, lambda g, d, s: _share(_bad((g * s).to(d) / s), g)),
    ("forgets the overflow", "too large a scale makes gradients infinite: they are lost too",
     lambda g, d, s: _share((g * s).to(d) == 0, g)),
    ("forgets the underflow", "what is too small for the format becomes 0",
     lambda g, d, s: _share((g * s).to(d).isinf(), g)),
    (*_ZEROS, lambda g, d, s: _bad((g * s).to(d)).float().mean().item()),
    (*_ZEROS, lambda g, d, s: (_bad((g * s).to(d)).sum() / (g != 0).sum()).item()),
    ("divides by all gradients", "those that are 0 cannot get lost",
     lambda g, d, s: (_bad((g * s).to(d)) & (g != 0)).float().mean().item()),
    ("returns a percentage", "a share lies between 0 and 1", lambda g, d, s: 100 * _share(_bad((g * s).to(d)), g)),
    ("returns how many", "a share lies between 0 and 1: divide by those that are not 0",
     lambda g, d, s: (_bad((g * s).to(d)) & (g != 0)).sum().item()),
    ("returns the share that is kept", "the share that is lost is asked for",
     lambda g, d, s: 1 - _share(_bad((g * s).to(d)), g)),
    ("looks at positive gradients alone", "one below zero gets lost as well: other than 0 is != 0",
     lambda g, d, s: (_bad((g * s).to(d)) & (g > 0)).sum().item() / (g > 0).sum().item()),
    ("divides by those that are kept", "the share is of all that were there before",
     lambda g, d, s: (lost := _share(_bad((g * s).to(d)), g)) / (1 - lost)),
    ("counts what is rounded as lost", "rounding loses digits; lost is what becomes 0 or infinite",
     lambda g, d, s: _share((g * s).to(d).float() != g * s, g)),
)


def _share(lost: torch.Tensor, gradients: torch.Tensor) -> float:
    """Return the share of the gradients other than 0 for which `lost` holds."""
    there = gradients != 0
    return ((lost & there).sum() / there.sum()).item()


def lost_mistake(answers: Sequence[float]) -> tuple[str, str]:
    """Return the name of the mistake that gives `answers` for `gradient_cases` and why it matters, or empty texts."""
    return mistake_of(answers, gradient_cases(), _WRONG_SHARES, partial(math.isclose, rel_tol=1e-4, abs_tol=1e-9))
