"""Caching allocator of PyTorch on CUDA: the bytes that it reserves for the bytes that a program asks for.

The rules, not the code, of `c10/cuda/CUDACachingAllocator.cpp` (read in github.com/pytorch/pytorch at commit
eb42ad6eca0ce61e7c581212b4bf32f991425571) and `c10/core/AllocatorConfig.h` of PyTorch 2.13: sizes rounded to 512 bytes,
a small and a large pool for each stream, best fit, splitting and merging of blocks, cached memory given back before an
error, expandable segments, `max_split_size_mb`, `roundup_power2_divisions`, `garbage_collection_threshold`. Settings
are those of PyTorch itself: `PYTORCH_ALLOC_CONF`, or `torch._C._accelerator_setAllocatorSettings` at run time.

Left out, so that a real GPU reserves more: libraries (cuBLAS workspaces), what kernels
allocate while they run, other processes. More lenient: memory that another stream still uses is
reused after a missing `record_stream`, as on CUDA, yet here it does no harm.
"""

import functools
import math
import pathlib
import re
import sys
import weakref
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch

from simgpu.accounting.accounts import ADVICE, Accounts, Gpu, Held, out_of_memory_of_mps, size_text
from simgpu.clock.clock import Clock
from simgpu.ground import device_kind

MIB = 2**20
_GRAIN = 512  # sizes are rounded up to a multiple of it
_SMALL = MIB  # the largest request that the small pool serves
_SMALL_SEGMENT = 2 * MIB  # what the small pool asks the driver for
_MIN_LARGE = 10 * MIB  # a request from here on gets a segment of its own size, rounded up to the following
_ROUND_LARGE = 2 * MIB
_FIRST_ADDRESS = 0x7F0000000000
METRICS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_LIBRARY = str(pathlib.Path(__file__).parents[1])
Frame: TypeAlias = dict[str, str | int]  # a line of Python: its file, number and function


class Settings(NamedTuple):
    """What `PYTORCH_ALLOC_CONF` says. `divisions` of a power of two: for sizes from 1 MiB on, 2 MiB on, to 32 GiB."""

    expandable: bool
    max_split: float
    rounding: int
    large_segment: int
    divisions: tuple[int, ...]
    threshold: float


DEFAULT = Settings(False, math.inf, 20 * MIB, 20 * MIB, (0,) * 16, 0.0)


@functools.cache
def read_settings(text: str, before: Settings = DEFAULT) -> Settings:
    """Read a text such as "expandable_segments:True,max_split_size_mb:40".

    As in PyTorch, expandable segments, the rounding and the size of large segments stay as before where a text does
    not name them, and the others go back to their default.
    """
    options = dict(re.findall(r"(\w+):(\[[^\]]*\]|[^,]+)", re.sub(r"\s", "", text)))

    def size(name: str, otherwise: float) -> Any:
        return int(options[name]) * MIB if name in options else otherwise

    return Settings(
        options["expandable_segments"] == "True" if "expandable_segments" in options else before.expandable,
        size("max_split_size_mb", math.inf),
        size("max_non_split_rounding_mb", before.rounding),
        size("large_segment_size_mb", before.large_segment),
        _divisions(options.get("roundup_power2_divisions", "0")),
        float(options.get("garbage_collection_threshold", 0)),
    )


def _divisions(text: str) -> tuple[int, ...]:
    """Read "4", or "[64:8,256:4,>:1]" by size in MiB: below the first its value holds, from ">" on the last."""
    if not text.startswith("["):
        return (int(text),) * 16
    table, last = [0] * 16, -1
    for size, _, value in (pair.partition(":") for pair in text.strip("[]").split(",")):
        if size == ">":
            table[last + 1 :] = [int(value)] * (15 - last)
            continue
        power = min(int(size).bit_length() - 1, 15)
        if last < 0:
            table[:power] = [int(value)] * power
        table[power] = int(value)
        last = power
    return tuple(table)


