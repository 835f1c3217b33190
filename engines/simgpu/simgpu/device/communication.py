"""Messages between ranks: gloo carries the values, and the virtual clocks meet.

As with NCCL a call costs the host its launch and no more. The message has a queue of its own (one for the collectives
of each group, one for each direction between two ranks). It begins when the last rank has come, with what was queued
before the call done, takes as long as the rank with most bytes needs, and ends on all of them at the same nanosecond.
What is queued after `wait()` waits for it, not the host. A message between two ranks needs both: `send` ends when the
other has called `recv`.
"""

import datetime
import importlib
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from simgpu.clock.clock import Launch
from simgpu.clock.journal import Queue
from simgpu.device import collectives, state
from simgpu.device.tensor import SimTensor, adopt
from simgpu.ground.nodes import in_backward
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator
from simgpu.machine.cluster import Cluster

_CLOCK_TAG = 1 << 20  # of messages that carry clocks, beyond those that a program uses
LEFT = "Connection closed by another rank"  # the message of a rank begins so where another one has ended
_LOST = re.compile("Connection (closed|reset) by peer|Broken pipe")  # what gloo says of a rank that has ended
_ENDED, _ANSWER_S = "simgpu/ended", 5.0  # how many ranks have ended, in the store; for what is still on its way
_LOOKS, _PAUSE_S = 10_000, 1e-4  # whether gloo's thread has let go; looks are counted, as a machine may stand still
_handles: "dict[int, Work]" = {}  # C++ keeps no Python object alive
at_join: list[Callable[[int], None]] = []  # what is told the number of this rank when it joins
_arrivals: "dict[int, Work]" = {}  # of functional collectives, by the storage that they fill


class Rules(Protocol):
    """Refusals of a group's backend, where it is another than the gloo that carries the messages."""

    def check(self, func: Operator, args: Args, group: dist.ProcessGroup, index: int) -> None:
        """Raise what the backend raises for a call with tensors of GPU `index`."""


rules: dict[str, Rules] = {}  # by the names of groups


def rules_of(group: dist.ProcessGroup | None) -> Rules | None:
    """Return the rules of a group, or None where those of gloo hold."""
    return rules.get(group.group_name) if isinstance(group, dist.ProcessGroup) else None


class _Here(threading.local):
    carries = False


_here = _Here()


def is_carrying() -> bool:
    """Return whether gloo is carrying a message of GPUs in this thread, with tensors of the CPU."""
    return _here.carries


@contextmanager
def carrying() -> Generator[None]:
    """Inside, tensors of the CPU stand for those of GPUs."""
    before, _here.carries = _here.carries, True
    try:
        yield
    finally:
        _here.carries = before


def join(cluster: Cluster) -> None:
    """Enable this rank's process group for tensors of its simulated GPU, whose clock becomes the cluster's."""
    clock = state.world.clock
    clock.machine = replace(clock.machine, link=cluster)
    state.world.restart()
    everyone: Any = dist.group.WORLD
    backend = everyone._get_backend(torch.device("cpu"))
    everyone._register_backend(torch.device("sim"), dist.ProcessGroup.BackendType.GLOO, backend)
    put = state.replaced
    put.append(dist.Backend.backend_capability["gloo"], "sim")  # of groups that are made later
    put.put_item(dist.Backend.default_device_backend_map, "sim", "gloo")
    put.put(dist, barrier=_barrier)
    put.put(dist.distributed_c10d, barrier=_barrier)
    # DTensor's collectives end at once, not at the first use of what they give: a wrapper for that would be PrivateUse1
    functional: Any = importlib.import_module("torch.distributed._functional_collectives")
    put.put(functional, _maybe_wrap_tensor=torch.ops._c10d_functional.wait_tensor)
    tensors: Any = importlib.import_module("torch.distributed.tensor")
    # C++ says "meta", which FSDP refuses
    put.put(tensors.DTensor, device=property(lambda self: self._local_tensor.device))
    for call in at_join:
        call(dist.get_rank())


def _barrier(group: dist.ProcessGroup | None = None, async_op: bool = False, device_ids: object = None) -> Any:
    """As NCCL's: an all-reduce of one number on the GPU that is named or current, for which the host waits."""
    index = state.device_of(device_ids[0] if isinstance(device_ids, list) else None)
    work: Any = dist.all_reduce(torch.zeros(1, device=torch.device("sim", index)), group=group, async_op=True)
    if async_op:
        return work
    work.wait()
    TORCH.sim.synchronize()
    return None


