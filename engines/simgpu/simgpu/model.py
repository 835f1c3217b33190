"""What would the simulated GPU do with this program? Memory that runs out, queues, and a virtual clock."""

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from simgpu import gpus, places
from simgpu.prices import Cost


@dataclass(frozen=True)
class Costs:
    """What the time model adds to a data sheet: fixed costs in nanoseconds, and which share of a peak kernels reach.

    The four shares of the GPU's own rates were chosen on one GPU's published measurements, rounded, and tried on others
    (`python -m benchmarks.published`); the rest are assumptions. In fp16 and bf16 nothing is faster than the best
    product published for the GPU (`best_bf16_tflops`); attention may be slower. `AT_PEAK` has the data sheet's rates.
    """

    launch_ns: int = 5_000  # the host hands one operation to the queue
    kernel_ns: int = 2_000  # the least time that a kernel takes, whatever its size
    copy_ns: int = 10_000  # the least time that a copy over the bus takes
    pageable_share: float = 0.5  # share of the bus rate that a copy from or to pageable memory reaches
    matrix_share: float = 0.9  # of the peak of a number format: products of matrices, convolutions, attention
    bandwidth_share: float = 0.9  # of the bandwidth: all that reads and writes memory in order
    strided_share: float = 0.5  # of that again where a kernel reads memory in another order than it writes
    depthwise_share: float = 0.05  # of fp32's peak: convolutions of single channels, which tensor cores cannot do


# The share of the peak in fp16 and bf16 that fused attention reaches, forward and backward, by compute capability;
# other GPUs are taken to be as fast at it as at products. A100 and H100: "Attention forward + backward speed" in
# https://github.com/Dao-AILab/flash-attention/tree/0251105a2f. PyTorch takes these kernels on both; on an H100 others
# would be faster: https://github.com/pytorch/pytorch/issues/142132, https://github.com/huggingface/transformers/pull/48163
_ATTENTION = {(8, 0): 203 / 312, (9, 0): 338 / 989.5}
# The median error over all published runs in inference, as `python -m benchmarks.published` stored it
ERROR_BAR = "simulated, median error 7 % on published runs"
# Of several GPUs, as `python -m benchmarks.cluster` prints it
CLUSTER_ERROR = "simulated, throughput 22 to 78 % too high on published runs"
AT_PEAK = Costs(matrix_share=1.0, bandwidth_share=1.0, strided_share=1.0)


@dataclass(frozen=True)
class Record:
    """One thing that happened; times in ns of the virtual clock.

    `kind` is launch, wait, work (`host_work`) or range (`torch.profiler.record_function`) on the host, kernel or copy
    on a GPU, message between ranks, or waits, where a message waits for other ranks. All but those of the host have the
    `number`, `phase` and `line` (the reader's) of the launch that queued them.
    """

    kind: str
    name: str
    row: str  # "host" or "sim:0", "sim:1", …
    start_ns: int
    end_ns: int
    flops: int = 0
    nbytes: int = 0
    bound: str = ""  # compute, bandwidth, latency or bus; of a message ring or tree
    direction: str = ""  # H2D, D2H, D2D for copies
    number: int = 0  # of the launch, from 1
    stream: int = 0
    phase: str = ""  # forward, backward, recomputation, optimizer step; of kernels, where it is known
    line: str = ""  # "train.py:12: y = model(x)"

    duration_ns = property(lambda self: self.end_ns - self.start_ns)


class _StorageRef(weakref.ref):
    __slots__ = ("gpu", "key", "nbytes")


