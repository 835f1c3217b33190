"""What does the data sheet of a GPU promise?

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
- Bandwidths are in GB/s, 10^9 bytes a second.
- `memory_gb` is the size on the box, a name rather than a measure. `memory_mib` is what the driver reports, as
  nvidia-smi and its kin print it: no data sheet states that, so its source is a place where somebody shows the output.
- `nvlink_gbps` adds up all links of a GPU to others, in both directions, as the sheets do.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["ALL", "FORMATS", "GPU", "find", "get", "table"]

FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")

# Giga-transfers a second and lane. Generations 3 to 5 send 128 payload bits in 130, generation 6 242 bytes in 256:
# https://en.wikipedia.org/wiki/PCI_Express
PCIE_GT_PER_S = {"3.0": 8, "4.0": 16, "5.0": 32, "6.0": 64}
_PAYLOAD = {"6.0": 242 / 256}
C2C_GBPS = 450.0  # NVLink-C2C between the CPU and the GPU of a GH200: 900 GB/s, both directions together

# The first compute capability whose tensor cores know a format: the data sheets, and
# https://nvidia.github.io/TransformerEngine/support_matrix.html
_SINCE = {"int8": (7, 5), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}


@dataclass(frozen=True)
class GPU:
    """One row of the table: what the maker of a GPU promises."""

    name: str
    kind: str
    year: int  # of the announcement
    compute_capability: tuple[int, int] | None
    memory_gb: int
    bandwidth_gbps: float
    peak_tflops: dict[str, float] = field(default_factory=dict, hash=False)
    memory_mib: int | None = None
    power_w: int | None = None
    bus: str | None = None  # to the host
    nvlink_gbps: float | None = None  # to other GPUs
    driver_name: str | None = None  # as torch.cuda.get_device_name reports it
    sources: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def bus_gbps(self) -> float | None:
        """Theoretical bandwidth of the bus to the host in one direction, in GB/s; None where there is no such bus."""
        if self.bus is None or self.bus == "NVLink-C2C":
            return None if self.bus is None else C2C_GBPS
        generation, lanes = re.fullmatch(r"PCIe (\d\.\d) x(\d+)", self.bus).groups()
        return round(PCIE_GT_PER_S[generation] * int(lanes) * _PAYLOAD.get(generation, 128 / 130) / 8, 2)

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes: what the driver reports; where that is not known 10^9 for each GB, never too much."""
        return self.memory_gb * 10**9 if self.memory_mib is None else self.memory_mib * 2**20

    def lacks(self, fmt: str) -> bool:
        """Return whether the tensor cores of this GPU do not know `fmt`; False where that is not known."""
        return fmt not in self.peak_tflops and (self.compute_capability or (99, 0)) < _SINCE.get(fmt, (0, 0))

    def __str__(self) -> str:
        rates = {name: f"{name} {self.peak_tflops[name]:g}" for name in FORMATS if name in self.peak_tflops}
        peak = ", ".join(rate if _rate_unit(name) == "TFLOP/s" else f"{rate} TOP/s" for name, rate in rates.items())
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
    'fp64 to fp4: peak in TFLOP/s, of int8 in TOP/s. Dense: makers often print twice as much, "with sparsity", for '
    "matrices half of whose entries are 0. no: the tensor cores do not know the format. –: no page that we read says."
)


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
    kept = [place for place, text in enumerate(head) if text not in without]
    heads = "".join(f"<th>{head[place]}</th>" for place in kept)
    rows = "".join(f"<tr>{''.join(f'<td>{_texts(gpu)[place]}</td>' for place in kept)}</tr>" for gpu in chosen)
    caption = f'<caption style="caption-side: bottom; text-align: left">{_CAPTION}</caption>'
    return f'<table style="font-size: 85%">{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _rate_unit(fmt: str) -> str:
    """Return the unit of a peak rate: operations on integers are no FLOPs."""
    return "TOP/s" if fmt.startswith("int") else "TFLOP/s"


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


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|amd|instinct|[\s\-_]", "", name.lower())


