"""Rules on lines that keep the GPU waiting."""

from simgpu.clock.events import LOADING
from simgpu.clock.lines import Row
from simgpu.reports.rule import SHARE_OF_FEW, WaitRule

_WORTH = 0.1  # of a step: nearly every program has such a line
_WORTH_S = 1e-4  # of a copy: less than that is quick enough
_LONG_S = 1e-3  # of a copy: from this on a smaller share of a step is worth a look
_COPIES = 8  # in a step: with more, as of each row of a batch, the time of all of them counts


class CopiesKeepWaiting(WaitRule):
    """The GPU is idle during copies."""

    cure = "larger pieces, pinned memory, `non_blocking=True`"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        if "the GPU waits for a copy to another" in cause:
            return (
                "`DataParallel` copies the whole model to each GPU in each step, `DistributedDataParallel` does not. "
                "Otherwise send fewer bytes, or let the GPU compute something else meanwhile."
            )
        if "the GPU waits for a copy to the host" in cause:
            return "It goes to pinned memory, as it should. Copy less, or on another stream while the GPU computes."
        if asking == "backward" and "the GPU waits for a copy" in cause:
            return "The backward pass needs what the forward pass has sent to the host. Send less, or fetch it ahead."
        if "the GPU waits for a copy" in cause:
            return (
                "It comes from pinned memory, as it should. Send fewer bytes, such as uint8 for pictures, or send the "
                "next batch meanwhile, on a stream of its own."
            )
        if asking == "index" and "the GPU waits for" not in cause:
            return (
                "This indexes a tensor on the GPU with one on the CPU, so PyTorch copies the indices first. Make them "
                "on the GPU, as by `torch.randperm(n, device=x.device)`, or move them there once, before the loop."
            )
        if asking == "pinned" and "the host waits for a copy to the GPU" in cause:
            return "The memory is pinned already: write `non_blocking=True`, and the host goes on meanwhile."
        if asking in ("unpinned", "backward"):
            return _ADVICE["backward"] * (asking == "backward" and "to the GPU" in cause)
        pinned = ", from pinned memory, with `non_blocking=True`" * (asking != "never pinned")
        return f"Copy larger pieces{pinned}." if "to the GPU" in cause else ""

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

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        return "Prepare batches ahead: more workers, less work for each sample." if cause == LOADING else ""

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        slow = row.seconds >= max(_SLOW * step_s, _SLOW_S)
        return slow or (row.seconds >= _WORTH_LOADING * step_s and epoch_s >= _WORTH_WORKERS_S)


_ADVICE = {  # by what PyTorch itself needs, or the program ("wait")
    "wait": "After that the GPU has nothing to do until the host launches again. Unless what comes next "
    "depends on the value, read it less often, or later.",
    "library": "After that the GPU has nothing to do until the host launches again. {package} reads it, not this line: "
    "look for an option of it that reads less often.",
    "size": "No value is read in this line, but an operation needs one on the host, such as how many elements a mask "
    "of booleans picks. `torch.where(mask, a, b)` needs none.",
    "backward": "The forward pass has copied values between the host and the GPU, so the backward pass copies as well. "
    "Keep on the GPU what leads to the loss.",
    "check": "PyTorch reads the arguments of this distribution to check them. Once the program is right, write "
    "`validate_args=False`, or call `torch.distributions.Distribution.set_default_validate_args(False)`.",
}


class HostWaits(WaitRule):
    """The host waits for a value: `.item()`, `print`, `.cpu()`, `if loss > …`, a check of arguments."""

    cure = "read it less often, or later"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        is_other = cause == LOADING or "the GPU waits for" in cause or "to the GPU" in cause
        kind, _, package = asking.partition(" ")
        return "" if is_other else _ADVICE.get("wait" if kind == "pinned" else kind, "").format(package=package)


class MessagesKeepWaiting(WaitRule):
    """The GPU waits for messages between ranks."""

    cure = "larger batches, buckets that begin earlier"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        if "the GPU waits for" in cause and "the GPU waits for a copy" not in cause:
            return "Messages between ranks hide behind computation where batches are larger, or buckets begin earlier."
        return ""
