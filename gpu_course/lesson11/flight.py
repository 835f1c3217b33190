"""Recorded calls of ranks that hang, and the programs that made them."""

import gc
import io
import logging
import pickle
import tempfile
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("hangs.toml")
DUMPS = PROGRAMS.with_suffix(".json")


@dataclass(frozen=True)
class Hang:
    """A program that hangs on `ranks` ranks, the rank, call and line to blame, and `why`.

    `dumps` holds what PyTorch's flight recorder kept on each rank, None where a rank left nothing. `keeps`, `at` and
    `first` say how it is recorded: see `hangs.toml`.
    """

    ranks: int
    blamed: int
    call: str
    line: str
    why: str
    program: str
    keeps: int = 2000
    at: int = 0
    first: tuple[int, ...] = ()
    dumps: tuple[dict[str, Any] | None, ...] = ()

    @property
    def to_blame(self) -> tuple[int, str, int]:
        """Return the rank, the call, and the number of the line."""
        lines = [line.partition("#")[0].strip() for line in self.program.splitlines()]
        return self.blamed, self.call, 1 + lines.index(self.line)

    def __repr__(self) -> str:
        return f"<a hang of {self.ranks} ranks>"


def programs() -> dict[str, Hang]:
    """Return the programs of `hangs.toml`, without dumps."""
    read = tomllib.loads(PROGRAMS.read_text(encoding="utf-8"))
    return {name: Hang(**row) for name, row in read.items()}


def torchfrtrace(dumps: Sequence[dict[str, Any]]) -> str:
    """Return what PyTorch's own script says on the dumps of all ranks, which it reads from a folder."""
    said, logger = io.StringIO(), logging.getLogger("Flight Recorder")
    logger.disabled = True  # at its import the script warns where `tabulate` is missing, which it does not need
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.13, on how PyTorch 2.11 reads types
            from torch.distributed.flight_recorder import fr_trace
            from torch.distributed.flight_recorder.components import types
    finally:
        logger.disabled = False
    types.COLLECTIVES.add("barrier")  # which the script of PyTorch 2.11 does not know
    handlers, collecting = logger.handlers, gc.isenabled()
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in enumerate(dumps):
            Path(folder, f"rank_{rank}").write_bytes(pickle.dumps(dump))
        logger.handlers = [logging.StreamHandler(said)]
        try:
            fr_trace.main([folder])
        finally:
            logger.handlers = handlers
            if collecting:
                gc.enable()  # which the script switches off
    return said.getvalue()
