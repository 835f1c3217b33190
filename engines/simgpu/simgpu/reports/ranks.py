"""Records of ranks: what each process of a run has done and how it ended, kept in a folder that its launcher reads."""

import json
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simgpu.clock.lines import ENDED, INTERRUPTED, KILLED, Error
from simgpu.device import communication
from simgpu.reports.forms import Report

_SIZE = 4096  # bytes of a usual record, so that one written over another ends where it does


@dataclass
class Record:
    """Record of one rank: the steps it has done, and what has ended it, if anything has."""

    rank: int
    steps: int = 0
    failure: Error | None = None
    when_s: float = field(default_factory=time.time)

    @classmethod
    def begin(cls, rank: int, folder: Path) -> "Record":
        """Return a new record with the steps of an earlier process of the same rank, until it has done one."""
        path = folder / f"rank-{rank}.json"
        return cls(rank, json.loads(path.read_text())["steps"] if path.exists() else 0)

    def write(self, folder: Path) -> None:
        """Write the record; nothing where the launcher, and its folder, are gone."""
        text = json.dumps(asdict(self)).encode().ljust(_SIZE)
        try:
            with open(folder / f"rank-{self.rank}.json", "r+b" if self.steps else "wb", buffering=0) as file:
                file.write(text)
                file.truncate()
        except OSError:
            return


class Ranks:
    """Records of a run that a launcher has started; without any where this process has trained itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        known = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
        failures = [one["failure"] and Error(**one["failure"]) for one in known]
        records = [Record(**one | {"failure": failure}) for one, failure in zip(known, failures, strict=True)]
        self._records = sorted(records, key=lambda one: one.rank)

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def steps(self) -> dict[int, int]:
        """Steps that each rank had done."""
        return {one.rank: one.steps for one in self._records}

    def report(self) -> Report | None:
        """Return the report of rank 0, None where it could write none."""
        path = self._folder / "report.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def first_failure(self, error: BaseException | None) -> Error | None:
        """Return the failure that has ended a run: not that of ranks which were waiting, or were stopped, for it.

        `error` is that of the launcher, which knows of ranks that could write nothing themselves.
        """
        failed = [(one.when_s, one.failure) for one in self._records if one.failure is not None]
        own = [(when, one) for when, one in failed if one.kind not in (ENDED, INTERRUPTED) and not is_of_a_rank(one)]
        if own:
            return min(own, key=lambda pair: pair[0])[1]
        told = {one.rank for _, one in failed if one.kind != ENDED}
        exits = sorted((code > 0, rank, code) for rank, code in _exit_codes(error) if rank not in told)
        if exits:
            _, rank, code = exits[0]
            return next((one for _, one in failed if one.rank == rank), None) or _ended(rank, code)
        return min(failed, key=lambda pair: pair[0])[1] if failed else None


def save_report(report: Report, folder: Path) -> None:
    """Keep the report of rank 0 for the launcher."""
    (folder / "report.part").write_bytes(pickle.dumps(report))
    (folder / "report.part").replace(folder / "report.pickle")


def is_of_a_rank(error: Error) -> bool:
    """Return whether an error says that another process has ended, or left a group."""
    return error.kind == "ChildFailedError" or error.text.startswith(communication.LEFT)


def _exit_codes(error: Any) -> Iterator[tuple[int, int]]:
    """Yield the ranks that a launcher's error names, of torchrun or `torch.multiprocessing`, with their exit codes."""
    for rank, failure in getattr(error, "failures", {}).items():
        yield rank, failure.exitcode
    if hasattr(error, "error_index"):
        yield error.error_index, getattr(error, "exit_code", 1)


def _ended(rank: int, code: int) -> Error:
    if code < 0:
        return Error(kind=KILLED, text=f"{signal.Signals(-code).name} (signal {-code})", rank=rank)
    return Error(kind=ENDED, text=str(code), rank=rank)
