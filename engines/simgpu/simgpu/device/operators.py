"""Execution of an operator: the CPU computes its values, and its bytes and time are charged."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from simgpu.device import (
    collectives,
    communication,
    cpu_fallback,
    kernel_failures,
    mixed_devices,
    mps,
    shapes_in_place,
    shapes_only,
    state,
)
from simgpu.device.generators import advance, check_generator, drawing
from simgpu.device.layouts import SPARSE, Layout, layout_of
from simgpu.device.state import device_of
from simgpu.device.tensor import CPU, SimTensor, adopt, as_sim, dense, of_layout, refresh
from simgpu.ground import composite, device_kind, sparse
from simgpu.ground.calls import Call
from simgpu.ground.nodes import NO_PASS, begun, current_pass
from simgpu.ground.torch_internals import Args, Kwargs, Operator, is_tracing, traced, untraced
from simgpu.machine import determinism, flops, missing_kernels, waiting
from simgpu.machine.operator_table import name_of, row_of, takes_host_long
from simgpu.machine.prices import Cost, price, price_of_copy, price_of_elements, rounds
from simgpu.machine.rates import Rates

aten, is_grad_enabled = torch.ops.aten, torch.is_grad_enabled
_in_autocast = torch._C._is_any_autocast_enabled
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, torch.memory_format, torch.layout, str})
_IN_LISTS = frozenset({int, SimTensor})
_NOTHING = nullcontext()
_MOST_KNOWN = 512  # calls of one operator
_DIMENSIONS, _AT_MOST = 25, "CUDA Tensors cannot have more than 25 dimensions"  # TensorInfo.cuh
_COPIES = frozenset("_to_copy clone copy_ detach empty_like _has_compatible_shallow_copy_type".split())  # noqa: SIM905
_IDLE = {"dropout_p": 0.0, "dropout": 0.0, "train": False}
_plans: "dict[int, Plan]" = {}  # by the address of an operator, which its plan keeps alive: hashing one is slow


class Known:
    """Cached call of a simple operator on tensors of given layouts: form of the result, and cost.

    Its kernels take `length_ns` at these `rates`, for what `bound` says; a product, as it `rounds` to TF32. Where only
    shapes are wanted, `unwritten` says whether its values are left out, None where that was not asked.
    """

    __slots__ = ("bound", "cost", "is_view", "layout", "length_ns", "rates", "rounds", "unwritten")

    def __init__(self, layout: Layout, is_view: bool, cost: Cost | None, unwritten: bool | None = None) -> None:
        self.layout, self.is_view, self.cost, self.unwritten = layout, is_view, cost, unwritten
        self.rates: Rates | None = None
        self.length_ns, self.bound, self.rounds = 0, "", cast("bool | None", None)


class Plan:
    """Properties of an operator that are known before it runs."""

    def __init__(self, func: Operator) -> None:
        arguments = func._schema.arguments
        self.func, self.name, self.row = func, name_of(func), row_of(func)
        if not device_kind.current.is_cuda_like:
            self.row = replace(self.row, lacks=None, too_wide="", alert=None)
        row, name = self.row, self.name
        talks = state.world is not None and state.world.clock.machine.link is not None and collectives.is_one(func)
        self.special = communication.run if talks else _SPECIAL.get(func)
        if (row.cpu_alone and device_kind.kind != "mps") or func.namespace == "quantized":
            self.special = _refuse
        if func.namespace in ("c10d", "_c10d_functional") and not device_kind.current.is_cuda_like:
            self.special = _refuse_collective
        way = cpu_fallback.way_of(func, self.special or (lambda func, args, kwargs: _run(func, self, args, kwargs)))
        self.special = way or self.special
        self.checked = mps.has_check(func)
        self.computes = not (func.is_view or name in _COPIES)  # by a kernel that must know the format
        written = [(index, a) for index, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        self.mutates = tuple(a.name if a.kwarg_only else index for index, a in written)
        self.generator = next((i for i, a in enumerate(arguments) if a.name == "generator" and not a.kwarg_only), None)
        self._flops = flops.formula_of(func)
        self.library, self.of_lists = takes_host_long(name), name.startswith(("_foreach_", "_fused_"))
        self.waits_by_call = row.waits if callable(row.waits) else None
        self.waits = row.waits is True or (not row.waits and torch.Tag.dynamic_output_shape in func.tags)
        self.pointwise = torch.Tag.pointwise in func.tags
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        # arguments and their values with which it does not draw
        self.idle = [(a.name, _IDLE[a.name]) for a in arguments if a.name in _IDLE] if self.draws else []
        # met in inference mode only; what C++ asks of a tensor by prim is no operator of the dispatcher
        made = way is None and func.namespace != "prim" and composite.is_composite(func)
        self.composite = made and "sparse" not in name
        unusual = self.composite or self.special or self.waits or self.waits_by_call or self.draws
        unusual = (
            unusual or self.checked or row.gathers or row.overwrites or row.takes_indices or row.asserts or row.alert
        )
        self.way = missing_kernels.way_of(func, name)
        self.wide = frozenset() if self.way is None else self.way.formats
        one_tensor = [str(value.type) for value in func._schema.returns] == ["Tensor"] and func.namespace == "aten"
        # takes tensors and numbers, gives one tensor, and needs none of the above
        self.simple = not (unusual or self.mutates) and "quantize" not in name and one_tensor
        unusual = unusual or self.of_lists or self.wide or row.lacks or any(a.name == "generator" for a in arguments)
        # writes its first tensor element by element, and needs none of the above
        self.in_place = one_tensor and self.pointwise and self.mutates == (0,) and not unusual
        self.by_elements = not (self._flops or self.library)
        self.steady = self.by_elements and row.price is None  # its price is that of its layouts, whatever is set
        self.known: dict[tuple[Any, ...], Known] = {}  # by what `_run_simple` says of a call
        _plans[id(func)] = self

    @property
    def flops(self) -> Callable[..., int] | None:
        """The formula of its operations, or None; whoever writes an operator may register one after its first call."""
        of_others = self._flops is None and self.func.namespace != "aten"
        return flop_registry.get(self.func.overloadpacket) if of_others else self._flops

    def learn(self, call: tuple[Any, ...], known: Known) -> None:
        """Cache the form of the result and the cost of a call."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known[call] = known

    @classmethod
    def of(cls, func: Operator) -> "Plan":
        return _plans.get(id(func)) or cls(func)


