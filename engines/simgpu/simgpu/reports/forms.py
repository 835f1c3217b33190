"""Forms of a report: text, page, JSON, trace."""

from dataclasses import dataclass
from pathlib import Path

from simgpu.clock.player import play
from simgpu.device.timelines import Timeline
from simgpu.reports.page import fragment, page
from simgpu.reports.report import Values
from simgpu.reports.text import text
from simgpu.reports.words import answer

__all__ = ["Report"]


@dataclass(frozen=True, repr=False)
class Report(Values):
    """The values of a run, which show themselves as text, and as HTML in a notebook."""

    def text(self) -> str:
        """Return the report as plain text."""
        return text(self)

    __str__ = text

    def __repr__(self) -> str:
        head, *said = answer(self)
        return f"<{head}: {' '.join(said)}>"

    def html(self) -> str:
        """Return the report as one HTML page, which needs nothing else."""
        return page(self)

    def save(self, path: str | Path) -> None:
        """Write the report to a file, whose ending says how: .html, .json or .txt. Raises ValueError for another."""
        forms = {".html": self.html, ".json": self.json, ".txt": self.text}
        ending = Path(path).suffix
        if ending not in forms:
            raise ValueError(f"path is {str(path)!r}, it must end in one of: {', '.join(forms)}")
        Path(path).write_text(forms[ending]() + "\n", encoding="utf-8", newline="\n")

    def trace(self, path: str | Path) -> None:
        """Write what was recorded as a file that Perfetto (https://ui.perfetto.dev) opens."""
        basis = self.basis
        Timeline.of(play(basis.events, basis.machine, basis.gpus)).export_chrome_trace(path)

    def _repr_html_(self) -> str:
        return fragment(self)