def finish() -> None:
    """Complete every message that was begun; those between two ranks may still be open."""
    for done, _ in list(_open.values()):
        done()


def expect_answers() -> None:
    """Complete every message after the functions of all ranks. Raises RuntimeError for one without an answer."""
    if not dist.is_initialized():
        return
    store = dist.distributed_c10d._get_default_store()
    store.add(_ENDED, 1)
    while _open and store.add(_ENDED, 0) < dist.get_world_size():
        time.sleep(0.01)
    for done, what in list(_open.values()):
        try:
            done(datetime.timedelta(seconds=_ANSWER_S))
        except RuntimeError:
            raise RuntimeError(f"no rank has answered this message: {what}") from None


def _hold(index: int, end_ns: int) -> None:
    state.world.clock.hold((index, state.world.clock.streams[index]), end_ns)


def with_work(result: Any, work: "Work") -> Any:
    """Return the result of an operator of c10d, a handle or values and a handle, with this handle in place of its."""
    if not isinstance(result, tuple):
        return work.boxed()
    work.tensors = result[0]
    return (*result[:-1], work.boxed())


class Lent:
    """What gloo is lent for one message: views of tensors. Its thread may hold them after the message has ended, and
    with them bytes of a GPU that a program has freed, so who ends a message waits until it has let them go."""

    def __init__(self) -> None:
        self._watch: list[weakref.ref[torch.Tensor]] = []
        self._gone: list[weakref.ref[torch.Tensor]] = []  # what tells must be no Python code: no line runs in gloo

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view of `tensor` for gloo."""
        view = tensor.detach()
        self.watch(view)
        return view

    def watch(self, tensor: torch.Tensor) -> None:
        self._watch.append(weakref.ref(tensor, self._gone.append))

    def back(self) -> None:
        """Wait until the lent views are released."""
        for _ in range(_LOOKS):
            gone = len(self._gone) == len(self._watch)
            time.sleep(_PAUSE_S)  # if all is gone, too: the thread that lets go last may be about to free the bytes
            if gone:
                return


_Handle: Any = TORCH._C._distributed_c10d.Work if dist.is_available() else object  # some builds have no ranks


class Work(_Handle):
    """The handle of one message: `hold` lets the current stream wait for its end."""

    def __init__(self, hold: Callable[[], None], ended: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.hold, self.ended, self.tensors = hold, ended, None
        _handles[id(self)] = self

    def wait(self, timeout: Any = None) -> bool:
        self.hold()
        self.forget()
        return True

    def is_completed(self) -> bool:
        return self.ended()

    def forget(self) -> None:
        self.tensors = None
        _handles.pop(id(self), None)

    def get_future(self) -> torch.futures.Future[Any]:
        """As of CUDA, a future that is complete at once. In a backward pass, who waits for it is C++ code that does
        not ask again: the end of the pass waits."""
        future = _Future()
        future.hold = self.hold
        future.set_result(self.tensors)
        if in_backward():
            torch.autograd.Variable._execution_engine.queue_callback(self.hold)
        self.forget()
        return future


class _Future(torch.futures.Future[Any]):
    hold: Callable[[], None]

    def wait(self) -> Any:
        self.hold()
        return super().wait()

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> "_Future":
        """Run `callback` on a stream of its own, as CUDA futures do."""
        stream, future = TORCH.sim.Stream(), _Future()
        with stream:
            self.hold()
            future.set_result(callback(self))
        end_ns = state.world.clock.queue_ns(stream.index, stream.stream_id)
        future.hold = lambda: _hold(stream.index, end_ns)
        return future


def run(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator of torch.distributed on tensors of the simulated GPU.

    Raises RuntimeError where another rank has ended instead: NCCL would wait.
    """
    try:
        return _run(func, args, kwargs)
    except RuntimeError as error:
        if not _LOST.search(str(error)) or rules_of(collectives.group_of(args)) is None:
            raise
        name = func._overloadpacket.__name__.rstrip("_")
        raise RuntimeError(
            f"{LEFT}: it ended, or left the group, before {name}. NCCL would wait here until its timeout."
        ) from error


