"""What does this machine say of itself, why does PyTorch find no GPU on it, and what is the cure?

`diagnose(report)` reasons about a report alone, so that it can be tried on the reports of other machines that come with
the course (`Report.stored()`).
"""

from __future__ import annotations

import html
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from course_utils.base import arguments

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
_FOLDER = Path(__file__).parent / "reports"


@dataclass(frozen=True)
class Table:
    """Facts about a machine, as pairs of a name and a value."""

    rows: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        width = 1 + max(len(name) for name, _ in self.rows)
        return "\n".join(f"{name:{width}} {value}" for name, value in self.rows)

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in self.rows)
        return f"<table>{rows}</table>"


@dataclass(frozen=True, repr=False)
class Report:
    """What a machine says of itself, as far as it matters for finding a GPU. Nothing in it names a person or a host."""

    system: str  # "Linux", "Windows" or "macOS"
    system_version: str
    processor: str  # "x86_64", "arm64", …
    python: str
    torch: str  # torch.__version__
    cuda_build: str | None = None  # torch.version.cuda
    arch_list: tuple[str, ...] = ()  # torch.cuda.get_arch_list()
    cuda_available: bool = False  # torch.cuda.is_available()
    kernel_error: str | None = None  # what the first small kernel raised
    gpu_names: tuple[str, ...] = ()  # the GPUs that PyTorch sees
    capability: str | None = None  # of the first of them, "7.5"
    mps_available: bool = False
    mps_built: bool = False
    xpu_available: bool = False
    driver: str | None = None  # version that the NVIDIA driver reports
    driver_error: str | None = None  # what the driver answered instead
    driver_gpus: tuple[str, ...] = ()  # the GPUs that the driver sees, whatever is hidden from PyTorch
    nvidia_on_bus: bool = False  # a display or 3D controller of NVIDIA is plugged in
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    service: str | None = None  # "Colab" or "Kaggle"
    container: bool = False
    wsl: bool = False
    story: str = ""  # for stored reports: whose machine this is like

    @classmethod
    def collect(cls) -> Report:
        """Return the report of this machine. Starts CUDA where PyTorch says that it is available."""
        driver, driver_error, driver_gpus = _ask_driver()
        available = torch.cuda.is_available()
        mac = platform.system() == "Darwin"
        return cls(
            system="macOS" if mac else platform.system(),
            system_version=platform.mac_ver()[0] if mac else platform.release(),
            processor=platform.machine(),
            python=platform.python_version(),
            torch=torch.__version__,
            cuda_build=torch.version.cuda,
            arch_list=tuple(torch.cuda.get_arch_list()),
            cuda_available=available,
            kernel_error=kernel_error("cuda") if available else None,
            gpu_names=_cuda_names() if available else (),
            capability="{}.{}".format(*torch.cuda.get_device_capability()) if available else None,
            mps_available=torch.backends.mps.is_available(),
            mps_built=torch.backends.mps.is_built(),
            xpu_available=torch.xpu.is_available(),
            driver=driver,
            driver_error=driver_error,
            driver_gpus=driver_gpus,
            nvidia_on_bus=_nvidia_on_bus(),
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            service=_service(),
            container=any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv")),
            wsl="microsoft" in platform.release().lower(),
        )

    @classmethod
    def stored(cls) -> dict[str, Report]:
        """Return the reports that come with the course, by name: one for each common case, written after real ones."""
        found = {}
        for path in sorted(_FOLDER.glob("*.json")):
            entries = json.loads(path.read_text(encoding="utf-8"))
            found[path.stem] = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in entries.items()})
        return found

    def __repr__(self) -> str:
        """Return what decides a diagnosis, in one line that fits into a message."""
        names = ("cuda_available", "kernel_error", "cuda_build", "driver", "visible_devices")
        return f"Report({', '.join(f'{name}={getattr(self, name)!r}' for name in names)}, …)"

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        shown = {name: value for name, value in asdict(self).items() if name != "story"}
        return Table([(name, ", ".join(v) if isinstance(v, tuple) else str(v)) for name, v in shown.items()])


def kernel_error(device: str | torch.device) -> str | None:
    """Run one small kernel on `device` and return the first line of its error, or None if the result is right.

    Raises TypeError or ValueError when `device` is not the name of a device.
    """
    device = arguments.device("device", device)
    try:
        right = (torch.ones(2, device=device) + 1).sum().item() == 4
    except Exception as error:
        return f"{error}".strip().partition("\n")[0] or type(error).__name__
    return None if right else "1 + 1 on the device was not 2"


def _ask_driver() -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return the driver's version, its error, and the names of the GPUs that it sees, hidden ones included."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, None, ()
    rows = [line.split(", ", 1) for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not rows:
        message = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0].rstrip(".")
        absent = "couldn't communicate" in message or "No devices" in message
        return None, None if absent else message or None, ()
    return rows[0][0], None, tuple(name for _, name in rows)


def _nvidia_on_bus() -> bool:
    """Return whether Linux lists a display controller (class 0x03) of NVIDIA (vendor 0x10de)."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii") for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.startswith("0x10de") and kind.startswith("0x03"):
            return True
    return False


def _service() -> str | None:
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else None


def _cuda_names() -> tuple[str, ...]:
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


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