class Gpu:
    """Memory of one simulated GPU: bytes of living storages, their peak, and the capacity that they must stay under."""

    def __init__(self, index: int, capacity_bytes: int, settle: Callable[[], None] = lambda: None) -> None:
        self.index, self._settle = index, settle
        self.counted_bytes = self.peak_bytes = self.allocations = 0
        self.cache: Any = None  # an `allocator.Allocator` where one is asked for; then bytes are those of its blocks
        self.budgets: list[tuple[int, int]] = []
        self.capacity_bytes = capacity_bytes

    def _set_capacity(self, size: int) -> None:
        self._capacity_bytes = size
        self._tighten()

    def _allocated(self) -> int:
        self._settle()
        return self.counted_bytes

    def _set_allocated(self, nbytes: int) -> None:
        self._settle()
        self.counted_bytes = nbytes

    allocated_bytes = property(_allocated, _set_allocated, doc="Bytes of the storages that are alive.")
    capacity_bytes = property(lambda self: self._capacity_bytes, _set_capacity)

    def _tighten(self) -> None:
        """Let the tightest of capacity and budgets hold: bytes that may be alive, and those that it does not count."""
        self.limit_bytes, self._outside_bytes = min([(self._capacity_bytes, 0), *self.budgets])

    @contextmanager
    def budget(self, nbytes: int) -> Iterator[None]:
        """Inside, at most `nbytes` more may be alive than at the start; messages call that the capacity."""
        budget = (self.allocated_bytes + nbytes, self.allocated_bytes)
        self.budgets.append(budget)
        self._tighten()
        try:
            yield
        finally:
            if budget in self.budgets:  # else somebody has put the limits back in between
                self.budgets.remove(budget)
            self._tighten()

    def require(self, nbytes: int) -> None:
        """Raise `torch.OutOfMemoryError` in CUDA's words unless `nbytes` more fit."""
        if self.allocated_bytes + nbytes > self.limit_bytes:
            if self.cache is not None and self.limit_bytes == self.capacity_bytes:
                self.cache.malloc(nbytes)  # which finds no place either, and says so in its own words
            allocated, capacity = self.allocated_bytes - self._outside_bytes, self.limit_bytes - self._outside_bytes
            limited = self.limit_bytes != self._capacity_bytes
            raise out_of_memory("sim", f"GPU {self.index}", nbytes, capacity, allocated, whole=not limited)


