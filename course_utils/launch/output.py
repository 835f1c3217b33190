"""In which order is shown what ranks print at the same time?

Lines of rank 0 at once; those of the other ranks at the end, rank after rank, so that a short run gives the same text
each time. In a long run nothing is held for more than `HOLD_S` seconds.
"""

from __future__ import annotations

import itertools
import sys
import time

__all__ = ["HOLD_S", "Output"]

HOLD_S = 5.0
FLUSH_S = 0.1  # a notebook makes a message of each flush, and drops messages when there are too many


class Output:
    """Takes bytes as they come from the ranks and prints whole lines, each with the name of its rank."""

    def __init__(self, nprocs: int) -> None:
        self._lines: list[list[tuple[str, str]]] = [[] for _ in range(nprocs)]  # of each rank: (stream, line)
        self._rest: dict[tuple[int, str], bytearray] = {}  # of each rank and stream: an unfinished line
        self._since: float | None = None  # when the oldest thing that is held came
        self._flush_at: float | None = None  # when what has been printed goes out

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """Take what a rank wrote; `stream` is "out" or "err"."""
        rest = self._rest.setdefault((rank, stream), bytearray())
        whole, newline, after = data.rpartition(b"\n")
        if newline:
            self._lines[rank] += [(stream, _text(line)) for line in (bytes(rest) + whole).split(b"\n")]
            rest.clear()
        rest += after
        if self._since is None and (rest or rank):
            self._since = time.monotonic()
        self._print(0)

    def tick(self) -> None:
        """Print what has been held long enough, also lines that are not finished, such as a progress bar."""
        if self._since is not None and time.monotonic() - self._since > HOLD_S:
            self.finish()
        elif self._flush_at is not None and time.monotonic() >= self._flush_at:
            self._flush()

    def finish(self) -> None:
        """Print everything."""
        self._since = None
        for (rank, stream), rest in sorted(self._rest.items()):
            self._lines[rank] += [(stream, _text(bytes(rest)))] if rest else []
        self._rest.clear()
        for rank in range(len(self._lines)):
            self._print(rank)
        self._flush()

    def _print(self, rank: int) -> None:
        lines, self._lines[rank] = self._lines[rank], []
        for stream, same in itertools.groupby(lines, key=lambda one: one[0]):  # one call: notebooks are slow to write
            text = "".join(f"[rank {rank}] {line}".rstrip(" ") + "\n" for _, line in same)
            (sys.stdout if stream == "out" else sys.stderr).write(text)
        if lines and self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S

    def _flush(self) -> None:
        self._flush_at = None
        sys.stdout.flush()


def _text(line: bytes) -> str:
    """Return a line as a terminal shows it: what follows the last carriage return hides what was before."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