_AMPERE = "https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/"
_CAPABILITY = "https://developer.nvidia.com/cuda-gpus"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_H100_PCIE = "https://lenovopress.lenovo.com/lp1732-thinksystem-nvidia-h100-pcie-gen5-gpu"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_T4 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_P100 = "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A10 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
_L4 = "https://www.nvidia.com/en-us/data-center/l4/"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_HGX = "https://www.nvidia.com/en-us/data-center/hgx/"
_B200 = "https://resources.nvidia.com/en-us-blackwell-architecture"  # the technical brief, table of HGX B200
_DGX_B200 = "https://docs.nvidia.com/dgx/dgxb200-user-guide/introduction-to-dgxb200.html"  # 1,440 GB for 8 GPUs
_HGX_NVLINK = "https://github.com/mlcommons/inference_results_v4.1/tree/main/closed/NVIDIA/systems"  # NVIDIA's own
_ULTRA = "https://developer.nvidia.com/blog/inside-nvidia-blackwell-ultra-the-chip-powering-the-ai-factory-era"
_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_GH200 = (
    "https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/"
    "grace-hopper-superchip-datasheet-partner"
)
_PRO_6000 = "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
_PRO = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/quadro-product-literature/"
    "NVIDIA-RTX-Blackwell-PRO-GPU-Architecture-v1.0.pdf"
)
_MI300X = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_CDNA3 = "https://rocm.docs.amd.com/en/latest/conceptual/gpu-arch/mi300.html"
_NEWS = "https://nvidianews.nvidia.com/news/"
_SMI = "https://github.com/modal-labs/modal-client/pull/2797"  # what nvidia-smi printed on seven kinds of GPU
_RTX_3060 = "https://www.techpowerup.com/gpu-specs/geforce-rtx-3060-12-gb.c3682"

_FIELDS = ("year", "memory_gb", "bandwidth_gbps", "peak_tflops", "power_w", "bus")


def _from(page: str, **others: str | None) -> dict[str, str]:
    """Return sources: `page` for every field of a data sheet, `others` for the rest and exceptions; None for absent."""
    sources = {**dict.fromkeys(_FIELDS, page), "compute_capability": _CAPABILITY, **others}
    return {name: page for name, page in sources.items() if page is not None}


_A100_PEAK = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_H100_PEAK = {"fp64": 67, "fp32": 67, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5, "fp8": 1979, "int8": 1979}
_V100_PEAK = {"fp64": 7.8, "fp32": 15.7, "fp16": 125}

