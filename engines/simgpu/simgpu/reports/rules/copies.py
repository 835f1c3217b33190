"""Rules on what is copied, sent or saved again and again."""

from torch.utils.weak import WeakIdKeyDictionary

from simgpu.clock.lines import Row
from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.program import version
from simgpu.reports.rule import SHARE_OF_FEW, Rule, WaitRule


class CopiesNotPinned(WaitRule):
    """`non_blocking=True` does nothing, since the memory that is copied is not pinned."""

    cure = "`pin_memory=True` in the loader, or `.pin_memory()`"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        if asking != "unpinned" or "the host waits for a copy to the GPU" not in cause:
            return ""
        return (
            "`non_blocking=True` does nothing here, since the memory is not pinned. Write `pin_memory=True` into the "
            "DataLoader, or `.pin_memory()` before the copy."
        )

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        return row.seconds >= SHARE_OF_FEW * step_s


class MovedInEachStep(Rule, about="time", often="each step"):
    """The same tensor or model is copied in each step."""

    text = "This copies the same tensor to the GPU in each step. Move it once, before the loop."
    cure = "move it once, before the loop"

    def begin(self) -> None:
        self._sent = WeakIdKeyDictionary()  # versions and steps of tensors when they were copied to a GPU

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if self.program.running or not source.dim():
            return
        now = version(source)
        if self._sent.get(source) == (now, self.program.step - 1):
            self.note()
        self._sent[source] = now, self.program.step


class SavedInEachStep(Rule, about="time", often="each step"):
    """A file is written in each step."""

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
