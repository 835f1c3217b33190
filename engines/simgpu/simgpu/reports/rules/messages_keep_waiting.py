"""The GPU waits for messages between ranks."""

from simgpu.reports.rule import WaitRule


class MessagesKeepWaiting(WaitRule):
    cure = "larger batches, buckets that begin earlier"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        if "the GPU waits for" in cause and "the GPU waits for a copy" not in cause:
            return "Messages between ranks hide behind computation where batches are larger, or buckets begin earlier."
        return ""
