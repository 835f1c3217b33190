"""`torch.cuda.CUDAGraph` and `torch.xpu.XPUGraph`: capture on a simulated GPU, and replay in one launch.

While a graph is captured, operators run, so that their results have shapes and memory, and are remembered. At the
end everything that they overwrote, and the random numbers, are put back: on CUDA a capture computes nothing. `replay`
runs the same operators on the same memory. Of memory from before the capture, a graph on CUDA knows the address alone;
here it stays as it was where the program has freed it, and `replay` says so.
"""

import gc
import itertools
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.clock.capture import OF_DEFAULT_STREAM, Capture, Captured
from simgpu.device import state
from simgpu.device.tensor import CPU, SimTensor, values_of
from simgpu.ground import composite, device_kind
from simgpu.ground.nodes import graph_nodes, graph_of
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.machine.operator_table import row_of

# CUDAGraph::capture_begin in CUDAGraph.cpp
_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)
# _CUDAGraphInputLivenessTracker in torch/utils/_cuda_debug.py, which asks only where `check_input_liveness` is given
_DEAD = "CUDA graph replay detected {} dead tensor(s)."
_FREED = (
    "The simulated GPU: this graph uses {} tensor(s) from before its capture that the program has freed since, as by "
    "giving their name to another tensor. It reads what they held; on a GPU that memory may hold anything by now. "
    "Keep the captured tensors, and write new values into them: x.copy_(new)."
)
_numbers = itertools.count(1)
_Call: TypeAlias = tuple[Operator, Args, Kwargs, list[torch.Tensor]]  # the last: what of its results is new


