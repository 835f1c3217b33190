"""Virtual clock of the host and of the GPUs' queues, in nanoseconds."""

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from simgpu.clock.capture import CAPTURING, Capture, Captured
from simgpu.clock.journal import Journal, Queue
from simgpu.ground import device_kind, nodes, places
from simgpu.ground.nodes import NO_PASS, current_pass
from simgpu.ground.quiet import Meter
from simgpu.ground.surroundings import Surroundings, in_module
from simgpu.machine.hosts import CLASSES, KINDS, class_of, kind_of_copy
from simgpu.machine.machines import Machine
from simgpu.machine.prices import Cost

HOST_ONLY_WORK = (  # host work that enqueues no kernel
    "view", "node", "accumulate", "backward pass", "graph", "guard", "recorded graph", "graph tree",
)  # fmt: skip
_FAILED = (
    "error: device-side assert triggered\nA kernel that was started before met an impossible value, such as an "
    "index out of range. Kernels run later than the line that starts them, so the line of this error may be the wrong "
    "one. For the right one let each launch wait for its kernel: CUDA_LAUNCH_BLOCKING=1, on the simulated GPU "
    "simgpu.configure(errors='blocking'). Every call fails from now on: a real GPU needs a new process, the "
    "simulated one simgpu.reset()."
)


@dataclass
class Failure:
    """A kernel failed at `when_ns`; `known` once a call has said so; `sound` are the storages not written since."""

    when_ns: int
    sound: dict[int, Any]
    known: bool = False


class Launch(NamedTuple):
    """What the host launched for no stream: its name, when it may begin, the launch's number, the reader's line."""

    name: str
    ready_ns: int
    number: int
    line: str


