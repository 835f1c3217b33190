"""Call of an answer on one rank; small, since every rank imports it anew."""

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from course_utils import counting
from gpu_course.checks import (
    BEHAVES,
    Footprint,
    Left,
    Returned,
    State,
    difference,
    edges,
    needs_no_graph,
    unfit_for_autograd,
)
from simgpu import composite


@dataclass(frozen=True)
class Call:
    """One call of the answer on one rank: what it returned, whether it changed its arguments, and what it did.

    `unwaited` is how many operations it started, with `async_op` or `isend` say, for whose end it never asked; `width`
    is the size in bytes of the widest number that it sent.
    """

    value: Any
    modified: bool
    counts: counting.Counts
    unwaited: int
    width: int


class Imported:
    """Imports a module when it arrives at a rank, which is before the time of the rank begins."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple:
        return importlib.import_module, (self.name,)


@dataclass(frozen=True)
class Drawn:
    """The edges that one rank saw, and the sizes of the tensors in each call there."""

    seen: edges.Seen
    sizes: list[list[tuple[int, ...]]]


def on_rank(
    ready: object, program: Callable, answers: tuple[Callable, ...], args: tuple, recorded: bool
) -> tuple[list[Any], Drawn | None, list[list[Left]]]:
    """Run the program of a check, which calls the answer, for each of `answers`; where asked, note what is drawn.

    Returns what the program returned, what was drawn and what calls left changed.
    """
    call, results, left = _Caller(), [], []
    with edges.recording() if recorded else nullcontext() as seen:
        for answer in answers:
            call.answer, call.left, call.returned = answer, [], Returned(None, ())
            call.meet()
            results.append(program(call, *args))
            left.append(call.left)
    return results, Drawn(seen, call.sizes) if seen else None, left


class _Caller:
    """Calls the answer and notes what it did; no rank begins a call before all have ended the one before."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.group: Any = None
        self.left: list[Left] = []
        self.returned = Returned(None, ())
        self.called, self.works = False, _Works()
        self.sizes: list[list[tuple[int, ...]]] = []  # of the tensors of each call, where edges are recorded

    def meet(self) -> None:
        """Wait for all ranks if there was a call, in a group of its own: it may have left messages behind."""
        if self.called:
            self.group = self.group or dist.new_group()
            dist.barrier(self.group)

    def __call__(self, *args: Any, modifies: bool | str = False) -> Call:
        self.meet()
        self.called = True
        if edges.watched():
            self._note(args, modifies)
        before = None if modifies else copy.deepcopy(args)
        footprint, graphless = Footprint(self.answer, args, {}), needs_no_graph(args)
        self.returned.keep()
        state = State.capture(torch.device("cpu"))
        with counting.count() as counts, self.works.watched():
            value = tree_map(_arrived, self.answer(*args))
        modified = before is not None and bool(difference(args, before, copied=True))
        self.left += [(f"changes {name}", f"changes {name}", BEHAVES) for name in state.restore()]
        self.left += [*footprint.left(modifies), *self.returned.changes(value)]
        self.left += unfit_for_autograd(value if graphless else None, args)
        self.returned = Returned(value, args)
        return Call(value, modified, counts, max(self.works.started - len(self.works.asked), 0), self.works.width)

    def _note(self, args: tuple, modifies: bool | str) -> None:
        """Note the edges of a call."""
        edges.note_call(args, torch.device("cpu"))
        edges.note(*["other_input"] * bool(self.sizes), *["unchanged"] * (not modifies))
        edges.note(*["part"] * any(0 < _ranks_of(leaf) < dist.get_world_size() for leaf in tree_leaves(args)))
        self.sizes.append([tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)])


def _ranks_of(value: Any) -> int:
    """Return how many ranks a mesh or a group has, 0 of anything else."""
    if isinstance(value, dist.ProcessGroup):
        return value.size()
    return value.size() if type(value).__name__ == "DeviceMesh" else 0


def _arrived(value: Any) -> Any:
    """Return a tensor for which DTensors and functional collectives wait only where it is used, as it has arrived."""
    return value.trigger_wait() if hasattr(value, "trigger_wait") else value


_KEPT: list[Any] = []  # until this process ends: gloo drops a message whose operation nobody refers to


class _Works(composite.Mode):
    """Counts the operations between ranks that Python started, and notes those for whose end it asked."""

    ENDS = ("wait", "synchronize", "block_current_stream", "get_future", "get_future_result", "result")
    MAYBE = ("is_completed", "is_success")  # an end where they say so

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "c10d" in func.namespace:
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.width = max([self.width, *(tensor.element_size() for tensor in tensors)])
        if func.namespace == "c10d" and any("Work" in str(one.type) for one in func._schema.returns):
            _KEPT.append(result)
            # what C++ starts, as for DistributedDataParallel, it also waits for
            self.started += sys._getframe(1).f_code.co_filename.endswith("distributed_c10d.py")
        return result

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch a call of the answer."""
        self.started, self.asked, self.width = 0, {}, 1
        with ExitStack() as patches:
            for name in self.ENDS + self.MAYBE:
                patches.enter_context(mock.patch.object(dist.Work, name, self._noting(name)))
            patches.enter_context(self)
            yield

    def _noting(self, name: str) -> Callable:
        original = getattr(dist.Work, name)

        def noting(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if result or name in self.ENDS:
                self.asked[id(work)] = work  # kept, so that no other gets its place
            return result

        noting.__code__ = noting.__code__.replace(co_name=name)  # where a rank hangs, this name is shown
        return noting
