"""What does this machine say of itself, as far as it matters for finding a GPU?"""

from __future__ import annotations

import html
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from course_utils.base import arguments

__all__ = ["Report", "kernel_error"]

_FOLDER = Path(__file__).parent / "reports"


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
    def load(cls, path: str | Path) -> Report:
        """Return the report in the JSON file `path`. Raises ValueError that names a field which does not belong."""
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path is {path!r}, it must be the path of a JSON file")
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(entries, dict):
            raise ValueError(f"{Path(path).name} holds a {type(entries).__name__}, it must hold an object")
        strange = set(entries) - {field.name for field in fields(cls)}
        if strange:
            raise ValueError(f"{Path(path).name} has unknown fields: {', '.join(sorted(strange))}")
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()})

    @classmethod
    def stored(cls) -> dict[str, Report]:
        """Return the reports that come with the course, by name: one for each common case, written after real ones."""
        return {path.stem: cls.load(path) for path in sorted(_FOLDER.glob("*.json"))}

    def __repr__(self) -> str:
        """Return what decides a diagnosis, in one line that fits into a message."""
        names = ("cuda_available", "kernel_error", "cuda_build", "driver", "visible_devices")
        return f"Report({', '.join(f'{name}={getattr(self, name)!r}' for name in names)}, …)"

    def __str__(self) -> str:
        return "\n".join(f"{name:16} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in self._rows())
        return f"<table>{rows}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        shown = {name: value for name, value in asdict(self).items() if name != "story"}
        return [(name, ", ".join(v) if isinstance(v, tuple | list) else str(v)) for name, v in shown.items()]


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
