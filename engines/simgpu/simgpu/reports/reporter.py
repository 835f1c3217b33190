"""What records a program, and can say at any time what it did?"""

from dataclasses import replace

from simgpu.reports.forms import Report
from simgpu.reports.gather import gather
from simgpu.reports.session import Recording


class Session(Recording):
    """What records, and gives the report of what it has recorded until now."""

    def report(self, price: float | None = None, steps: int | None = None) -> Report:
        """Return what the program did until now; `price` an hour and GPU and `steps` give options hours and cost."""
        return replace(gather(self), price=price, run_steps=steps)
