"""Order of the output of ranks that print at the same time.

Lines of rank 0 at once; those of the other ranks at the end, rank after rank, so that a short run gives the same text
each time. In a long run nothing is held for more than `HOLD_S` seconds, not even an unfinished line: a progress bar.
"""

import itertools
import sys
import time
from collections.abc import Iterable

HOLD_S = 5.0
# DistributedDataParallel says it on other devices, from C++, in each rank; no setting of a running process stops it
_NOISE = b"Time stats are currently only collected for CPU and CUDA devices"
FLUSH_S = 0.1  # a notebook makes a message of each flush, and drops messages when there are too many


class Output:
    """Takes bytes as they come from the ranks and prints whole lines, each with the name of its rank."""

    def __init__(self, nprocs: int) -> None:
        self._lines: list[list[tuple[str, str]]] = [[] for _ in range(nprocs)]  # of each rank: (stream, line)
        self._rest: dict[tuple[int, str], bytearray] = {}  # of each rank and stream: an unfinished line
        self._since: dict[tuple[int, str], float] = {}  # when that began, or with "lines" the first of the whole lines
        self._flush_at: float | None = None  # when what has been printed goes out

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """Take what a rank wrote; `stream` is "out" or "err"."""
        rest = self._rest.setdefault((rank, stream), bytearray())
        whole, newline, after = data.rpartition(b"\n")
        if newline:
            lines = bytes(rest + whole).split(b"\n")
            self._lines[rank] += [(stream, _text(line)) for line in lines if _NOISE not in line]
            rest.clear()
            self._since.pop((rank, stream), None)
            self._since.setdefault((rank, "lines"), time.monotonic())
        if after:
            rest += after
            self._since.setdefault((rank, stream), time.monotonic())
        self._print(0)

    def tick(self) -> None:
        """Print what has been held long enough."""
        now = time.monotonic()
        self._show([held for held, since in self._since.items() if now - since > HOLD_S])
        if self._flush_at is not None and now >= self._flush_at:
            self._flush()

    def finish(self) -> None:
        """Print everything."""
        self._show(list(self._since))
        self._flush()

    def _show(self, due: Iterable[tuple[int, str]]) -> None:
        for held in sorted(due):
            del self._since[held]
            if rest := self._rest.pop(held, b""):
                self._lines[held[0]].append((held[1], _text(bytes(rest))))
        for rank in sorted({rank for rank, _ in due}):
            self._print(rank)

    def _print(self, rank: int) -> None:
        lines, self._lines[rank] = self._lines[rank], []
        for name, same in itertools.groupby(lines, key=lambda one: one[0]):  # one call: notebooks are slow to write
            text = "".join(f"[rank {rank}] {line}".rstrip(" ") + "\n" for _, line in same)
            if stream := sys.stdout if name == "out" else sys.stderr:  # there is none in a program without a console
                stream.write(text)
        if lines and self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S

    def _flush(self) -> None:
        self._flush_at = None
        print(end="", flush=True)


def _text(line: bytes) -> str:
    """Return a line as a terminal shows it: what follows the last carriage return hides what was before."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
