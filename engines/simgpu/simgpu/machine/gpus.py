"""Data sheets of GPUs.

Every number of a row carries the address of a page that states it (`GPU.sources`). A number that no such page states
is absent. A format missing from `peak_tflops` is not stated there, or the tensor cores do not know it: `GPU.lacks`
tells which, and the table prints "no" for the one and a dash for the other. `None` means not stated.

How to read the numbers:

- Peaks are dense. Makers often print the rate "with sparsity", which is twice as high and holds for matrices of which
  half the entries, in a fixed pattern, are 0; here it is halved.
- `peak_tflops` is the best rate of a matrix product in that format, in 10^12 operations a second, a multiply-add
  counted as two; those of int8 are integer operations (TOP/s). Sums of tensor cores are kept in float32 (integers for
  int8). "fp32" is plain float32; "tf32" is the rounded float32 that tensor cores use when they are allowed to. "fp64"
  includes tensor cores where they have it.
- `best_bf16_tflops` and `best_copy_gbps` are no promises: the best product of matrices and the best copy within the
  memory (read and written) that somebody measured and published, where we know of one.
- `l2_mib` is the size of the cache that all multiprocessors share, `l2_gbps` how fast somebody read it.
- Bandwidths are in GB/s, 10^9 bytes a second.
- `memory_gb` is the size on the box, a name rather than a measure. `memory_mib` is what the driver reports, as
  nvidia-smi and its kin print it: no data sheet states that, so its source is a place where somebody shows the output.
  `total_gib` is what CUDA gives programs of that, as torch's errors say it ("a total capacity of 14.74 GiB").
- `nvlink_gbps` adds up all links of a GPU to others, in both directions, as the sheets do.
- `generation` is what all GPUs of one have in common, a row of `GENERATIONS`.
- `multiprocessors` are AMD's compute units and Apple's cores, too.

A new GPU is a new row of gpus.toml, and nothing else: rates, CUDA's words for it, explorers and forecasts read it.
"""

import functools
import math
import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ALL", "FORMATS", "GENERATIONS", "GPU", "Generation", "find", "get", "table"]

FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")

# Giga-transfers a second and lane. Generations 3 to 5 send 128 payload bits in 130, generation 6 242 bytes in 256:
# https://en.wikipedia.org/wiki/PCI_Express
PCIE_GT_PER_S = {"3.0": 8, "4.0": 16, "5.0": 32, "6.0": 64}
_PAYLOAD = {"6.0": 242 / 256}
C2C_GBPS = 450.0  # NVLink-C2C between the CPU and the GPU of a GH200: 900 GB/s, both directions together

_LEAST_SHARE = 0.978  # of what the driver reports that CUDA gives: an RTX 3080's, of those known the smallest
# What 12 errors of PyTorch say of memory "in use" beyond its own, over the multiprocessors of their GPUs (T4, L4, A10,
# A100, RTX 4090, RTX 5090, L40, L40S, RTX 6000 Ada): 3.0 to 4.7 MiB each, in the median 3.5. Their addresses stand in
# gpus.toml.
_CONTEXT_BYTES = 3_700_000
_USUAL = 128  # multiprocessors, where nobody states them

# The first compute capability whose tensor cores know a format: the data sheets, and
# https://nvidia.github.io/TransformerEngine/support_matrix.html
_SINCE = {"int8": (7, 5), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}


