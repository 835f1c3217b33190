"""Runs of the programs that items show: on a simulated GPU, or on ranks that are threads here."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import counting

__all__ = ["Ranks", "alive_bytes", "counts", "numbered", "peak_bytes", "ranks", "run"]

_LIMIT_S = 5.0  # in which ranks that are threads meet, or somebody is at fault


def numbered(lines: list[str]) -> str:
    """Return lines of code with their numbers, from 1."""
    return "\n".join(f"{number:2}  {line}" for number, line in enumerate(lines, 1))


def run(program: str, **given: Any) -> dict[str, Any]:
    """Run a program and return its names; it may use `torch`, `nn`, `F`, `device` (the simulated GPU) and `given`."""
    names = {"torch": torch, "nn": nn, "F": F, **given}
    if simgpu.enabled():
        names.setdefault("device", torch.device("sim", 0))
    exec(compile(program, "<item>", "exec"), names)
    return names


def counts(program: str, **given: Any) -> counting.Counts:
    """Return what a program counts: copies and their bytes, operators, values that the host read."""
    with counting.count() as found:
        names = run(program, **given)
    del names
    return found


def peak_bytes(program: str) -> int:
    """Return the most bytes that a program had alive on the simulated GPU."""
    gc.collect()  # what is garbage now would be freed at some moment of the program
    with simgpu.memory("sim:0").fresh_peak() as peak:
        run(program)
        return peak()


def alive_bytes(program: str) -> int:
    """Return the bytes that are alive on the simulated GPU when a program has ended and its names are still there."""
    gc.collect()  # as for the peak
    before = simgpu.memory("sim:0").allocated_bytes
    names = run(program)
    after = simgpu.memory("sim:0").allocated_bytes
    del names
    return after - before


class Ranks:
    """What a program did on several ranks: the names of each rank, and the line in which each waits for ever, or None.

    `call` says what each rank that waits has called.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.names: list[dict[str, Any]] = [{} for _ in range(count)]
        self.line: list[int | None] = [None] * count
        self.call = [""] * count
        self._condition = threading.Condition()
        self._waiting: dict[int, tuple[str, Any, int]] = {}
        self._ended: set[int] = set()
        self._round, self._stuck = 0, False

    def meet(self, rank: int, call: str, value: Any, line: int) -> list[Any]:
        """Wait until every rank has called the same and return what each handed in; raise _Stuck where none can."""
        with self._condition:
            self._waiting[rank] = (call, value, line)
            mine = self._round
            self._settle()
            self._condition.wait_for(lambda: self._round > mine or self._stuck, _LIMIT_S)
            if self._round == mine:
                self.line[rank], self.call[rank] = line, call
                raise _Stuck
            return self._results

    def ended(self, rank: int) -> None:
        """Note that a rank has left the program."""
        with self._condition:
            self._ended.add(rank)
            self._settle()

    def _settle(self) -> None:
        """Resume ranks that have all called the same collective; report them stuck where no further call can come."""
        if len(self._waiting) + len(self._ended) < self.count or not self._waiting:
            return
        if len({call for call, _, _ in self._waiting.values()}) == 1 and not self._ended:
            self._results = [self._waiting[rank][1] for rank in range(self.count)]
            self._waiting.clear()
            self._round += 1
        else:
            self._stuck = True
        self._condition.notify_all()


class _Stuck(BaseException):
    """This rank waits for ever."""


class _Group:
    """The collectives of one rank, by the names and with the results of `torch.distributed`; values are numbers."""

    def __init__(self, ranks: "Ranks", rank: int) -> None:
        self._ranks, self._rank = ranks, rank

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(value: Any = None, root: int = 0) -> Any:
            line = sys._getframe(1).f_lineno
            values = self._ranks.meet(self._rank, name, value, line)
            return _RESULTS[name](values, self._rank, root)

        return call


# what a rank has after a collective; `reduce` leaves the other ranks what they had, as far as a program may rely on it
_RESULTS: dict[str, Callable[[list[Any], int, int], Any]] = {
    "sum_over_ranks": lambda values, rank, root: sum(values),
    "max_over_ranks": lambda values, rank, root: max(values),
    "broadcast": lambda values, rank, root: values[root],
    "barrier": lambda values, rank, root: None,
    "all_gather": lambda values, rank, root: list(values),
}


def ranks(program: str, count: int) -> Ranks:
    """Run a program on `count` ranks, threads that may use `rank`, `world_size` and `group`; return what they did."""
    made = Ranks(count)
    code = compile(program, "<item>", "exec")

    def work(rank: int) -> None:
        names = made.names[rank]
        names.update(rank=rank, world_size=count, group=_Group(made, rank))
        try:
            exec(code, names)
        except _Stuck:
            return
        made.ended(rank)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    return made
