"""How is CUDA's face switched on and off?"""

import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, TextIO

import torch

from simgpu.device import enabling, races, readings, state
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
    properties,
    ranks,
    smi,
    tensors,
    waits,
)
from simgpu.ground.replacements import Replacements
from simgpu.machine import gpus as table
from simgpu.machine import hosts
from simgpu.reports import current

_lock = threading.RLock()
_faces: list["Face"] = []  # those that are on; the replacements belong to the first
_replaced = Replacements()  # also what ends the device `sim` with the last face, where the first one enabled it


class Face:
    """CUDA's face on the simulated GPUs of this process, on from the start; as a context it is off at its end."""

    session: "current.Session | None" = None  # what records for a report, where one was asked for
    _races: races.Races | None = None  # what looks for them, where that was asked for

    def __init__(
        self, gpu: str, gpus: int | None, memory: str | int | None, allocator: str, errors: str, host: hosts.Host,
        races: str | None,
    ) -> None:  # fmt: skip
        if races not in (None, "warn", "error"):
            raise ValueError(f"races must be 'warn', 'error' or None, not {races!r}")
        capacity = properties.memory_bytes(table.get(gpu, "gpu")) if memory is None else memory
        with _lock:
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
                _put_on()
                given: dict[str, object] = {
                    "gpu": gpu,
                    "gpus": count,
                    "memory": memory,
                    "allocator": allocator,
                    "errors": errors,
                    "host": asdict(host),
                    "races": races,
                }
                children.replace(_replaced, given)
            if races is not None and state.world.clock.races is None:
                self._follow_races(races)
            _faces.append(self)

    def off(self) -> None:
        """Switch it off: tensors that are alive say `sim` again, and `torch.cuda` that there is no CUDA.

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
        """Let a race be a row of the report, where one is asked for."""
        if self.session is not None:
            self.session.raced(race.second, race.text)

    def report(self, price: float | None = None, steps: int | None = None) -> "current.Report":
        """Return what the program did so far; see `simgpu.report`. Raises RuntimeError without `record=True`."""
        if self.session is None:
            raise RuntimeError("nothing was recorded: a report needs simgpu.cuda(record=True)")
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Let programs that say `cuda` run on simulated GPUs, from now on or, as a context, until its end.

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
    if errors is None:
        errors = "blocking" if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else "asynchronous"
    face = Face(gpu, gpus, memory, allocator, errors, hosts.get(host), races)
    if record:
        face.session = current.start(
            stop_after=steps, data_ms=data_ms, shapes=shapes, compiled=compiled, progress=progress
        )
    return face


def last() -> Face:
    """Return the face that was switched on last. Raises IndexError where none is on."""
    return _faces[-1]


def is_on() -> bool:
    """Return whether CUDA's face is on in this process."""
    return bool(_faces)


def _put_on() -> None:
    tensors.register_kernels()
    for module in (
        driver,
        tensors,
        default_types,
        devices,
        dlpack,
        waits,
        nvml,
        smi,
        graphs,
        compiling,
        modules,
        parallel,
        ranks,
        profiling,
    ):
        module.replace(_replaced)
    state.world.show("cuda")


def _take_off() -> None:
    default = torch.get_default_device().type
    state.world.show("sim")
    _replaced.undo()
    if default == "cuda":
        torch.set_default_device(None)