@dataclass(frozen=True)
class Generation:
    """Common properties of a generation of GPUs; None is not stated."""

    name: str
    compute_capability: tuple[int, int] | None
    threads: int | None  # of a multiprocessor, at most
    blocks: int | None
    shared_kib: int | None
    reserved_bytes: int | None  # that CUDA takes of the shared memory for each block
    attention: float | None  # share of the peak in fp16 and bf16 that fused attention reaches
    operations_a_picojoule: float | None  # of products in fp16
    nvlink: float | None  # share of the data sheet's rate that NVLink reaches
    sources: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class GPU:
    """Data sheet of one GPU, a row of the table; None is not stated."""

    name: str
    kind: str
    year: int  # of the announcement
    generation: Generation
    multiprocessors: int | None
    memory_gb: int
    bandwidth_gbps: float
    peak_tflops: dict[str, float] = field(default_factory=dict, hash=False)
    best_bf16_tflops: float | None = None
    best_copy_gbps: float | None = None
    l2_mib: int | None = None
    l2_gbps: float | None = None
    memory_mib: int | None = None
    total_gib: float | None = None
    power_w: int | None = None
    bus: str | None = None  # to the host
    nvlink_gbps: float | None = None  # to other GPUs
    driver_name: str | None = None  # as torch.cuda.get_device_name reports it
    sources: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """CUDA's version of its generation, (7, 5) for 7.5; None for GPUs of others than NVIDIA."""
        return self.generation.compute_capability

    @property
    def limited_by_power(self) -> bool:
        """Whether watts and operations a watt are known: where they are not, the clock has no limit by power."""
        return self.power_w is not None and self.generation.operations_a_picojoule is not None

    @property
    def bus_gbps(self) -> float | None:
        """Theoretical bandwidth of the bus to the host in one direction, in GB/s; None where there is no such bus."""
        if self.bus is None or self.bus == "NVLink-C2C":
            return None if self.bus is None else C2C_GBPS
        generation, lanes = self.bus.removeprefix("PCIe ").split(" x")
        return round(PCIE_GT_PER_S[generation] * int(lanes) * _PAYLOAD.get(generation, 128 / 130) / 8, 2)

    @property
    def peer_gbps(self) -> float | None:
        """Bandwidth that NVLink reaches to another GPU of the machine, in GB/s; None where there is none."""
        share = self.generation.nvlink
        return None if self.nvlink_gbps is None or share is None else self.nvlink_gbps / 2 * share

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes that CUDA gives all programs together, never too much.

        Where that is not known, the smallest share that is known of what the driver reports; else 10^9 for each GB.
        """
        if self.total_gib is not None:
            return round(self.total_gib * 2**30)
        if self.compute_capability is None or self.memory_mib is None:  # no CUDA takes a part of it
            return self.memory_gb * 10**9 if self.memory_mib is None else self.memory_mib * 2**20
        return math.floor(_LEAST_SHARE * self.memory_mib * 2**20)

    @property
    def context_bytes(self) -> int:
        """What CUDA takes in each process, for its kernels and their state: so much for each multiprocessor."""
        return 0 if self.compute_capability is None else (self.multiprocessors or _USUAL) * _CONTEXT_BYTES

    @property
    def room_bytes(self) -> int:
        """Memory that tensors of one program may take."""
        return self.memory_bytes - self.context_bytes

    def lacks(self, fmt: str) -> bool:
        """Return whether the tensor cores of this GPU do not know `fmt`; False where that is not known."""
        return fmt not in self.peak_tflops and (self.compute_capability or (99, 0)) < _SINCE.get(fmt, (0, 0))

    def __str__(self) -> str:
        rates = {name: f"{name} {self.peak_tflops[name]:g}" for name in FORMATS if name in self.peak_tflops}
        peak = ", ".join(f"{rate} TOP/s" if name.startswith("int") else rate for name, rate in rates.items())
        power = "" if self.power_w is None else f", {self.power_w} W"
        bus = "" if self.bus is None else f", {self.bus}"
        peak = f"; peak TFLOP/s: {peak}" if peak else ""
        return f"{self.name}: {self.memory_gb} GB at {self.bandwidth_gbps:g} GB/s{bus}{power}{peak}"

    def _repr_html_(self) -> str:
        return table([self])


def get(name: str, argument: str = "name") -> GPU:
    """Return the row called `name`.

    Upper and lower case, spaces, hyphens and the words NVIDIA, Tesla, GeForce, AMD and Instinct do not matter. The name
    that the driver reports is understood too, and so is a beginning that fits one row only ("P100"). Raises TypeError
    when `name` is no string, and ValueError that lists the names when no row or more than one fits; `argument` is what
    the errors call it.
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument} is a {type(name).__name__}, it must be a string such as 'T4'")
    wanted = _key(name)
    exact = [gpu for gpu in ALL if wanted in (_key(gpu.name), _key(gpu.driver_name or gpu.name))]
    fits = exact or [gpu for gpu in ALL if wanted and _key(gpu.name).startswith(wanted)]
    if len(fits) == 1:
        return fits[0]
    problem = f"fits {len(fits)} GPUs" if fits else "is not in the table"
    names = ", ".join(gpu.name for gpu in fits or ALL)
    raise ValueError(f"{argument} is {name!r}, which {problem}; it may be one of: {names}")


def find(name: str) -> GPU | None:
    """Return the row that `get` returns, or None where it would raise ValueError."""
    try:
        return get(name)
    except ValueError:
        return None


_HEAD = ("GPU", "kind", "year", "capability", "memory", "driver reports", "memory GB/s", "bus", "NVLink", "power")
_CAPTION = (
    "Of each number format: the peak in TFLOP/s, of int8 in TOP/s (10¹² operations a second), for dense matrices. "
    'Makers often print twice as much, "with sparsity", for matrices half of whose entries are 0. no: the GPU has no '
    "tensor cores for the format."
)
_UNKNOWN = " –: no page that we read says."


