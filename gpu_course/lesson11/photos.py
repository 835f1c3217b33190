"""Photographs whose readers may hold little memory: a worker that holds more is killed, as in a container."""

import os
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

LENGTH, LIMIT_BYTES, SIZE = 22, 6 * 2**20, 2**20


class Archive:
    """Photographs of 1 MiB each, as `decode(index)` gives them. A worker that holds more than 6 MiB of them is killed.

    The killer is ours and the signal real: so the system ends a process that goes over the memory of its container.
    """

    def __init__(self, folder: str | Path, damaged: int = -1) -> None:
        self.folder, self.damaged, self._held = Path(folder), damaged, 0

    def __len__(self) -> int:
        return LENGTH

    def __repr__(self) -> str:
        return "archive"

    def decode(self, index: int) -> torch.Tensor:
        """Return photograph `index`, (1024, 1024) of uint8. Raises RuntimeError if it is damaged."""
        if not 0 <= index < LENGTH:
            raise IndexError(f"photograph {index} of {LENGTH}")
        if index == self.damaged:
            raise RuntimeError(f"photograph {index} is damaged")
        photo = _pattern() + 10 * index
        self._held += SIZE
        weakref.finalize(photo.untyped_storage(), self._release)
        with open(self.folder / f"{os.getpid()}.txt", "a", encoding="utf-8") as log:
            log.write(f"{index} {self._held}\n")
        if self._held > LIMIT_BYTES and get_worker_info() is not None:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return photo

    def _release(self) -> None:
        self._held -= SIZE

    def log(self) -> tuple[list[int], int, bool, list[int]]:
        """Return which photographs were read, by how many processes, whether by this one, and the bytes held at each.

        Where nothing was read, that is as if one photograph had been held.
        """
        files = sorted(self.folder.glob("*.txt"))
        lines = [line.split() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        held = [int(held) for _, held in lines] or [SIZE]
        return [int(index) for index, _ in lines], len(files), (self.folder / f"{os.getpid()}.txt").exists(), held


def brightness(index: int) -> float:
    """Return the mean brightness of photograph `index`."""
    return 10.0 * index + 14.25


def _pattern() -> torch.Tensor:
    """Return photograph 0: rows and columns differ, the mean is no whole number, and a part has another mean."""
    row, column = torch.arange(1024)[:, None], torch.arange(1024)
    return (13 * (row % 4 == 0) + row // 128 + 12 * (column % 2) + column // 256).to(torch.uint8)


@contextmanager
def archive(damaged: int = -1) -> Iterator[Archive]:
    """Give an archive with a folder for its log; photograph `damaged` cannot be decoded."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Archive(folder, damaged)


class Samples(Dataset):
    """A data set from a function of the index, which may be typed in a cell: workers get it wherever they are started.

    Where processes are spawned, pickle alone takes only functions that a module holds.
    """

    def __init__(self, length: int, function: Callable[[int], Any]) -> None:
        self.length, self.function = length, function

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.function(index)

    def __getstate__(self) -> bytes:
        import cloudpickle

        return cloudpickle.dumps((self.length, self.function))

    def __setstate__(self, state: bytes) -> None:
        import pickle

        self.length, self.function = pickle.loads(state)
