"""What does fusing save of a chain of operators, and when does a product or the host decide instead?"""

from dataclasses import dataclass
from typing import Any

import simgpu
from course_utils import gpus, plots
from gpu_course.explorers import Choice, Explorer, Slider, Switch

__all__ = ["PRODUCTS", "WIDTH", "Fusion", "explore", "fusion"]

WIDTH = 4096  # numbers in a row: a product is (rows, WIDTH) by (WIDTH, WIDTH)
NUMBER_BYTES = 2  # float16
PRODUCTS = ("no product", "a product at the end", "a product in the middle")
OPERATOR_S, PRODUCT_S, KERNEL_S, ENTER_S, INPUT_S, TREE_S, NODE_S = (
    simgpu.hosts.DEFAULT.price_ns(name) * 1e-9
    for name in ("bare light", "bare library", "launch", "graph", "guard", "graph tree", "graph node")
)  # of the host: for an element-wise operator, for a product, for a kernel without an operator around it; for entering
# a compiled graph, for each of its inputs, and if it is a CUDA graph besides, and for each of its kernels
_KINDS = "memory", "product", "launch"


@dataclass(frozen=True)
class Way:
    """One way to run the chain: how many kernels, the bytes that they move, and the three times that compete.

    `launch_s` is how long the host takes to hand them over.
    """

    kernels: int
    launches: int
    nbytes: int
    memory_s: float
    product_s: float
    launch_s: float

    work_s = property(lambda self: self.memory_s + self.product_s, doc="How long the GPU works.")
    total_s = property(lambda self: max(self.launch_s, self.work_s), doc="The host works ahead: the longer counts.")


@dataclass(frozen=True)
class Fusion:
    """A chain of element-wise operators, with a product or without, run both ways on a GPU."""

    operators: int
    gpu: str
    separate: Way
    fused: Way

    gain = property(lambda self: self.separate.total_s / self.fused.total_s, doc="How many times as fast compiled.")


def fusion(*, operators: int, rows: int, product: str, gpu: str, graph: bool) -> Fusion:
    """Return both ways to run `operators` element-wise operators on (rows, WIDTH) numbers in float16.

    `product`: where a matrix product stands, one of PRODUCTS. `graph`: the compiled kernels are one CUDA graph.
    """
    array = rows * WIDTH * NUMBER_BYTES
    has_product = product != PRODUCTS[0]
    pieces = min(2 if product == PRODUCTS[2] else 1, operators)  # of the chain: no kernel goes across a product
    card = gpus.get(gpu)
    product_bytes = (2 * array + WIDTH * WIDTH * NUMBER_BYTES) * has_product
    flops = 2 * rows * WIDTH * WIDTH * has_product
    product_s = max(product_bytes / (card.bandwidth_gbps * 1e9), flops / (card.peak_tflops["fp16"] * 1e12))

    def way(kernels: int, launches: int, launch_s: float) -> Way:
        nbytes = 2 * array * kernels  # each kernel reads the array and writes it
        memory_s = nbytes / (card.bandwidth_gbps * 1e9)
        return Way(kernels + has_product, launches, nbytes + product_bytes, memory_s, product_s, launch_s)

    separate = way(operators, operators + has_product, operators * OPERATOR_S + has_product * PRODUCT_S)
    # generated code calls the library for a product, without autograd around it
    enter_s = ENTER_S + (1 + has_product) * INPUT_S
    fused = (
        way(pieces, 1, enter_s + TREE_S + KERNEL_S + (pieces + has_product) * NODE_S)
        if graph
        else way(pieces, pieces + has_product, enter_s + pieces * KERNEL_S + has_product * OPERATOR_S)
    )
    return Fusion(operators, gpu, separate, fused)


def describe(found: Fusion) -> str:
    """Return the result in words."""
    separate, fused = found.separate, found.fused
    times = {"launches": fused.launch_s, "memory": fused.memory_s, "the product": fused.product_s}
    longest = max(times, key=times.__getitem__)
    return (
        f"{_kernels(separate)} move {plots.bytes_text(separate.nbytes)} in {plots.seconds_text(separate.total_s)}; "
        f"compiled, {_kernels(fused)} move {plots.bytes_text(fused.nbytes)} in {plots.seconds_text(fused.total_s)}, "
        f"with {fused.launches} launch{'es' if fused.launches > 1 else ''}: {found.gain:.2f} times as fast. What then "
        f"takes longest: {longest}. Predicted from the data sheet of the {found.gpu}, for a host that "
        f"needs {OPERATOR_S * 1e6:.0f} µs to launch an operator, and {KERNEL_S * 1e6:.0f} µs for a compiled kernel, "
        f"{ENTER_S * 1e6:.0f} µs to enter what was compiled, as a CUDA graph {TREE_S * 1e6:.0f} µs more."
    )


def _kernels(way: Way) -> str:
    return f"{way.kernels} kernel{'s' if way.kernels > 1 else ''}"


def draw(found: Fusion) -> Any:
    """Return the picture: bytes of both ways, and their times, the GPU's and the host's."""
    figure, (left, right) = plots.new(("Bytes moved", "Time"), columns=2, widths=(4, 6), height_in=3.0)
    ways = found.separate, found.fused
    left.barh((0, 1), [way.nbytes / 2**20 for way in ways], color=plots.BLUE, height=0.4)
    memory, product, launch = ([1e6 * getattr(way, f"{kind}_s") for way in ways] for kind in _KINDS)
    right.barh((-0.2, 0.8), memory, color=plots.BLUE, height=0.35, label="GPU: memory")
    right.barh((-0.2, 0.8), product, left=memory, color=plots.OCHRE, height=0.35, label="GPU: product")
    right.barh((0.2, 1.2), launch, color=plots.PLUM, height=0.35, label="host: launches")
    left.set(yticks=(0, 1), yticklabels=("separate", "compiled"), ylim=(2.7, -0.6), xlabel="MiB")
    right.set(yticks=(), ylim=(2.7, -0.6), xlabel="µs")
    plots.legend(right, loc="lower right")
    return figure


def explore() -> Explorer:
    """Return the explorer of lesson 14 for fusion."""
    controls = [
        Slider("operators", "Element-wise operators", (1, 2, 3, 4, 6, 8, 12, 16), 8),
        Slider("rows", "Rows of 4,096 numbers", (1, 16, 256, 1024, 4096, 16384), 16384),
        Choice("product", "Matrix product", PRODUCTS, PRODUCTS[2]),
        Choice("gpu", "GPU", ("T4", "RTX 4090", "H100 SXM"), "T4"),
        Switch("graph", "One CUDA graph", False),
    ]
    return Explorer("what fusing saves", fusion, draw, describe, controls)