class _Recorder(composite.Mode):
    """Remembers each operator that runs, on the CPU tensors that hold the values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by storage: all of it, and what stood there
        self.new: dict[int, torch.UntypedStorage] = {}  # storages made meanwhile; kept, so that no address comes again

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inner = tree_map(_values, (args, kwargs))
        written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        for given, is_written in zip(args, written, strict=False):
            for tensor in tree_leaves(_values(given)) if is_written else ():
                self._keep(tensor)
        for tensor in tree_leaves(_values(kwargs.get("out"))):
            self._keep(tensor)
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves(inner) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        outputs = [_values(one) for one in tree_leaves(result) if isinstance(one, SimTensor)]
        new = [one for one in outputs if one.untyped_storage()._cdata not in known]
        self.new |= {one.untyped_storage()._cdata: one.untyped_storage() for one in new}
        on_gpu = any(isinstance(leaf, SimTensor) for leaf in tree_leaves((args, kwargs, result)))
        if on_gpu and (any(written) or (new and not row_of(func).memory_only)):
            self.calls.append((func, *inner, new))
        return result

    def _keep(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self.new and storage._cdata not in self.before:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.before[storage._cdata] = whole, whole.clone()

    def put_back(self) -> None:
        for whole, values in self.before.values():
            whole.copy_(values)
        self.before.clear()


def _values(value: Any) -> Any:
    """Return the CPU tensor behind a tensor, also in lists; a device becomes the CPU."""
    if isinstance(value, list | tuple):
        return type(value)(map(_values, value)) if type(value) in (list, tuple) else value
    if isinstance(value, torch.device):
        return CPU
    return values_of(value)


class Graph:
    """Work of one simulated GPU between `capture_begin` and `capture_end`, as `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._recorder: _Recorder | None = None
        self._calls: list[_Call] = []
        self._work: list[Captured] | None = None
        self._generators: set[int] = set()
        self._outside: dict[int, list[torch.Tensor]] = {}  # by storage from before the capture: the graph's own tensors
        self._is_checked = False
        self._pool: tuple[int, int] = (0, next(_numbers))

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the operators of this thread.

        Raises RuntimeError during another capture, and on the default stream.
        """
        clock, index = state.world.clock, state.world.current
        with state.world.lock:
            if clock.capture is not None:
                raise RuntimeError("a graph is being captured already: end that capture first")
            if clock.streams[index] == 0 and device_kind.kind == "cuda":
                raise RuntimeError(_DEFAULT_STREAM)
            clock.capture = Capture((index, clock.streams[index]))
            clock.capture.generators |= self._generators
        if device_kind.kind == "cuda":
            _mark_nodes_of_default_stream()
        self._pool = self._pool if pool is None else pool
        self._is_checked = check_input_liveness
        self._index, self._random = index, torch.get_rng_state()
        self._races, state.world.clock.races = state.world.clock.races, None  # what is captured does not run
        self._recorder = _Recorder()
        self._recorder.__enter__()
        _capturing.yes = True

    def capture_end(self) -> None:
        """End the capture: tensors that it overwrote have the values from before it.

        Raises torch.AcceleratorError where a stream that forked from the capture has not joined it again.
        """
        capture = state.world.clock.capture
        if self._recorder is None or capture is None:
            raise RuntimeError("capture_end was called without capture_begin")
        self._recorder.__exit__(None, None, None)
        state.world.clock.races = self._races
        _capturing.yes = False
        self._recorder.put_back()
        torch.set_rng_state(self._random)
        state.world.clock.capture = None
        inside, self._outside = self._recorder.new, {}
        self._work = capture.work
        self._calls = [
            (function, *tree_map(partial(self._own, inside), (args, kwargs)), new)
            for function, args, kwargs, new in self._recorder.calls
        ]
        self._recorder = None
        try:
            capture.end()
        except RuntimeError:
            self.reset()
            raise

    def _own(self, inside: dict[int, torch.UntypedStorage], value: Any) -> Any:
        """Return a tensor of the graph's own for one from before the capture, so that it can tell when that is gone."""
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata in inside:
            return value
        with torch.no_grad():
            own = value.detach()
        self._outside.setdefault(own.untyped_storage()._cdata, []).append(own)
        return own

    def _tell_freed(self) -> None:
        """Raise, or warn once, where the program has freed what the graph uses."""
        live, freed = state.world.memory.live, 0
        for own in self._outside.values():
            storage = own[0].untyped_storage()  # which counts, too
            freed += storage._cdata in live and torch._C._storage_Use_Count(storage._cdata) <= len(own) + 1
        if freed and self._is_checked:
            raise RuntimeError(_DEAD.format(freed))
        if freed:
            warnings.warn(_FREED.format(freed), stacklevel=3)
            self._outside = {}

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Register a generator, other than the GPU's own, for draws in this graph."""
        self._generators.add(generator._cdata)  # pyright: ignore[reportAttributeAccessIssue]

    def instantiate(self) -> None:
        """Do nothing: a simulated graph is ready once it is captured."""

    def replay(self) -> None:
        """Repeat the captured work on the same memory."""
        if self._work is None:
            name = f"{device_kind.title()}Graph"
            raise RuntimeError(f"Called {name}::replay without a preceding successful capture.")
        self._tell_freed()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for function, args, kwargs, outputs in self._calls:
                result = function(*args, **kwargs)
                if outputs:
                    fresh = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
                    for target, tensor in zip(outputs, fresh[-len(outputs) :], strict=True):
                        target.copy_(tensor)
        state.world.clock.replay(self._index, self._work)

    def reset(self) -> None:
        """Drop the captured work and release its memory."""
        self._calls, self._work, self._outside = [], None, {}

    def pool(self) -> tuple[int, int]:
        """Return the name of the graph's memory, for `capture_begin` of another one."""
        return self._pool


class _Capturing(threading.local):
    yes = False


_capturing = _Capturing()


def is_capturing() -> bool:
    """Return whether this thread captures a graph."""
    return _capturing.yes


def _mark_nodes_of_default_stream() -> None:
    """Mark the nodes of autograd that work done on the default stream keeps alive: a capture may not run them."""
    live = state.world.memory.live
    made = [one for one in gc.get_objects() if issubclass(type(one), SimTensor) and graph_of(one) is not None]
    own = [one for one in made if one.layout is torch.strided and not one._is_view()]  # memory of a view may be older
    known = [(one, live.get(one.untyped_storage()._cdata)) for one in own]
    for node in graph_nodes(graph_of(one) for one, ref in known if ref is not None and ref.stream == 0):
        node.metadata[OF_DEFAULT_STREAM] = True


def replace(put: Replacements) -> None:
    """Patch `torch.cuda` or `torch.xpu` to capture graphs on simulated GPUs."""
    module = getattr(torch, device_kind.kind)
    if not hasattr(module, "graphs"):  # XPU has none before PyTorch 2.11
        return
    own = {f"{device_kind.title()}Graph": Graph, "graph_pool_handle": lambda: (0, next(_numbers))}
    for owner in (module, module.graphs):
        put.put(owner, **own, is_current_stream_capturing=is_capturing)
    if device_kind.kind == "xpu":
        put.put(torch.xpu.graphs, _xpu_isCurrentStreamCapturing=is_capturing)
        return
    put.put(torch.cuda.graphs, _cuda_isCurrentStreamCapturing=is_capturing)
    put.put(torch._C, _cuda_isCurrentStreamCapturing=is_capturing)
    if not hasattr(torch._C, "_host_emptyCache"):
        put.put(torch._C, _host_emptyCache=lambda: None)