ADVICE = (  # the two spaces are PyTorch's
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def out_of_memory(
    kind: str, where: str, nbytes: int, capacity: int, allocated: int, whole: bool = False
) -> torch.OutOfMemoryError:
    """Return CUDA's error when `nbytes` more do not fit into `capacity` bytes of which `allocated` are taken.

    Where that is the memory of a `whole` GPU, and no budget, it says what CUDA's says of the process and the allocator.
    Source: the texts in libc10_cuda of torch 2.11 and 2.15.
    """
    free, taken = size_text(max(capacity - allocated, 0)), size_text(max(allocated, 0))
    process = f"Including non-PyTorch memory, this process has {taken} memory in use. " if whole else ""
    return torch.OutOfMemoryError(
        f"{kind} out of memory. Tried to allocate {size_text(nbytes)}. {where} has a total capacity of "
        f"{size_text(capacity)} of which {free} is free. {process}Of the allocated memory {taken} is allocated by "
        f"PyTorch, and 0 bytes is reserved by PyTorch but unallocated.{ADVICE if whole else ''}"
    )


def size_text(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


FAILED = (
    "sim error: device-side assert triggered\nA kernel that was started before met an impossible value, such as an "
    "index out of range. Kernels run later than the line that starts them, so the line of this error may be the wrong "
    "one. For the right one let each launch wait for its kernel: CUDA_LAUNCH_BLOCKING=1, on the simulated GPU "
    "simgpu.configure(errors='blocking'). Every call fails from now on: a real GPU needs a new process, the "
    "simulated one simgpu.reset()."
)


@dataclass
class Failure:
    """A kernel failed at `when_ns`; `known` once a call has said so; `sound` are the storages not written since."""

    when_ns: float
    sound: dict[int, _StorageRef]
    known: bool = False


class World:
    """All simulated GPUs of the process: their spec, memory, streams and the one virtual clock, under one lock."""

    def __init__(self, count: int, spec: gpus.GPU, capacity_bytes: int) -> None:
        self.lock = threading.RLock()
        self.live: dict[int, _StorageRef] = {}  # storages on a simulated GPU, by address
        # Storages that died. What a weak reference calls must not be Python code: Ctrl-C inside would be lost.
        self.dead: deque[_StorageRef] = deque()
        self._on_free = self.dead.append
        self.gpus = [Gpu(index, capacity_bytes, self.bury) for index in range(count)]
        self.costs, self.spec = Costs(), spec
        self.errors, self.failure = "immediate", None
        self.tracks: dict[tuple, int] = {}  # numbers of the queues of messages in traces
        self.cluster: Any = None  # a `cluster.Cluster` where this process is a rank of a simulated one
        self.current = 0
        self.recorders: list[list[Record]] = []
        self.launches = 0  # while somebody records
        self.stream_ids = itertools.count(1)
        self.meta_devices = [torch.device("meta", index) for index in range(count)]  # what C++ sees
        self.sim_devices: list[torch.device] = []  # what Python sees, once the type is registered
        self.restart()

    def restart(self) -> None:
        """Set the clock to zero, empty the queues and let every peak start from the bytes that are alive now."""
        with self.lock:
            self.settle(math.inf)
            self._forget_failure()
            self.host_ns = 0
            self.free_ns: dict[tuple, int] = {}  # when a stream (gpu, id) or an engine (gpu, name) is free again
            self.streams = [0] * len(self.gpus)  # current stream of each GPU
            for gpu in self.gpus:
                gpu.peak_bytes = gpu.allocated_bytes

    def own(self, inner: torch.Tensor, index: int) -> bool:
        """Account the storage of `inner` to GPU `index`; return whether it is new. Raises if it does not fit."""
        storage = inner.untyped_storage()
        if self.dead:
            self.bury()
        known = self.live.get(storage._cdata)
        if known is None:
            self.own_storage(storage, index)
        elif storage.nbytes() != known.nbytes:  # resize_ grew or shrank it
            with self.lock:
                self.charge(known, storage.nbytes(), known.nbytes)
        return known is None

    def own_storage(self, storage: torch.UntypedStorage, index: int) -> None:
        """Account a new storage to GPU `index`. Raises if it does not fit."""
        if self.dead:
            self.bury()
        ref = _StorageRef(storage, self._on_free)
        ref.gpu, ref.key, ref.nbytes = self.gpus[index], storage._cdata, 0
        with self.lock:
            self.live[ref.key] = ref  # first: a reference that nobody holds would not say when its storage dies
            try:
                self.charge(ref, storage.nbytes(), 0)
            except torch.OutOfMemoryError:
                del self.live[ref.key]
                raise
            ref.gpu.allocations += 1

    def charge(self, ref: _StorageRef, nbytes: int, before: int) -> None:
        """Account `nbytes` to a storage that had `before`. Raises if they do not fit."""
        gpu = ref.gpu
        if gpu.cache is not None:
            gpu.cache.charge(ref, nbytes)
            return
        total = gpu.counted_bytes + nbytes - before
        if total > gpu.limit_bytes:
            gpu.require(nbytes - before)
        gpu.counted_bytes, ref.nbytes = total, nbytes
        if total > gpu.peak_bytes:
            gpu.peak_bytes = total

    def bury(self) -> None:
        """Take the bytes of dead storages off. Python looks for Ctrl-C between calls only, so that each step is whole
        or can be repeated."""
        with self.lock:
            while self.dead:
                ref = self.dead[0]
                if ref.gpu.cache is not None:
                    ref.gpu.cache.drop(ref)
                else:
                    ref.gpu.counted_bytes, ref.nbytes = ref.gpu.counted_bytes - ref.nbytes, 0
                if self.live.get(ref.key) is ref:
                    del self.live[ref.key]
                self.dead.popleft()

    def kernel(self, index: int, name: str, cost: Cost) -> None:
        """Queue what one operator starts: the host pays the launch, the GPU the larger of arithmetic and memory
        traffic, by the rates that kernels reach.
        """
        costs, nbytes = self.costs, cost.nbytes
        rate_tflops = self._tflops(cost.rate, cost.attention)
        rate_gbps = self.spec.bandwidth_gbps * costs.bandwidth_share * (costs.strided_share if cost.strided else 1.0)
        compute_ns = math.ceil(cost.flops / (rate_tflops * 1_000))
        memory_ns = math.ceil(nbytes / rate_gbps)
        work_ns = compute_ns if compute_ns > memory_ns else memory_ns
        if cost.extra_bytes:
            extra_ns = math.ceil(cost.extra_bytes / rate_gbps)
            work_ns, memory_ns, nbytes = work_ns + extra_ns, memory_ns + extra_ns, nbytes + cost.extra_bytes
        least_ns = costs.kernel_ns * cost.steps
        with self.lock:
            end = self._enqueue(index, name, "compute", least_ns + work_ns)
            if self.recorders:
                small = work_ns < least_ns
                bound = "latency" if small else "compute" if compute_ns >= memory_ns else "bandwidth"
                start = end - least_ns - work_ns
                which = {"number": self.launches, "stream": self.streams[index]}
                self.note(Record("kernel", name, f"sim:{index}", start, end, cost.flops, nbytes, bound, **which))

    def _tflops(self, peak: str, attends: float) -> float:
        """Return the rate that kernels reach, at which all the operations are counted that they are given."""
        costs, rates = self.costs, self.spec.peak_tflops
        if peak == "depthwise":
            return rates["fp32"] * costs.depthwise_share
        rate = rates.get(peak, rates["fp32"]) * costs.matrix_share
        if peak not in ("fp16", "bf16") or costs.matrix_share == 1:  # `AT_PEAK` has the data sheet's rates
            return rate
        known = _ATTENTION.get(self.spec.compute_capability) if attends else None
        return min(rate, self.spec.best_bf16_tflops or rate) if known is None else rates[peak] * known / attends

    def copy(self, index: int, direction: str, nbytes: int, *, pinned: bool, blocking: bool) -> int:
        """Queue one copy over the bus and return when it arrives (ns); a blocking copy makes the host wait."""
        rate_gbps = (self.spec.bus_gbps or self.spec.bandwidth_gbps) * (1.0 if pinned else self.costs.pageable_share)
        with self.lock:
            length = self.costs.copy_ns + math.ceil(nbytes / rate_gbps)
            end = self._enqueue(index, f"copy {direction}", direction, length)
            which = {"number": self.launches, "stream": self.streams[index]}
            row, start = f"sim:{index}", end - length
            self.note(Record("copy", f"copy {direction}", row, start, end, 0, nbytes, "bus", direction, **which))
            if blocking:
                if self.failure is not None and direction == "D2H":
                    self.report(math.inf)  # also from another stream: what the kernel left is never seen
                self.wait_until(end, f"wait for copy {direction}")
        return end

    def _enqueue(self, index: int, name: str, engine: str, length_ns: int) -> int:
        """Launch work of `length_ns`; return when it ends. A stream and an engine do one thing at a time."""
        launched = self._launch(name, engine)
        stream, busy, free = (index, self.streams[index]), (index, engine), self.free_ns
        free[stream] = free[busy] = end = max(launched, free.get(stream, 0), free.get(busy, 0)) + length_ns
        return end

    def launch(self, index: int, name: str) -> tuple[int, dict]:
        """Let the host launch what occupies no stream; return when it could begin, and what records of it say."""
        with self.lock:
            ready = max(self._launch(name, "message"), self.free_ns.get((index, self.streams[index]), 0))
            return ready, {"number": self.launches, "line": places.place() if self.recorders else ""}

    def _launch(self, name: str, engine: str) -> int:
        """Return when the host has launched work for an engine."""
        if self.failure is not None:
            self.report(-1)
        launched = self.host_ns + self.costs.launch_ns
        if self.recorders:
            self.launches += 1
            doing = places.phase() if engine == "compute" else ""
            phase = "" if doing == "forward" and not torch.is_grad_enabled() else doing
            known = {"number": self.launches, "phase": phase, "line": places.place()}
            self.note(Record("launch", name, "host", self.host_ns, launched, **known))
        self.host_ns = launched
        if self._pending:
            self.settle(launched)
        return launched

    def exchange(
        self, name: str, queue: tuple, kind: str, nbytes: int, ranks: Sequence[int], ready: int, which: dict,
        all_ready: int = 0,
    ) -> int:  # fmt: skip
        """Put a message of GPU 0 into its queue and return when it ends: it begins when the last rank is ready."""
        with self.lock:
            length, way = self.cluster.cost(kind, nbytes, ranks)
            alone = max(ready, self.free_ns.get((0, queue), 0))
            start = max(alone, all_ready)
            self.free_ns[0, queue] = end = start + length
            if self.recorders:
                which = {**which, "stream": self.tracks.setdefault(queue, 2000 + len(self.tracks))}
                if start > alone:
                    self.note(Record("waits", f"{name}: wait for others", "sim:0", alone, start, **which))
                self.note(Record("message", name, "sim:0", start, end, 0, nbytes, way, **which))
        return end

    def order(self, later: int, earlier: int) -> None:
        """Make what GPU `later` does next wait for what was queued on GPU `earlier`."""
        self.hold((later, self.streams[later]), self.free_ns.get((earlier, self.streams[earlier]), 0))

    def hold(self, stream: tuple[int, int], until_ns: int) -> None:
        """Let what comes next in `stream` (GPU, id) begin at `until_ns` at the earliest."""
        with self.lock:
            self.free_ns[stream] = max(self.free_ns.get(stream, 0), until_ns)

    def note(self, record: Record) -> None:
        """Hand a record to those who record."""
        for recorder in self.recorders:
            recorder.append(record)

    def wait_until(self, when_ns: int, reason: str) -> None:
        """Make the host wait until `when_ns` of the virtual clock."""
        with self.lock:
            if self.failure is not None:
                self.report(when_ns)
            if when_ns > self.host_ns:
                self._pass("wait", reason, when_ns)

    def work(self, name: str, length_ns: int) -> None:
        """Let the host be busy with something else, while the GPUs go on."""
        with self.lock:
            self._pass("work", name, self.host_ns + length_ns)

    def _pass(self, kind: str, name: str, until_ns: int) -> None:
        if self.recorders:
            self.note(Record(kind, name, "host", self.host_ns, until_ns, line=places.place()))
        self.host_ns = until_ns
        self.settle(until_ns)

    def queue_ns(self, index: int, stream: int | None = None) -> int:
        """Return when GPU `index` (or one of its streams) will have done all that was queued."""
        if stream is not None:
            return max(self.host_ns, self.free_ns.get((index, stream), 0))
        return max([self.host_ns, *(when for key, when in self.free_ns.items() if key[0] == index)])

    _pending: tuple = ()

    def arrive_later(self, when_ns: int, target: torch.Tensor, values: torch.Tensor) -> None:
        """Write `values` to the host tensor `target` when the clock reaches `when_ns`, not before, as CUDA does."""
        with self.lock:
            if self.failure is None:
                self._pending = (*self._pending, (when_ns, target, values))

    def fail(self, index: int) -> None:
        """Let a kernel fail on GPU `index`, behind what is queued in its stream; raises where launches are blocking."""
        with self.lock:
            if self.failure is None:
                self.failure = Failure(self.queue_ns(index, self.streams[index]) + 1, dict(self.live))
            if self.errors == "blocking":
                self.report(math.inf)

    def report(self, when_ns: float) -> None:
        """Raise `torch.AcceleratorError` if a kernel failed by `when_ns`, or if that has been said already."""
        failure = self.failure
        if failure is not None and (failure.known or failure.when_ns <= when_ns):
            failure.known, self.host_ns = True, max(self.host_ns, failure.when_ns)
            raise torch.AcceleratorError(FAILED)

    def _forget_failure(self) -> None:
        """Make what was written since a kernel failed unreadable: every byte 255, which is nan, or -1."""
        failure, self.failure = self.failure, None
        for key, ref in list(self.live.items()) if failure is not None else ():
            storage = ref()
            if storage is not None and failure.sound.get(key) is not ref:
                storage.fill_(255)

    def settle(self, now_ns: float) -> None:
        """Let every copy to the host arrive that is due."""
        pending, self._pending = self._pending, [p for p in self._pending if p[0] > now_ns]
        for when_ns, target, values in pending:
            if when_ns <= now_ns:
                target.data.copy_(values)


world: World | None = None  # set by simgpu.enable
forked = False  # set in a forked child
FORKED = (
    "Cannot re-initialize sim in forked subprocess. To use the simulated GPU with multiprocessing, you must use the "
    "'spawn' start method"
)


def device_of(device: torch.device | str | int | None) -> int:
    """Return the index of a simulated GPU; no index means the current one. Raises as CUDA does if there is none."""
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if index is None:
        return world.current
    if not 0 <= index < len(world.gpus):
        raise torch.AcceleratorError(
            f"sim error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs? "
            f"This machine simulates {len(world.gpus)}: sim:0 to sim:{len(world.gpus) - 1}."
        )
    return index
