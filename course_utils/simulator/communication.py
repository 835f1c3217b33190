"""What does a simulated GPU do with a message to another rank? gloo carries the values, and the clocks meet.

As with NCCL a call costs the host its launch and no more. The message has a queue of its own (one for the collectives
of each group, one for each direction between two ranks), begins when the last rank has come, with what was queued
before the call done, and ends on all of them at the same nanosecond. What is queued after `wait()` waits for it, not
the host. A message between two ranks needs both: `send` ends when the other has called `recv`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from course_utils.base import collectives
from course_utils.simulator import model
from course_utils.simulator.cluster import Cluster
from course_utils.simulator.model import Record
from course_utils.simulator.tensor import SimTensor, adopt

__all__ = ["join", "run"]

_CLOCK_TAG = 1 << 20  # of messages that carry clocks, beyond those that a program uses
_handles: dict[int, Work] = {}  # C++ keeps no Python object alive
_arrivals: dict[int, Work] = {}  # of functional collectives, by the storage that they fill


def join(cluster: Cluster) -> None:
    """Let the process group of this rank work with tensors of its simulated GPU, whose clock is the cluster's now."""
    model.world.cluster = cluster
    model.world.restart()
    sim, backend = torch.device("sim"), dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.group.WORLD._register_backend(sim, dist.ProcessGroup.BackendType.GLOO, backend)
    dist.Backend.backend_capability["gloo"].append("sim")  # of groups that are made later
    dist.Backend.default_device_backend_map["sim"] = "gloo"
    dist.barrier = dist.distributed_c10d.barrier = _barrier
    from torch.distributed.tensor import DTensor

    DTensor.device = property(lambda self: self._local_tensor.device)  # C++ says "meta", which FSDP refuses


def _barrier(group=None, async_op: bool = False, device_ids=None) -> Any:
    """As NCCL's: an all-reduce of one number, for which the host waits."""
    work = dist.all_reduce(torch.zeros(1, device="sim"), group=group, async_op=True)
    if async_op:
        return work
    work.wait()
    torch.sim.synchronize()
    return None


def finish() -> None:
    """Let every message end that was begun: those between two ranks may still be open."""
    for work in list(_handles.values()):
        work.done()


class Work(dist.Work):
    """The handle of one message: `wait` lets the current stream wait for its end."""

    def __init__(self, done: Callable[[], int], tensors: Any) -> None:
        super().__init__()
        self.done, self.tensors = done, tensors  # returns when it ends; what it filled
        _handles[id(self)] = self

    def wait(self, timeout: Any = None) -> bool:
        model.world.hold((0, model.world.streams[0]), self.done())
        self.forget()
        return True

    def is_completed(self) -> bool:
        return self.done() <= model.world.host_ns

    def forget(self) -> None:
        self.tensors = None
        _handles.pop(id(self), None)

    def get_future(self) -> torch.futures.Future:
        """As of CUDA, a future that is complete at once. In a backward pass, who waits for it is C++ code that does
        not ask again: the end of the pass waits."""
        future = _Future()
        future.end_ns = self.done()
        future.set_result(self.tensors)
        if torch._C._current_graph_task_id() != -1:
            torch.autograd.Variable._execution_engine.queue_callback(future.hold)
        self.forget()
        return future


