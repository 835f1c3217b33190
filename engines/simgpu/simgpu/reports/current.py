"""Current recording session of this process.

What records and reports is imported by the first session: it would be a third of `import simgpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from simgpu.device import enabling

if TYPE_CHECKING:
    from simgpu.reports.forms import Report
    from simgpu.reports.gather import Session

_last: Session | None = None


def start(
    *,
    stop_after: int | None = None,
    data_ms: float | None = None,
    progress: TextIO | None = None,
    shapes: bool = False,
    compiled: bool = False,
) -> Session:
    """Record from now on what the program asks of the simulated GPUs, instead of a session that does so already.

    `stop_after` ends the program (SystemExit) after so many steps; `data_ms` is what a batch of a DataLoader takes, in
    milliseconds, None for what it takes here; to `progress` a line is written every few seconds; with `shapes` no
    values are computed, only shapes; with `compiled` the report also says what a step would take with its models
    compiled. Raises RuntimeError where the simulated GPUs are not enabled.
    """
    global _last
    from simgpu.reports.gather import Session

    enabling.world()
    if _last is not None:
        _last.stop()
    _last = Session(stop_after=stop_after, data_ms=data_ms, progress=progress, shapes=shapes, compiled=compiled)
    return _last


def records() -> bool:
    """Return whether this process has a session."""
    return _last is not None


def step() -> None:
    """Say that a step of the program ends here: from then on its report counts steps by this call alone.

    Without it a step ends with each `step()` of the program's first optimizer. Does nothing where nobody records.
    """
    if _last is not None:
        _last.mark()


def report(price: float | None = None, steps: int | None = None) -> Report:
    """Return the report of the session that records, or of the last one that did.

    `price` an hour and GPU, and the `steps` of a whole run, give its options hours and cost. Raises RuntimeError where
    nothing was recorded.
    """
    if _last is None:
        raise RuntimeError(
            "nothing was recorded: a report needs simgpu.cuda(record=True), %load_ext simgpu or python -m simgpu"
        )
    return _last.report(price, steps)
