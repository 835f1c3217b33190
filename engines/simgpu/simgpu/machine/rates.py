"""Rates of a GPU: its data sheet, the share of it that kernels reach, and the card's power limit."""

import math
from dataclasses import dataclass

from simgpu.machine.gpus import GPU
from simgpu.machine.prices import Cost


@dataclass(frozen=True)
class Costs:
    """Time model beyond a data sheet: fixed costs in nanoseconds, and the share of a peak that kernels reach.

    What the host takes for an operation stands in `hosts.Host`.

    `odd_share` was chosen on the 26 ms by which a step of nanoGPT on an A100 gets shorter with 50,304 tokens instead
    of 50,257 (https://pytorch.org/blog/accelerating-large-language-models/), and tried on attention over 197 tokens.
    `recurrent_ns` and `state_ns` were chosen on a V100's LSTMs and tried on its GRUs and RNNs, and on a P100 and a GTX
    1080 Ti with an older cuDNN; that newer GPUs take a third on an RTX A6000, tried on an L40S, RTX 3090 Ti and H100s.
    `cache_share` was chosen on an A100 (scaling beside reading, page "cache_a100" of gpus.toml), and is 3 % above a
    GH200's and 12 % below an L40's. `volume_share`, `pooling_share` and `window_share` were chosen on KernelBench's
    H100 SXM, and shared lanes on its RTX A6000; left out were an H100 PCIe and an A10, on which volumes come out 1.4
    and 0.7 times as long as published in the median, pooling within 27 %, and compiled windows without a loop within
    21 %. The other four shares of the GPU's own rates were chosen on one GPU's published measurements, rounded, and
    tried on others (`python -m benchmarks.published`); the rest are assumptions. With `limits` nothing is faster than
    the best that was published for the GPU, products in fp16 and bf16 (`best_bf16_tflops`; attention may be slower) and
    copies (`best_copy_gbps`), and no product faster than the card's watts allow. `AT_PEAK` has the data sheet's rates.
    """

    kernel_ns: int = 2_000  # the least time that a kernel takes, whatever its size
    copy_ns: int = 10_000  # the least time that a copy over the bus takes
    recurrent_ns: int = 20_000  # the least time of a step of a recurrent layer that is a product of its own
    state_ns: int = 20  # what each hidden state adds to that; GPUs from compute capability 8.0 on take a third
    read_ns: int = 6_000  # what a single number takes over the bus
    bus_share: float = 0.8  # share of the bus rate that a copy from or to pinned memory reaches
    pageable_share: float = 0.5  # share of the bus rate that a copy from or to pageable memory reaches
    matrix_share: float = 0.9  # of the peak of a number format: products of matrices, convolutions, attention
    bandwidth_share: float = 0.9  # of the bandwidth: all that reads and writes memory in order
    strided_share: float = 0.5  # of that again where a kernel reads memory in another order than it writes
    odd_share: float = 0.09  # of that again, on A100 and H100: matrices in 16 bits with rows of no multiple of 16 bytes
    cache_share: float = 0.72  # of the rate at which the L2 cache is read: what is read and written there
    depthwise_share: float = 0.05  # of fp32's peak: convolutions of single channels, which tensor cores cannot do
    volume_share: float = 0.3  # of that: convolutions in float32 in three dimensions; half where integers share lanes
    pooling_share: float = 0.01  # of that: numbers of pooled windows; twice where there are 64 lanes a multiprocessor
    window_share: float = 0.025  # of that: the same in kernels of PyTorch's compiler that read a window without a loop
    limits: bool = True


