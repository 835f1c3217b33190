"""How fast can this machine multiply matrices and move memory, and what does that allow a layer of a given intensity?

The roofline (Williams, Waterman and Patterson 2009, https://doi.org/10.1145/1498765.1498785): a program that does I
operations for each byte it moves reaches at most min(peak rate, I x bandwidth).
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from course_utils import devices, gpus, settings
from course_utils.base import arguments
from course_utils.timing.measurements import Timing, measure

__all__ = [
    "SIZES", "MatmulRates", "Rate", "Roofline", "bandwidth", "formats", "matmul_rates", "predicted", "product",
    "roofline",
]  # fmt: skip

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
SIZES = {"cpu": (128, 256, 512, 1024, 2048), "sim": (128, 256, 512)}
_GPU_SIZES = (1024, 2048, 4096, 8192)
_LONGEST_S = {"cpu": 0.03}  # a product that takes longer is not tried: five of them for each format must stay short
_GPU_LONGEST_S = 0.1
_COPY_BYTES = {"cpu": 2**27, "mps": 2**28}  # of each array: larger than the last cache of the processor
_GPU_COPY_BYTES = 2**29


@dataclass(frozen=True)
class Rate:
    """How fast one square matrix product of `size` rows is in a number format."""

    fmt: str
    size: int
    timing: Timing

    @property
    def tflops(self) -> float:
        """2 x size³ operations over the median time, in TFLOP/s."""
        return 2 * self.size**3 / self.timing.median_s / 1e12


@dataclass(frozen=True)
class MatmulRates:
    """How fast square matrix products are, for each number format and size that was tried."""

    rows: tuple[Rate, ...]
    device: str
    label: str  # "live" or "simulated"

    @property
    def best(self) -> dict[str, Rate]:
        """Return the fastest product of each format, in the order of `rows`."""
        names = dict.fromkeys(row.fmt for row in self.rows)
        return {fmt: max((r for r in self.rows if r.fmt == fmt), key=lambda row: row.tflops) for fmt in names}

    @property
    def tflops(self) -> dict[str, float]:
        """Return the best rate of each format in TFLOP/s."""
        return {fmt: row.tflops for fmt, row in self.best.items()}

    def __str__(self) -> str:
        lines = (f"  {fmt}: {r.tflops:.4g} TFLOP/s at {r.size:,} rows" for fmt, r in self.best.items())
        return "\n".join((f"best matrix products, {self.label} on {self.device}:", *lines))

    def _repr_html_(self) -> str:
        marks = (" (best)" if row is self.best[row.fmt] else "" for row in self.rows)
        rows = (
            f"<tr><td>{row.fmt}</td><td>{row.size:,}</td><td>{row.tflops:.4g}{mark}</td></tr>"
            for row, mark in zip(self.rows, marks, strict=True)
        )
        head = f"<caption>{html.escape(f'{self.label} on {self.device}')}</caption>"
        return f"<table>{head}<tr><th>format</th><th>rows</th><th>TFLOP/s</th></tr>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Roofline:
    """What a machine allows: bandwidth of its memory in GB/s, and matrix rates in TFLOP/s by number format."""

    bandwidth_gbps: float
    rates_tflops: dict[str, float] = field(hash=False)
    label: str  # "live", "simulated" or "predicted"
    device: str

    def attainable_tflops(self, intensity_flops_per_byte: float, dtype: str | torch.dtype = "fp32") -> float:
        """Return the rate that the roofline allows at this intensity: min(peak, intensity x bandwidth), in TFLOP/s."""
        intensity = arguments.number("intensity_flops_per_byte", intensity_flops_per_byte, least=0)
        return min(self._peak(dtype), intensity * self.bandwidth_gbps / 1e3)

    def ridge(self, dtype: str | torch.dtype = "fp32") -> float:
        """Return the intensity in FLOP/byte at which the two bounds meet; below it, bandwidth limits."""
        return self._peak(dtype) * 1e3 / self.bandwidth_gbps

    def bound(self, intensity_flops_per_byte: float, dtype: str | torch.dtype = "fp32") -> str:
        """Return what limits a program of this intensity: "bandwidth" or "compute"."""
        slow = self.attainable_tflops(intensity_flops_per_byte, dtype) < self._peak(dtype)
        return "bandwidth" if slow else "compute"

    def _peak(self, dtype: str | torch.dtype) -> float:
        names = {kind: name for name, kind in _DTYPES.items() if name != "tf32"}
        fmt = names.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype
        if not isinstance(fmt, str) or fmt not in self.rates_tflops:
            known = ", ".join(self.rates_tflops)
            raise ValueError(f"dtype is {dtype!r}, {self.device} has a rate for: {known}")
        return self.rates_tflops[fmt]

    def __str__(self) -> str:
        lines = (
            f"  {f}: {r:.4g} TFLOP/s, ridge at {self.ridge(f):.3g} FLOP/byte" for f, r in self.rates_tflops.items()
        )
        return "\n".join((f"{self.device}, {self.label}: {self.bandwidth_gbps:.4g} GB/s", *lines))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{fmt}</td><td>{rate:.4g}</td><td>{self.ridge(fmt):.3g}</td></tr>"
            for fmt, rate in self.rates_tflops.items()
        )
        head = f"<caption>{html.escape(f'{self.device}, {self.label}: {self.bandwidth_gbps:.4g} GB/s')}</caption>"
        return f"<table>{head}<tr><th>format</th><th>TFLOP/s</th><th>ridge, FLOP/byte</th></tr>{rows}</table>"


def formats(device: torch.device | str | None = None) -> tuple[str, ...]:
    """Return the number formats of which `device` (default: the one that the lessons use) has matrix products.

    On CUDA, TF32 and bf16 need compute capability 8.0
    (https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/), PyTorch's products in fp8 need 8.9
    (https://github.com/pytorch/pytorch/pull/164251). One small product of each format is tried.
    """
    place = devices.chosen(device)
    if place.type == "sim":
        return tuple(fmt for fmt in ("fp32", "fp16", "bf16") if fmt in _spec(place).peak_tflops)
    names = ("fp32", "fp16", "bf16")
    if place.type == "cuda":
        capability = torch.cuda.get_device_capability(place)
        least = {"fp32": (0, 0), "tf32": (8, 0), "fp16": (0, 0), "bf16": (8, 0), "fp8": (8, 9)}
        names = tuple(fmt for fmt, needed in least.items() if capability >= needed)
    return tuple(fmt for fmt in names if _works(fmt, place))


def _works(fmt: str, device: torch.device) -> bool:
    try:
        product(fmt, 16, device)()
        devices.synchronize(device)
    except (RuntimeError, TypeError):  # no such kernel, or no such type on this device
        return False
    return True


def matmul_rates(
    device: torch.device | str | None = None,
    dtypes: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    min_time_s: float = 0.1,
) -> MatmulRates:
    """Measure square matrix products on `device` in each of `dtypes` (default: `formats(device)`) and of `sizes` rows.

    The default sizes grow until one product takes too long for a lesson. Raises TypeError or ValueError that names a
    wrong argument.
    """
    place = devices.chosen(device)
    known = formats(place)
    chosen = known if dtypes is None else [dtypes] if isinstance(dtypes, str) else list(dtypes)
    for fmt in chosen:
        if fmt not in known:
            raise ValueError(f"dtypes has {fmt!r}, on {place} it may have: {', '.join(known)}")
    if sizes is not None:
        sizes = [arguments.whole("a size in sizes", size) for size in sizes]
    rows = [row for fmt in chosen for row in _rates_of(fmt, place, sizes, min_time_s)]
    return MatmulRates(tuple(rows), str(place), "simulated" if place.type == "sim" else "live")


def _rates_of(fmt: str, device: torch.device, sizes: Sequence[int] | None, min_time_s: float) -> list[Rate]:
    """Measure one format; of the default sizes, leave out those that would take too long."""
    longest_s = _LONGEST_S.get(device.type, _GPU_LONGEST_S)
    repeats = 1 if device.type == "sim" else None
    rows: list[Rate] = []
    with _precision("high" if fmt == "tf32" else "highest"):
        for size in SIZES.get(device.type, _GPU_SIZES) if sizes is None else sizes:
            if sizes is None and _next_s(rows, size) > longest_s:
                break
            timing = measure(product(fmt, size, device), device=device, min_time_s=min_time_s, repeats=repeats)
            rows.append(Rate(fmt, size, timing))
    return rows


def _next_s(rows: Sequence[Rate], size: int) -> float:
    """Return how long a product of `size` rows will take at least: at the best rate so far, or growing as it did.

    The least of both, because one disturbed measurement must not end the search.
    """
    if len(rows) < 2:
        return 0.0
    before, last = (row.timing.median_s for row in rows[-2:])
    return min(2 * size**3 / max(row.tflops for row in rows) / 1e12, last * max(1.0, last / before))


def product(fmt: str, size: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function without arguments that multiplies two square matrices of `size` rows in a format."""
    a, b = (torch.randn(size, size, device=device).to(_DTYPES[fmt]) for _ in range(2))
    if fmt != "fp8":
        return lambda: a @ b
    one, whole = torch.ones(1, device=device), torch.nn.functional.ScalingType.TensorWise
    columns = b.t()  # the product in fp8 takes its second matrix by columns
    return lambda: torch.nn.functional.scaled_mm(a, columns, one, whole, one, whole)


@contextlib.contextmanager
def _precision(setting: str) -> Iterator[None]:
    """Inside, float32 products are rounded as `setting` says: "highest" is plain float32, "high" is TF32 on CUDA."""
    before = settings.read_precision()  # all of it: the older function sets newer settings too
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        settings.set_precision(before)


def bandwidth(device: torch.device | str | None = None, *, min_time_s: float = 0.2) -> float:
    """Return the bandwidth of the memory of `device` in GB/s: the faster of a copy and a sum, of arrays beyond caches.

    A copy reads and writes each byte, a sum z = x + y reads two and writes one; what a processor reads of a line before
    it overwrites it is not counted (as in STREAM, https://www.cs.virginia.edu/stream/ref.html). On the simulated GPU it
    is that of its data sheet.
    """
    place = devices.chosen(device)
    if place.type == "sim":
        return _spec(place).bandwidth_gbps
    x, y, z = (torch.ones(_COPY_BYTES.get(place.type, _GPU_COPY_BYTES) // 4, device=place) for _ in range(3))
    copy = measure(lambda: z.copy_(x), device=place, min_time_s=min_time_s)
    add = measure(lambda: torch.add(x, y, out=z), device=place, min_time_s=min_time_s)
    return max(2 * x.nbytes / copy.median_s, 3 * x.nbytes / add.median_s) / 1e9


def roofline(device: torch.device | str | None = None) -> Roofline:
    """Return the roofline of `device` (default: the one that the lessons use), measured live.

    Of the simulated GPU it is that of its data sheet, from which its clock is computed, labelled simulated.
    """
    place = devices.chosen(device)
    if place.type == "sim":
        row = _spec(place)
        return Roofline(row.bandwidth_gbps, _float_rates(row), "simulated", str(place))
    return Roofline(bandwidth(place), matmul_rates(place).tflops, "live", str(place))


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


def _spec(device: torch.device) -> gpus.GPU:
    """Return the row of the table that a simulated GPU follows."""
    return gpus.get(torch.sim.get_device_name(device).removeprefix("Simulated "))
