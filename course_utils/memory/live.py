"""Live tensors, with their sizes and the lines that made them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import simgpu
from course_utils import plots, tables
from course_utils.devices import resolve
from course_utils.memory.measurements import Alive
from simgpu.accounting.ledger import Ledger, Record, storage_of, tensors_on

_known: dict[int, Record] = {}  # storages that a census or a watch has met, by address


@dataclass(frozen=True, repr=False)
class Census(tables.Table):
    """Storages alive on a device at one moment, the largest first; it holds no tensor.

    `hidden_bytes` are alive although no tensor of Python's refers to them (saved by autograd, held by C++); it is known
    on the simulated GPU only, elsewhere 0. `later - earlier` is the census of what is new.
    """

    device: torch.device
    storages: tuple[Alive, ...]
    hidden_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(one.bytes for one in self.storages) + self.hidden_bytes

    def __len__(self) -> int:
        return len(self.storages)

    def __sub__(self, earlier: "Census") -> "Census":
        if not isinstance(earlier, Census):
            return NotImplemented
        old = {one.serial for one in earlier.storages}
        new = tuple(one for one in self.storages if one.serial not in old)
        return Census(self.device, new, max(self.hidden_bytes - earlier.hidden_bytes, 0))

    head, right = ("number", "shape", "format", "size", "owner", "made in"), ()

    def cells(self) -> list[list[str]]:
        groups: dict[tuple, list[Alive]] = {}
        for storage in self.storages:
            groups.setdefault(storage[1:5], []).append(storage)
        rows = []
        for (shape, dtype, owner, made), storages in groups.items():
            size_bytes, fmt = sum(one.bytes for one in storages), str(dtype).removeprefix("torch.")
            count = f"{len(storages)} ×" if len(storages) > 1 else "1"
            rows.append((size_bytes, [count, str(shape), fmt, plots.bytes_text(size_bytes), owner, made]))
        return [cells for _, cells in sorted(rows, key=lambda row: -row[0])]

    def caption(self) -> str:
        hidden = f", {plots.bytes_text(self.hidden_bytes)} of them held by autograd alone" if self.hidden_bytes else ""
        return f"{len(self)} tensors alive on {self.device}, {plots.bytes_text(self.total_bytes)}{hidden}"


def census(device: torch.device | str | None = None) -> Census:
    """Return what is alive on the device now: DEVICE (`devices.pick()`) unless given.

    Tensors that share a storage count once. Garbage is collected first, so what is listed is held by something. "Made
    in" is known for what was made inside `watch()`.
    """
    device = resolve(device)
    gc.collect()
    tensors = tensors_on(device)
    for record in list(_known.values()):
        if record() is None:  # its address may be that of another by now
            del _known[record.key]
    records: dict[int, Record] = {}
    for tensor, owner in tensors:
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in records and storage.nbytes():
            if storage._cdata not in _known:
                _known[storage._cdata] = Record.of(storage, None, tensor, storage.nbytes(), owner)
            record = records[storage._cdata] = _known[storage._cdata]
            if owner != "activations":
                record.owner = owner
            record.nbytes = storage.nbytes()
    storages = sorted(map(Alive.of, records.values()), key=lambda one: (-one.bytes, one.serial))
    hidden_bytes = 0
    if device.type == "sim":
        allocated_bytes = simgpu.memory(device).allocated_bytes
        hidden_bytes = allocated_bytes - sum(one.bytes for one in storages)
    return Census(device, tuple(storages), hidden_bytes)


@contextmanager
def watch(device: torch.device | str | None = None) -> Iterator[None]:
    """Inside, note for every tensor that is made on the device the reader's line that makes it, for `census()`."""
    with _Watch(resolve(device)):
        yield


class _Watch(Ledger):
    """A ledger that hands its records on to the census."""

    def add(self, storage, tensor, owner, before):
        record = super().add(storage, tensor, owner, before)
        if not before:
            _known[record.key] = record
        return record

    def note(self, func, made_bytes):
        pass
