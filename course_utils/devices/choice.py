"""Choice and description of the device that the lessons use."""

import functools
import html
import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from course_utils import arguments, gpus
from course_utils.devices.diagnosis import diagnose
from course_utils.devices.report import Report, Table, kernel_error

CHOICES = ("cpu", "sim", "cuda", "mps", "xpu")
_REAL = ("cuda", "mps", "xpu")


def pick() -> torch.device:
    """Return the device that the lessons use: CUDA, else MPS or XPU, else the simulated GPU, else the CPU.

    A real GPU is taken only after one small kernel ran on it. The device carries an index, except the CPU. The
    environment variable COURSE_DEVICE (cpu, sim, cuda, mps or xpu) overrides the order, also for ranks and kernels:
    another value raises ValueError, and a real GPU that does not work RuntimeError; sim hides real ones. Where the
    simulated GPU cannot be, the CPU is returned and the reason is printed once.
    """
    wanted = "sim" if os.environ.get("SIMGPU_ONLY") else os.environ.get("COURSE_DEVICE", "")
    for name in ("RANKLAUNCH_DEVICE", "KERNELCHECK_DEVICE") if wanted else ():
        os.environ.setdefault(name, wanted)
    return _pick(wanted)


@functools.cache
def _pick(wanted: str) -> torch.device:
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # else torch.utils.benchmark warns in red
    if wanted and wanted not in CHOICES:
        raise ValueError(f"COURSE_DEVICE is {wanted!r}, it may be one of: {', '.join(CHOICES)}")
    if wanted == "cpu":
        return torch.device("cpu")
    problems = []
    for kind in (wanted,) if wanted in _REAL else () if wanted == "sim" else _REAL:
        if not _available(kind):
            problems += [f"PyTorch finds no {kind} device: {diagnose().what}"] if wanted else []
            continue
        device = torch.device(kind, getattr(torch, kind).current_device() if kind != "mps" else 0)
        error = kernel_error(device)
        if error is None:
            return device
        problems.append(f"{device} is there, but a first small kernel failed: {error}")
    if wanted in _REAL:
        raise RuntimeError(f"COURSE_DEVICE is {wanted}: {problems[0]}")
    device, reason = _simulated(hides=bool(wanted))
    if device is not None:
        return device
    print(f"The course runs on the CPU here. {'. '.join([*problems, f'No simulated GPU: {reason}'])}")
    return torch.device("cpu")


def chosen(device: torch.device | str | None = None) -> torch.device:
    """Return the device of this machine that an argument `device=None` means: the picked one where none is given.

    Raises TypeError or ValueError that lists the devices of this machine where `device` is none of them.
    """
    return pick() if device is None else _present(device)


def resolve(device: torch.device | str | None) -> torch.device:
    """Return DEVICE for None, else the device of this machine that is meant, with its index.

    Raises TypeError or ValueError that lists the devices of this machine where it is none of them.
    """
    device = chosen(device)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is None:
        index = 0 if device.type == "mps" else torch.get_device_module(device).current_device()
        return torch.device(device.type, index)
    return device


def check_devices() -> list[torch.device]:
    """Return the devices on which answers are checked: the reader's and, where it can be, the simulated GPU."""
    devices = [pick()]
    if devices[0].type not in (*_REAL, "sim"):
        device, _ = _simulated()
        devices += [] if device is None else [device]
    return devices


def simulated() -> torch.device | None:
    """Return the simulated GPU, enabled, or None where it cannot be in this process."""
    return _simulated()[0]


def on_simulated(fn: Callable[..., Any], *args: Any) -> Any:
    """Return what `fn(*args)` returns where there are simulated GPUs, `sim:0` and `sim:1`: also beside a real GPU.

    There it runs in a child process: `fn` may be typed in a cell, but neither it nor `args` may hold what is on the
    real GPU, and what it returns must be no tensor of the simulated one. Where even a child has no simulated GPU, the
    reason is printed and the result is None. Raises RuntimeError with the child's traceback where `fn` raises there.
    """
    if simulated() is not None:
        return fn(*args)
    import simgpu

    try:
        return simgpu.run_in_child(fn, *args)
    except simgpu.Unavailable as error:
        print(f"No simulated GPU: {error}")
        return None


def synchronize(device: torch.device | str) -> None:
    """Wait until all work queued on `device` is done; on the CPU there is nothing to wait for.

    Raises TypeError or ValueError that lists the devices of this machine where `device` is none of them.
    """
    device = _present(device)
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


@dataclass(frozen=True)
class Machine:
    """What the course computes on here, and which of its numbers are then live, published, simulated or predicted."""

    device: str
    name: str
    live: str
    otherwise: str

    def __str__(self) -> str:
        return f"{self.device}: {self.name}\nLive: {self.live}.\n{self.otherwise}."

    def _repr_html_(self) -> str:
        parts = (html.escape(text) for text in (self.device, self.name, self.live, self.otherwise))
        lines = "<p><b>{}</b>: {}<br>Live: {}.<br>{}.</p>".format(*parts)
        return lines.replace("\n", "<br>")