def rounded(nbytes: int, divisions: tuple[int, ...]) -> int:
    """Return the size of the block that a request of `nbytes` gets."""
    parts = divisions[min(max(nbytes.bit_length() - 21, 0), 15)] if nbytes else 0
    if parts > 0 and nbytes > _GRAIN * parts:
        floor = 1 << (nbytes.bit_length() - 1)
        step = floor >> (parts.bit_length() - 1)
        if parts == 1 or nbytes == floor:
            return nbytes
        return -(-nbytes // step) * step if step else 2 * floor
    return max(-(-nbytes // _GRAIN), 1) * _GRAIN


class Expandable(NamedTuple):
    """Addresses of an expandable segment, to which memory is mapped by the page."""

    base: int
    page: int


class Pool:
    """Cached blocks of one kind of size, and the addresses that have no memory yet."""

    def __init__(self, small: bool, graphs: tuple[int, int] = (0, 0)) -> None:
        self.small, self.name, self.graphs = small, "small_pool" if small else "large_pool", graphs
        self.free: list[MemoryBlock] = []  # by stream, size, address
        self.unmapped: list[MemoryBlock] = []  # by stream, address
        self.searches = 0


class Private(NamedTuple):
    """Pools of captured graphs, and those that use them."""

    pools: dict[bool, Pool]
    graphs: weakref.WeakSet[Held]


class MemoryBlock:
    """A piece of a segment; `prev` and `next` are its neighbours there."""

    __slots__ = (
        "address", "allocated", "frames", "mapped", "next", "pool", "prev", "requested", "searches", "segment", "size",
        "stream", "uses", "waiting",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, stream: int, address: int, size: int, segment: Expandable | None, mapped: bool = True
    ) -> None:
        self.pool, self.stream, self.address, self.size, self.segment = pool, stream, address, size, segment
        self.mapped, self.allocated, self.waiting = mapped, False, False
        self.requested = self.searches = 0
        self.prev: MemoryBlock | None = None
        self.next: MemoryBlock | None = None
        self.uses: set[int] = set()  # other streams that use it
        self.frames: list[Frame] = []

    @property
    def expandable(self) -> Expandable:
        """The expandable segment of which it is a piece; only blocks of such segments are asked."""
        assert self.segment is not None
        return self.segment

    order = property(lambda self: (self.stream, self.size, self.address))
    place = property(lambda self: (self.stream, self.address))
    active = property(lambda self: self.allocated or self.waiting)
    split = property(lambda self: self.prev is not None or self.next is not None)

    def link(self, prev: "MemoryBlock | None", following: "MemoryBlock | None") -> None:
        """Stand between two neighbours."""
        self.prev, self.next = prev, following
        if prev is not None:
            prev.next = self
        if following is not None:
            following.prev = self


class Request(NamedTuple):
    """Request for a block of `size` bytes, else for a segment of `segment` bytes."""

    size: int
    segment: int
    pool: Pool
    stream: int
    settings: Settings


class Allocator:
    """The caching allocator of one simulated GPU, under the lock of the clock, for which it waits."""

    def __init__(self, clock: Clock, gpu: Gpu) -> None:
        self.clock, self.gpu = clock, gpu
        self.pools = {small: Pool(small) for small in (False, True)}
        self.private: dict[tuple[int, int], Private] = {}  # memory of captured graphs, by the name of their pool
        self.blocks: dict[int, MemoryBlock] = {}  # by the id of the reference to a storage
        self.in_use: dict[MemoryBlock, None] = {}
        self.waiting: list[tuple[int, MemoryBlock]] = []  # freed, but until this time another stream uses them
        self.fraction: float | None = None
        self.history: deque[dict[str, Any]] | None = None
        self._stacks, self._address = False, _FIRST_ADDRESS
        self._text, self._settings = "", DEFAULT
        self._stats: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])  # current, peak, allocated, freed
        self._events = dict.fromkeys(EVENTS, 0)

    @property
    def settings(self) -> Settings:
        """What PyTorch was told last, by `PYTORCH_ALLOC_CONF` or at run time."""
        text = torch._C._accelerator_getAllocatorSettings()
        if text != self._text:
            self._text, self._settings = text, read_settings(text, self._settings)
        return self._settings

    @property
    def reserved_bytes(self) -> int:
        return self._stats["reserved_bytes.all"][0]

    @property
    def peak_reserved_bytes(self) -> int:
        return self._stats["reserved_bytes.all"][1]

    def charge(self, ref: Any, nbytes: int) -> None:
        """Give a storage, which had `ref.nbytes`, a block of `nbytes`. Raises `torch.OutOfMemoryError`."""
        gpu, old, new = self.gpu, self.blocks.get(id(ref)), None
        if nbytes:
            if gpu.limit_bytes < gpu.room_bytes:
                gpu.require(rounded(nbytes, (0,) * 16) - (old.size if old else 0))
            new = self.blocks[id(ref)] = self.malloc(nbytes)
        self._tell()  # old and new exist at once: what `resize_` keeps is copied
        if old is not None:
            if new is None:
                del self.blocks[id(ref)]
            self.free(old)
            self._tell()
        ref.nbytes = nbytes

    def drop(self, ref: Any) -> None:
        """Take the block of a storage that died back."""
        block = self.blocks.pop(id(ref), None)
        if block is not None:
            self.free(block)
            self._tell()

    def _tell(self) -> None:
        self.gpu.counted_bytes = allocated = self._stats["allocated_bytes.all"][0]
        self.gpu.peak_bytes = max(self.gpu.peak_bytes, allocated)

    def address(self, ref: Any) -> int:
        """Return where a storage begins; 0 for one without bytes."""
        return self.blocks[id(ref)].address if id(ref) in self.blocks else 0

    def record_stream(self, ref: Any, stream: int) -> None:
        """Keep the memory of a storage from being reused before `stream` has done what is queued when it is freed."""
        block = self.blocks.get(id(ref))
        if block is not None and stream != block.stream:
            block.uses.add(stream)

    def malloc(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least `nbytes` for the current stream. Raises `torch.OutOfMemoryError`."""
        settings = self.settings
        with self.clock.lock:
            self._take_back(self.clock.host_ns)
            size = rounded(nbytes, settings.divisions)
            segment = -(-size // _ROUND_LARGE) * _ROUND_LARGE if size >= _MIN_LARGE else settings.large_segment
            capture, stream = self.clock.capture, self.clock.streams[self.gpu.index]
            captured = capture is not None and (self.gpu.index, stream) in capture.known
            private = self.private.get(capture.pool) if capture is not None and captured else None
            pool = (self.pools if private is None else private.pools)[size <= _SMALL]
            request = Request(size, _SMALL_SEGMENT if pool.small else segment, pool, stream, settings)
            collects = self.fraction is not None and settings.threshold > 0
            pool.searches += collects
            block = self._cached(request)
            if block is None:
                if collects:
                    self._collect_garbage(settings.threshold)
                block = self._reserve(request)
            if block is None and self._release_oversize(request):
                block = self._reserve(request)
            if block is None and capture is None:
                self._release_cached()
                self._events["num_alloc_retries"] += 1
                block = self._reserve(request)
            if block is None:
                self._fail(request)
            return self._hand_out(block, request, nbytes)

    def _cached(self, request: Request) -> MemoryBlock | None:
        """Take the smallest cached block of the stream that is large enough out of its pool."""
        size, _, pool, stream, settings = request
        free = pool.free
        index = bisect_left(free, (stream, size, 0), key=lambda block: block.order)
        block = free[index] if index < len(free) and free[index].stream == stream else None
        if block is not None and block.segment is not None:
            block = _expandable([block for block in free[index:] if block.stream == stream], settings)
        if block is None:
            return None
        large = size >= settings.max_split
        if block.size >= (size + settings.rounding if large else settings.max_split):
            return None
        free.remove(block)
        return block

    def _reserve(self, request: Request) -> MemoryBlock | None:
        """Ask the driver for a segment; None where there is too little."""
        total = self.reserved_bytes + request.segment
        if self.fraction is not None and total > self._allowed_bytes:
            return None
        if request.settings.expandable:
            return self._expand(request)
        if total > self.gpu.room_bytes:
            return None
        block = MemoryBlock(request.pool, request.stream, self._addresses(request.segment), request.segment, None)
        self._count(request.pool, segment=1, reserved_bytes=block.size)
        self._count_oversize("segments", block.size, 1)
        self._events["num_device_alloc"] += 1
        self._note("segment_alloc", block.address, block.size, block.stream)
        return block

    @property
    def _allowed_bytes(self) -> int:
        return int((self.fraction or 0) * self.gpu.capacity_bytes)

    def _addresses(self, nbytes: int) -> int:
        first, self._address = self._address, self._address + -(-nbytes // _ROUND_LARGE) * _ROUND_LARGE
        return first

    def _expand(self, request: Request) -> MemoryBlock | None:
        """Map memory at the lowest addresses of an expandable segment that make a free block large enough."""
        block = self._find_addresses(request)
        if not block.mapped and not self._map(block, min(block.size, request.size)):
            return None
        while block.size < request.size:
            following = block.next
            assert following is not None, "what was found is large enough together"
            if not self._map(following, min(request.size - block.size, following.size)):
                return None
            block = following
        request.pool.free.remove(block)
        return block

    def _find_addresses(self, request: Request) -> MemoryBlock:
        pool, stream = request.pool, request.stream
        for block in (block for block in pool.unmapped if block.stream == stream):
            start = block.prev if block.prev is not None and not block.prev.active else block
            total = 0
            end: MemoryBlock | None = start
            while total < request.size and end is not None and not end.active:
                total, end = total + end.size, end.next
            if total >= request.size:
                return start
        page = _SMALL_SEGMENT if pool.small else request.settings.large_segment
        size = -(-(self.gpu.capacity_bytes * 9 // 8) // page) * page  # room to move pages to
        segment = Expandable(self._addresses(size), page)
        block = MemoryBlock(pool, stream, segment.base, size, segment, mapped=False)
        insort(pool.unmapped, block, key=lambda one: one.place)
        return block

    def _map(self, block: MemoryBlock, nbytes: int) -> bool:
        """Give the first `nbytes` of `block` memory, in whole pages; return whether there is as much."""
        pool, page = block.pool, block.expandable.page
        nbytes = -(-nbytes // page) * page
        if self.reserved_bytes + nbytes > self.gpu.room_bytes:
            return False
        pool.unmapped.remove(block)
        block.mapped = True
        if nbytes < block.size:
            self._cut(block, nbytes, mapped=False)
        self._merge(block, block.prev)
        self._merge(block, block.next)
        self._shelve(block)
        self._count(pool, reserved_bytes=nbytes)
        self._events["num_device_alloc"] += 1
        self._note("segment_map", block.address, nbytes, block.stream)
        return True

    def _cut(self, block: MemoryBlock, size: int, mapped: bool = True) -> MemoryBlock:
        """Keep `size` bytes of a block; the rest becomes a free block behind it."""
        rest = MemoryBlock(block.pool, block.stream, block.address + size, block.size - size, block.segment, mapped)
        block.size = size
        rest.link(block, block.next)
        self._shelve(rest)
        return rest

    def _shelve(self, block: MemoryBlock) -> None:
        pool = block.pool
        if block.mapped:
            block.searches = pool.searches
            insort(pool.free, block, key=lambda one: one.order)
        else:
            insort(pool.unmapped, block, key=lambda one: one.place)

    def _merge(self, block: MemoryBlock, other: MemoryBlock | None) -> int:
        """Join a free neighbour to `block`; return its bytes, 0 where it cannot be joined."""
        if other is None or other.active or other.mapped != block.mapped:
            return 0
        (block.pool.free if other.mapped else block.pool.unmapped).remove(other)
        if other is block.prev:
            block.address = other.address
            block.link(other.prev, block.next)
        else:
            block.link(block.prev, other.next)
        block.size += other.size
        return other.size

    def _hand_out(self, block: MemoryBlock, request: Request, nbytes: int) -> MemoryBlock:
        size, pool, settings = request.size, request.pool, request.settings
        remaining, was_split, fixed = block.size - size, block.split, block.segment is None
        if pool.small or settings.expandable:
            splits = remaining >= _GRAIN
        else:
            splits = size < settings.max_split and remaining > _SMALL
        if splits:
            self._cut(block, size)
        if fixed and was_split:
            self._count(pool, inactive_split=0 if splits else -1, inactive_split_bytes=-block.size)
        elif fixed and splits:
            self._count(pool, inactive_split=1, inactive_split_bytes=remaining)
        block.allocated, block.requested, block.frames = True, nbytes, self._stack()
        self.in_use[block] = None
        self._note("alloc", block.address, nbytes, block.stream, block.frames)
        self._count(
            pool, allocation=1, allocated_bytes=block.size, active=1, active_bytes=block.size, requested_bytes=nbytes
        )
        self._count_oversize("allocations", block.size, 1)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back: at once, or when the other streams that use it are done."""
        block.allocated = False
        self._count(block.pool, allocation=-1, allocated_bytes=-block.size)
        self._note("free_requested", block.address, block.requested, block.stream, block.frames)
        self._count_oversize("allocations", block.size, -1)
        if block.uses:
            block.waiting = True
            done_ns = max(self.clock.queue_ns(self.gpu.index, stream) for stream in block.uses)
            self.waiting.append((done_ns, block))
        else:
            self._cache(block)

    def _take_back(self, now_ns: float) -> None:
        due = [block for when_ns, block in self.waiting if when_ns <= now_ns]
        if due:
            self.waiting = [(when_ns, block) for when_ns, block in self.waiting if when_ns > now_ns]
        for block in due:
            block.waiting = False
            block.uses.clear()
            self._cache(block)

    def _cache(self, block: MemoryBlock) -> None:
        """Put a block into its pool, joined with its free neighbours."""
        pool, size = block.pool, block.size
        self._note("free_completed", block.address, block.requested, block.stream, block.frames)
        joined = [nbytes for nbytes in (self._merge(block, block.prev), self._merge(block, block.next)) if nbytes]
        del self.in_use[block]
        self._count(pool, active=-1, active_bytes=-size, requested_bytes=-block.requested)
        block.requested, block.frames = 0, []
        self._shelve(block)
        if block.segment is None:
            self._count(
                pool,
                inactive_split=block.split - len(joined),
                inactive_split_bytes=(block.size if block.split else 0) - sum(joined),
            )

    def use(self, name: tuple[int, int], graph: Held) -> None:
        """Give a graph memory of the pool of this name; what is free there is released once its graphs are gone."""
        pools = {small: Pool(small, name) for small in (False, True)}
        self.private.setdefault(name, Private(pools, weakref.WeakSet())).graphs.add(graph)

    def _all_pools(self, which: Callable[[Private], bool] = lambda private: True) -> list[Pool]:
        chosen = [private.pools for private in self.private.values() if which(private)]
        return [pool for pools in (self.pools, *chosen) for pool in pools.values()]

    def empty_cache(self) -> None:
        """Release unused memory to the driver: whole segments, and whole pages of expandable ones."""
        with self.clock.lock:
            self._release_cached()

    def _release_cached(self) -> None:
        self._events["num_sync_all_streams"] += 1
        if self.waiting:
            self.clock.wait_until(max(when_ns for when_ns, _ in self.waiting), "wait for other streams")
            self._take_back(math.inf)
        for pool in self._all_pools(lambda private: not private.graphs):
            blocks = list(pool.free)
            for block in blocks:
                if block.segment is None and not block.split:
                    self._release(block)
            for block in blocks:
                if block.segment is not None:
                    self._unmap(block)

    def _release(self, block: MemoryBlock) -> None:
        self._drain()
        block.pool.free.remove(block)
        self._count(block.pool, segment=-1, reserved_bytes=-block.size)
        self._count_oversize("segments", block.size, -1)
        self._events["num_device_free"] += 1
        self._note("segment_free", block.address, block.size, block.stream)

    def _drain(self) -> None:
        """Memory goes back to the driver when the GPU has done what is queued: the host waits."""
        self.clock.wait_until(self.clock.queue_ns(self.gpu.index), "give memory back")

    def _unmap(self, block: MemoryBlock) -> None:
        """Take the whole pages of a free block of an expandable segment away."""
        base, page = block.expandable
        begin = base - (base - block.address) // page * page
        end = base + (block.address + block.size - base) // page * page
        if begin >= end:
            return
        self._drain()
        block.pool.free.remove(block)
        if begin > block.address:
            before = MemoryBlock(block.pool, block.stream, block.address, begin - block.address, block.segment)
            before.link(block.prev, block)
            self._shelve(before)
            block.address, block.size = begin, block.size - before.size
        if end < block.address + block.size:
            self._cut(block, end - begin)
        block.mapped = False
        self._merge(block, block.prev)
        self._merge(block, block.next)
        if block.split:  # else nothing is left in the segment, and its addresses go too
            self._shelve(block)
        self._count(block.pool, reserved_bytes=begin - end)
        self._events["num_device_free"] += 1
        self._note("segment_unmap", begin, end - begin, block.stream)

    def _release_oversize(self, request: Request) -> bool:
        """With `max_split_size_mb`, give back one cached block that is large enough, else the largest ones."""
        if request.settings.max_split == math.inf:
            return False
        wanted = max(request.size, request.settings.max_split)
        blocks = [
            block
            for block in request.pool.free
            if block.stream == request.stream and not (block.segment or block.split)
        ]
        enough = [block for block in blocks if block.size >= wanted]
        if enough:
            self._release(enough[0])
            return True
        released = 0
        for block in reversed(blocks):
            if released >= wanted or block.size < request.settings.max_split:
                break
            self._release(block)
            released += block.size
        return released >= wanted

    def _collect_garbage(self, threshold: float) -> None:
        """Above the threshold, give back cached segments of the large pool that were not used for longest."""
        target = self.reserved_bytes - int(threshold * self._allowed_bytes)
        pool, freed = self.pools[False], True
        while target > 0 and freed:
            blocks = [block for block in pool.free if not block.split and block.segment is None]
            ages = [pool.searches - block.searches for block in blocks]
            old = [block for block, age in zip(blocks, ages, strict=True) if age * len(ages) >= sum(ages)]
            for block in old:
                self._release(block)
                target -= block.size
            freed = bool(old)

    def _fail(self, request: Request) -> NoReturn:
        """Raise CUDA's error; cached memory has been given back before, so that what is left is in split segments."""
        gpu, reserved, allocated = self.gpu, self.reserved_bytes, self._stats["allocated_bytes.all"][0]
        free, used = max(gpu.room_bytes - reserved, 0), reserved + gpu.context_bytes
        self._events["num_ooms"] += 1
        self._note("oom", free, request.size, request.stream, self._stack())
        if device_kind.kind == "mps":
            raise out_of_memory_of_mps(request.segment, gpu.capacity_bytes, allocated)
        allowed = "" if self.fraction is None else f"{size_text(self._allowed_bytes)} allowed; "
        raise torch.OutOfMemoryError(
            f"{device_kind.title()} out of memory. Tried to allocate {size_text(request.segment)}. GPU {gpu.index} has "
            f"a total capacity of {size_text(gpu.capacity_bytes)} of which {size_text(free)} is free. Including "
            f"non-PyTorch memory, this process has {size_text(used)} memory in use. {allowed}Of the allocated "
            f"memory {size_text(allocated)} is allocated by PyTorch, and {size_text(reserved - allocated)} is "
            f"reserved by PyTorch but unallocated.{ADVICE}"
        )

    def _count(self, pool: Pool | None, **changes: int) -> None:
        for name, change in changes.items():
            for key in (name,) if pool is None else (f"{name}.all", f"{name}.{pool.name}"):
                stat = self._stats[key]
                stat[0] += change
                stat[1] = max(stat[:2])
                stat[2 if change > 0 else 3] += abs(change)

    def _count_oversize(self, what: str, nbytes: int, change: int) -> None:
        if nbytes >= self.settings.max_split:
            self._count(None, **{f"oversize_{what}": change})

    def memory_stats(self) -> dict[str, int]:
        """Return CUDA's statistics under CUDA's names."""
        pools = ("all", "large_pool", "small_pool")
        names = [f"{metric}.{pool}" for metric in METRICS for pool in pools]
        names += ["oversize_allocations", "oversize_segments"]
        kinds = ("current", "peak", "allocated", "freed")
        stats = {f"{name}.{kind}": self._stats[name][i] for name in names for i, kind in enumerate(kinds)}
        split = self.settings.max_split
        stats |= self._events | {"max_split_size": -1 if split == math.inf else int(split)}
        return dict(sorted(stats.items()))

    def reset(self, peaks: bool) -> None:
        """Reset the peaks to the current values, or else the accumulated sums to zero."""
        for stat in self._stats.values():
            if peaks:
                stat[1] = stat[0]
            else:
                stat[2:] = 0, 0
        if not peaks:
            self._events = dict.fromkeys(self._events, 0)

    def record(self, enabled: str | None, stacks: bool, entries: int) -> None:
        """Begin or end the history of events: at most the last `entries`, with Python's lines if `stacks`."""
        if enabled not in (None, "state", "all"):
            raise RuntimeError(f"expected enabled to be None, 'state' or 'all', not {enabled!r}")
        self._stacks = stacks and enabled is not None
        self.history = None if enabled is None else deque(self.history or (), 1 if enabled == "state" else entries)

    def _stack(self) -> list[Frame]:
        """Return the Python lines that led here, the innermost first, without those of the simulator."""
        frames: list[Frame] = []
        frame = sys._getframe(1) if self._stacks else None
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(_LIBRARY):
                frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
            frame = frame.f_back
        return frames

    def _note(self, action: str, address: int, nbytes: int, stream: int, frames: list[Frame] | None = None) -> None:
        if self.history is not None:
            self.history.append({
                "action": action, "device_free" if action == "oom" else "addr": address, "size": nbytes,
                "stream": stream, "time_us": self.clock.host_ns // 1000, "pool_id": (0, 0),
                "frames": self._stack() if frames is None else frames, "compile_context": "N/A",
            })  # fmt: skip

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments and their blocks, by address, as `torch.cuda.memory_snapshot` gives them."""
        with self.clock.lock:
            blocks = [*self.in_use, *(block for pool in self._all_pools() for block in pool.free)]
            firsts = [block for block in blocks if block.prev is None or not block.prev.mapped]
            return [self._segment(block) for block in sorted(firsts, key=lambda one: one.address)]

    def _segment(self, block: MemoryBlock) -> dict[str, Any]:
        segment: dict[str, Any] = {
            "device": self.gpu.index, "address": block.address, "total_size": 0, "allocated_size": 0, "active_size": 0,
            "requested_size": 0, "stream": block.stream, "segment_type": "small" if block.pool.small else "large",
            "segment_pool_id": block.pool.graphs, "is_expandable": block.segment is not None, "frames": [],
            "blocks": [],
        }  # fmt: skip
        part: MemoryBlock | None = block
        while part is not None and part.mapped:
            state = "active_allocated" if part.allocated else "active_pending_free" if part.waiting else "inactive"
            sizes = {"address": part.address, "size": part.size, "requested_size": part.requested}
            segment["blocks"].append({**sizes, "state": state, "frames": part.frames})
            segment["total_size"] += part.size
            segment["allocated_size"] += part.size * part.allocated
            segment["active_size"] += part.size * part.active
            segment["requested_size"] += part.requested * part.active
            part = part.next
        return segment


def _room(block: MemoryBlock) -> int:
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)


def _expandable(fitting: list[MemoryBlock], settings: Settings) -> MemoryBlock | None:
    """Choose among blocks that fit, the smallest first, where that is of an expandable segment."""
    if not settings.expandable:  # switched off since: none of those
        return next((block for block in fitting if block.segment is None), None)
    block = fitting[0]
    for other in fitting[1:]:  # one that can grow counts as large as it can get
        if block.segment is None or _room(other) >= _room(block):
            break
        block = other
    return block


def switch(memory: Accounts, clock: Clock, caching: bool) -> None:
    """Switch all GPUs to blocks of a caching allocator, or back to the exact bytes of storages.

    Storages that are alive move over. Raises `torch.OutOfMemoryError` where their blocks do not fit: nothing changed.
    """
    with memory.lock:
        memory.bury()
        before = [(gpu.cache, gpu.counted_bytes, gpu.peak_bytes) for gpu in memory.gpus]
        if caching == all(cache is not None for cache, *_ in before):
            return
        try:
            for gpu in memory.gpus:
                gpu.cache = Allocator(clock, gpu) if caching else None
                gpu.counted_bytes = gpu.peak_bytes = 0
            for ref in list(memory.live.values()):
                memory.charge(ref, ref.nbytes, 0)
        except torch.OutOfMemoryError:
            for gpu, (cache, counted_bytes, peak_bytes) in zip(memory.gpus, before, strict=True):
                gpu.cache, gpu.counted_bytes, gpu.peak_bytes = cache, counted_bytes, peak_bytes
            raise
