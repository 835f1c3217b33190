"""Diagnosis of a machine on which PyTorch finds no GPU, with the cure.

`diagnose(report)` reasons about a report alone, so that it can be tried on the reports of other machines that come with
the course (`Report.stored()`).
"""

import html
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from course_utils.devices.report import Report

# Oldest driver that runs programs built for a CUDA major version, from
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
# Oldest macOS with the MPS backend: https://github.com/pytorch/pytorch/pull/177390
MINIMUM_MACOS = 14
# For which capabilities pytorch.org builds: PYTORCH_RELEASES_CODE_CC in torch/cuda/__init__.py of torch 2.13
_BUILDS = {
    "cu130": {"x86_64": (75, 80, 86, 90, 100, 120), "aarch64": (80, 90, 100, 110, 120)},
    "cu126": {"x86_64": (50, 60, 70, 75, 80, 86, 90), "aarch64": (80, 90)},
}
_TEGRA = {53, 62, 72, 87}  # run no kernels of other capabilities: DEVICE_REQUIREMENT in the same file
_INDEX = "--index-url https://download.pytorch.org/whl"
_START = "https://pytorch.org/get-started/locally/"

_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CAUSES = tuple(_READ["cures"])


@dataclass(frozen=True)
class Diagnosis:
    """The first cause that holds, in one sentence, and the cure."""

    cause: str  # one of CAUSES
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}\n{self.cure}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.what)}</b><br>{html.escape(self.cure)}</p>"


def diagnose(report: Report | None = None) -> Diagnosis:
    """Return why PyTorch uses no GPU on the machine of `report` (default: this one), or that one works.

    The causes are tried in the order of the questions that one would ask, and the first that holds is returned.
    """
    report = Report.collect() if report is None else report
    cause, what = _cause(report)
    return Diagnosis(cause, what, _cure(cause, report))


def _cause(r: Report) -> tuple[str, str]:
    if r.cuda_available:
        return _why_no_kernel(r)
    if r.mps_available or r.xpu_available:
        return "works", f"PyTorch {r.torch} uses the GPU of this machine ({'MPS' if r.mps_available else 'XPU'})."
    if r.system == "macOS":
        return _why_no_mps(r)
    if r.service and not r.driver_gpus:
        return "no gpu runtime", f"This {r.service} session has no GPU."
    if _on_tegra(r):
        return "jetson build", f"This is a Jetson, and PyTorch {r.torch}, which must be built for it, finds no GPU."
    if r.rocm_build or r.xpu_build:
        return _why_no_other(r)
    seen = bool(r.driver_gpus) or r.nvidia_on_bus
    if r.cuda_build is None:
        hardware = "although this machine has an NVIDIA GPU" if seen else "and no NVIDIA GPU was found"
        return "cpu-only build", f"PyTorch {r.torch} is built without CUDA, {hardware}."
    if r.driver_error and not seen and r.system == "Linux" and not (r.wsl or r.container):
        return "no gpu", "There is an NVIDIA driver, and no NVIDIA GPU is plugged in."
    if r.driver_error:
        what, _ = _meaning("driver", r.driver_error) or _UNCLEAR
        return "driver broken", f"{what}: {r.driver_error}."
    return _why_no_driver(r, seen) if r.driver is None else _why_not_seen(r)


def _why_no_kernel(r: Report) -> tuple[str, str]:
    name = r.gpu_names[0] if r.gpu_names else "the GPU"
    if r.kernel_error is None:
        return "works", f"PyTorch {r.torch} uses {name}."
    if r.capability and r.arch_list and not _runs(r.capability, r.arch_list):
        if _on_tegra(r):
            return "jetson build", f"{name} is the GPU of a Jetson, and PyTorch {r.torch} has no kernels for it."
        built = ", ".join(r.arch_list)
        kind = f"is a {r.capability}" if r.capability.startswith("gfx") else f"has compute capability {r.capability}"
        return "unsupported capability", f"{name} {kind}; this build is made for {built}."
    if "busy or unavailable" in r.kernel_error:
        mode = f" (compute mode {r.compute_mode})" if r.compute_mode not in (None, "Default", "[N/A]") else ""
        return "gpu in use", f"{name} takes no further program{mode}: {r.kernel_error}."
    if "out of memory" in r.kernel_error:
        return "gpu full", f"The memory of {name} is full: {r.kernel_error}."
    return "kernel failed", f"{name} is there, but a first small kernel failed: {r.kernel_error}"