NOT_MODELLED = "not modelled"  # what bounds a kernel whose operations are not counted
_OLDEST_TENSOR_CORES = (7, 0)
_NEWER_STEPS = (8, 0)
# Odd rows were published to be slow on A100 and H100. On an RTX 3090 nine of timm's models whose
# attention has such rows take about as long as without a price for them (clock/published.json).
_SLOW_AT_ODD_ROWS = ((8, 0), (9, 0))
_SHARED, _FEW = ((8, 6), (8, 9)), ((7, 0), (7, 5), (8, 0))  # lanes; what does no products, and where it is how fast
_OF_LANES = {"depthwise": ((), 1), "volume": (_SHARED, 0.5), "pooling": (_FEW, 2), "window": (_FEW, 2)}
# Of the L2 cache: up to the first all is found in it, beyond the second nothing. Chosen on an A100's, where rates fall
# from 28 to 51 of its 40 MB; on an H100 PCIe and an H200 0 to 29 % below the rates at nine sizes there, and half of an
# L40's, which stays as fast up to 0.8.
_IN_CACHE, _PAST_CACHE = 0.65, 1.3
_USUAL_L2_MIB, _USUAL_MULTIPROCESSORS = 40, 108  # an A100's, of GPUs of which nobody states them
_ENERGY = {"fp16": 1, "bf16": 1, "tf32": 2, "fp32": 5}  # of an operation in a format, beside one in fp16
AT_PEAK = Costs(
    bus_share=1.0, matrix_share=1.0, bandwidth_share=1.0, strided_share=1.0, odd_share=math.inf, limits=False
)