# A row of the table is a few lines here, not twenty.
# fmt: off
ALL: tuple[GPU, ...] = (
    GPU(
        "T4", "Colab and Kaggle", 2018, (7, 5), 16, 320, {"fp32": 8.1, "fp16": 65, "int8": 130},
        memory_mib=15360, power_w=70, bus="PCIe 3.0 x16", driver_name="Tesla T4",
        # The sheet prints "300" GB/s, the product page "320+"; the driver's own figure is 298.08 GiB/s = 320 GB/s:
        # https://github.com/googlecolab/colabtools/issues/1749
        sources=_from(
            _T4,
            bandwidth_gbps="https://www.nvidia.com/en-us/data-center/tesla-t4/",
            memory_mib=_SMI,
            year=_NEWS + "new-nvidia-data-center-inference-platform-to-fuel-next-wave-of-ai-powered-services",
        ),
    ),
    GPU(
        "P100 PCIe", "Colab and Kaggle", 2016, (6, 0), 16, 732, {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7},
        power_w=250, bus="PCIe 3.0 x16", driver_name="Tesla P100-PCIE-16GB",
        sources=_from(_P100, compute_capability=_AMPERE),
    ),
    GPU(
        "L4", "Colab and Kaggle", 2023, (8, 9), 24, 300,
        {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242, "int8": 242},
        memory_mib=23034, power_w=72, bus="PCIe 4.0 x16", driver_name="NVIDIA L4",
        sources=_from(
            _L4, memory_mib=_SMI,
            year=_NEWS + "nvidia-launches-inference-platforms-for-large-language-models-and-generative-ai-workloads",
        ),
    ),
    GPU(
        "A10", "data centre", 2021, (8, 6), 24, 600,
        {"fp32": 31.2, "tf32": 62.5, "fp16": 125, "bf16": 125, "int8": 250},
        memory_mib=23028, power_w=150, bus="PCIe 4.0 x16", driver_name="NVIDIA A10",
        sources=_from(_A10, memory_mib=_SMI),
    ),
    GPU(
        "L40S", "data centre", 2023, (8, 9), 48, 864,
        {"fp32": 91.6, "tf32": 183, "fp16": 362.05, "bf16": 362.05, "fp8": 733, "int8": 733},
        memory_mib=46068, power_w=350, bus="PCIe 4.0 x16", driver_name="NVIDIA L40S",
        sources=_from(
            _L40S, memory_mib=_SMI,
            year=_NEWS + "nvidia-global-data-center-system-manufacturers-to-supercharge-generative-ai-and-industrial-"
            "digitalization",
        ),
    ),
    GPU(
        "V100 SXM2 16GB", "data centre", 2017, (7, 0), 16, 900, _V100_PEAK,
        power_w=300, bus="PCIe 3.0 x16", nvlink_gbps=300, driver_name="Tesla V100-SXM2-16GB",
        sources=_from(_V100, compute_capability=_AMPERE, nvlink_gbps=_V100),
    ),
    GPU(
        "V100 SXM2 32GB", "data centre", 2018, (7, 0), 32, 900, _V100_PEAK,
        power_w=300, bus="PCIe 3.0 x16", nvlink_gbps=300, driver_name="Tesla V100-SXM2-32GB",
        sources=_from(_V100, compute_capability=_AMPERE, nvlink_gbps=_V100),
    ),
    GPU(
        "A100 40GB", "data centre", 2020, (8, 0), 40, 1555, _A100_PEAK,
        memory_mib=40960, power_w=400, bus="PCIe 4.0 x16", nvlink_gbps=600, driver_name="NVIDIA A100-SXM4-40GB",
        sources=_from(_A100, compute_capability=_AMPERE, year=_AMPERE, nvlink_gbps=_AMPERE, memory_mib=_SMI),
    ),
    GPU(
        "A100 80GB", "data centre", 2020, (8, 0), 80, 2039, _A100_PEAK,
        memory_mib=81920, power_w=400, bus="PCIe 4.0 x16", nvlink_gbps=600, driver_name="NVIDIA A100-SXM4-80GB",
        sources=_from(_A100, compute_capability=_AMPERE, nvlink_gbps=_AMPERE, memory_mib=_SMI),
    ),
    GPU(
        "H100 SXM", "data centre", 2022, (9, 0), 80, 3350, _H100_PEAK,
        memory_mib=81559, power_w=700, bus="PCIe 5.0 x16", nvlink_gbps=900, driver_name="NVIDIA H100 80GB HBM3",
        sources=_from(_HOPPER, memory_mib=_SMI, nvlink_gbps=_HGX_NVLINK),
    ),
    GPU(
        "H100 PCIe", "data centre", 2022, (9, 0), 80, 2000,
        {"fp64": 51, "fp32": 51, "tf32": 378, "fp16": 756.5, "bf16": 756.5, "fp8": 1513, "int8": 1513},
        power_w=350, bus="PCIe 5.0 x16", driver_name="NVIDIA H100 PCIe",
        sources=_from(_H100_PCIE),
    ),
    GPU(
        "H200", "data centre", 2023, (9, 0), 141, 4800, _H100_PEAK,
        memory_mib=143771, power_w=700, bus="PCIe 5.0 x16", nvlink_gbps=900, driver_name="NVIDIA H200",
        sources=_from(
            _H200, memory_mib="https://github.com/sgl-project/sglang/issues/3196", nvlink_gbps=_HGX_NVLINK,
        ),
    ),
    GPU(
        "GH200", "data centre", 2022, (9, 0), 96, 4000, _H100_PEAK,  # power: stated for GPU and CPU together
        bus="NVLink-C2C", driver_name="NVIDIA GH200 480GB",
        sources=_from(
            _GH200, power_w=None,
            year="https://developer.nvidia.com/blog/nvidia-grace-hopper-superchip-architecture-in-depth/",
        ),
    ),
    GPU(
        "B200", "data centre", 2024, (10, 0), 180, 7700,
        {"fp64": 37, "fp32": 75, "tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000},
        memory_mib=183359, power_w=1000, bus="PCIe 5.0 x16", nvlink_gbps=1800, driver_name="NVIDIA B200",
        # "8 TB/s" was announced; the driver's figures give 7.67: https://github.com/pytorch/ao/pull/4002
        sources=_from(
            _HGX, bandwidth_gbps=_B200, power_w=_B200, bus=_B200, memory_gb=_DGX_B200, nvlink_gbps=_HGX,
            memory_mib="https://github.com/NVIDIA/TensorRT-LLM/issues/10278",
        ),
    ),
    GPU(  # fp4 and power are absent: NVIDIA prints several numbers, for HGX B300 and for GB300
        "B300", "data centre", 2025, (10, 3), 288, 8000,
        {"fp64": 1.25, "fp32": 75, "tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500},
        bus="PCIe 6.0 x16", nvlink_gbps=1800, driver_name="NVIDIA B300 SXM6 AC",
        sources=_from(_ULTRA, peak_tflops=_HGX, nvlink_gbps=_HGX, power_w=None),
    ),
    GPU(
        "MI300X", "data centre", 2023, None, 192, 5300,  # the capability that PyTorch tells for it is not NVIDIA's
        {"fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9},
        memory_mib=196592, power_w=750, bus="PCIe 5.0 x16", driver_name="AMD Instinct MI300X",
        sources=_from(
            _MI300X, peak_tflops=_CDNA3, bandwidth_gbps=_CDNA3, bus=_CDNA3, compute_capability=None,
            memory_mib="https://github.com/ROCm/rocm-examples/issues/187",  # 201310208 KB
        ),
    ),
    GPU(
        "RTX 3060", "consumer", 2021, (8, 6), 12, 360, {"fp32": 12.74},
        memory_mib=12288, power_w=170, bus="PCIe 4.0 x16", driver_name="NVIDIA GeForce RTX 3060",
        sources=_from(_RTX_3060, memory_mib="https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/790"),
    ),
    GPU(
        "RTX 3080", "consumer", 2020, (8, 6), 10, 760,
        {"fp32": 29.8, "tf32": 29.8, "fp16": 59.5, "bf16": 59.5, "int8": 238},
        memory_mib=10240, power_w=320, bus="PCIe 4.0 x16", driver_name="NVIDIA GeForce RTX 3080",
        sources=_from(_GA102, memory_mib="https://pastebin.com/tXDcw4qE"),
    ),
    GPU(
        "RTX 3090", "consumer", 2020, (8, 6), 24, 936, {"fp32": 35.6, "tf32": 35.6, "fp16": 71, "bf16": 71},
        memory_mib=24576, power_w=350, bus="PCIe 4.0 x16", nvlink_gbps=112.5, driver_name="NVIDIA GeForce RTX 3090",
        sources=_from(
            _GA102, nvlink_gbps=_GA102, memory_mib="https://github.com/noonghunna/club-3090/issues/1128",
        ),
    ),
    GPU(
        "RTX 4090", "consumer", 2022, (8, 9), 24, 1008,
        {"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6},
        memory_mib=24564, power_w=450, bus="PCIe 4.0 x16", driver_name="NVIDIA GeForce RTX 4090",
        sources=_from(_ADA, memory_mib="https://github.com/RLinf/RLinf/issues/255"),
    ),
    GPU(
        "RTX 5090", "consumer", 2025, (12, 0), 32, 1792,
        {"fp32": 104.8, "fp16": 209.5, "bf16": 209.5, "fp8": 419, "int8": 838, "fp4": 1676},
        memory_mib=32607, power_w=575, bus="PCIe 5.0 x16", driver_name="NVIDIA GeForce RTX 5090",
        sources=_from(_BLACKWELL, memory_mib="https://github.com/noonghunna/club-3090/issues/1261"),
    ),
    GPU(
        "RTX PRO 6000", "workstation", 2025, (12, 0), 96, 1792,
        {"fp32": 125, "fp16": 503.8, "bf16": 503.8, "fp8": 1007.6, "fp4": 2000},
        memory_mib=97887, power_w=600, bus="PCIe 5.0 x16",
        driver_name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        sources=_from(_PRO_6000, peak_tflops=_PRO, memory_mib="https://github.com/vllm-project/vllm/issues/27542"),
    ),
    GPU(
        "Apple M1", "Apple", 2020, None, 16, 68.2, {"fp32": 2.6},
        sources={
            "year": "https://www.macrumors.com/2020/11/10/apple-announces-m1-chip-for-the-mac/",
            "peak_tflops": "https://www.macrumors.com/2020/11/10/apple-announces-m1-chip-for-the-mac/",
            "bandwidth_gbps": "https://nanoreview.info/en/gpu/apple-m1-gpu",
            "memory_gb": "https://askgeek.io/en/cpus/Apple/M1-8-core-GPU",
        },
    ),
    GPU(
        "Apple M4 Max", "Apple", 2024, None, 128, 546,
        sources=dict.fromkeys(
            ("year", "memory_gb", "bandwidth_gbps"),
            "https://www.apple.com/newsroom/2024/10/apple-introduces-m4-pro-and-m4-max/",
        ),
    ),
)
# fmt: on