def table(gpus: Iterable[GPU] | None = None, *, without: Collection[str] = ()) -> str:
    """Return an HTML table of `gpus` (default: all), one row each; its caption says how to read it.

    `without` names columns that are left out, such as "year". Raises ValueError for a column that there is not, and
    TypeError for what is no row.
    """
    head = (*_HEAD, *FORMATS)
    if not all(column in head for column in without):
        raise ValueError(f"without is {without!r}, it may hold: {', '.join(head)}")
    chosen = ALL if gpus is None else list(gpus)
    if not all(isinstance(gpu, GPU) for gpu in chosen):
        raise TypeError(f"gpus is {gpus!r}, it must be None or a list of rows, such as [gpus.get('T4')]")
    columns = [index for index, text in enumerate(head) if text not in without]
    heads = "".join(f"<th>{head[index]}</th>" for index in columns)
    rows = "".join(f"<tr>{''.join(f'<td>{_texts(gpu)[index]}</td>' for index in columns)}</tr>" for gpu in chosen)
    text = _CAPTION + (_UNKNOWN if "<td>–</td>" in rows else "")
    caption = f'<caption style="caption-side: bottom; text-align: left">{text}</caption>'
    return f'<table style="font-size: 85%">{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _texts(gpu: GPU) -> list[str]:
    capability = "–" if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)
    mib = "–" if gpu.memory_mib is None else f"{gpu.memory_mib} MiB"
    power = "–" if gpu.power_w is None else f"{gpu.power_w} W"
    nvlink = "–" if gpu.nvlink_gbps is None else f"{gpu.nvlink_gbps:g} GB/s"
    absent = {name: "no" if gpu.lacks(name) else "–" for name in FORMATS}
    texts = [gpu.name, gpu.kind, gpu.year, capability, f"{gpu.memory_gb} GB", mib, f"{gpu.bandwidth_gbps:g}"]
    texts += [gpu.bus or "–", nvlink, power]
    texts += [f"{gpu.peak_tflops[name]:g}" if name in gpu.peak_tflops else absent[name] for name in FORMATS]
    return [str(text) for text in texts]


@functools.lru_cache(1024)  # each message between simulated GPUs asks for a row
def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|amd|instinct|[\s\-_]", "", name.lower())


_BY_PAGE = ("year", "memory_gb", "bandwidth_gbps", "peak_tflops", "power_w", "bus")  # what the page of a row states
_NEEDED = ("generation", "multiprocessors", "power_w")  # of a row, which says so where nobody states one of them
_NOT_STATED = "not stated"
_HOLDS = ("threads", "blocks", "shared_kib", "reserved_bytes")


def _file() -> dict[str, Any]:
    """Return the file beside this module."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _stated(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with None for missing values."""
    return {name: None if value == _NOT_STATED else value for name, value in row.items()}


def _generations(file: dict[str, Any]) -> dict[str, Generation]:
    """Return the generations of what the file holds, by name, each with an address for what it states."""
    result = {}
    for given in file["generation"]:
        row = _stated(given)
        pages, page = row.pop("sources", {}), row.pop("page", "traits")
        row["compute_capability"] = tuple(row["compute_capability"] or ()) or None
        for share, source in (("attention", "attention"), ("nvlink", "nccl")):
            if row[share] is not None:
                reached, of = row[share]
                row[share], pages[share] = reached / of, source
        pages = dict.fromkeys((name for name in _HOLDS if row[name] is not None), page) | pages
        if row["compute_capability"] is not None:
            pages.setdefault("compute_capability", "capability")
        result[row["name"]] = Generation(**row, sources=_addresses(file, pages))
    return result


def read(file: dict[str, Any]) -> tuple[GPU, ...]:
    """Return the rows of what the file holds, each with an address for what it states.

    Raises ValueError for a row that lacks one of `_NEEDED`, and for one of a generation that the file has not.
    """
    generations, rows = _generations(file), []
    for given in file["gpu"]:
        lacking = [name for name in _NEEDED if name not in given]
        if lacking:
            raise ValueError(f"{given['name']} lacks {', '.join(lacking)}: a number, or {_NOT_STATED!r}")
        if given["generation"] not in generations:
            raise ValueError(f"{given['name']} is of {given['generation']!r}, it may be: {', '.join(generations)}")
        row = _stated(given)
        generation = generations[row.pop("generation")]
        pages = dict.fromkeys((name for name in _BY_PAGE if row.get(name) is not None), row.pop("page", ""))
        pages |= {"best_bf16_tflops": "products"} if "best_bf16_tflops" in row else {}
        sources = _addresses(file, pages | row.pop("sources", {}))
        if generation.compute_capability is not None:
            sources["compute_capability"] = generation.sources["compute_capability"]
        rows.append(GPU(**row, generation=generation, sources=sources))
    return tuple(rows)


def _addresses(file: dict[str, Any], pages: dict[str, str]) -> dict[str, str]:
    """Return the address of each page, which may be a name in the file."""
    return {name: file["pages"].get(page, page) for name, page in pages.items()}


ALL: tuple[GPU, ...] = read(_file())
GENERATIONS: dict[str, Generation] = {gpu.generation.name: gpu.generation for gpu in ALL}
