"""What does a program on fake tensors ask of a GPU, and how long would one take for it? Events that can be played."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu.clock.clock import Clock
from simgpu.clock.journal import Journal, Record
from simgpu.device import collectives
from simgpu.device.operators import MEMORY_ONLY, Plan
from simgpu.ground import composite
from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.machine.machines import Machine
from simgpu.machine.prices import Cost, price, price_of_copy


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator is queued in the current stream."""

    name: str
    cost: Cost


@dataclass(frozen=True, slots=True)
class Message:
    """This rank's part of an exchange among `ranks` begins, in the queue of their group; `mark` is its end.

    `nbytes` is what it gives; `most_bytes` says how long it takes, where it gets more than that.
    """

    mark: int
    operator: str
    group: str
    kind: str
    nbytes: int
    ranks: tuple[int, ...]
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark is put behind what is queued in a stream; without one in the current stream."""

    mark: int
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """What is queued from now on in a stream, without one in the current stream, waits for a mark."""

    mark: int
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A stream becomes the current one."""

    stream: int


Event = Kernel | Message | Mark | Wait | Use


class Recorder(composite.Mode):
    """While it is entered, `events` grows by the kernels of the operators; streams and messages add theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.matrix_flops: Counter[str] = Counter()  # by number format
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return a number that no other stream or mark of this recorder has."""
        return next(self._numbers)

    def clear(self) -> None:
        """Forget the events, not the numbers: marks from before are done when the events that follow begin."""
        self.events.clear()
        self.matrix_flops.clear()

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented  # PyTorch asks again for the tensors inside
        if collectives.is_one(func):
            return func(*args, **kwargs)  # which is noted
        if func.namespace == "prim":  # a question, such as the device of a tensor
            return func(*args, **kwargs)
        plan = Plan.of(func)
        if plan.composite:
            with self:
                return composite.take_apart(func, args, kwargs)
        result = func(*args, **kwargs)
        if not func.is_view and plan.name not in MEMORY_ONLY and plan.name != "lift_fresh":
            self._add(plan, args, kwargs, result)
        return result

    def _add(self, plan: Plan, args: Args, kwargs: Kwargs, result: Any) -> None:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        adds = plan.name == "add_" and type(args[1]) is int and inputs[0].is_floating_point()
        if (adds or plan.name.startswith("_foreach")) and not any(tensor.dim() for tensor in inputs):
            return  # an optimizer counts its steps on the host
        if any(tensor.layout is not torch.strided for tensor in (*inputs, *outputs)):
            return  # the account of memory refuses it, in its own words
        before = {tensor.untyped_storage()._cdata for tensor in inputs}
        if not plan.mutates and all(tensor.untyped_storage()._cdata in before for tensor in outputs):
            return  # nothing new was written
        if plan.name in ("copy_", "_to_copy"):
            self.events.append(Kernel("copy_", price_of_copy(inputs[-1], outputs[0])))
            return
        cost = price(plan, inputs, outputs, args, kwargs, result)
        self.events.append(Kernel(plan.name, cost))
        if plan.flops is not None:
            self.matrix_flops[cost.rate] += cost.flops


def play(events: Iterable[Event], machine: Machine) -> tuple[list[Record], int]:
    """Return the records of the events on a machine, a launch for each kernel and message, and the whole time in ns."""
    player = _Player(machine)
    for event in events:
        player.do(event)
    return player.records, player.clock.queue_ns(0)


class _Player:
    """A GPU of its own that does again what was recorded."""

    def __init__(self, machine: Machine) -> None:
        journal = Journal()
        self.clock, self.records = Clock(1, machine, journal, threading.RLock()), journal.open()
        self.marks: dict[int, int] = {}  # when each is done; those from before the recording are

    def do(self, event: Event) -> None:
        clock = self.clock
        match event:
            case Kernel(name, cost):
                clock.kernel(0, name, cost)
            case Message(mark, operator, group, kind, nbytes, ranks, most_bytes):
                launch, name = clock.launch(0, operator), f"{kind} of {len(ranks)}"
                self.marks[mark] = clock.exchange(name, (group,), kind, nbytes, ranks, launch, most_bytes=most_bytes)
            case Mark(mark, stream):
                self.marks[mark] = clock.queue_ns(0, self._stream(stream))
            case Wait(mark, stream):
                clock.hold((0, self._stream(stream)), self.marks.get(mark, 0))
            case Use(stream):
                clock.streams[0] = stream

    def _stream(self, given: int | None) -> int:
        return self.clock.streams[0] if given is None else given
