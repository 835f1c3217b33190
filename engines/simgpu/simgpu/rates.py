"""How long does a GPU take for a cost? By the rates of its data sheet, and the share of them that kernels reach."""

import math
from dataclasses import dataclass

from simgpu.gpus import GPU
from simgpu.prices import Cost


@dataclass(frozen=True)
class Costs:
    """What the time model adds to a data sheet: fixed costs in nanoseconds, and which share of a peak kernels reach.

    The four shares of the GPU's own rates were chosen on one GPU's published measurements, rounded, and tried on others
    (`python -m benchmarks.published`); the rest are assumptions. In fp16 and bf16 nothing is faster than the best
    product published for the GPU (`best_bf16_tflops`); attention may be slower. `AT_PEAK` has the data sheet's rates.
    """

    launch_ns: int = 5_000  # the host hands one operation to the queue
    kernel_ns: int = 2_000  # the least time that a kernel takes, whatever its size
    copy_ns: int = 10_000  # the least time that a copy over the bus takes
    pageable_share: float = 0.5  # share of the bus rate that a copy from or to pageable memory reaches
    matrix_share: float = 0.9  # of the peak of a number format: products of matrices, convolutions, attention
    bandwidth_share: float = 0.9  # of the bandwidth: all that reads and writes memory in order
    strided_share: float = 0.5  # of that again where a kernel reads memory in another order than it writes
    depthwise_share: float = 0.05  # of fp32's peak: convolutions of single channels, which tensor cores cannot do


# The share of the peak in fp16 and bf16 that fused attention reaches, forward and backward, by compute capability;
# other GPUs are taken to be as fast at it as at products. A100 and H100: "Attention forward + backward speed" in
# https://github.com/Dao-AILab/flash-attention/tree/0251105a2f. PyTorch takes these kernels on both; on an H100 others
# would be faster: https://github.com/pytorch/pytorch/issues/142132, https://github.com/huggingface/transformers/pull/48163
_ATTENTION = {(8, 0): 203 / 312, (9, 0): 338 / 989.5}
# The median error over all published runs in inference, as `python -m benchmarks.published` stored it
ERROR_BAR = "simulated, median error 7 % on published runs"
# Of several GPUs, as `python -m benchmarks.cluster` prints it
CLUSTER_ERROR = "simulated, throughput 22 to 78 % too high on published runs"
AT_PEAK = Costs(matrix_share=1.0, bandwidth_share=1.0, strided_share=1.0)


class Rates:
    """The rates that a GPU of the table reaches with `costs`."""

    def __init__(self, spec: GPU, costs: Costs) -> None:
        self.spec, self.costs = spec, costs
        self._gbps = spec.bandwidth_gbps * costs.bandwidth_share
        self._strided_gbps = self._gbps * costs.strided_share
        self._flops_a_ns: dict[tuple[str, float], float] = {}  # by rate and attention of a cost

    def kernel(self, cost: Cost) -> tuple[int, str]:
        """Return how many ns the kernels of an operator take, and their bound: "compute", "bandwidth" or "latency".

        That is the larger of arithmetic and memory traffic, and for each step the least time of a kernel.
        """
        speed = self._flops_a_ns.get((cost.rate, cost.attention)) or self._speed(cost)
        gbps = self._strided_gbps if cost.strided else self._gbps
        compute_ns, memory_ns = math.ceil(cost.flops / speed), math.ceil(cost.nbytes / gbps)
        work_ns = compute_ns if compute_ns > memory_ns else memory_ns
        if cost.extra_bytes:
            extra_ns = math.ceil(cost.extra_bytes / gbps)
            work_ns, memory_ns = work_ns + extra_ns, memory_ns + extra_ns
        least_ns = self.costs.kernel_ns * cost.steps
        bound = "latency" if work_ns < least_ns else "compute" if compute_ns >= memory_ns else "bandwidth"
        return least_ns + work_ns, bound

    def copy_ns(self, nbytes: int, *, pinned: bool) -> int:
        """Return how many ns a copy over the bus takes."""
        rate_gbps = (self.spec.bus_gbps or self.spec.bandwidth_gbps) * (1.0 if pinned else self.costs.pageable_share)
        return self.costs.copy_ns + math.ceil(nbytes / rate_gbps)

    def _speed(self, cost: Cost) -> float:
        speed = self._flops_a_ns[cost.rate, cost.attention] = self._tflops(cost.rate, cost.attention) * 1_000
        return speed

    def _tflops(self, name: str, attention: float) -> float:
        """Return the rate that kernels reach, at which all the operations are counted that they are given."""
        rates, share = self.spec.peak_tflops, self.costs.matrix_share
        if name == "depthwise":
            return rates["fp32"] * self.costs.depthwise_share
        rate = rates.get(name, rates["fp32"]) * share
        if name not in ("fp16", "bf16") or share == 1:  # `AT_PEAK` has the data sheet's rates
            return rate
        known = _ATTENTION.get(self.spec.compute_capability) if attention else None
        return min(rate, self.spec.best_bf16_tflops or rate) if known is None else rates[name] * known / attention
