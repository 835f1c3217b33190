"""Comparison of a memory forecast with a measurement."""

from dataclasses import dataclass

from course_utils import tables
from course_utils.memory.measurements import Measured
from simgpu import MemoryForecast
from simgpu.accounting.ledger import Parts, by_owner


@dataclass(frozen=True)
class Reconciled(tables.Table):
    """A forecast beside a measurement, part by part, as bytes and ratio (– where nothing was measured)."""

    estimated: Parts
    measured: Parts
    other_bytes: int
    estimated_peak_bytes: int
    measured_peak_bytes: int
    label: str

    @property
    def ratio(self) -> float:
        """Estimated peak over measured peak."""
        return self.estimated_peak_bytes / self.measured_peak_bytes

    @property
    def head(self) -> tuple[str, ...]:
        return ("owner", "estimate", f"measured ({self.label})", "ratio")

    def cells(self) -> list[list[str]]:
        rows = by_owner(self.estimated, self.measured)
        rows += [("other", 0, self.other_bytes)] if self.other_bytes else []
        rows += [("peak", self.estimated_peak_bytes, self.measured_peak_bytes)]
        return [[name, f"{a:,}", f"{b:,}", f"{a / b:.3f}" if b else "–"] for name, a, b in rows]


def reconcile(estimated: MemoryForecast, measured: Measured) -> Reconciled:
    """Return the forecast beside the measurement of the same program, with the ratio for each part.

    `estimated` is `simgpu.forecast(…).memory`, `measured` what `memory.measure` returned. Raises TypeError for others.
    """
    if not isinstance(estimated, MemoryForecast):
        raise TypeError(f"estimated must be the memory of a forecast, simgpu.forecast(…).memory, not {estimated!r}")
    if not isinstance(measured, Measured):
        raise TypeError(f"measured must be what memory.measure returned, not {measured!r}")
    return Reconciled(
        estimated.parts, measured.parts, measured.other_bytes, estimated.peak_bytes, measured.peak_bytes, measured.label
    )
