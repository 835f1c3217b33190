"""A file is written in each step."""

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class SavedInEachStep(Rule, about="time", often="each step"):
    text = (
        "This copies what it saves to the host and writes a file in each step. Save once in an epoch, or every few "
        "hundred steps."
    )
    cure = "save once in an epoch, or every few hundred steps"

    def begin(self) -> None:
        self._saved: dict[str, tuple[int, int]] = {}  # epoch and step in which a line has saved something

    def on_kept(self, event: events.Kept) -> None:
        """Note a line that has saved in an earlier step of the same epoch."""
        if not event.saved:
            return
        line, now = places.place(), self.program.step
        epoch, step = self._saved.get(line, (-1, -1))
        if epoch == self.program.begun and step != now:
            self.note(line)
        self._saved[line] = self.program.begun, now
