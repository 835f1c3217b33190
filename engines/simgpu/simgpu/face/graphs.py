"""`torch.cuda.CUDAGraph` and `torch.xpu.XPUGraph`: capture on a simulated GPU, and replay in one launch.

While a graph is captured, operators run, so that their results have shapes and memory, and are remembered. At the
end everything that they overwrote, and the random numbers, are put back: on CUDA a capture computes nothing. `replay`
runs the same operators on the same memory. Of memory from before the capture, a graph on CUDA knows the address alone;
here it stays as it was where the program has freed it, and `replay` says so.
"""

import gc
import itertools
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.accounting.accounts import Held
from simgpu.clock.capture import OF_DEFAULT_STREAM, Capture, Captured
from simgpu.device import generators, state
from simgpu.device.generators import DefaultGenerator
from simgpu.device.tensor import CPU, SimTensor, values_of
from simgpu.ground import composite, device_kind
from simgpu.ground.nodes import graph_nodes, graph_of
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator
from simgpu.machine.operator_table import row_of

# CUDAGraph::capture_begin in CUDAGraph.cpp
_DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)
_OWNS = "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
_NOT_CAPTURED = " without a preceding successful capture."
_RAW = "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
_NO_GRAPH = "a simulated GPU has no graph of CUDA's runtime; simgpu.timeline() shows its kernels"
_NO_DEBUG = "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"  # CUDAGraph::debug_dump
_MODES = "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "  # Graph.cpp
_EMPTY = (  # CUDAGraph::capture_end
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)
# _CUDAGraphInputLivenessTracker in torch/utils/_cuda_debug.py, which asks only where `check_input_liveness` is given
_DEAD = "CUDA graph replay detected {} dead tensor(s)."
_FREED = (
    "The simulated GPU: this graph uses {} tensor(s) from before its capture that the program has freed since, as by "
    "giving their name to another tensor. It reads what they held; on a GPU that memory may hold anything by now. "
    "Keep the captured tensors, and write new values into them: x.copy_(new)."
)
_SETTLED_AT_ONCE = 32  # storages of a capture between two looks at which of them the program has freed
_MOST_OBJECTS = 30_000_000
_OF_GRAPH = -1  # in place of a stream: memory of a graph's pool, which stays there after the program has freed it
_numbers = itertools.count(1)
# results (None: not new), and the call whose end left random numbers as they are before this one (None: it draws none)
# and without an operator the beginning of what depends on a tensor, or its end
_Call: TypeAlias = tuple[Any, Args, Kwargs, list[torch.Tensor | None], int | None]