class Rates:
    """The rates that a GPU of the table reaches with `costs`."""

    def __init__(self, gpu: GPU, costs: Costs) -> None:
        self.gpu, self.costs = gpu, costs
        self._gbps = gpu.bandwidth_gbps * costs.bandwidth_share
        if costs.limits and gpu.best_copy_gbps:
            self._gbps = min(self._gbps, gpu.best_copy_gbps)
        self._strided_gbps = self._gbps * costs.strided_share
        self.l2_gbps = (gpu.l2_gbps or 0) * costs.cache_share if costs.limits else 0
        self._l2_bytes = (gpu.l2_mib or _USUAL_L2_MIB) * 2**20
        self._blocks = 2 * (gpu.multiprocessors or _USUAL_MULTIPROCESSORS)
        self._bus_gbps = gpu.bus_gbps or gpu.bandwidth_gbps
        self._flops_a_ns: dict[tuple[str, float], tuple[float, str]] = {}  # by rate and attention of a cost

    def kernel(self, cost: Cost, bare: bool = False) -> tuple[int, str]:
        """Return how many ns the kernels of an operator take, and what bounds them.

        The arrays of a bare one lie in the L2 cache, as far as they fit and its rate is known; those of a model have
        been pushed out by others.

        That is the larger of arithmetic and memory traffic, and for each step the least time of a kernel. The bound is
        "compute", "power" where the card's watts hold arithmetic back, "bandwidth" or "latency"; "odd rows" where
        tensor cores take most of it to read rows that are no multiple of 16 bytes; "not modelled" where the operator
        takes longer than that, and nobody knows how long.
        """
        speed, arithmetic = self._flops_a_ns.get((cost.rate, cost.attention)) or self._speed(cost)
        gbps = self._strided_gbps if cost.strided else self._cached_gbps(cost.nbytes) if bare else self._gbps
        compute_ns, memory_ns = math.ceil(cost.flops / speed), math.ceil(cost.nbytes / gbps)
        work_ns = compute_ns if compute_ns > memory_ns else memory_ns
        again, block, whole = cost.again
        lost = again if again and min(whole, block * self._blocks) > self._l2_bytes else 0
        if cost.extra_bytes or lost:
            extra_ns = math.ceil((cost.extra_bytes + lost) / gbps)
            work_ns, memory_ns = work_ns + extra_ns, memory_ns + extra_ns
        odd_ns = self._odd_ns(cost) if cost.odd_bytes else 0
        if odd_ns > work_ns:
            arithmetic, compute_ns = "odd rows", work_ns + odd_ns
        work_ns += odd_ns
        least_ns = (self._step_ns(cost.width) if cost.width else self.costs.kernel_ns) * cost.steps
        bound = "latency" if work_ns < least_ns else arithmetic if compute_ns >= memory_ns else "bandwidth"
        return least_ns + work_ns, bound if cost.modelled else NOT_MODELLED

    def _cached_gbps(self, nbytes: int) -> float:
        """Return the rate at which so many bytes are moved that were used before, over and over."""
        if not self.l2_gbps:
            return self._gbps
        of_cache = nbytes / ((self.gpu.l2_mib or 0) * 2**20)
        found = min(1.0, max(0.0, (_PAST_CACHE - of_cache) / (_PAST_CACHE - _IN_CACHE)))
        return 1 / (found / self.l2_gbps + (1 - found) / self._gbps)

    def _step_ns(self, width: int) -> int:
        """Return the least time of a step of a recurrent layer with so many hidden states."""
        newer = self.gpu.compute_capability is not None and self.gpu.compute_capability >= _NEWER_STEPS
        return (self.costs.recurrent_ns + self.costs.state_ns * width) // (3 if newer else 1)

    def _odd_ns(self, cost: Cost) -> int:
        """Return how much longer a product of tensor cores takes for rows that are no multiple of 16 bytes."""
        if cost.rate not in ("fp16", "bf16") or self.gpu.compute_capability not in _SLOW_AT_ODD_ROWS:
            return 0
        return math.ceil(cost.odd_bytes / (self._gbps * self.costs.odd_share))

    def copy_ns(self, nbytes: int, *, pinned: bool, read: bool = False, peer: bool = False) -> int:
        """Return how many ns a copy over the bus takes, one to a `peer`, by NVLink if it has it, or a `read` number."""
        if read:
            return self.costs.read_ns
        rate_gbps = self._bus_gbps * (self.costs.bus_share if pinned else self.costs.pageable_share)
        return self.costs.copy_ns + math.ceil(nbytes / ((peer and self.gpu.peer_gbps) or rate_gbps))

    def _speed(self, cost: Cost) -> tuple[float, str]:
        """Return operations in a ns and what limits them, "compute" or "power"."""
        tflops = self._tflops(cost.rate, cost.attention)
        watts = self._tflops_of_watts(cost.rate) / (cost.attention or 1)  # what is skipped takes no energy
        limit = min((tflops * 1_000, "compute"), (watts * 1_000, "power"))
        self._flops_a_ns[cost.rate, cost.attention] = limit
        return limit

    def _tflops(self, name: str, attention: float) -> float:
        """Return the rate that kernels reach, at which all the operations are counted that they are given."""
        rates, capability = self.gpu.peak_tflops, self.gpu.compute_capability
        if name == "fp16" and capability is not None and capability < _OLDEST_TENSOR_CORES:
            name = "fp32"  # sums of products are kept in float32, for which these GPUs have no tensor cores
        if name in _OF_LANES:
            lanes, factor = _OF_LANES[name]
            return rates["fp32"] * getattr(self.costs, f"{name}_share") * (factor if capability in lanes else 1)
        rate = rates.get(name, rates["fp32"]) * self.costs.matrix_share
        if name not in ("fp16", "bf16") or not self.costs.limits:
            return rate
        known = self.gpu.generation.attention if attention else None
        return min(rate, self.gpu.best_bf16_tflops or rate) if known is None else rates[name] * known / attention

    def _tflops_of_watts(self, name: str) -> float:
        """Return the rate of products at which the card takes all its watts; infinite where that is not known."""
        if name != "depthwise" and name not in self.gpu.peak_tflops:
            name = "fp32"  # as which it is computed
        watts, a_picojoule = self.gpu.power_w, self.gpu.generation.operations_a_picojoule
        energy = _ENERGY.get(name)
        if not self.costs.limits or a_picojoule is None or energy is None or watts is None:
            return math.inf
        return watts * a_picojoule / energy
