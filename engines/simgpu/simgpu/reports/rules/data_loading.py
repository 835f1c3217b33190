"""The GPU is idle while the host loads a batch."""

from simgpu.clock.events import LOADING
from simgpu.clock.lines import Row
from simgpu.reports.rule import WaitRule

_WORTH = 0.1  # of a step: nearly every program has such a line
_WORTH_WORKERS_S = 0.5  # of an epoch, that a loader keeps the GPU waiting: less is soon used up by starting workers


class DataLoading(WaitRule):
    cure = "more workers, less work for a sample"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        return "Prepare batches ahead: more workers, less work for each sample." if cause == LOADING else ""

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        return row.seconds >= _WORTH * step_s and epoch_s >= _WORTH_WORKERS_S
