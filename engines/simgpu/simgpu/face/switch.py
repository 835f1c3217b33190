"""Switch of the faces of CUDA, MPS and XPU: on and off."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

import torch

from simgpu.device import cpu_fallback, enabling, operators, races, readings, state
from simgpu.face import (
    children,
    compiling,
    default_types,
    devices,
    dlpack,
    driver,
    graphs,
    modules,
    nvml,
    parallel,
    profiling,
    ranks,
    smi,
    tensors,
    waits,
)
from simgpu.face import mps as mac
from simgpu.face import xpu as intel
from simgpu.ground import device_kind, places
from simgpu.ground.replacements import Replacements
from simgpu.machine import gpus as table
from simgpu.machine import hosts
from simgpu.reports import current

_lock = threading.RLock()
_faces: list["Face"] = []  # those that are on; the replacements belong to the first
_replaced = Replacements()  # also what ends the device `sim` with the last face, where the first one enabled it


class Face:
    """A face on the simulated GPUs of this process, on from the start; as a context it is off at its end."""

    session: "current.Session | None" = None  # what records for a report, where one was asked for
    _races: races.Races | None = None  # what looks for them, where that was asked for

    def __init__(
        self, kind: device_kind.Kind, gpu: str, gpus: int | None, memory: str | int | None, allocator: str, errors: str,
        host: hosts.Host, races: str | None,
    ) -> None:  # fmt: skip
        if races not in (None, "warn", "error"):
            raise ValueError(f"races must be 'warn', 'error' or None, not {races!r}")
        capacity = enabling.WHOLE if memory is None else memory
        table.get(gpu, "gpu")  # which names the argument
        with _lock:
            if _faces and device_kind.current != kind:
                raise RuntimeError(f"simgpu.{device_kind.kind}() is on: switch it off before simgpu.{kind.name}()")
            known = enabling.enabled()
            count = gpus or (len(state.world.memory.gpus) if known else 1)
            self._before = (enabling.chosen(), readings.settings(), state.world.current) if known else None
            try:
                enabling.enable(count, gpu, capacity, host=host)
                enabling.configure(allocator=allocator, errors=errors)
            except Exception:
                self._put_back()
                raise
            if not _faces:
                if not known:
                    _replaced.call(enabling.disable)
                _put_on(kind)
                given: dict[str, object] = {
                    "gpu": gpu, "memory": memory, "allocator": allocator, "errors": errors, "host": asdict(host),
                    "races": races,
                }  # fmt: skip
                if not kind.is_single:
                    given["gpus"] = count
                if kind.name == "xpu":
                    given["fp64"] = torch.float64 not in kind.no_kernels
                children.replace(_replaced, kind.name, given)
            if races is not None and state.world.clock.races is None:
                self._follow_races(races)
            _faces.append(self)

    def off(self) -> None:
        """Switch it off: tensors that are alive say `sim` again, and PyTorch that there is no such device.

        The device `sim` is switched off, too, where it was off before.
        """
        with _lock:
            if self not in _faces:
                return
            _faces.remove(self)
            if self._races is not None:
                self._races.stop()
                state.world.clock.races = state.world.memory.races = None
            if self.session is not None:
                self.session.stop()
            if not _faces:
                _take_off()
            self._put_back()

    def _follow_races(self, mode: str) -> None:
        clock = state.world.clock
        self._races = races.Races(mode, lambda gpu: clock.streams[gpu], self._tell_report)
        clock.races = state.world.memory.races = self._races
        self._races.start()

    def _tell_report(self, race: races.Race) -> None:
        """Add a race to the report, where one is asked for."""
        if self.session is not None:
            self.session.raced(race.second, race.text)

    def report(self, price: float | None = None, steps: int | None = None) -> "current.Report":
        """Return the report of the program so far; see `simgpu.report`. Raises RuntimeError without `record=True`."""
        if self.session is None:
            raise RuntimeError(f"nothing was recorded: a report needs simgpu.{device_kind.kind}(record=True)")
        return self.session.report(price, steps)

    def _put_back(self) -> None:
        """Restore the settings of before; an error in the middle of `__init__` may have left `sim` on."""
        if self._before is None:
            if not _faces:
                enabling.disable()
        elif enabling.enabled():
            chosen, settings, current = self._before
            enabling.enable(len(state.world.memory.gpus), **chosen)
            readings.restore(settings)
            state.world.current = current

    def __enter__(self) -> "Face":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.session is not None and isinstance(error, Exception):
            self.session.failed(error)
        self.off()


def cuda(
    gpu: str = "T4",
    *,
    gpus: int | None = None,
    memory: str | int | None = None,
    allocator: str = "exact",
    errors: str | None = None,
    host: str | hosts.Host | Mapping[str, Any] = hosts.DEFAULT,
    races: str | None = None,
    record: bool = False,
    data_ms: float | None = None,
    shapes: bool = False,
    steps: int | None = None,
    compiled: bool = False,
    progress: TextIO | None = None,
) -> Face:
    """Run programs that say `cuda` on simulated GPUs, from now on or, as a context, until its end.

    Tensors on them are on `cuda:0`, `torch.cuda` answers, autocast, streams, checkpoints and messages of errors say
    cuda. `gpu` names a row of `simgpu.gpus`; `gpus` is their number, which is that of the first call in the process
    (1 unless told); `memory` of each, as "8 GiB" or in bytes, is that of the data sheet unless told. `allocator` and
    `errors` are those of `configure`; errors come "asynchronous" as on CUDA, or "blocking" where the environment has
    CUDA_LAUNCH_BLOCKING=1. `host` is a row of `simgpu.hosts` or a `simgpu.Host`. With `races` two uses of the same
    memory that nothing orders raise `RaceError` ("error"), or warn and are rows of the report ("warn"), with both lines
    (`device.races` says which). With `record` everything is recorded that `report()` of what is returned tells: what
    the program's lines cost, and what would be otherwise on other GPUs. A batch of a DataLoader then takes the host as
    long as it takes here, or `data_ms`; with `shapes` no values are computed, only shapes;
    after so many `steps` the program is ended (SystemExit); to `progress` a line is written every few seconds. With
    `compiled` the report also says what a step would take with its models compiled by `torch.compile`.

    Random numbers are the CPU's: both share one generator, so that a program computes what it computes on the CPU.
    Raises RuntimeError where the simulated GPU cannot be, so in a process with a real one; ValueError and TypeError
    that name the argument. Not for several threads at a time: switch it on before you start them.
    """
    return _on(
        device_kind.KINDS["cuda"], gpu, gpus, memory, allocator, errors, host, races, record, data_ms, shapes, steps,
        compiled, progress,
    )  # fmt: skip


def mps(gpu: str = "Apple M1", *, memory: str | int | None = None, **options: Any) -> Face:
    """Run programs that say `mps` on one simulated GPU, as `cuda` does for those that say `cuda`.

    Tensors are on `mps:0`, `torch.mps` and `torch.backends.mps` answer, and formats, operators, memory, autocast,
    events and errors are those of a Mac's GPU with PyTorch 2.13. `memory` is what may be allocated, 1.7 times what
    Metal recommends. A GPU of the table stands for the Mac's: its times are not those of a Mac. `options` are those of
    `cuda`, but for `gpus`; random numbers are not the CPU's. What a real Mac does silently, and this does not
    show, stands in the page of the documentation on the simulated GPU. Raises as `cuda` does.
    """
    return _on(device_kind.KINDS["mps"], gpu, None, memory, **options)


def xpu(
    gpu: str = "T4", *, gpus: int | None = None, memory: str | int | None = None, fp64: bool = True, **options: Any
) -> Face:
    """Run programs that say `xpu` on simulated GPUs, as `cuda` does for those that say `cuda`.

    Tensors are on `xpu:0`, and `torch.xpu` answers. Without `fp64` no kernel computes with float64, as on Arc's A
    series; with it all do, as on Data Center Max and Arc's B series. A GPU of the table stands for Intel's: its times
    are not those of one. `options` are those of `cuda`. Raises as `cuda` does.
    """
    return _on(device_kind.KINDS["xpu"] if fp64 else device_kind.XPU_WITHOUT_FP64, gpu, gpus, memory, **options)


_KINDS: dict[str, Callable[..., Face]] = {"cuda": cuda, "mps": mps, "xpu": xpu}


def of_kind(
    kind: str, *, gpu: str | None = None, gpus: int | None = None, fp64: bool = True, **options: Any
) -> Face:  # fmt: skip
    """Switch the face of a kind on, as a command line says it. Raises ValueError for what the kind has not."""
    options |= {} if gpu is None else {"gpu": gpu}
    if kind == "mps" and gpus not in (None, 1):
        raise ValueError("a Mac has one GPU: leave the number of GPUs out")
    if kind != "xpu" and not fp64:
        raise ValueError(f"float64 is left out of xpu alone, not of {kind}")
    options |= {} if kind == "mps" else {"gpus": gpus}
    return _KINDS[kind](**options, **({"fp64": fp64} if kind == "xpu" else {}))


def is_in_use() -> bool:
    """Return whether a face is on, and the program has used its device."""
    return is_on() and getattr(getattr(torch, device_kind.kind), "is_initialized", is_on)()


def _on(
    kind: device_kind.Kind, gpu: str, gpus: int | None, memory: str | int | None, allocator: str = "exact",
    errors: str | None = None, host: str | hosts.Host | Mapping[str, Any] = hosts.DEFAULT, races: str | None = None,
    record: bool = False, data_ms: float | None = None, shapes: bool = False, steps: int | None = None,
    compiled: bool = False, progress: TextIO | None = None,
) -> Face:  # fmt: skip
    if errors is None:
        errors = "blocking" if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else "asynchronous"
    face = Face(kind, gpu, gpus, memory, allocator, errors, hosts.get(host), races)
    if record:
        face.session = current.start(
            stop_after=steps, data_ms=data_ms, shapes=shapes, compiled=compiled, progress=progress
        )
    return face


def last() -> Face:
    """Return the face that was switched on last. Raises IndexError where none is on."""
    return _faces[-1]


def is_on() -> bool:
    """Return whether a face is on in this process."""
    return bool(_faces)


_COMMON = tensors, devices, dlpack, compiling, modules, profiling
_MODULES: dict[str, tuple[Any, ...]] = {
    "cuda": (driver, *_COMMON, default_types, waits, nvml, smi, graphs, parallel, ranks),
    "mps": (mac, *_COMMON),
    "xpu": (intel, *_COMMON, graphs),
}


def _put_on(kind: device_kind.Kind) -> None:
    state.world.show(kind)
    state.world.current = 0 if kind.is_single else state.world.current
    operators.forget()
    cpu_fallback.read_environment()
    tensors.register_kernels()
    for module in _MODULES[kind.name]:
        module.replace(_replaced)
    places.name_callers(_replaced.put)


def _take_off() -> None:
    if torch.get_default_device().type == device_kind.kind:
        torch.set_default_device(None)
    state.world.show(device_kind.KINDS["sim"])
    operators.forget()
    _replaced.undo()
