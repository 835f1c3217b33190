"""Why does PyTorch find no GPU on this machine, and what is the cure?

`diagnose(report)` reasons about a report alone, so that it can be tried on the reports of other machines that come with
the course (`Report.stored()`).
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from course_utils.devices.report import Report

__all__ = ["CAUSES", "MINIMUM_DRIVER", "MINIMUM_MACOS", "Diagnosis", "Report", "diagnose"]

# Oldest driver that runs programs built for a CUDA major version, from
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
# Oldest macOS with the MPS backend: https://github.com/pytorch/pytorch/pull/177390
MINIMUM_MACOS = 14

_CURES = {
    "works": "Nothing to do.",
    "no gpu runtime": "",  # below: it depends on the service
    "cpu-only build": "If there is an NVIDIA GPU, install a build with CUDA: {install}",
    "hidden": "Remove CUDA_VISIBLE_DEVICES from the environment, or name a GPU that exists, and restart the kernel.",
    "driver broken": "Restart the machine: the driver was probably updated while it was running.",
    "driver too old": "Install a newer NVIDIA driver; the CUDA toolkit is not needed.",
    "wsl without driver": "Install the NVIDIA driver for Windows on the Windows side, and none inside WSL.",
    "container without gpu": "Start it with GPU access (docker run --gpus all), after installing the NVIDIA Container "
    "Toolkit on the host.",
    "no driver": "Install the NVIDIA driver if there is an NVIDIA GPU; the CUDA toolkit and cuDNN are not needed.",
    "unsupported capability": "Use a newer GPU, or an older build: pip install --force-reinstall 'torch<2.15' "
    "--index-url https://download.pytorch.org/whl/cu126",
    "kernel failed": "Restart the kernel and try again; if the error stays, course_utils.explain says more about it.",
    "intel mac": "On a Mac with Apple silicon install a Python for arm64; an Intel Mac has no GPU for PyTorch.",
    "macos too old": "Update macOS.",
    "unknown": "Run python -m torch.utils.collect_env and compare what it prints with the table of this lesson.",
}
_RUNTIME = {
    "Colab": "Choose Runtime, Change runtime type, T4 GPU (it is free), and run the notebook again from the top.",
    "Kaggle": "Choose Settings, Accelerator, GPU T4 x2 (it is free), and run the notebook again from the top.",
}
CAUSES = tuple(_CURES)


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
    if report is None:
        report = Report.collect()
    if not isinstance(report, Report):
        raise TypeError(f"report is a {type(report).__name__}, it must be a Report or None")
    cause, what = _cause(report)
    return Diagnosis(cause, what, _cure(cause, report))


def _cause(r: Report) -> tuple[str, str]:
    if r.cuda_available:
        return _why_no_kernel(r)
    if r.mps_available or r.xpu_available:
        return "works", f"PyTorch {r.torch} uses the GPU of this machine ({'MPS' if r.mps_available else 'XPU'})."
    if r.system == "macOS":
        return _why_no_mps(r)
    seen = bool(r.driver_gpus) or r.nvidia_on_bus
    if r.service and not r.driver_gpus:
        return "no gpu runtime", f"This {r.service} session has no GPU."
    if r.cuda_build is None:
        found = "although this machine has an NVIDIA GPU" if seen else "and no NVIDIA GPU was found"
        return "cpu-only build", f"PyTorch {r.torch} is built without CUDA, {found}."
    if r.driver_error:
        return "driver broken", f"The NVIDIA driver is there but does not answer: {r.driver_error}."
    if r.driver is None:
        return _why_no_driver(r, seen)
    needed = MINIMUM_DRIVER.get(int(r.cuda_build.split(".")[0]))
    if needed and int(r.driver.split(".")[0]) < needed:
        return "driver too old", f"Driver {r.driver} is too old for CUDA {r.cuda_build}, which needs {needed} or newer."
    if r.visible_devices is not None:
        return "hidden", f"CUDA_VISIBLE_DEVICES is {r.visible_devices!r}, which hides the GPU from PyTorch."
    return "unknown", f"PyTorch {r.torch} with CUDA {r.cuda_build} and driver {r.driver} finds no GPU."


def _why_no_kernel(r: Report) -> tuple[str, str]:
    name = r.gpu_names[0] if r.gpu_names else "the GPU"
    if r.kernel_error is None:
        return "works", f"PyTorch {r.torch} uses {name}."
    code = f"sm_{(r.capability or '').replace('.', '')}"
    if r.capability and r.arch_list and not _runs(code, r.arch_list):
        built = ", ".join(r.arch_list)
        return (
            "unsupported capability",
            f"{name} has compute capability {r.capability}; this build is made for {built}.",
        )
    return "kernel failed", f"{name} is there, but a first small kernel failed: {r.kernel_error}"


def _runs(code: str, arch_list: tuple[str, ...]) -> bool:
    """Return whether a build for `arch_list` has kernels for `code`: same major version, minor not newer, or PTX."""
    number = int(code[3:])
    for arch in arch_list:
        kind, _, digits = arch.partition("_")
        built = int("".join(c for c in digits if c.isdigit()))
        if (kind == "sm" and built // 10 == number // 10 and built <= number) or (kind != "sm" and built <= number):
            return True
    return False


def _why_no_mps(r: Report) -> tuple[str, str]:
    if r.processor != "arm64":
        return "intel mac", f"Python runs as {r.processor}: PyTorch's GPU support on macOS needs Apple silicon (arm64)."
    if int(r.system_version.split(".")[0]) < MINIMUM_MACOS:
        return "macos too old", f"macOS {r.system_version} is too old: the MPS backend needs macOS {MINIMUM_MACOS}.0."
    return "unknown", f"PyTorch {r.torch} {'has' if r.mps_built else 'was built without'} MPS and finds no GPU."


def _why_no_driver(r: Report, seen: bool) -> tuple[str, str]:
    if r.wsl:
        return "wsl without driver", "Linux under Windows (WSL) sees no NVIDIA driver."
    if r.container:
        return "container without gpu", "This container was started without access to a GPU."
    found = "This machine has an NVIDIA GPU" if seen else "PyTorch is built with CUDA"
    return "no driver", f"{found}, but no NVIDIA driver is installed."


def _cure(cause: str, r: Report) -> str:
    if cause == "no gpu runtime" or (cause == "unsupported capability" and r.service == "Kaggle"):
        return _RUNTIME[r.service]
    windows = " --index-url https://download.pytorch.org/whl/cu130" if r.system == "Windows" else ""
    return _CURES[cause].replace("{install}", f"pip install --force-reinstall torch{windows}")