def _runs(capability: str, arch_list: tuple[str, ...]) -> bool:
    """Return whether a build for `arch_list` has kernels for this capability.

    It has with the same major version and a minor one that is not newer, or with PTX; sm_90a is for 9.0 alone, sm_100f
    for its major version. Jetsons and AMD's GPUs run only what is made for them.
    """
    if capability.startswith("gfx"):
        return capability in arch_list
    number = int(capability.replace(".", ""))
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", arch)
        if not match:
            continue
        kind, built, suffix = match[1], int(match[2]), match[3]
        family = built // 10 == number // 10 and built <= number and not {built, number} & _TEGRA
        if built == number or (suffix != "a" and family) or (kind == "compute" and not suffix and built <= number):
            return True
    return False


def _why_no_mps(r: Report) -> tuple[str, str]:
    if r.processor != "arm64":
        return "intel mac", f"Python runs as {r.processor}: PyTorch's GPU support on macOS needs Apple silicon (arm64)."
    if int(r.system_version.split(".")[0]) < MINIMUM_MACOS:
        return "macos too old", f"macOS {r.system_version} is too old: the MPS backend needs macOS {MINIMUM_MACOS}.0."
    return "unknown", f"PyTorch {r.torch} {'has' if r.mps_built else 'was built without'} MPS and finds no GPU."


def _why_no_other(r: Report) -> tuple[str, str]:
    """Return why a build for AMD's or Intel's GPUs finds none."""
    maker = "AMD" if r.rocm_build else "Intel"
    if r.rocm_build and r.amd_on_bus:
        if r.amd_driver is None:
            return "no amd driver", "There is an AMD GPU, but nothing leads to it: /dev/kfd is missing."
        if r.amd_driver == "refused":
            return "no amd permission", "There is an AMD GPU, but you may not open /dev/kfd."
        if r.visible_devices is not None and not _shown(r.visible_devices, 1):
            return "hidden", f"{_variable(r)} is {r.visible_devices!r}, which hides the GPU from PyTorch."
        return "unknown", f"PyTorch {r.torch} with ROCm {r.rocm_build} does not use the AMD GPU of this machine."
    hardware = "and this machine has one of NVIDIA" if r.driver_gpus or r.nvidia_on_bus else "and none was found"
    return "build for another gpu", f"PyTorch {r.torch} is built for {maker} GPUs, {hardware}."


def _why_no_driver(r: Report, seen: bool) -> tuple[str, str]:
    if re.fullmatch(r"4\.4\.0-\d+-Microsoft", r.system_version):  # WSL 2 has a kernel of its own, "-microsoft-standard"
        return "wsl 1", "This is WSL 1, which has no GPU; WSL 2 has."
    if r.wsl:
        return "wsl without driver", "Linux under Windows (WSL) sees no NVIDIA driver."
    if r.container:
        return "container without gpu", "This container was started without access to a GPU."
    hardware = "This machine has an NVIDIA GPU" if seen else "PyTorch is built with CUDA"
    return "no driver", f"{hardware}, but no NVIDIA driver is installed."


def _why_not_seen(r: Report) -> tuple[str, str]:
    """Return why a build with CUDA sees none of the GPUs that the driver sees."""
    needed, driver = MINIMUM_DRIVER.get(_major(r.cuda_build or "") or 0), _major(r.driver or "")
    if needed and driver and driver < needed:
        return "driver too old", f"Driver {r.driver} is too old for CUDA {r.cuda_build}, which needs {needed} or newer."
    shown = None if r.visible_devices is None else _shown(r.visible_devices, len(r.driver_gpus))
    if shown == []:
        return "hidden", f"CUDA_VISIBLE_DEVICES is {r.visible_devices!r}, which hides the GPU from PyTorch."
    if r.mig and not (r.visible_devices or "").startswith("GPU-"):
        return "mig without slices", f"{r.driver_gpus[0]} is to be used in slices (MIG), and there is none for you."
    said = re.sub(r"^Unexpected error.*?(?=Error \d)", "", r.start_error or "").partition(" - ")[0].rstrip(".")
    start = _meaning("start", said)
    if start:
        return "cuda does not start", f"{start[0]}: {said}."
    if shown is not None and not all(isinstance(one, int) for one in shown):
        return "hidden", f"CUDA_VISIBLE_DEVICES is {r.visible_devices!r}, and no GPU of this machine has that name."
    said = f": {said}" if said else ""
    return "unknown", f"PyTorch {r.torch} with CUDA {r.cuda_build} and driver {r.driver} finds no GPU{said}."


