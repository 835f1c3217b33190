"""Rules on lines that keep the GPU waiting."""

from simgpu.clock.lines import Row
from simgpu.reports.rule import SHARE_OF_FEW, WaitRule

_WORTH = 0.1  # of a step: nearly every program has such a line
_WORTH_S = 1e-4  # of a copy: less than that is quick enough
_LONG_S = 1e-3  # of a copy: from this on a smaller share of a step is worth a look
_COPIES = 8  # in a step: with more, as of each row of a batch, the time of all of them counts


class CopiesKeepWaiting(WaitRule):
    """The GPU is idle during copies."""

    cure = "larger pieces, pinned memory, `non_blocking=True`"

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        if "a copy to the GPU" not in row.cause:
            return super().is_worth(row, step_s, epoch_s)
        times = max(row.count, 1)
        share = SHARE_OF_FEW if row.seconds >= _LONG_S * times else _WORTH
        return row.seconds >= max(share * step_s, _WORTH_S * min(times, _COPIES))


_WORTH_LOADING = 0.1  # of a step: nearly every program has such a line
_WORTH_WORKERS_S = 0.5  # of an epoch, that a loader keeps the GPU waiting: less is soon used up by starting workers
_SLOW, _SLOW_S = 0.5, 0.02  # of a step, and for a batch: told of short epochs too, which may be a trial of longer ones


class DataLoading(WaitRule):
    """The GPU is idle while the host loads a batch."""

    cure = "more workers, less work for a sample"

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        slow = row.seconds >= max(_SLOW * step_s, _SLOW_S)
        return slow or (row.seconds >= _WORTH_LOADING * step_s and epoch_s >= _WORTH_WORKERS_S)


class HostWaits(WaitRule):
    """The host waits for a value: `.item()`, `print`, `.cpu()`, `if loss > …`, a check of arguments."""

    cure = "read it less often, or later"


class MessagesKeepWaiting(WaitRule):
    """The GPU waits for messages between ranks."""

    cure = "larger batches, buckets that begin earlier"