class Clock(Meter):
    """The host's time, when streams and engines are free again, and the copies and failures that are still to come.

    The host goes on while the GPUs work, unless it waits. A stream and an engine do one thing at a time. `machine` says
    how long something takes; its link, where this process is a rank of a simulated cluster, how long messages do.
    """

    def __init__(self, gpus: int, machine: Machine, journal: Journal, lock: threading.RLock) -> None:
        self.machine, self.journal, self.lock, self._gpus = machine, journal, lock, gpus
        self.failure: Failure | None = None
        self.capture: Capture | None = None  # while a graph is captured: nothing is launched
        self.stepping = self.closure = False  # while an optimizer's step is running, and whether it has a closure
        self.recorded = False  # whether autograd records the operator that is running
        self._surroundings = Surroundings()
        self.on_host_wait: Callable[[str], None] | None = None  # called with the reason just before the host blocks
        self.races: Any = None  # the `device.races.Races` of a program that wants to know of them
        self.log: Any = None  # the `events.Log` of a session that wants a report
        self.stream_ids = itertools.count(1)
        self._pending: list[tuple[float, torch.Tensor, torch.Tensor]] = []
        self.restart()

    @property
    def machine(self) -> Machine:
        """What times are taken from."""
        return self._machine

    @machine.setter
    def machine(self, machine: Machine) -> None:
        self._machine, self.rates, host = machine, machine.rates, machine.host
        prices_ns = {name: host.price_ns(name) for name in CLASSES}
        self._prices_ns, self._launch_ns = prices_ns, prices_ns["launch"]
        self.called_ns = {name: prices_ns[name] for name in HOST_ONLY_WORK if prices_ns[name]}
        self._caches = self.rates.l2_gbps > 0
        self._asks_where = self._caches or not host.only_launches
        self._operators_ns = [
            {
                phase: {kind: prices_ns[class_of(kind, phase, bare)] for kind in KINDS}
                for phase in ("", "forward", "recomputation", "gradients", "backward", "optimizer step")
            }
            for bare in (False, True)
        ]

    def restart(self) -> None:
        """Set the time to zero and empty the queues."""
        self.host_ns: int = 0
        self._since_ns: int | None = None  # since when the host does what queues nothing
        # when a stream (gpu, id), an engine (gpu, name) or a queue of messages (gpu, queue) is free again
        self.free_ns: dict[tuple[int, int | str | Queue], int] = {}
        self.streams = [0] * self._gpus  # current stream of each GPU
        self.busy_ns = [0] * self._gpus  # how long kernels of each GPU have taken

    # ---- what is queued ------------------------------------------------------------------------------------------
    def kernel(self, index: int, name: str, cost: Cost, phase: str | None = None, bare: bool = False) -> None:
        """Queue the kernels of one operator on GPU `index`: the host pays the operator, the GPU its cost.

        `phase` is that of a training step, `bare` whether no model is around it; None means those that are running.
        """
        if self.quiet:
            return
        self.queue(index, name, cost, *self.rates.kernel(cost), phase, bare)

    def queue(
        self, index: int, name: str, cost: Cost, length_ns: int, bound: str, phase: str | None = None,
        bare: bool = False,
    ) -> None:  # fmt: skip
        """Queue a kernel as `kernel` does, whose cost takes `length_ns` at these rates, for what `bound` says."""
        with self.lock:
            if self.capture is not None and self.capture.binds():
                work = Captured(index, name, "compute", length_ns, cost, bound)
                self.capture.add((index, self.streams[index]), work)
                return
            if phase is None and (self._asks_where or self.log is not None):
                if self.stepping or self.recorded or current_pass() != NO_PASS:
                    phase, bare = self._now()
                else:  # the usual case: to ask for another takes a while
                    phase, bare = "forward", not in_module()
            if bare and self._caches:
                length_ns, bound = self.rates.kernel(cost, bare)
            price_ns = self._operators_ns[bare][phase or ""][cost.host]
            if cost.tensors:
                price_ns += cost.tensors * self._prices_ns["tensor of a list"]
            end = self._enqueue(index, name, "compute", length_ns, price_ns)
            self.busy_ns[index] += length_ns
            if self.log is not None:
                self.log.kernel((index, self.streams[index]), name, cost, bare)
                self.log.took(self.host_ns, end)
            if self.journal.readers:
                self.journal.kernel(name, cost, index, self.streams[index], end - length_ns, end, bound)

    def copy(self, index: int, direction: str, nbytes: int, *, pinned: bool, blocking: bool, asked: bool = True) -> int:
        """Queue one copy over the bus and return when it arrives (ns); a blocking copy makes the host wait.

        `asked`: the program did not say `non_blocking=True`.
        """
        kind = kind_of_copy(direction, nbytes, pinned)
        length_ns = self.rates.copy_ns(nbytes, pinned=pinned, read=kind == "read", peer=direction == "D2D")
        if blocking and asked and self.on_host_wait is not None:
            self.on_host_wait(f"copy {direction}")
        with self.lock:
            if self.capture is not None and self.capture.binds():
                self._refuse_while_capturing(blocking)
                work = Captured(index, direction, direction, length_ns, Cost(0, nbytes), "bus")
                self.capture.add((index, self.streams[index]), work)
                return self.host_ns
            end = self._enqueue(index, f"copy {direction}", direction, length_ns, self._prices_ns[kind])
            if self.log is not None:
                self.log.copy((index, self.streams[index]), direction, nbytes, pinned)
                self.log.took(self.host_ns, end)
                if blocking and not asked:
                    self.log.not_pinned(nbytes)
            if self.journal.readers:
                self.journal.copy(direction, nbytes, index, self.streams[index], end - length_ns, end)
            if blocking and self.races is not None:
                self.races.host_waits([(index, self.streams[index])])
            if blocking:
                if self.failure is not None and direction == "D2H":
                    self.report(math.inf)  # also from another stream: what the kernel left is never seen
                self.wait_until(end, f"wait for copy {direction}")
        return end

    def replay(self, index: int, work: Sequence[Captured]) -> list[int]:
        """Queue all that a graph captured, one after the other, in the current stream: the host pays one launch, and
        something for each node. Return when the work begins, and when each part of it ends."""
        price_ns = self._launch_ns + len(work) * self._prices_ns["graph node"]
        with self.lock:
            end = self._enqueue(index, "graph", "compute", 0, price_ns)
            ends = [end]
            for captured in work:
                start, end = end, end + captured.length_ns
                ends.append(end)
                self.busy_ns[index] += captured.length_ns if captured.engine == "compute" else 0
                if self.journal.readers and captured.engine == "compute":
                    self.journal.kernel(
                        captured.name, captured.cost, index, self.streams[index], start, end, captured.bound
                    )
                elif self.journal.readers:
                    self.journal.copy(captured.name, captured.cost.nbytes, index, self.streams[index], start, end)
            self.free_ns[index, self.streams[index]] = self.free_ns[index, "compute"] = end
            if self.log is not None:
                self.log.graph((index, self.streams[index]), work)
                self.log.took(self.host_ns, end)
        return ends

    def _refuse_while_capturing(self, waits: bool = True) -> None:
        if self.capture is not None and waits and self.capture.binds():
            self.capture.fail(
                CAPTURING, "\nThis line makes the host wait for the GPU, or copies from memory that is not pinned. "
                "A graph holds what the GPU does alone.",
            )  # fmt: skip

    def _now(self) -> tuple[str, bool]:
        """Return the phase that is running, and whether its operators are bare."""
        if not self.stepping and current_pass() == NO_PASS:
            return "forward", self._surroundings.bare_forward(self.recorded)
        phase = nodes.phase(self.stepping, self.closure)
        return phase, self._surroundings.bare(phase, self.recorded)

    def called(self, kind: str, times: int = 1) -> None:
        """Charge the host for `HOST_ONLY_WORK`: a view, a node of autograd, a call of a compiled graph."""
        length_ns = self.called_ns.get(kind, 0)
        if self.quiet:
            return
        if length_ns or self.log is not None:
            with self.lock:
                if self.log is not None:
                    self.log.called(kind, times)
                if length_ns and self.capture is None:
                    self._since_ns = self.host_ns if self._since_ns is None else self._since_ns
                    self.host_ns += length_ns * times

    def _enqueue(self, index: int, name: str, engine: str, length_ns: int, price_ns: int) -> int:
        """Launch work of `length_ns`; return when it ends."""
        launched = self._launch(name, engine, price_ns)
        stream, busy, free = (index, self.streams[index]), (index, engine), self.free_ns
        free[stream] = free[busy] = end = max(launched, free.get(stream, 0), free.get(busy, 0)) + length_ns
        return end

    def launch(self, index: int, name: str) -> Launch:
        """Launch work that occupies no stream, and begins after the work queued in the current one."""
        with self.lock:
            price_ns = self._prices_ns["library"]
            ready_ns = max(self._launch(name, "message", price_ns), self.free_ns.get((index, self.streams[index]), 0))
            return Launch(name, ready_ns, self.journal.launches, places.place() if self.journal.readers else "")

    def _launch(self, name: str, engine: str, price_ns: int) -> int:
        """Return when the host has launched work for an engine. What it was called for before belongs to it."""
        if self.failure is not None:
            self.report(-1)
        launched = self.host_ns + price_ns
        if self.journal.readers:
            begun = self.host_ns if self._since_ns is None else self._since_ns
            self.journal.launch(name, engine, begun, launched)
        self.host_ns, self._since_ns = launched, None
        if self._pending:
            self.settle(launched)
        return launched

    def exchange(
        self, name: str, queue: Queue, kind: str, nbytes: int, ranks: Sequence[int], launch: Launch,
        all_ready_ns: int = 0, most_bytes: int = 0, index: int = 0,
    ) -> int:  # fmt: skip
        """Put a message of GPU `index`, of `nbytes`, into its queue and return when it ends.

        It begins when the last rank is ready, and takes as long as that rank's part which has `most_bytes`.
        """
        with self.lock:
            assert self.machine.link is not None, "messages are sent in a cluster"
            length_ns, way = self.machine.link.cost(kind, max(nbytes, most_bytes), ranks)
            came_ns = max(launch.ready_ns, self.free_ns.get((index, queue), 0))
            start_ns = max(came_ns, all_ready_ns)
            self.free_ns[index, queue] = end_ns = start_ns + length_ns
            if self.log is not None:
                about = queue, launch.name, name, kind, nbytes, most_bytes, ranks
                self.log.message((index, self.streams[index]), *about)
                self.log.took(self.host_ns, end_ns)
            if self.journal.readers:
                times_ns = came_ns, start_ns, end_ns
                self.journal.message(name, nbytes, way, queue, times_ns, launch.number, launch.line, index)
        return end_ns

    # ---- what waits ----------------------------------------------------------------------------------------------
    def order(self, later: int, earlier: int) -> None:
        """Make GPU `later` wait for the work queued on GPU `earlier`."""
        self.hold((later, self.streams[later]), self.free_ns.get((earlier, self.streams[earlier]), 0))

    def hold(self, stream: tuple[int, int], until_ns: int) -> None:
        """Block `stream` (GPU, id) until `until_ns`."""
        with self.lock:
            self.free_ns[stream] = max(self.free_ns.get(stream, 0), until_ns)
            if self.log is not None:
                self.log.hold(stream, self.log.ended_by(until_ns))

    def wait_until(self, when_ns: int, reason: str) -> None:
        """Make the host wait until `when_ns`."""
        with self.lock:
            self._refuse_while_capturing()
            if self.failure is not None:
                self.report(when_ns)
            if self.log is not None:
                self.log.wait(reason, self.log.ended_by(when_ns))
            if when_ns > self.host_ns:
                self._pass("wait", reason, when_ns)

    def work(self, name: str, length_ns: int) -> None:
        """Keep the host busy with something else, while the GPUs go on."""
        with self.lock:
            if self.log is not None:
                self.log.work(name, length_ns)
            self._pass("work", name, self.host_ns + length_ns)

    def _pass(self, kind: str, name: str, until_ns: int) -> None:
        if self.journal.readers:
            self.journal.host(kind, name, self.host_ns, until_ns)
        self.host_ns, self._since_ns = until_ns, None
        self.settle(until_ns)

    def queue_ns(self, index: int, stream: int | None = None) -> int:
        """Return when GPU `index` (or one of its streams) will have done all that was queued."""
        if stream is not None:
            return max(self.host_ns, self.free_ns.get((index, stream), 0))
        return max([self.host_ns, *(when for key, when in self.free_ns.items() if key[0] == index)])

    def done_ns(self) -> int:
        """Return when the host and all GPUs will have done what was queued."""
        return max([self.host_ns, *self.free_ns.values()])

    # ---- what is still to come -----------------------------------------------------------------------------------
    def arrive_later(self, when_ns: int, target: torch.Tensor, values: torch.Tensor) -> None:
        """Write `values` to the host tensor `target` when the clock reaches `when_ns`, not before, as CUDA does."""
        with self.lock:
            if self.failure is None and self.capture is None:  # what is captured does not run
                self._pending = [*self._pending, (when_ns, target, values)]

    def settle(self, now_ns: float) -> None:
        """Complete all device-to-host copies that are due."""
        pending, self._pending = self._pending, [p for p in self._pending if p[0] > now_ns]
        for when_ns, target, values in pending:
            if when_ns <= now_ns:
                target.data.copy_(values)

    def fail(self, index: int, sound: dict[int, Any]) -> None:
        """Queue the failure of a kernel on GPU `index`, behind the work in its stream."""
        if self.failure is None:
            self.failure = Failure(self.queue_ns(index, self.streams[index]) + 1, sound)

    def report(self, when_ns: float) -> None:
        """Raise `torch.AcceleratorError` if a kernel failed by `when_ns`, or if that has been said already."""
        failure = self.failure
        if failure is not None and (failure.known or failure.when_ns <= when_ns):
            failure.known, self.host_ns = True, max(self.host_ns, failure.when_ns)
            raise torch.AcceleratorError(f"{device_kind.title()} {_FAILED}")