def _shown(setting: str, count: int) -> list[int | str]:
    """Return what CUDA_VISIBLE_DEVICES shows of `count` GPUs, as torch.cuda._parse_visible_devices reads it."""
    parts = setting.split(",")
    for prefix in ("GPU-", "MIG-"):
        if setting.startswith(prefix):
            return [] if len(set(parts)) < len(parts) else [part for part in parts if part.startswith(prefix)]
    shown: list[int | str] = []
    for part in parts:
        match = re.match(r"[+-]?\d+", part.strip())
        number = int(match[0]) if match else -1
        if number in shown:
            return []  # a number twice hides all
        if not 0 <= number < count:
            break
        shown.append(number)
    return shown


_UNCLEAR = "", ""  # where no entry fits


def _meaning(table: str, message: str) -> tuple[str, str] | None:
    """Return what `message` of the driver means and the cure, from the first entry that fits; None where none does."""
    return next(((one["what"], one["cure"]) for one in _READ[table] if re.search(one["pattern"], message)), None)


def _major(version: str) -> int | None:
    """Return the first number of a version; None where there is none: on a Jetson the driver may say "[N/A]"."""
    match = re.match(r"\d+", version)
    return int(match[0]) if match else None


def _on_tegra(r: Report) -> bool:
    """Return whether this is a Jetson, whose kernel says so, and no variable hides its GPU."""
    return "tegra" in r.system_version and (r.visible_devices is None or bool(_shown(r.visible_devices, 1)))


def _variable(r: Report) -> str:
    return "HIP_, ROCR_ or CUDA_VISIBLE_DEVICES" if r.rocm_build else "CUDA_VISIBLE_DEVICES"


def _cure(cause: str, r: Report) -> str:
    if cause == "no gpu runtime" or (cause == "unsupported capability" and r.service == "Kaggle"):
        return _READ["runtime"][r.service]
    if cause == "unsupported capability":
        return _other_build(r)
    if cause in ("driver broken", "cuda does not start"):
        kind, said = ("driver", r.driver_error) if cause == "driver broken" else ("start", r.start_error)
        return (_meaning(kind, said or "") or _UNCLEAR)[1]
    if cause == "works" and len(set(r.driver_gpus)) > 1 and r.device_order != "PCI_BUS_ID":
        return "nvidia-smi may number the GPUs differently: CUDA_DEVICE_ORDER=PCI_BUS_ID gives both the same order."
    if cause == "cpu-only build" and r.amd_on_bus and not (r.driver_gpus or r.nvidia_on_bus):
        return f"There is an AMD GPU: if ROCm supports it, install the build for ROCm from {_START}"
    # the builds on PyPI: without CUDA for Windows, and for ARM (https://github.com/pytorch/pytorch/issues/160162)
    index = f" {_INDEX}/cu130" if r.system == "Windows" or r.processor == "aarch64" else ""
    install = f"pip install --force-reinstall torch{index}"
    return _READ["cures"][cause].replace("{install}", install).replace("{variable}", _variable(r))


def _other_build(r: Report) -> str:
    """Return the build whose kernels run on the GPU of `r`, the newest first."""
    if r.rocm_build:
        return f"Look for a build that names it: {_START}"
    for name, built in _BUILDS.items():
        of_processor = built["aarch64" if r.processor == "aarch64" else "x86_64"]
        if not _runs(r.capability or "", tuple(f"sm_{one}" for one in of_processor)):
            continue
        if name == "cu126":
            return f"Use a newer GPU, or an older build: pip install --force-reinstall 'torch<2.15' {_INDEX}/{name}"
        update = f" after updating driver {r.driver}" if (_major(r.driver or "") or 0) < MINIMUM_DRIVER[13] else ""
        return f"Install a build for newer GPUs{update}: pip install --force-reinstall torch {_INDEX}/{name}"
    return "No build of pytorch.org has kernels for this GPU: use another one."