def dispatch(
    cls: type[SimTensor], func: Operator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run an operator that got a tensor of the simulated GPU: PyTorch calls this as `SimTensor.__torch_dispatch__`."""
    if is_tracing():
        return _traced(cls, func, types, args, kwargs)
    try:
        if len(types) > 1 and any(not issubclass(kind, SimTensor) for kind in types):
            # a DTensor beside it knows what it is to do, or says in its own words that it does not
            return _beside_fakes(func, args, kwargs or {}) if FakeTensor in types else NotImplemented
        plan = _plans.get(id(func)) or Plan(func)
        if state.forked:
            raise device_kind.forked()
        clock = state.world.clock
        if clock.called_ns or clock.log is not None:
            _tell_of_autograd(clock, args)
        if (plan.simple or plan.in_place) and not kwargs and clock.races is None:
            result = _run_simple(func, plan, args)
            if result is not None:
                return result
        if plan.composite:
            if plan.checked:
                mps.check(func, args, kwargs or {})
            return composite.take_apart(func, args, kwargs or {})
        if plan.row.alert is not None and torch._C._get_deterministic_algorithms():
            with determinism.told(plan.row.alert, Call(func, args, kwargs or {})):
                return _run_by_plan(func, plan, args, kwargs or {})
        return _run_by_plan(func, plan, args, kwargs or {})
    except RuntimeError as error:
        state.last_error = words = device_kind.in_words(str(error))
        if words != str(error):
            error.args = (words,)
        raise


SimTensor.__torch_dispatch__ = classmethod(dispatch)


def _beside_fakes(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator on fake tensors beside numbers that C++ put on the GPU, as in a score_mod of flex_attention."""
    ours = [one for one in tree_leaves((args, kwargs)) if isinstance(one, SimTensor)]
    if any(one.dim() for one in ours):
        return NotImplemented
    args, kwargs = tree_map(lambda one: one._inner if isinstance(one, SimTensor) else one, (args, kwargs))
    return func(*args, **kwargs)


def _traced(cls: type[SimTensor], func: Operator, types: Sequence[type], args: Args, kwargs: Kwargs | None) -> Any:
    """Run an operator while TorchScript traces: of what comes here, convolutions alone are still to be recorded.

    The tracer leaves them to what C++ calls for them (`DONT_RECORD_TRACE` in gen_trace_type.py).
    """
    if func is aten.convolution.default:
        cudnn = torch.backends.cudnn
        with traced():
            return aten._convolution.default(
                *args, cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32
            )
    if Plan.of(func).composite:
        with traced():
            return composite.take_apart(func, args, kwargs or {})
    with untraced():
        return dispatch(cls, func, types, args, kwargs)


def _run_by_plan(func: Operator, plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    return _run(func, plan, args, kwargs) if plan.special is None else plan.special(func, args, kwargs)


def _tell_of_autograd(clock: Any, args: Args) -> None:
    """Tell the clock what autograd has to do with the operator that runs now."""
    if current_pass() == NO_PASS:
        clock.recorded = is_grad_enabled() and _needs_gradients(args)
    else:
        for kind in begun():
            clock.called(kind)


def _needs_gradients(args: Args) -> bool:
    """Return whether a tensor among arguments, or in a list of them, requires gradients."""
    for arg in args:
        kind = type(arg)
        if kind is SimTensor:
            if arg.requires_grad:
                return True
        elif kind in _PLAIN:
            continue
        elif _needs_gradients(arg) if kind in (list, tuple) else isinstance(arg, torch.Tensor) and arg.requires_grad:
            return True
    return False


def _run_simple(func: Operator, plan: Plan, args: Args) -> SimTensor | None:
    """Run an operator whose tensors are all on one simulated GPU, and whose result is one tensor: the usual case.

    Returns None, with nothing done, where the call is of another kind.
    """
    inner: list[Any] = []
    tensors: list[SimTensor] = []
    like: list[Any] = []  # by what a call is known
    for arg in args:
        kind = type(arg)
        if kind is SimTensor:
            tensors.append(arg)
            inner.append(arg._inner)
            like.append(arg._layout or layout_of(arg))
        elif kind in _PLAIN:
            inner.append(arg)
            like.append(kind if kind is float else arg)
        elif kind is list and len(kinds := set(map(type, arg))) == 1 and not kinds.isdisjoint(_IN_LISTS):
            inner.append(_unwrap(arg, tensors))
            like.append(tuple([one if type(one) is int else one._layout or layout_of(one) for one in arg]))
        else:
            return None
    world = state.world
    if _in_autocast() and _in_region_of_the_cpu():
        return None
    call = tuple(like)
    known = plan.known.get(call)
    if plan.in_place:
        return _run_in_place(func, plan, args, tensors, inner, call)
    if known is None or (world.only_shapes and known.unwritten is None):
        return _run_first(func, plan, tensors, inner, call)
    if world.only_shapes and known.unwritten:
        return _as_known(plan, known, tensors, inner, shapes_only.in_memory(known.layout))
    out = func._op(*inner)
    if out.dtype is not known.layout.dtype or out.stride() != known.layout.strides:  # a setting has changed meanwhile
        return _accounted(plan, tensors, inner, out, call, known.unwritten)
    return _as_known(plan, known, tensors, inner, out)


def _run_first(
    func: Operator, plan: Plan, tensors: list[SimTensor], inner: list[Any], call: tuple[Any, ...]
) -> SimTensor | None:
    """Run a simple operator on layouts met for the first time; None for a call of another kind."""
    layouts = [layout_of(tensor) for tensor in tensors]
    if SPARSE in layouts or len({layout.index for layout in layouts}) != 1:
        return None
    if not plan.wide.isdisjoint(layout.dtype for layout in layouts):
        return None
    if any(layout.dtype.is_complex for layout in layouts) and not _in_order(plan, layouts, inner):
        return None  # it may be a conjugate view
    if plan.row.lacks is not None:
        plan.row.lacks.refuse(tensors)
    if device_kind.limits and plan.computes:
        device_kind.refuse_kernel([layout.dtype for layout in layouts])
    out = shapes_only.computed(func, plan, inner, {}) if state.world.only_shapes else NotImplemented
    unwritten = out is not NotImplemented if state.world.only_shapes else None
    return _accounted(plan, tensors, inner, out if unwritten else func._op(*inner), call, unwritten)


def _in_order(plan: Plan, layouts: list[Layout], inner: list[Any]) -> bool:
    """Return whether an operator reads all its tensors in the order of their memory, element by element."""
    by_itself = plan.by_elements and not any(type(value) is list for value in inner)
    return by_itself and all([layout.in_order for layout in layouts])


def _accounted(
    plan: Plan, tensors: list[SimTensor], inner: list[Any], out: torch.Tensor, call: tuple[Any, ...],
    unwritten: bool | None,
) -> SimTensor:  # fmt: skip
    """Return the result of a simple operator as a tensor of its GPU, its bytes and time accounted.

    What a `call` of these layouts gives, and what it costs, is known from now on.
    """
    layouts = [layout_of(tensor) for tensor in tensors]
    index = layouts[0].index
    if out.layout is not torch.strided or out.is_nested:
        return as_sim(out, index)
    storage, world = out.untyped_storage(), state.world
    memory, clock = world.memory, world.clock
    if memory.dead:
        memory.bury()
    is_view, cost = storage._cdata in memory.live, None
    if is_view:
        clock.called("view")
        result = _view(out, index, tensors)
    else:
        _refuse_new(plan, out)
        memory.own_storage(storage, index)
        if plan.steady and _in_order(plan, layouts, inner):
            nbytes, rate = sum([layout.nbytes for layout in layouts]), "fp64" if out.dtype is torch.float64 else "fp32"
            cost = price_of_elements(out.nbytes // out.itemsize, nbytes + out.nbytes, rate)
        elif not plan.row.memory_only:
            cost = price(plan, [tensor._inner for tensor in tensors], [out], inner, {}, out)
        if cost is not None:
            clock.kernel(index, plan.name, cost)
        result = as_sim(out, index) if out.dtype.is_complex else dense(out, index)
    layout = layout_of(result)
    usual = is_view == plan.func.is_view and layout.usual and all([one.usual for one in layouts])
    if usual:
        plan.learn(call, Known(layout, is_view, cost, unwritten))
    return result


def _as_known(plan: Plan, known: Known, tensors: list[SimTensor], inner: list[Any], out: torch.Tensor) -> SimTensor:
    """Return the result of a simple operator as `_accounted` does, from an earlier call with the same layouts.

    It is a view where that one's result was, or was given its own memory.
    """
    world = state.world
    memory, clock, layout = world.memory, world.clock, known.layout
    if known.is_view:
        clock.called("view")
        for tensor in tensors:
            if tensor._inner is out:
                return tensor
        if torch.is_inference_mode_enabled():
            return _view(out, layout.index, tensors)
        return of_layout(out, layout)
    memory.own_storage(out.untyped_storage(), layout.index)
    if known.cost is not None and known.cost.by_formula and known.rounds is not rounds(plan.name):
        known.rounds, known.rates = rounds(plan.name), None
        known.cost = price(plan, [tensor._inner for tensor in tensors], [out], inner, {}, out)
    _queue(plan, known)
    return of_layout(out, layout)


def _queue(plan: Plan, known: Known) -> None:
    """Account the time of an operator as it is known."""
    clock = state.world.clock
    if known.cost is None or clock.quiet:
        return
    if known.rates is not clock.rates:
        known.rates, (known.length_ns, known.bound) = clock.rates, clock.rates.kernel(known.cost)
    clock.queue(known.layout.index, plan.name, known.cost, known.length_ns, known.bound)


def _run_in_place(
    func: Operator, plan: Plan, args: Args, tensors: list[SimTensor], inner: list[Any], call: tuple[Any, ...]
) -> Any:
    """Run an operator that changes its first tensor and no shape; a `call` of the same layouts is known afterwards."""
    known, world = plan.known.get(call), state.world
    if known is None or world.clock.failure is not None or shapes_in_place.any_stale():
        result = _run(func, plan, args, {})
        usual = result is args[0] and all([layout_of(tensor).usual for tensor in tensors])
        if usual and plan.steady:
            cost = price(plan, [tensor._inner for tensor in tensors], [inner[0]], inner, {}, inner[0])
            layout = layout_of(result)
            plan.learn(call, Known(layout, False, cost, unwritten=layout.nbytes > shapes_only.SMALL_BYTES))
        return result
    if not (world.only_shapes and known.unwritten):
        func._op(*inner)
    _queue(plan, known)
    return args[0]


def _view(out: torch.Tensor, index: int, tensors: list[SimTensor]) -> SimTensor:
    """Return a dense tensor in memory that is accounted: the one of `tensors` that it is, else a new view."""
    for tensor in tensors:
        if tensor._inner is out:
            return tensor
    if torch.is_inference_mode_enabled() and not out.is_inference():
        with torch.inference_mode(False):  # a view of a tensor made outside stays an ordinary tensor
            return as_sim(out, index)
    return as_sim(out, index) if out.dtype.is_complex or out.is_neg() else dense(out, index)


def _refuse_new(plan: Plan, *results: torch.Tensor) -> None:
    """Raise where a kernel would write a result of a format, or of a number of dimensions, that the device has not."""
    for out in results if device_kind.limits else ():
        device_kind.refuse_dimensions(out)
        if plan.computes:
            device_kind.refuse_kernel([out.dtype])


def _is_idle(plan: Plan, call: Call) -> bool:
    """Return whether a call of an operator that may draw random numbers draws none: CUDA's generator stays as it is."""
    return any(call[name] == value for name, value in plan.idle)


@contextmanager
def _surroundings(is_complex: bool, draws: AbstractContextManager[None]) -> Generator[None]:
    """Inside, the CPU computes for a GPU: without its own autocast, seeing conjugate views that an operator makes."""
    bits = composite.conjugation() if is_complex else _NOTHING
    with torch.autocast("cpu", enabled=False) if _in_region_of_the_cpu() else _NOTHING, bits, draws:
        yield


def _in_region_of_the_cpu() -> bool:
    """Return whether autocast is on for the CPU, which must not touch values of a GPU."""
    return _in_autocast() and torch.is_autocast_enabled("cpu")


def _refuse_by_row(func: Operator, plan: Plan, args: Args, kwargs: Kwargs, tensors: list[torch.Tensor]) -> None:
    """Raise where CUDA's kernel lacks a number format, or takes fewer dimensions."""
    if plan.row.lacks is not None:
        plan.row.lacks.refuse(tensors, Call(func, args, kwargs))
    if plan.row.too_wide and tensors[0].dim() >= _DIMENSIONS:
        raise RuntimeError(plan.row.too_wide if tensors[0].dim() > _DIMENSIONS else _AT_MOST)
    if plan.checked:
        mps.check(func, args, kwargs)
    if device_kind.limits and plan.computes:
        device_kind.refuse_kernel([tensor.dtype for tensor in tensors if type(tensor) is SimTensor])


def forget() -> None:
    """Clear the caches of operators, which belong to another kind of device."""
    _plans.clear()


def _run(func: Operator, plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    tensors: list[torch.Tensor] = []
    inner_args = [_unwrap(arg, tensors) for arg in args]
    inner_kwargs = {name: _unwrap(value, tensors) for name, value in kwargs.items()}
    place = plan.generator
    generator = args[place] if place is not None and place < len(args) else kwargs.get("generator")
    check_generator(generator)
    if plan.mutates and shapes_in_place.any_stale():
        _refuse_stale(plan, args, kwargs, tensors)
    try:
        index = _common_index(Call(func, args, kwargs), plan, tensors)
    except mixed_devices.Composed as composed:
        return composed.args[0]
    _refuse_by_row(func, plan, args, kwargs, tensors)
    if plan.row.takes_indices and any(type(tensor) is not SimTensor for tensor in tensors):
        _bring_indices(Call(func, args, kwargs), index)
    target = _target(inner_kwargs, index) if "device" in inner_kwargs else index
    draws = plan.draws and not _is_idle(plan, Call(func, args, kwargs))
    is_complex = True in [t.dtype.is_complex for t in tensors]
    usual = not (is_complex or draws or _in_region_of_the_cpu())
    around = _NOTHING if usual else _surroundings(is_complex, drawing(generator, index) if draws else _NOTHING)
    with around:
        out = _asserted(func, plan, inner_args, inner_kwargs, index)
    if target is None:
        if state.world.clock.on_host_wait is not None:
            state.world.clock.on_host_wait("wait for the result")
        state.world.clock.wait_until(state.world.clock.queue_ns(index), "wait for the result")
        return out
    if device_kind.limits and not plan.mutates:
        _refuse_new(plan, *[one for one in tree_leaves(out) if isinstance(one, torch.Tensor)])
    result, new = _wrap(out, target, tensors)
    if draws:
        advance(generator, index, out[0] if isinstance(out, tuple) else out)
    if plan.mutates:
        _refresh(plan, args, kwargs)
    waits = plan.waits if plan.waits_by_call is None else plan.waits_by_call(Call(func, args, kwargs))
    if new or plan.mutates or waits:
        inputs = [t._inner if type(t) is SimTensor else t for t in tensors]
        _charge(plan, index, inputs, inner_args, inner_kwargs, out)
        if state.world.clock.races is not None:
            changed = [_changed(which, args, kwargs) for which in plan.mutates]
            state.world.clock.races.operation(index, _ours(tensors), _ours([changed, result if new else ()]))
    else:
        state.world.clock.called("view")
    if waits:
        _read_number(index, out)
    return result


def _read_number(index: int, out: Any) -> None:
    """Block the host for a number of GPU `index`: the result `out` of an operator, or a size that it needs."""
    if state.world.on_host_dependency is not None and not isinstance(out, bool):
        state.world.on_host_dependency("size")
    state.world.clock.copy(index, "D2H", 8, pinned=True, blocking=True)


def _asserted(func: Operator, plan: Plan, args: Args, kwargs: Kwargs, index: int) -> Any:
    """Run an operator on CPU tensors, or record that its kernel fails on GPU `index`."""
    if plan.row.asserts and not state.world.only_shapes:  # else an index may be anything
        return kernel_failures.run(func, plan.mutates, args, kwargs, index)
    return _computed(func, plan, args, kwargs)


def _ours(values: Any) -> list[SimTensor]:
    """Return the tensors of simulated GPUs among values, and lists of them."""
    return [one for one in tree_leaves(values) if type(one) is SimTensor]


def _refuse_stale(plan: Plan, args: Args, kwargs: Kwargs, tensors: list[torch.Tensor]) -> None:
    """Raise where an operator would change a tensor whose shape others have changed under it."""
    for which in plan.mutates:
        changed = _changed(which, args, kwargs)
        for tensor in changed if isinstance(changed, list | tuple) else (changed,):
            shapes_in_place.refuse_stale(tensor, tensors)


def _refresh(plan: Plan, args: Args, kwargs: Kwargs) -> None:
    """Update wrappers and autograd's version counters after an operator in place."""
    for which in plan.mutates:
        changed = _changed(which, args, kwargs)
        several = isinstance(changed, list | tuple)
        for tensor in changed if several else (changed,):
            if type(tensor) is SimTensor:
                refresh(tensor)
        if several:  # of one tensor autograd counts the changes; of a list, as of _foreach_add_, the kernels do
            torch.autograd.graph.increment_version(changed)


def _changed(which: int | str, args: Args, kwargs: Kwargs) -> Any:
    """Return the tensor, or the list of tensors, that an operator changes: an argument by place or by name."""
    return kwargs.get(which) if isinstance(which, str) else args[which]


def _computed(func: Operator, plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator on CPU tensors; without values where only shapes are wanted."""
    if state.world.only_shapes and (out := shapes_only.computed(func, plan, args, kwargs)) is not NotImplemented:
        return out
    if plan.way is None:
        return func(*args, **kwargs)
    return plan.way.compute(func, args, kwargs, [place for place in plan.mutates if isinstance(place, int)])


def _unwrap(value: Any, tensors: list[Any]) -> Any:
    kind = type(value)
    if kind is SimTensor:
        tensors.append(value)
        return value._inner
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value
    return [_unwrap(item, tensors) for item in value] if isinstance(value, list | tuple) else value


def _common_index(call: Call, plan: Plan, tensors: list[torch.Tensor]) -> int:
    """Return the one GPU that all tensors are on; most operators may read CPU tensors of no dimension.

    Raises as CUDA does for tensors on two devices.
    """
    index = None
    for tensor in tensors:
        if type(tensor) is SimTensor:
            if index is None:
                index = tensor._index
            elif tensor._index != index:
                mixed_devices.refuse(call, plan.row.takes_indices)
    in_place = plan.pointwise and 0 in plan.mutates and not plan.row.overwrites
    for position, tensor in enumerate(tensors):
        if type(tensor) is SimTensor:
            continue
        compared = tensor.dim() > 0 or (in_place and position == 0) or mixed_devices.compares_numbers(call.func)
        if compared and not _stays_on_cpu(plan, tensors, position):
            mixed_devices.refuse(call, plan.row.takes_indices)
    if plan.mutates and call.kwargs:
        _refuse_results_on_cpu(call, plan)
    return state.world.current if index is None else index


def _refuse_results_on_cpu(call: Call, plan: Plan) -> None:
    """Raise where `out=` is a number on the CPU, which may be read and not written.

    Sources: `compute_types` in TensorIterator.cpp, `resize_out` in torchgen/dest/register_dispatch_key.py.
    """
    for result in tree_leaves([call[which] for which in plan.mutates if isinstance(which, str)]):
        if type(result) is not SimTensor and isinstance(result, torch.Tensor):
            mixed_devices.refuse(call, plan.row.takes_indices)


def _stays_on_cpu(plan: Plan, tensors: list[torch.Tensor], position: int) -> bool:
    """Return whether an operator takes this CPU tensor beside those of a GPU: a length, or what it indexes with."""
    tensor = tensors[position]
    if plan.row.takes_lengths:
        return not tensor.is_floating_point()
    is_values = "index_put" in plan.name and tensor is tensors[-1]
    is_index = plan.row.takes_indices and position > 0 and not is_values
    return is_index and tensor.dtype in (torch.int64, torch.int32, *waiting.MASKS)


def _bring_indices(call: Call, index: int) -> None:
    """Account the copies of indexing to the GPU: indices on the CPU, and a number that is written.

    The host waits for both, since their memory is not pinned, but not for a mask: what it picks is counted on the host
    and copied from pinned memory (expandTensors in IndexingUtils.h).
    """
    clock = state.world.clock
    for indices in call["indices"]:
        if indices is not None and type(indices) is not SimTensor and indices.dtype in waiting.MASKS:
            nbytes = int(indices.count_nonzero()) * indices.dim() * 8
            clock.copy(index, "H2D", nbytes, pinned=True, blocking=False)
        elif indices is not None and type(indices) is not SimTensor and indices.dim() > 0:
            clock.copy(index, "H2D", indices.nbytes, pinned=False, blocking=True)
            if state.world.on_host_dependency is not None:
                state.world.on_host_dependency("index")
    value = call["values"]
    if value is not None and type(value) is not SimTensor and not waiting.fills(call):
        clock.copy(index, "H2D", value.nbytes, pinned=False, blocking=True)


def _target(kwargs: Kwargs, index: int) -> int | None:
    """Take `device` out of a call and return the GPU of its result; None for a result on the CPU or on `meta`."""
    device = kwargs["device"]
    if device is not None and not device_kind.is_ours(device) and (device.type != "meta" or device.index is None):
        return None
    kwargs["device"] = CPU
    return index if device is None else device_of(device.index)


def _wrap(out: Any, index: int, given: Sequence[Any]) -> tuple[Any, bool]:
    """Return `out` with each tensor wrapped, the caller's own wrapper where it is the same tensor, and whether any is
    in new memory."""
    if isinstance(out, torch.Tensor):
        for tensor in given:
            if type(tensor) is SimTensor and tensor._inner is out:
                return tensor, False
        if out.layout is not torch.strided or out.is_nested:
            return adopt(out, index), True
        new = state.world.memory.own(out, index)
        if not new and torch.is_inference_mode_enabled() and not out.is_inference():
            with torch.inference_mode(False):  # a view of a tensor made outside stays an ordinary tensor
                return as_sim(out, index), False
        return as_sim(out, index), new
    if isinstance(out, list | tuple):
        pairs = [_wrap(item, index, given) for item in out]
        return type(out)([p[0] for p in pairs]) if type(out) in (list, tuple) else pairs, any(p[1] for p in pairs)
    return out, False


def _charge(plan: Plan, index: int, inputs: list[torch.Tensor], args: Args, kwargs: Kwargs, out: Any) -> None:
    """Advance the virtual clock by the cost of this operator."""
    if not plan.row.memory_only:  # what only gets memory is in the prices of the operators that ask for it
        several = isinstance(out, list | tuple)
        outputs = [t for t in (out if several else (out,)) if isinstance(t, torch.Tensor)]
        if any([t.layout is not torch.strided for t in (*inputs, *outputs)]):
            nbytes = sum(sparse.nbytes(t) for t in (*inputs, *outputs))
            numbers = sum(part.numel() for t in inputs for part in sparse.parts(t))
            cost = price_of_elements(numbers, nbytes, "fp32")
        else:
            cost = price(plan, inputs, outputs, args, kwargs, out)
        state.world.clock.kernel(index, plan.name, cost)


def _copy_(func: Operator, args: Args, kwargs: Kwargs) -> torch.Tensor:
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if type(target) is not SimTensor:
        _to_host(target, source, non_blocking)
        return target
    shapes_in_place.refuse_stale(target, (target, source))
    if type(source) is SimTensor and source.dtype is not target.dtype:
        device_kind.refuse_kernel((source.dtype, target.dtype))
    index, inner, values = target._index, target._inner, source._inner if type(source) is SimTensor else source
    if not (state.world.only_shapes and shapes_only.leaves_out(inner)):
        inner.copy_(values)
    if state.world.clock.failure is not None:
        refresh(target)  # what is written now is lost
    if type(source) is SimTensor:
        _between(source, target)
    else:
        pinned = source.is_pinned()
        how = {"pinned": pinned, "blocking": not (non_blocking and pinned), "asked": not non_blocking}
        state.world.clock.copy(index, "H2D", sparse.nbytes(values), **how)
        if state.world.clock.races is not None and how["blocking"]:
            state.world.clock.races.operation(index, [], [target])
        elif state.world.clock.races is not None:
            state.world.clock.races.from_pinned(source, target)
        if state.world.on_upload is not None:
            state.world.on_upload(source)
    return target


def _between(source: SimTensor, target: SimTensor) -> None:
    """Account a copy: by a kernel where it is on the same GPU, else over the bus."""
    index, clock = target._index, state.world.clock
    if index != source._index:
        clock.order(index, source._index)
        clock.copy(index, "D2D", sparse.nbytes(source._inner), pinned=True, blocking=False)
    elif sparse.is_sparse(target):
        clock.kernel(index, "copy_", Cost(0, 2 * sparse.nbytes(target._inner)))
    else:
        clock.kernel(index, "copy_", price_of_copy(source._inner, target._inner))
    if clock.races is not None and index != source._index:
        clock.races.between(source, target)
    elif clock.races is not None:
        clock.races.operation(index, [source], [target])


def _to_host(target: torch.Tensor, source: SimTensor, non_blocking: bool) -> None:
    _refuse_cast_to_host(source.dtype, target.dtype)
    pinned, nbytes = target.is_pinned(), sparse.nbytes(source._inner)
    later = non_blocking and pinned
    how = {"pinned": pinned, "blocking": not later, "asked": not non_blocking}
    if state.world.clock.races is not None:
        state.world.clock.races.operation(source._index, [source], [])
    arrives = state.world.clock.copy(source._index, "D2H", nbytes, **how)
    if state.world.only_shapes and shapes_only.leaves_out(target):
        return
    if later:
        state.world.clock.arrive_later(arrives, target, source._inner.clone())
    else:
        target.data.copy_(source._inner)


def _refuse_cast_to_host(source: torch.dtype, target: torch.dtype) -> None:
    """Raise where a copy to the host has another format: the kernel that casts runs on the device."""
    if device_kind.limits and source is not target:
        if device_kind.kind == "mps" and target is torch.float64:
            raise TypeError(mps.CAST_TO_DOUBLE)
        device_kind.refuse_kernel((source, target))


def _to_copy(func: Operator, args: Args, kwargs: Kwargs) -> torch.Tensor:
    source, keywords = args[0], dict(kwargs)
    device = keywords.pop("device", None)
    non_blocking = keywords.pop("non_blocking", False)
    keywords.pop("pin_memory", None)
    if device is not None and device.type == "meta" and device.index is None:
        return func(source._inner, device=device, **keywords)
    if device is None or device.type == "meta" or device_kind.is_ours(device):
        index = source._index if device is None else device_of(device)
        if keywords.get("dtype") not in (None, source.dtype):
            device_kind.refuse_kernel((source.dtype, keywords["dtype"]))
        inner = _computed(func, Plan.of(func), (source._inner,), {"device": CPU, **keywords})
        device_kind.refuse_dimensions(inner)
        result = adopt(inner, index)
        _between(source, result)
        return result
    if device.type != "cpu":
        raise RuntimeError(f"a tensor on {source.device} cannot be moved to {device}: this process has no such device")
    _refuse_cast_to_host(source.dtype, keywords.get("dtype") or source.dtype)
    inner = _computed(func, Plan.of(func), (source._inner,), keywords)
    if state.world.clock.races is not None:
        state.world.clock.races.operation(source._index, [source], [])
    index, nbytes = source._index, sparse.nbytes(source._inner)
    arrives = state.world.clock.copy(index, "D2H", nbytes, pinned=non_blocking, blocking=not non_blocking)
    if not non_blocking:
        return inner
    # CUDA gives page-locked memory here, and the values arrive when the copy is done
    target = torch.zeros_like(inner, device=CPU)
    if device_kind.current.has_pinned_memory:
        target = torch.Tensor.pin_memory(target)
    state.world.clock.arrive_later(arrives, target, inner)
    return target


def _read_scalar(func: Operator, args: Args, kwargs: Kwargs) -> complex:
    source = args[0]
    if state.world.clock.races is not None:
        state.world.clock.races.operation(source._index, [source], [])
    state.world.clock.copy(source._index, "D2H", source._inner.nbytes, pinned=True, blocking=True)
    return func(source._inner)


def _pack(func: Operator, args: Args, kwargs: Kwargs) -> tuple[SimTensor, torch.Tensor]:
    """Lengths stay on the CPU, as on CUDA (`checkLongTensor` in aten/src/ATen/native/PackedSequence.cpp)."""
    lengths = args[1]
    if lengths.device.type != "cpu":
        kind = lengths.type().rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {lengths.device} {kind} "
            "tensor"
        )
    packed, batch_sizes = func(args[0]._inner, *args[1:], **kwargs)
    state.world.clock.kernel(args[0]._index, "pack_padded_sequence", Cost(0, 2 * packed.nbytes))
    return adopt(packed, args[0]._index), batch_sizes


def _histc(func: Operator, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Count whole numbers too, as CUDA does and the CPU does not; float64 has those below 2**53 exactly."""
    tensor = args[0]
    if tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        exact = adopt(tensor._inner.double(), tensor._index)
        return func(exact, *args[1:], **kwargs).to(tensor.dtype)
    return _run(func, _plans[id(func)], args, kwargs)


def _least_squares(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """CUDA has one way of solving (`linalg_lstsq_out_info` in BatchLinearAlgebra.cpp), which assumes full rank."""
    if kwargs.get("driver") not in (None, "gels") and device_kind.kind == "cuda":
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
    return _run(func, Plan.of(func), args, kwargs)


def _singular_values(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """The three ways of cuSOLVER that a program may name give the CPU's values."""
    if kwargs.get("driver") in ("gesvd", "gesvdj", "gesvda") and device_kind.kind == "cuda":
        kwargs = {name: value for name, value in kwargs.items() if name != "driver"}
    return _run(func, Plan.of(func), args, kwargs)


_BACKENDS = {torch.strided: "", torch.sparse_coo: "Sparse"}


def _refuse(func: Operator, args: Args, kwargs: Kwargs) -> NoReturn:
    """Raise for an operator of the CPU alone; those called quantized take packed weights, which stay on the CPU."""
    layout = next(leaf.layout for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, SimTensor))
    backend = _BACKENDS.get(layout, "SparseCsr") + device_kind.title()
    raise NotImplementedError(
        f"Could not run '{func.name()}' with arguments from the '{backend}' backend. PyTorch has this "
        "operator for the CPU alone: move its tensors there by .cpu()"
    )


def _refuse_collective(func: Operator, args: Args, kwargs: Kwargs) -> NoReturn:
    """Raise as `getBackend` in ProcessGroup.hpp of c10d: gloo has no tensors of this kind."""
    raise RuntimeError(f"No backend type associated with device type {device_kind.kind}")


_VIEWS = (
    aten.unsqueeze_.default, aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims, aten.t_.default,
    aten.transpose_.default, aten.as_strided_.default,
)  # fmt: skip
_SPECIAL: dict[Operator, Callable[[Operator, Args, Kwargs], Any]] = dict.fromkeys(_VIEWS, shapes_in_place.change) | {
    aten._has_compatible_shallow_copy_type.default: lambda func, args, kwargs: type(args[0]) is type(args[1]),
    # of sparse tensors C++ asks Python on which device they are
    torch.ops.prim.device.default: lambda func, args, kwargs: state.world.meta_devices[args[0]._index],
    aten.detach_.default: lambda func, args, kwargs: args[0],  # met in inference mode only: nothing to detach from
    aten._pack_padded_sequence.default: _pack,
    aten.histc.default: _histc,
    aten.linalg_lstsq.default: _least_squares,
    aten._linalg_svd.default: _singular_values,
    aten.copy_.default: _copy_,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _read_scalar,
}
