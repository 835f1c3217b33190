"""Report of a machine: what matters for finding a GPU."""

import html
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from course_utils import arguments

_FOLDER = Path(__file__).parent / "reports"
_ANSWER_S = 20  # that nvidia-smi gets


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
    rocm_build: str | None = None  # torch.version.hip: the build is for AMD GPUs, which it too calls cuda
    xpu_build: str | None = None  # torch.version.xpu
    arch_list: tuple[str, ...] = ()  # torch.cuda.get_arch_list()
    cuda_available: bool = False  # torch.cuda.is_available()
    start_error: str | None = None  # what starting CUDA raised where it is not available
    kernel_error: str | None = None  # what the first small kernel raised
    gpu_names: tuple[str, ...] = ()  # the GPUs that PyTorch sees
    capability: str | None = None  # of the first of them, "7.5"; of AMD's the name of its code, "gfx1100"
    mps_available: bool = False
    mps_built: bool = False
    xpu_available: bool = False
    driver: str | None = None  # version that the NVIDIA driver reports
    driver_error: str | None = None  # what the driver answered instead
    driver_gpus: tuple[str, ...] = ()  # the GPUs that the driver sees, whatever is hidden from PyTorch
    compute_mode: str | None = None  # of the first of them: whether several programs may use it
    mig: bool = False  # one of them is to be used in slices (MIG)
    nvidia_on_bus: bool = False  # a display or 3D controller of NVIDIA is plugged in
    amd_on_bus: bool = False
    amd_driver: str | None = None  # /dev/kfd, through which ROCm reaches AMD's GPUs: "open", "refused" or absent
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES, or what ROCm reads before it
    device_order: str | None = None  # CUDA_DEVICE_ORDER
    service: str | None = None  # "Colab" or "Kaggle"
    container: bool = False
    wsl: bool = False
    story: str = ""  # for stored reports: whose machine this is like

    @classmethod
    def collect(cls) -> "Report":
        """Return the report of this machine. Starts CUDA where PyTorch says that it is available."""
        available = torch.cuda.is_available()
        mac = platform.system() == "Darwin"
        return cls(
            system="macOS" if mac else platform.system(),
            system_version=platform.mac_ver()[0] if mac else platform.release(),
            processor=platform.machine(),
            python=platform.python_version(),
            torch=torch.__version__,
            cuda_build=torch.version.cuda,
            rocm_build=torch.version.hip,
            xpu_build=getattr(torch.version, "xpu", None),
            arch_list=tuple(torch.cuda.get_arch_list()),
            cuda_available=available,
            start_error=None if available else _start_error(),
            kernel_error=kernel_error("cuda") if available else None,
            gpu_names=tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) if available else (),
            capability=_capability() if available else None,
            mps_available=torch.backends.mps.is_available(),
            mps_built=torch.backends.mps.is_built(),
            xpu_available=torch.xpu.is_available(),
            **_ask_driver(),
            nvidia_on_bus=_on_bus("0x10de"),
            amd_on_bus=_on_bus("0x1002"),
            amd_driver=_amd_driver(),
            visible_devices=_visible_devices(),
            device_order=os.environ.get("CUDA_DEVICE_ORDER"),
            service=service(),
            container=any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv")),
            wsl="microsoft" in platform.release().lower(),
        )

    @classmethod
    def stored(cls) -> "dict[str, Report]":
        """Return the reports that come with the course, by name: one for each common case, written after real ones."""
        reports = {}
        for path in sorted(_FOLDER.glob("*.json")):
            entries = json.loads(path.read_text(encoding="utf-8"))
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entries.items()}
            reports[path.stem] = cls(**fields)
        return reports

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


def _start_error() -> str | None:
    """Return the first line of what starting CUDA raises, in a build that has CUDA or ROCm."""
    if torch.version.cuda is None and torch.version.hip is None:
        return None
    try:
        torch.cuda.init()
    except Exception as error:
        return f"{error}".strip().partition("\n")[0]
    return None


def _capability() -> str:
    if torch.version.hip is None:
        return "{}.{}".format(*torch.cuda.get_device_capability())
    return torch.cuda.get_device_properties().gcnArchName.partition(":")[0]


def _ask_driver() -> dict[str, Any]:
    """Return what the NVIDIA driver says, as fields of a report: its version and GPUs, hidden ones too, or its error.

    Nothing is said where there is no nvidia-smi. Old ones do not know all fields: they are asked for the first two.
    """
    for fields in ("driver_version,name,compute_mode,mig.mode.current", "driver_version,name"):
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        except OSError:
            return {}
        except subprocess.TimeoutExpired:
            return {"driver_error": f"nvidia-smi gave no answer for {_ANSWER_S} s"}
        message = done.stdout.strip() or done.stderr.strip()
        if "is not a valid field" not in message:
            break
    rows = [line.split(", ") for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not rows:
        first = message.partition("\n")[0].partition(". ")[0]
        return {"driver_error": first.rstrip(".") or f"nvidia-smi ended with exit status {done.returncode}"}
    return {
        "driver": rows[0][0],
        "driver_gpus": tuple(row[1] for row in rows),
        "compute_mode": rows[0][2] if len(rows[0]) > 2 else None,
        "mig": any(row[3:] == ["Enabled"] for row in rows),
    }


def _on_bus(wanted: str) -> bool:
    """Return whether Linux lists a display controller (class 0x03) of this vendor, or an accelerator (0x12) of AMD."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii") for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.startswith(wanted) and kind.startswith(("0x03", "0x12")):
            return True
    return False


def _amd_driver() -> str | None:
    path = "/dev/kfd"
    return ("open" if os.access(path, os.R_OK | os.W_OK) else "refused") if os.path.exists(path) else None


def _visible_devices() -> str | None:
    names = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"] if torch.version.hip else []
    return next((os.environ[name] for name in (*names, "CUDA_VISIBLE_DEVICES") if name in os.environ), None)


def service() -> str | None:
    """Return which service lends this machine, Colab or Kaggle, None elsewhere."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else None
