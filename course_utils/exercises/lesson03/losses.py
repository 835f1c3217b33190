"""What was computed instead of the right loss, or of the right share of lost gradients?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from course_utils.exercises.common.mistakes import mistake_of

__all__ = ["gradient_cases", "huber_mistake", "huber_of_row", "lost_mistake"]

# One line for each mistake.
# fmt: off


def huber_of_row(prediction: list[float], target: list[float], delta: float) -> float:
    """Return the mean Huber loss of one row, with Python's numbers."""
    errors = [abs(p - t) for p, t in zip(prediction, target, strict=True)]
    return sum(0.5 * e * e if e <= delta else delta * (e - 0.5 * delta) for e in errors) / len(errors)


class _Errors(NamedTuple):
    """What the wrong losses are made of: errors with and without sign, both branches, and the right choice of them."""

    signed: torch.Tensor
    size: torch.Tensor
    delta: float
    square: torch.Tensor
    line: torch.Tensor
    each: torch.Tensor

    def choose(self, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
        """Return for each row the mean of `small` where the error is at most delta, and of `large` where it is not."""
        return torch.where(self.size <= self.delta, small, large).mean(1)


def _errors(signed: torch.Tensor, delta: float) -> _Errors:
    size = signed.abs()
    square, line = 0.5 * size**2, delta * (size - 0.5 * delta)
    return _Errors(signed, size, delta, square, line, torch.where(size <= delta, square, line))


# Name, why it matters, the wrong loss.
_ROW = "one number for each row is asked for: mean(dim=1)"
_SIGN, _TWO = "forgets the absolute value", "one branch takes <=, the other >"
_MEET = "without it the two branches do not meet at delta"
_WRONG_LOSSES: tuple[tuple[str, str, Callable[[_Errors], torch.Tensor]], ...] = (
    ("ignores `delta`", "the caller says where the straight line begins",
     lambda e: torch.where(e.size <= 1, e.square, e.size - 0.5).mean(1)),
    ("divides by delta", "that is the smooth L1 loss: huber is delta times as much",
     lambda e: e.each.mean(1) / e.delta),
    (_SIGN, "an error of -5 is as large as one of 5",
     lambda e: torch.where(e.signed <= e.delta, 0.5 * e.signed**2, e.delta * (e.signed - 0.5 * e.delta)).mean(1)),
    (_SIGN, "an error of -5 is as large as one of 5, in the straight line too",
     lambda e: e.choose(e.square, e.delta * (e.signed - 0.5 * e.delta))),
    ("swaps the two branches", "small errors are squared, large ones grow in a straight line",
     lambda e: e.choose(e.line, e.square)),
    ("forgets the half of the square", _MEET,
     lambda e: e.choose(e.size**2, e.line)),
    ("forgets to subtract in the straight line", _MEET,
     lambda e: e.choose(e.square, e.delta * e.size)),
    ("subtracts 0.5 delta in the straight line", "delta stands before the bracket: delta * (error - 0.5 * delta)",
     lambda e: e.choose(e.square, e.delta * e.size - 0.5 * e.delta)),
    ("squares every error", "beyond delta the loss grows in a straight line",
     lambda e: e.square.mean(1)),
    ("squares every error", "beyond delta the loss grows in a straight line",
     lambda e: 2 * e.square.mean(1)),
    ("takes the absolute error", "up to delta the error is squared, beyond it stands 0.5 * delta",
     lambda e: e.size.mean(1)),
    ("forgets the half in the straight line", _MEET,
     lambda e: e.choose(e.square, e.delta * (e.size - e.delta))),
    ("counts an error of exactly delta twice", _TWO,
     lambda e: torch.where(e.size == e.delta, e.square + e.line, e.each).mean(1)),
    ("leaves out an error of exactly delta", _TWO,
     lambda e: (e.each * (e.size != e.delta)).mean(1)),
    ("takes the straight line for every error", "small errors are squared",
     lambda e: e.line.mean(1)),
    ("leaves the large errors out", "beyond delta the loss is a line",
     lambda e: (e.square * (e.size <= e.delta)).mean(1)),
    ("leaves the small errors out", "up to delta the error is squared",
     lambda e: (e.line * (e.size > e.delta)).mean(1)),
    ("takes delta for every larger error", "beyond delta the loss goes on growing, in a straight line",
     lambda e: 0.5 * e.size.clamp(max=e.delta).square().mean(1)),
    ("gives the sum of each row", "the mean is asked for",
     lambda e: e.each.sum(1)),
    ("takes the mean of the columns", _ROW,
     lambda e: e.each.mean(0)),
    ("takes the mean of all rows in one", _ROW,
     lambda e: e.each.mean()),
    ("returns the loss of each element", _ROW,
     lambda e: e.each),
    ("keeps a dimension of size 1", "the shape is (rows,)",
     lambda e: e.each.mean(1, keepdim=True)),
)


def huber_mistake(
    got: torch.Tensor, signed: torch.Tensor, delta: float, expected: torch.Tensor
) -> tuple[str, str]:
    """Return the name of the mistake that gives `got` for the errors `signed`, and why it matters, or empty texts."""
    errors = _errors(signed, delta)
    for name, why, wrong_loss in _WRONG_LOSSES:
        wrong = wrong_loss(errors)
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
