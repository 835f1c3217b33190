"""One rank of many, without the others: messages with sizes and no values, streams recorded.

PyTorch's "fake" process group answers for the other ranks at once. The streams and events by which PyTorch's own FSDP
lets messages and computation overlap are those of `torch.cpu`, on which fake tensors live; here they note what is asked
of them, for a Recorder to price.
"""

import functools
import itertools
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as parallel
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.device import collectives
from simgpu.device.communication import Work, with_work
from simgpu.forecasts.recorder import Recorder
from simgpu.ground import arguments
from simgpu.ground.torch_internals import Args, Operator


class Rank:
    """One rank of many: its messages and streams, which are noted in the log of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.log = recorder, recorder.log
        self._numbers = itertools.count()  # of streams
        self.current = _Stream(self)
        self._arrivals: dict[int, int] = {}  # functional collectives, by the storage that they fill
        self._works: list[Work] = []

    def new_stream(self) -> tuple[int, int]:
        """Return a stream that no other is: GPU and number. The first is the one in which programs begin."""
        return 0, next(self._numbers)

    def hold(self, after: int) -> None:
        """Make the current stream wait for the end of an operation."""
        self.log.hold(self.recorder.stream, after)

    @contextmanager
    def use(self, stream: "_Stream | None") -> Generator[None]:
        """Inside, `stream` is the current one."""
        before, self.current = self.current, stream or self.current
        self.recorder.stream = self.current.key  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self.current, self.recorder.stream = before, before.key  # pyright: ignore[reportAttributeAccessIssue]

    def talk(self, func: Operator, args: Args, result: Any) -> Any:
        """Record a message and its waiter; return the operator's result with a handle that records the wait."""
        if func._overloadpacket.__name__ == "wait_tensor":
            if (number := self._arrivals.pop(args[0].untyped_storage()._cdata, None)) is not None:
                self.hold(number)
            return result
        number = self._message(func, args, result)
        if func.namespace == "c10d":
            self._works.append(Work(lambda: self.hold(number)))
            return with_work(result, self._works[-1])
        for tensor in result if isinstance(result, list | tuple) else (result,):
            self._arrivals[tensor.untyped_storage()._cdata] = number
        return result

    def _message(self, func: Operator, args: Args, result: Any) -> int:
        """Note the message of an operator of torch.distributed and return its number."""
        group = collectives.group_of(args)
        kind, nbytes = collectives.collective(func, args) or collectives.message(func, args) or ("", 0)
        ranks, most_bytes = dist.get_process_group_ranks(group), collectives.load(func, args, result)
        names = str(func._schema.name), f"{kind} of {len(ranks)}", kind
        return self.log.message(self.recorder.stream, (group.group_name,), *names, nbytes, most_bytes, ranks)

    def leave(self) -> None:
        """Release the handles without a waiter."""
        for work in self._works:
            work.forget()


class _Stream:
    def __init__(self, rank: Rank, device: Any = None, priority: int = 0) -> None:
        self.rank, self.key = rank, rank.new_stream()

    def record_event(self, event: "_Event | None" = None) -> "_Event":
        event = event or _Event(self.rank)
        event.record(self)
        return event

    def wait_event(self, event: "_Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "_Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """The host goes on: nothing is read."""


class _Event:
    def __init__(self, rank: Rank, *args: Any, **kwargs: Any) -> None:
        self.rank, self.number = rank, -1  # of what it waits for: nothing yet

    def record(self, stream: _Stream | None = None) -> None:
        self.number = self.rank.log.mark((stream or self.rank.current).key)

    def wait(self, stream: _Stream | None = None) -> None:
        self.rank.log.hold((stream or self.rank.current).key, self.number)

    def synchronize(self) -> None:
        """The host goes on: nothing is read."""

    query = synchronize


_dist: Any = dist  # its stubs leave out what DistributedDataParallel uses
_helper = parallel.DistributedDataParallel._ddp_init_helper


def _with_buckets(
    self: parallel.DistributedDataParallel, parameters: list[torch.nn.Parameter], *args: Any, **kwargs: Any
) -> None:
    """Give a DistributedDataParallel from the start the buckets that it makes after the first backward pass: in the
    order of gradients, which is taken to be that of the parameters from the last to the first."""

    plain = _dist._compute_bucket_assignment_by_size

    def assign(tensors: list[torch.Tensor], limits: list[int], *more: Any) -> tuple[list[list[int]], list[int]]:
        if limits != [sys.maxsize]:
            return plain(tensors, limits, *more)
        first = _dist._DEFAULT_FIRST_BUCKET_BYTES if self.bucket_bytes_cap_default else self.bucket_bytes_cap
        sizes = [first, self.bucket_bytes_cap]
        buckets, limits = plain(tensors[::-1], sizes, more[0][::-1])
        return [[len(tensors) - 1 - at for at in bucket] for bucket in buckets[::-1]], limits[::-1]

    with mock.patch.object(dist, "_compute_bucket_assignment_by_size", assign):
        _helper(self, parameters, *args, **kwargs)


@contextmanager
def fake_group(ranks: int, rank: Rank) -> Generator[None]:
    """Inside, this process is rank 0 of `ranks`, of which no other exists, and `rank` notes what it does.

    Raises RuntimeError in a process group.
    """
    # where 2.10 registers shapes of collectives
    from torch.distributed._tools import fake_collectives  # noqa: F401  # pyright: ignore
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    arguments.whole("ranks", ranks)
    if dist.is_initialized():
        raise RuntimeError("a forecast for several ranks needs a process that is in no process group")
    init, hook = DeviceMesh.__init__, sys.excepthook

    def __init__(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cpu", *args, **kwargs)

    shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(self: ShardingPropagator, *args: Any) -> Any:
        """Let DTensor run an operator for the shape of its result alone, as 2.11 does each time, unseen by modes."""
        with _disable_current_modes():
            return shapes(self, *args)

    alike = dict.fromkeys(("_verify_param_shape_across_processes", "_sync_module_states"), lambda *args, **kwargs: None)
    streams: dict[str, Any] = {
        "Stream": functools.partial(_Stream, rank),
        "Event": functools.partial(_Event, rank),
        "stream": rank.use,
        "current_stream": lambda device=None: rank.current,
    }
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with (
            mock.patch.object(DeviceMesh, "__init__", __init__),
            mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen),
            mock.patch.multiple(torch.cpu, **streams),
            mock.patch.multiple(parallel, **alike),
            mock.patch.object(_dist.Reducer, "_rebuild_buckets", lambda self: False),  # needs values
            mock.patch.object(parallel.DistributedDataParallel, "_ddp_init_helper", _with_buckets),
        ):
            yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # PyTorch's puts the rank before each line of an error