class _Future(torch.futures.Future):
    end_ns = 0

    def hold(self) -> None:
        model.world.hold((0, model.world.streams[0]), self.end_ns)

    def wait(self):
        self.hold()
        return super().wait()

    def then(self, callback):
        """Run `callback` on a stream of its own, as CUDA futures do."""
        stream, future = torch.sim.Stream(), _Future()
        with stream:
            self.hold()
            future.set_result(callback(self))
        future.end_ns = model.world.queue_ns(0, stream.stream_id)
        return future


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Do what an operator of torch.distributed asks that got tensors of the simulated GPU."""
    functional, world = func.namespace != "c10d", model.world
    if func._overloadpacket.__name__ == "wait_tensor":
        work = _arrivals.pop(args[0].untyped_storage()._cdata, None)
        if work is not None:
            work.wait()
        return args[0]
    known: dict[int, SimTensor] = {}

    def inner(value):
        if type(value) is SimTensor:
            known[id(value._inner)] = value
            return value._inner
        return value

    def outer(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else adopt(value, 0)

    plain = tree_map(inner, args)
    group, message = collectives.group_of(args), collectives.message(func, args)
    ready, which = world.launch(0, str(func._schema.name))
    result = func(*plain, **tree_map(inner, kwargs))
    if message is not None:
        return _pass_on(result, message, plain, group, ready, which)
    kind, nbytes = collectives.collective(func, args) or (func._overloadpacket.__name__, 0)
    if functional:
        result = tree_map(torch.ops._c10d_functional.wait_tensor, result)
    else:
        real = result[-1] if isinstance(result, tuple) else result
        dist.Work.unbox(real).wait()
    clock = torch.tensor([ready])
    group.allreduce([clock], dist.ReduceOp.MAX).wait()
    ranks = dist.get_process_group_ranks(group)
    ends = _queue(f"{kind} of {len(ranks)}", (0, group.group_name), kind, nbytes, ranks, ready, int(clock), which)
    if functional:
        filled = tree_map(outer, result)
        for tensor in filled if isinstance(filled, list | tuple) else (filled,):
            _arrivals[tensor.untyped_storage()._cdata] = Work(lambda: ends, None)
        return filled
    filled = tree_map(outer, result[0]) if isinstance(result, tuple) else None
    handle = Work(lambda: ends, filled if kind != "all_gather" else tree_map(outer, plain[0])).boxed()
    return handle if filled is None else (filled, handle)


def _queue(name, queue, kind, nbytes, ranks, ready: int, all_ready: int, which: dict) -> int:
    """Put a message into its queue, when its last rank is ready; return when it ends."""
    world = model.world
    length, way = world.cluster.cost(kind, nbytes, ranks)
    with world.lock:
        start = max(all_ready, world.free_ns.get(queue, 0))
        world.free_ns[queue] = end = start + length
        if world.recorders:
            which["stream"] = _tracks.setdefault(queue, 2000 + len(_tracks))
            if start > ready:
                world.note(Record("waits", f"{name}: wait for others", "sim:0", ready, start, **which))
            world.note(Record("message", name, "sim:0", start, end, 0, nbytes, way, **which))
    return end


def _pass_on(result: Any, message: tuple[str, int], args: tuple, group: Any, ready: int, which: dict) -> Any:
    """Let the clocks of two ranks meet when one of them waits: until then a program may have other things to do."""
    if len(args) < 4:
        raise NotImplementedError("on a simulated cluster recv needs to know from whom: dist.recv(tensor, src=rank)")
    (kind, nbytes), peer, tag = message, args[2], args[3]
    me, there = group.rank(), dist.get_global_rank(group, peer)
    sends, theirs = kind == "send", torch.zeros(1, dtype=torch.int64)
    ways = (2 * tag + _CLOCK_TAG, 2 * tag + 1 + _CLOCK_TAG)  # clocks of who sends, of who receives
    tell = group.send([torch.tensor([ready])], peer, ways[not sends])
    hear = group.recv([theirs], peer, ways[sends])
    real = dist.Work.unbox(result)
    ranks = [dist.get_global_rank(group, me), there]
    queue = (0, "to" if sends else "from", group.group_name, there)
    name = f"send to {there}" if sends else f"receive from {there}"
    found: list[int] = []
    before = _last.get(queue, lambda: None)()

    def done() -> int:
        if not found:
            if before is not None:
                before.done()
            for work in (real, tell, hear):
                work.wait()
            found.append(_queue(name, queue, kind, nbytes, ranks, ready, max(ready, int(theirs)), which))
        return found[0]

    work = Work(done, None)
    _last[queue] = weakref.ref(work)
    return work.boxed()


_tracks: dict[tuple, int] = {}  # number of each queue in traces
_last: dict[tuple, weakref.ref] = {}  # the message that was queued last, of each direction between two ranks
