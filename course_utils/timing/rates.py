"""Roofline of this machine: rates of matrix products and of memory.

The roofline (Williams, Waterman and Patterson 2009, https://doi.org/10.1145/1498765.1498785): a program that does I
operations for each byte it moves reaches at most min(peak rate, I x bandwidth).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

import simgpu
from course_utils import arguments, devices, gpus, precision, tables
from course_utils.timing.measurements import measure

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
           "fp8": torch.float8_e4m3fn}  # fmt: skip
SIZES = {"cpu": (128, 256, 512, 1024, 2048)}
_GPU_SIZES = (1024, 2048, 4096, 8192)
_LONGEST_S = {"cpu": 0.03}  # a product that takes longer is not tried: five of them for each format must stay short
_GPU_LONGEST_S = 0.1
_COPY_BYTES = {"cpu": 2**27, "mps": 2**28}  # of each array: larger than the last cache of the processor
_GPU_COPY_BYTES = 2**29


@dataclass(frozen=True)
class Roofline:
    """What a machine allows: bandwidth of its memory in GB/s, and matrix rates in TFLOP/s by number format."""

    bandwidth_gbps: float
    rates_tflops: dict[str, float] = field(hash=False)
    label: str  # "live", "simulated" or "predicted"
    device: str

    def attainable_tflops(self, intensity_flops_per_byte: float, dtype: str = "fp32") -> float:
        """Return the rate that the roofline allows at this intensity: min(peak, intensity x bandwidth), in TFLOP/s."""
        intensity = arguments.number("intensity_flops_per_byte", intensity_flops_per_byte, least=0)
        return min(self._peak(dtype), intensity * self.bandwidth_gbps / 1e3)

    def ridge(self, dtype: str = "fp32") -> float:
        """Return the intensity in FLOP/byte at which the two bounds meet; below it, bandwidth limits."""
        return self._peak(dtype) * 1e3 / self.bandwidth_gbps

    def bound(self, intensity_flops_per_byte: float, dtype: str = "fp32") -> str:
        """Return what limits a program of this intensity: "bandwidth" or "compute"."""
        slow = self.attainable_tflops(intensity_flops_per_byte, dtype) < self._peak(dtype)
        return "bandwidth" if slow else "compute"

    def _peak(self, dtype: str) -> float:
        if dtype not in self.rates_tflops:
            raise ValueError(f"dtype is {dtype!r}, {self.device} has a rate for: {', '.join(self.rates_tflops)}")
        return self.rates_tflops[dtype]

    def _caption(self) -> str:
        return f"{self.device}, {self.label}: {self.bandwidth_gbps:.4g} GB/s"

    def __str__(self) -> str:
        rates = self.rates_tflops.items()
        lines = (f"  {fmt}: {rate:.4g} TFLOP/s, ridge at {self.ridge(fmt):.3g} FLOP/byte" for fmt, rate in rates)
        return "\n".join((self._caption(), *lines))

    def _repr_html_(self) -> str:
        rows = [[fmt, f"{rate:.4g}", f"{self.ridge(fmt):.3g}"] for fmt, rate in self.rates_tflops.items()]
        return tables.to_html(rows, ["format", "TFLOP/s", "ridge, FLOP/byte"], caption=self._caption())


def formats(device: torch.device) -> tuple[str, ...]:
    """Return the number formats in which a real `device` multiplies matrices.

    On CUDA, TF32 and bf16 need compute capability 8.0
    (https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/), PyTorch's products in fp8 need 8.9
    (https://github.com/pytorch/pytorch/pull/164251). One small product of each format is tried.
    """
    names = ("fp32", "fp16", "bf16")
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        least = {"fp32": (0, 0), "tf32": (8, 0), "fp16": (0, 0), "bf16": (8, 0), "fp8": (8, 9)}
        names = tuple(fmt for fmt, needed in least.items() if capability >= needed)
    return tuple(fmt for fmt in names if _works(fmt, device))


def _works(fmt: str, device: torch.device) -> bool:
    try:
        product(fmt, 16, device)()
        devices.synchronize(device)
    except (RuntimeError, TypeError):  # no such kernel, or no such type on this device
        return False
    return True


def best_tflops(fmt: str, device: torch.device) -> float:
    """Return the best rate of square matrix products in a format, 2 x size³ operations over the median time.

    Sizes grow until a product would take too long for a lesson: at the best rate so far, or growing as the last two
    did. The least of both, because one disturbed measurement must not end the search.
    """
    longest_s = _LONGEST_S.get(device.type, _GPU_LONGEST_S)
    times_s: list[float] = []
    best = 0.0
    with _precision("high" if fmt == "tf32" else "highest"):
        for size in SIZES.get(device.type, _GPU_SIZES):
            operations = 2 * size**3
            if times_s and 24 * size**2 > _free_bytes(device):  # three matrices of float32, and as much beside them
                break
            if len(times_s) > 1:
                before_s, last_s = times_s[-2:]
                if min(operations / best / 1e12, last_s * max(1.0, last_s / before_s)) > longest_s:
                    break
            times_s.append(measure(product(fmt, size, device), device=device, min_time_s=0.1).median_s)
            best = max(best, operations / times_s[-1] / 1e12)
    return best


def product(fmt: str, size: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function without arguments that multiplies two square matrices of `size` rows in a format."""
    a, b = (torch.randn(size, size, device=device).to(_DTYPES[fmt]) for _ in range(2))
    if fmt != "fp8":
        return lambda: a @ b
    unscaled, whole = torch.ones(1, device=device), torch.nn.functional.ScalingType.TensorWise
    columns = b.t()  # the product in fp8 takes its second matrix by columns
    return lambda: torch.nn.functional.scaled_mm(a, columns, unscaled, whole, unscaled, whole)


@contextlib.contextmanager
def _precision(setting: str) -> Iterator[None]:
    """Inside, float32 products are rounded as `setting` says: "highest" is plain float32, "high" is TF32 on CUDA."""
    before = precision.read()  # all of it: the older function sets newer settings too
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        precision.put_back(before)


def _bandwidth_gbps(device: torch.device) -> float:
    """Return the bandwidth of the memory of `device` in GB/s: the faster of a copy and a sum, of arrays beyond caches.

    A copy reads and writes each byte, a sum z = x + y reads two and writes one; what a processor reads of a line before
    it overwrites it is not counted (as in STREAM, https://www.cs.virginia.edu/stream/ref.html). The arrays are random,
    since a GPU draws less power on constant ones and may run faster
    (https://www.thonking.ai/p/strangely-matrix-multiplications), and take half of the free memory at most.
    """
    nbytes = min(_COPY_BYTES.get(device.type, _GPU_COPY_BYTES), _free_bytes(device) / 6)
    x, y, z = torch.rand(3, int(nbytes // 256) * 64, device=device)  # all begin at a line of memory
    copy, add = measure(lambda: z.copy_(x), device=device), measure(lambda: torch.add(x, y, out=z), device=device)
    return max(2 * x.nbytes / copy.median_s, 3 * x.nbytes / add.median_s) / 1e9


def _free_bytes(device: torch.device) -> float:
    """Return how much memory of `device` is free, what PyTorch keeps for later included; infinite where none says.

    Integrated Intel GPUs, and others under WSL, do not say it (https://github.com/pytorch/pytorch/issues/194576): there
    it is all that PyTorch has not reserved.
    """
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):  # the CPU, and Apple's GPU, which shares its memory
        return math.inf
    module.empty_cache()
    try:
        return module.mem_get_info(device)[0]
    except RuntimeError:
        return module.get_device_properties(device).total_memory - module.memory_reserved(device)


def roofline(device: torch.device | str | None = None) -> Roofline:
    """Return the roofline of `device` (default: the one that the lessons use), measured live.

    Of the simulated GPU it is that of its data sheet ("at peak"), labelled simulated; its clock is computed from the
    shares of these rates that kernels reach (`simgpu.Costs`).
    """
    chosen = devices.chosen(device)
    if simgpu.is_simulated(chosen):
        row = gpus.get(torch.get_device_module("sim").get_device_name(chosen).removeprefix("Simulated "))
        return Roofline(row.bandwidth_gbps, _float_rates(row), "simulated", str(chosen))
    rates = {fmt: best_tflops(fmt, chosen) for fmt in formats(chosen)}
    return Roofline(_bandwidth_gbps(chosen), rates, "live", str(chosen))


def predicted(gpu: str) -> Roofline:
    """Return the roofline that the data sheet of `gpu`, a row of `gpus`, promises.

    Raises TypeError or ValueError for a name that is not in the table, and ValueError where the sheet states no rate.
    """
    row = gpus.get(gpu, "gpu")
    rates = _float_rates(row)
    if not rates:
        raise ValueError(f"gpu is {gpu!r}, whose maker states no rates")
    return Roofline(row.bandwidth_gbps, rates, "predicted", row.name)


def _float_rates(row: gpus.GPU) -> dict[str, float]:
    return {fmt: float(rate) for fmt, rate in row.peak_tflops.items() if not fmt.startswith("int")}