class _Recorder(composite.Mode):
    """Remembers each operator that runs, on CPU tensors of its own that share the values."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by storage: all of it, and what stood there
        self.held, self.new, self.outside, self._unsettled = held, set[int](), set[int](), 0  # storages
        self._drawn = {_numbers_there(): -1}  # by the state of the random numbers: after which call it was there

    def __torch_dispatch__(self, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        self._unsettled += _SETTLED_AT_ONCE
        if self._unsettled >= len(self.held):
            self._unsettled = 0
            state.world.memory.settle()
        inner = tree_map(self._own, (args, kwargs))
        written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        for given, is_written in zip(args, written, strict=False):
            for tensor in tree_leaves(_values(given)) if is_written else ():
                self._keep(tensor)
        for tensor in tree_leaves(_values(kwargs.get("out"))):
            self._keep(tensor)
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves(inner) if isinstance(leaf, torch.Tensor)}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        drawn = self._drawn.get(_numbers_there(), len(self.calls) - 1) if draws else None
        result = func(*args, **kwargs)
        outputs = [_values(one) for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        new = [None if one.untyped_storage()._cdata in known else one for one in outputs]
        self.new |= {one.untyped_storage()._cdata for one in new if one is not None}
        new = [self._own(one) for one in new] if any(one is not None for one in new) else []
        on_gpu = any(isinstance(leaf, SimTensor) for leaf in tree_leaves((args, kwargs, result)))
        if on_gpu and (any(written) or (new and not row_of(func).memory_only)):
            self.calls.append((func, *inner, new, drawn))
            if draws:
                self._drawn.setdefault(_numbers_there(), len(self.calls) - 1)
        return result

    def _own(self, value: Any) -> Any:
        """Return a tensor of the graph's own for one of the program's, which may free it."""
        value = _values(value)
        if isinstance(value, TORCH._C.Generator):
            known = generators.of(value, 0)
            return None if known is None or known._source is torch.default_generator else known._source
        if not isinstance(value, torch.Tensor):
            return value
        return self._hold(value.detach())

    def _hold(self, own: torch.Tensor) -> torch.Tensor:
        key = own.untyped_storage()._cdata
        known = state.world.memory.live.get(key)
        if key not in self.held and key not in self.new and known is not None and known.stream != _OF_GRAPH:
            self.outside.add(key)
        self.held.setdefault(key, []).append(own)
        return own

    def _keep(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self.new and storage._cdata not in self.before:
            whole = self._hold(torch.empty(0, dtype=torch.uint8).set_(storage))
            self.before[storage._cdata] = whole, whole.clone()

    def put_back(self) -> None:
        with torch.inference_mode():
            for whole, values in self.before.values():
                whole.copy_(values)
        self.before.clear()
        for key in self.new & state.world.memory.live.keys():
            state.world.memory.live[key].stream = _OF_GRAPH


def _numbers_there() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _values(value: Any) -> Any:
    """Return the CPU tensor behind a tensor, also in lists; a device becomes the CPU."""
    if isinstance(value, list | tuple):
        return type(value)(map(_values, value)) if type(value) in (list, tuple) else value
    return CPU if isinstance(value, torch.device) else values_of(value)


class Graph:
    """Work of one simulated GPU between `capture_begin` and `capture_end`, as `torch.cuda.CUDAGraph`."""

    _captures: "Graph | None" = None

    def __init__(self, keep_graph: bool = False) -> None:
        self._recorder: _Recorder | None = None
        self._calls: list[_Call] = []
        self._work: list[Captured] | None = None
        self._generators: dict[int, Any] = {}
        self._held = Held()
        self._outside: set[int] = set()  # storages from before the capture
        self._is_checked, self._is_debugged, self._keeps = False, False, keep_graph
        self._pool: tuple[int, int] = (next(_numbers), 0)

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Begin to capture the operators of this thread.

        Raises RuntimeError during another capture, and on the default stream.
        """
        clock, index = state.world.clock, state.world.current
        if self._work is not None:
            raise RuntimeError(_OWNS)
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(_MODES + capture_error_mode)
        with state.world.lock:
            if clock.capture is not None:
                raise RuntimeError("a graph is being captured already: end that capture first")
            if clock.streams[index] == 0 and device_kind.kind == "cuda":
                raise RuntimeError(_DEFAULT_STREAM)
            self._index, self._random = index, torch.get_rng_state()
            if device_kind.kind == "cuda":
                if torch.is_grad_enabled():
                    _mark_nodes_of_default_stream()
                keys = [(one, index) for one in (0, *self._generators)]
                self._held.seeds = [_seeds.get(key) or _seeds.setdefault(key, _Seed(index)) for key in keys]
            self._pool = self._pool if pool is None else pool
            memory = state.world.memory
            memory.holders.add(self._held)
            if memory.gpus[index].cache is not None:
                memory.gpus[index].cache.use(self._pool, self._held)
            clock.capture = Capture((index, clock.streams[index]), capture_error_mode)
            clock.capture.generators |= self._generators.keys()
            known = *self._generators.values(), generators.of(None, index)
            self._states = [(one, one.get_state()) for one in known if one is not None]
            clock.capture.pool = self._pool
        self._is_checked = check_input_liveness
        self._races, state.world.clock.races = state.world.clock.races, None  # what is captured does not run
        self._recorder, Graph._captures = _Recorder(self._held), self
        self._recorder.__enter__()

    def capture_end(self) -> None:
        """End the capture: tensors that it overwrote have the values from before it.

        Raises torch.AcceleratorError where a stream that forked from the capture has not joined it again.
        """
        capture = state.world.clock.capture
        if self._recorder is None or capture is None:
            raise RuntimeError("capture_end was called without capture_begin")
        self._recorder.__exit__(None, None, None)
        state.world.clock.races = self._races
        self._recorder.put_back()
        torch.set_rng_state(self._random)
        for generator, before in self._states:
            generator.set_state(before)
        state.world.clock.capture = Graph._captures = None
        self._work, self._calls, self._outside = capture.work, self._recorder.calls, self._recorder.outside
        self._external = capture.external
        self._recorder = None
        try:
            capture.end()
            if capture.origin != (state.world.current, state.world.clock.streams[state.world.current]):
                raise RuntimeError("Capture must end on the same stream it began on.")
        except RuntimeError as error:
            self.reset()
            if error.__context__ is None:  # else what the capture itself raised is told
                raise
        if not capture.work and sys.exc_info()[0] is None:
            warnings.warn(_EMPTY, stacklevel=2)

    def _tell_freed(self) -> None:
        """Raise, or warn once, where the program has freed what the graph uses."""
        state.world.memory.settle()
        freed = len(self._outside - state.world.memory.live.keys())
        if freed and self._is_checked:
            raise RuntimeError(_DEAD.format(freed))
        if freed:
            warnings.warn(_FREED.format(freed), stacklevel=3)
            self._outside = set()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Register a generator, other than the GPU's own, for draws in this graph."""
        own: Any = getattr(generator, "owner", generator)
        if not isinstance(own, DefaultGenerator):  # which each graph knows
            self._generators[own._cdata] = own

    def instantiate(self) -> None:
        """Do nothing: a simulated graph is ready once it is captured. Raises RuntimeError unless it is kept."""
        if not self._keeps:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")

    def replay(self) -> None:
        """Repeat the captured work on the same memory."""
        if self._work is None:
            raise RuntimeError(f"Called {device_kind.title()}Graph::replay{_NOT_CAPTURED}")
        self._tell_freed()
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            wanted = {call[-1] for call in self._calls}  # a checkpoint goes back to the numbers of an earlier call
            states = {-1: torch.get_rng_state()}
            left_out = 0  # conditional nodes, one in another, the outermost of which is false
            for number, (function, args, kwargs, outputs, drawn) in enumerate(self._calls):
                if number in wanted:
                    states[number] = torch.get_rng_state()
                if function is None:
                    left_out += -(left_out > 0) if not args else left_out > 0 or not args[0]
                if function is None or left_out:
                    continue
                if drawn is not None:
                    torch.set_rng_state(states[drawn])
                result = function(*args, **kwargs)
                if drawn is not None:
                    generators.advance(kwargs.get("generator"), self._index, next(iter(tree_leaves(result)), None))
                if number in wanted:
                    states[number] = torch.get_rng_state()
                fresh = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)] if outputs else []
                for target, tensor in zip(outputs, fresh, strict=True):
                    if target is not None:
                        target.copy_(tensor)
        ends = state.world.clock.replay(self._index, self._work)
        for place, event in self._external:
            event._ns = ends[place]

    def enable_debug_mode(self) -> None:
        """Have `debug_dump` write a file."""
        self._is_debugged = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the captured kernels and copies as a DOT file, in the order of their capture, with their lengths in µs.

        CUDA's file has the dependencies between streams and the kernels' parameters besides.
        """
        if not (self._is_debugged or self._keeps):
            warnings.warn(_NO_DEBUG, stacklevel=2)
        elif self._work is not None:
            names = [f'"{n}: {one.name}, {one.length_ns / 1e3:.1f} us"' for n, one in enumerate(self._work)]
            Path(debug_path).write_text("digraph capture {\n" + " ->\n".join(names) + "\n}\n", encoding="utf-8")

    @staticmethod
    def get_currently_capturing_graph() -> "Graph":
        """Return the graph that captures. Raises AssertionError where none does."""
        assert Graph._captures is not None, "no graph is being captured"
        return Graph._captures

    def begin_capture_to_if_node(self, scalar_cuda_pred_tensor: torch.Tensor) -> None:
        """Capture what a replay does only where the tensor is true then; the time of a replay counts it always."""
        assert self._recorder is not None
        self._recorder.calls.append((None, (self._recorder._own(scalar_cuda_pred_tensor),), {}, [], None))

    def end_capture_to_conditional_node(self) -> None:
        """End what `begin_capture_to_if_node` began."""
        assert self._recorder is not None
        self._recorder.calls.append((None, (), {}, [], None))

    def raw_cuda_graph_exec(self) -> NoReturn:
        """Refuse: a simulated graph is none of CUDA's runtime."""
        raise NotImplementedError(_NO_GRAPH)

    def raw_cuda_graph(self) -> NoReturn:
        """Refuse, and say first what CUDA would."""
        if not self._keeps:
            raise RuntimeError(_RAW)
        self.raw_cuda_graph_exec()

    get_graph_data = raw_cuda_graph

    def reset(self) -> None:
        """Drop the captured work and release its memory."""
        self._calls, self._work, self._outside, self._held = [], None, set(), Held()

    def pool(self) -> tuple[int, int]:
        """Return the name of the graph's memory, for `capture_begin` of another one."""
        if self._work is None:
            raise RuntimeError(f"Called {device_kind.title()}Graph::pool(){_NOT_CAPTURED}")
        return self._pool


