"""`non_blocking=True` does nothing, since the memory that is copied is not pinned."""

from simgpu.clock.lines import Row
from simgpu.reports.rule import SHARE_OF_FEW, WaitRule


class CopiesNotPinned(WaitRule):
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
