"""Queue on the simulated GPU, and the clock with which an answer times it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

import simgpu

_KERNEL_NS = 200_000


@contextmanager
def slow_kernels() -> Iterator[None]:
    """Let every kernel of the simulated GPU take at least 0.2 ms, so that queues grow long at no real cost."""
    before = simgpu.settings().costs
    simgpu.configure(costs=simgpu.Costs(kernel_ns=_KERNEL_NS))
    try:
        yield
    finally:
        simgpu.configure(costs=before)


class Bench:
    """Work of known length on the simulated GPU, with the `clock` and `synchronize` that an answer is given.

    `kernels` says how many kernels each call of `work` queues, one entry a call; `queued` kernels of somebody else are
    in the queue when the answer begins. What the answer does is kept in `log`: W (work), C (clock), S (synchronise).
    `alone_s` holds what each call takes on its own, in seconds.
    """

    def __init__(self, device: torch.device, warmup: int, kernels: Sequence[int], queued: int = 0) -> None:
        self.warmup, self.repeats = warmup, len(kernels) - warmup
        self.kernels, self.log = tuple(kernels), ""
        self._x = torch.zeros(1, device=device)
        self.alone_s = [self._alone(count) for count in self.kernels]
        self._queue(queued)
        self.work, self.clock, self.synchronize = self._functions()

    def _functions(self) -> tuple[Callable, Callable, Callable]:
        def work() -> None:
            self._queue(self.kernels[min(self.log.count("W"), len(self.kernels) - 1)])
            self.log += "W"

        def clock() -> float:
            self.log += "C"
            return simgpu.clock_ms() / 1e3

        def synchronize() -> None:
            self.log += "S"
            torch.get_device_module("sim").synchronize()

        for given in (work, clock, synchronize):
            given.__qualname__ = given.__name__  # Python's messages say it: nothing of ours belongs there
        return work, clock, synchronize

    def _queue(self, count: int) -> None:
        for _ in range(count):
            self._x.add_(1)

    def _alone(self, count: int) -> float:
        """Return the seconds of one call with an empty queue before it and after it."""
        torch.get_device_module("sim").synchronize()
        begin_ms = simgpu.clock_ms()
        self._queue(count)
        torch.get_device_module("sim").synchronize()
        return (simgpu.clock_ms() - begin_ms) / 1e3