class _AcceleratorGraph(Graph):
    """`torch.accelerator.Graph`: a context that captures in the current stream."""

    def __init__(self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default") -> None:
        super().__init__(keep_graph)
        self.graph_pool, self.capture_error_mode = pool, capture_error_mode

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        self.capture_begin(self.graph_pool, self.capture_error_mode.replace("default", "global"))

    def __exit__(self, *error: object) -> None:
        self.capture_end()


class _Seed:
    """Seed and offset of one generator in the GPU's memory, which its graphs read (`CUDAGeneratorState`)."""

    def __init__(self, index: int) -> None:
        self._both = torch.UntypedStorage(8), torch.UntypedStorage(8)
        for one in self._both:
            state.world.memory.own_storage(one, index)


_seeds: weakref.WeakValueDictionary[tuple[int, int], _Seed] = weakref.WeakValueDictionary()


def is_capturing() -> bool:
    """Return whether this thread's work in the current stream is captured."""
    clock, index = state.world.clock, state.world.current
    return clock.capture is not None and clock.capture.holds((index, clock.streams[index]))


def _mark_nodes_of_default_stream() -> None:
    """Mark the nodes of autograd that work done on the default stream keeps alive: a capture may not run them."""
    if sys.getallocatedblocks() > _MOST_OBJECTS:  # to be looked at in a few seconds
        return
    live, kinds = state.world.memory.live, {SimTensor}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    every = gc.get_objects()  # millions in a large program: what picks from them runs in C
    picked = itertools.compress(every, map(kinds.__contains__, map(type, every)))
    made = [one for one in picked if graph_of(one) is not None]
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
    put.put(module.graphs.graph, default_capture_stream=None)  # one of an earlier face has the number of another stream
    for owner in (module, module.graphs):
        put.put(owner, **own, is_current_stream_capturing=is_capturing)
    if hasattr(torch.accelerator, "Graph"):  # from PyTorch 2.13 on
        put.put(torch.accelerator, Graph=_AcceleratorGraph)
    if device_kind.kind == "xpu":
        put.put(torch.xpu.graphs, _xpu_isCurrentStreamCapturing=is_capturing)
        return
    table = TORCH.ops.higher_order.cond.python_key_table  # outside of a conditional node the host asks, and may not
    put.put_item(table, _Recorder, lambda mode, condition, *rest: bool(condition))
    put.put(torch.cuda.graphs, _cuda_isCurrentStreamCapturing=is_capturing)
    put.put(torch._C, _cuda_isCurrentStreamCapturing=is_capturing)
    if not hasattr(torch._C, "_host_emptyCache"):
        put.put(torch._C, _host_emptyCache=lambda: None)
