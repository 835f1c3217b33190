"""Which tensors are alive, how large are they, and where were they made?"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from course_utils import plots, simulator
from course_utils.memory.ledger import Ledger, Record, Ref
from course_utils.memory.measurements import Alive
from course_utils.memory.parts import table_html, table_text
from course_utils.memory.storages import found, resolve, storage_of

__all__ = ["Census", "census", "watch"]

_known: dict[int, Ref] = {}  # every storage that a census or a watch has met and that is alive


@dataclass(frozen=True)
class Census:
    """Storages alive on a device at one moment, the largest first; it holds no tensor.

    `hidden_bytes` are alive although no tensor of Python's refers to them (saved by autograd, held by C++); it is known
    on the simulated GPU only, elsewhere 0. `later - earlier` is the census of what is new.
    """

    device: torch.device
    storages: tuple[Alive, ...]
    hidden_bytes: int
    serials: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        return sum(one.bytes for one in self.storages) + self.hidden_bytes

    def __len__(self) -> int:
        return len(self.storages)

    def __sub__(self, earlier: Census) -> Census:
        if not isinstance(earlier, Census):
            return NotImplemented
        old = set(earlier.serials)
        new = [(one, n) for one, n in zip(self.storages, self.serials, strict=True) if n not in old]
        hidden_bytes = max(self.hidden_bytes - earlier.hidden_bytes, 0)
        return Census(self.device, tuple(o for o, _ in new), hidden_bytes, tuple(n for _, n in new))

    def _rows(self) -> list[tuple[str, list[str]]]:
        groups: dict[tuple, list[Alive]] = {}
        for one in self.storages:
            groups.setdefault((one.shape, one.dtype, one.owner, one.made), []).append(one)
        rows = sorted(((sum(one.bytes for one in ones), ones) for ones in groups.values()), key=lambda row: -row[0])
        return [(f"{len(ones)} ×" if len(ones) > 1 else "1", _cells(ones[0], size)) for size, ones in rows]

    def _caption(self) -> str:
        hidden = f", {plots.bytes_text(self.hidden_bytes)} of them held by autograd alone" if self.hidden_bytes else ""
        return f"{len(self)} storages alive on {self.device}, {plots.bytes_text(self.total_bytes)}{hidden}"

    def __str__(self) -> str:
        table = f"\n{table_text(_HEADS, self._rows(), left=_HEADS)}" if self.storages else ""
        return self._caption() + table

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self._caption(), _HEADS, self._rows(), left=_HEADS)


def _cells(one: Alive, size_bytes: int) -> list[str]:
    size = plots.bytes_text(size_bytes)
    return [str(one.shape), str(one.dtype).removeprefix("torch."), size, one.owner, one.made]


_HEADS = ["number", "shape", "format", "size", "owner", "made in"]


def census(device: torch.device | str | None = None) -> Census:
    """Return what is alive on the device now: DEVICE (`devices.pick()`) unless given.

    Tensors that share a storage count once. Garbage is collected first, so what is listed is held by something. "Made
    in" is known for what was made inside `watch()`.
    """
    device = resolve(device)
    gc.collect()
    records: dict[int, Record] = {}
    for tensor, owner in found(device):
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in records and storage.nbytes():
            record = _remember(storage, tensor, owner)
            if owner != "activations":
                record.owner = owner
            record.nbytes = storage.nbytes()
            records[storage._cdata] = record
    ordered = sorted(records.values(), key=lambda record: (-record.nbytes, record.serial))
    hidden_bytes = 0
    if device.type == "sim":
        allocated_bytes = simulator.world().gpus[device.index or 0].allocated_bytes
        hidden_bytes = allocated_bytes - sum(record.nbytes for record in ordered)
    return Census(device, tuple(map(Alive.of, ordered)), hidden_bytes, tuple(record.serial for record in ordered))


@contextmanager
def watch(device: torch.device | str | None = None) -> Iterator[None]:
    """Inside, note for every tensor that is made on the device the reader's line that makes it, for `census()`."""
    device = resolve(device)
    with _Watch(device):
        yield


class _Watch(Ledger):
    """A ledger that hands its records on to the census."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, samples=False)

    def _enter_storage(self, tensor, owner, before=False):
        record = super()._enter_storage(tensor, owner, before)
        if record is not None and not before:
            _note(storage_of(tensor), record)
        return record


def _remember(storage: torch.UntypedStorage, tensor: torch.Tensor, owner: str) -> Record:
    known = _known.get(storage._cdata)
    return known.record if known is not None else _note(storage, Record(tensor, storage.nbytes(), owner))


def _note(storage: torch.UntypedStorage, record: Record) -> Record:
    _known[storage._cdata] = Ref(storage, record, _drop)
    return record


def _drop(ref: Ref) -> None:
    if _known.get(ref.key) is ref:
        del _known[ref.key]