def describe(device: torch.device | str) -> Machine:
    """Return what `device` is, and what on this machine will be live, published, simulated or predicted.

    Raises TypeError or ValueError that lists the devices of this machine where `device` is none of them.
    """
    device = _present(device)
    if device.type == "cpu":
        live = "results, counts and times of the CPU"
        otherwise = "What only a GPU shows is predicted from data sheets or published by others"
    elif device.type == "sim":
        live = "results, counts, bytes of tensors, and times of the CPU"
        otherwise = (
            "Simulated or predicted: the GPU's memory size, errors and times.\n"
            "simgpu.error_bar() shows how close such times come to times that others have measured"
        )
    else:
        live = "results, errors, memory, counts and times"
        otherwise = "Curves of other GPUs are predicted from data sheets or published by others"
    return Machine(str(device), _name(device), live, otherwise)


def _name(device: torch.device) -> str:
    if device.type in ("cpu", "mps"):
        return "the GPU of this Mac" if device.type == "mps" else "the CPU of this machine"
    module = torch.get_device_module(device)
    size_gib = module.get_device_properties(device).total_memory / 2**30
    return f"{module.get_device_name(device)} with {size_gib:{'g' if device.type == 'sim' else '.1f'}} GiB"


def sheets(device: torch.device | str) -> tuple[gpus.GPU, gpus.GPU]:
    """Return two rows of `gpus` to draw beside what a device measures: a T4 and an H200, of a real GPU its own row.

    Both are the same row then, where the table has that GPU. Raises TypeError or ValueError as `describe` does.
    """
    device = _present(device)
    own = gpus.find(getattr(torch, device.type).get_device_name(device)) if device.type in ("cuda", "xpu") else None
    return (own, own) if own is not None and own.peak_tflops else (gpus.get("T4"), gpus.get("H200"))


def table(device: torch.device | str | None = None) -> Table:
    """Return what this machine is: device (the picked one by default), torch, CUDA, driver, Python, cores, memory.

    Raises TypeError or ValueError that lists the devices of this machine where `device` is none of them.
    """
    device = chosen(device)
    report = Report.collect()
    return Table(
        (
            ("device", f"{device}: {_name(device)}"),
            ("torch", report.torch),
            ("CUDA build", report.cuda_build or f"none: this build is for {_build(report)}"),
            ("driver", report.driver or report.driver_error or "none"),
            ("Python", report.python),
            ("system", f"{platform.system()} {platform.machine()}"),
            ("cores", str(os.cpu_count())),
            ("host memory", _host_memory()),
        )
    )


def _host_memory() -> str:
    try:
        import psutil
    except ImportError:  # as in a browser
        return "unknown"
    return f"{psutil.virtual_memory().total / 2**30:.1f} GiB"


def _build(report: Report) -> str:
    """Return for what a build without CUDA is made."""
    if report.rocm_build:
        return f"AMD GPUs, ROCm {report.rocm_build}"
    return "Intel GPUs" if report.xpu_build else "the GPU of a Mac" if report.mps_built else "the CPU only"


def _present(given: object) -> torch.device:
    """Return `given` as a device of this machine, or raise an error that names it and what it may be."""
    device = arguments.device("device", given)
    there = {"cpu": 1}  # kind: how many
    if hasattr(torch, "sim") and (count := torch.get_device_module("sim").device_count()):
        there["sim"] = count
    there |= {kind: 1 if kind == "mps" else getattr(torch, kind).device_count() for kind in _REAL if _available(kind)}
    if (device.index is None and device.type in there) or (device.index or 0) < there.get(device.type, 0):
        return device
    names = ["cpu" if kind == "cpu" else f"{kind}:{index}" for kind, number in there.items() for index in range(number)]
    raise ValueError(f"device is {str(device)!r}, which this machine does not have; it may be: {', '.join(names)}")


def _available(kind: str) -> bool:
    return torch.backends.mps.is_available() if kind == "mps" else getattr(torch, kind).is_available()


@functools.cache
def _simulated(hides: bool = False) -> tuple[torch.device | None, str]:
    """Return the simulated GPU, enabled, or None and the reason why it cannot be or does not work.

    Where it `hides` a real GPU, as COURSE_DEVICE=sim asks, a line on standard error says so.
    """
    try:
        import simgpu
    except Exception as error:  # the way out: the lessons then run on the CPU
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]
    if hides and (said := simgpu.hide_accelerators(children=False)):
        print(f"COURSE_DEVICE=sim: {said}.", file=sys.stderr)
    return simgpu.ready()