def _run(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    if func._overloadpacket.__name__ == "wait_tensor":
        work = _arrivals.pop(args[0].untyped_storage()._cdata, None)
        if work is not None:
            work.wait()
        return args[0]
    world = state.world
    known: dict[int, SimTensor] = {}
    lent = Lent()

    def inner(value: Any) -> Any:
        if type(value) is SimTensor:
            view = lent.view(value._inner)
            known[id(view)] = value
            return view
        return value

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in known:
            return known[id(value)]
        lent.watch(value)
        return adopt(value.detach(), index)

    plain = tree_map(inner, args)
    index = next((tensor._index for tensor in known.values()), world.current)
    group, message = collectives.group_of(args), collectives.message(func, args)
    asked = rules_of(group)
    if asked is not None:
        asked.check(func, args, group, index)
    launch = world.clock.launch(index, str(func._schema.name))
    with carrying():
        result = func(*plain, **tree_map(inner, kwargs))
        if message is not None:
            return _pass_on(result, message, plain, group, launch, index, lent)
    kind, nbytes = collectives.collective(func, args) or (func._overloadpacket.__name__, 0)
    result = _values(func, result)
    told = torch.tensor([launch.ready_ns, collectives.load(func, args, result)])
    filled = tree_map(outer, result)
    del plain, result
    with carrying():
        group.allreduce([told], dist.ReduceOp.MAX).wait()
    (ready_ns, most_bytes), ranks = told.tolist(), dist.get_process_group_ranks(group)
    name, queue = f"{kind} of {len(ranks)}", (group.group_name,)
    end = world.clock.exchange(name, queue, kind, nbytes, ranks, launch, ready_ns, most_bytes, index)
    work = Work(lambda: _hold(index, end), lambda: end <= world.clock.host_ns)
    lent.back()
    if func.namespace != "c10d":
        for tensor in filled if isinstance(filled, list | tuple) else (filled,):
            _arrivals[tensor.untyped_storage()._cdata] = work
        return filled
    return with_work(filled, work)


def _values(func: Operator, result: Any) -> Any:
    """Return what a collective gave, once it has: with None for gloo's handle, which holds what it was lent."""
    if func.namespace != "c10d":
        return tree_map(torch.ops._c10d_functional.wait_tensor, result)
    alone = not isinstance(result, tuple)
    dist.Work.unbox(result if alone else result[-1]).wait()
    return None if alone else (*result[:-1], None)


def _pass_on(
    result: Any, message: tuple[str, int], args: Args, group: Any, launch: Launch, index: int, lent: Lent
) -> Any:
    """Synchronise the clocks of two ranks when one of them waits; until then the program may do other work."""
    if len(args) < 4:
        raise NotImplementedError("on a simulated cluster recv needs to know from whom: dist.recv(tensor, src=rank)")
    (kind, nbytes), peer, tag = message, args[2], args[3]
    me, there = group.rank(), dist.get_global_rank(group, peer)
    sends, theirs = kind == "send", torch.zeros(1, dtype=torch.int64)
    ways = (2 * tag + _CLOCK_TAG, 2 * tag + 1 + _CLOCK_TAG)  # clocks of who sends, of who receives
    tell = group.send([torch.tensor([launch.ready_ns])], peer, ways[not sends])
    hear = group.recv([theirs], peer, ways[sends])
    parts = [dist.Work.unbox(result), tell, hear]
    ranks = [dist.get_global_rank(group, me), there]
    queue = ("to" if sends else "from", group.group_name, there)
    name = f"send to {there}" if sends else f"receive from {there}"
    ends: list[int] = []
    before = _last.get(queue)

    def done(limit: datetime.timedelta | None = None) -> int:
        nonlocal before
        if not ends:
            if before is not None:
                before()
            before = None
            for part in parts:
                part.wait(*([limit] if limit else []))
            parts.clear()
            lent.back()
            ends.append(state.world.clock.exchange(name, queue, kind, nbytes, ranks, launch, int(theirs), index=index))
            _open.pop(id(done), None)
        return ends[0]

    _last[queue], _open[id(done)] = done, (done, f"{name}, {launch.line}")
    return Work(lambda: _hold(index, done()), lambda: done() <= state.world.clock.host_ns).boxed()


_last: dict[Queue, Callable[[], int]] = {}  # the end of what was queued last, of each direction between two ranks
_open: dict[int, tuple[Callable[..., int], str]] = {}  # of messages whose clocks have not met yet: the end, in words
