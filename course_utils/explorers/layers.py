"""How many operations does a kind of layer take, and how much memory does it touch?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LAYERS", "Layer"]

IMAGE, KERNEL, HEAD = 56, 3, 64  # of the convolution: rows of an image and of a kernel; of attention: width of a head


@dataclass(frozen=True)
class Layer:
    """One kind of layer: its operations and how often it reads or writes an element of memory, if each only once.

    `flops` and `elements` take (rows, size). Where `matrix` holds, matrix units do the arithmetic at the rate of the
    format; else plain float32 units do. In a layer with products only these are counted, as FlopCounterMode does.
    """

    what: str
    flops: Callable[[int, int], int]
    elements: Callable[[int, int], int]
    matrix: bool = True
    mark: str = "o"


LAYERS = {
    "linear": Layer("rows x size times size x size, and a bias", lambda m, n: 2 * m * n * n,
                    lambda m, n: 2 * m * n + n * n + n, mark="s"),
    "matrix products": Layer("as many products of square matrices as rows", lambda m, n: 2 * m * n**3,
                             lambda m, n: 3 * m * n * n, mark="D"),
    "convolution": Layer(f"{KERNEL} x {KERNEL}, size channels to as many, a row is an image of {IMAGE} x {IMAGE}",
                         lambda m, n: 2 * m * IMAGE**2 * n * n * KERNEL**2,
                         lambda m, n: 2 * m * IMAGE**2 * n + n * n * KERNEL**2 + n, mark="^"),
    "attention, fused": Layer(f"a row is a head of width {HEAD}, size is the length, scores stay on the chip",
                              lambda m, n: 4 * m * n * n * HEAD, lambda m, n: 4 * m * n * HEAD, mark="P"),
    "attention, scores in memory": Layer(
        f"a row is a head of width {HEAD}, size is the length; product, softmax and product each pass over all scores",
        lambda m, n: 4 * m * n * n * HEAD, lambda m, n: 4 * m * n * HEAD + 4 * m * n * n, mark="X"),
    "element-wise sum": Layer("x + y", lambda m, n: m * n, lambda m, n: 3 * m * n, matrix=False, mark="v"),
    "softmax": Layer("over size: maximum, difference, exponential, sum, quotient", lambda m, n: 5 * m * n,
                     lambda m, n: 2 * m * n, matrix=False, mark="<"),
    "layer norm": Layer("over size: two sums, difference, square, scale, weight, bias", lambda m, n: 7 * m * n,
                        lambda m, n: 2 * m * n + 2 * n, matrix=False, mark=">"),
}  # fmt: skip
