"""Observer of a training program: patches PyTorch while a session records, and tells typed events.

No other file of this room patches PyTorch or hooks into it. PyTorch's own hooks for all modules would be part of a
compiled graph, or break it: what stands here in the place of `Module.__call__`, or of a function, is to the compiler
what it replaces.
"""

import functools
import gc
import opcode
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from simgpu.device import state
from simgpu.device.tensor import SimTensor
from simgpu.ground import imports, places, turns
from simgpu.ground.inductor import uncompiled
from simgpu.ground.nodes import graph_of
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, is_tracing, untraced
from simgpu.reports import events
from simgpu.reports.events import HANDLERS, Event

Look = Callable[..., Event | None]
_F = nn.functional
_NOTHING = nullcontext()
_TOWARDS_A_STEP: dict[type[Event], int] = {events.Forward: 1, events.Backward: 2, events.Update: 3}


class Observer:
    """Tells each event to its listeners in their order, in the process and the thread that train and in no other.

    Later listeners may rely on what earlier ones have noted of the same event: analyses stand before rules, and the
    session, which ends steps, stands last.
    """

    def __init__(self, put: Replacements) -> None:
        self._on, self._world = True, state.world
        self._thread, self._far = threading.get_ident(), 0
        self._handlers: dict[type[Event], list[Callable[[Any], object]]] = {event: [] for event in HANDLERS}
        self._put_hooks(put)
        self._put_calls(put)
        handles = [
            register_module_module_registration_hook(lambda *part: self._seen(events.Registered(*part))),
            register_module_parameter_registration_hook(lambda *part: self._seen(events.Registered(*part))),
            register_optimizer_step_pre_hook(self._on_update),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._seen(events.Updated(optimizer))),
        ]
        for handle in handles:
            put.call(handle.remove)
        _observers.add(self)

    def listen(self, listener: object) -> None:
        """Tell events to the `on_…` methods of a listener. Raises ValueError for one that no event has."""
        names = {name for name in dir(type(listener)) if name.startswith("on_")}
        for event, name in HANDLERS.items():
            if name in names:
                self._handlers[event].append(getattr(listener, name))
        unknown = names.difference(HANDLERS.values())
        if unknown:
            raise ValueError(f"no event has these handlers of {type(listener).__name__}: {', '.join(sorted(unknown))}")

    def tell(self, event: Event) -> None:
        """Call the handlers of an event."""
        for handle in self._handlers[type(event)]:
            handle(event)

    def leave(self) -> None:
        """Tell nothing any more, as in a child process."""
        self._on = False

    def _seen(self, event: Event | None) -> None:
        """Tell what a hook has seen, unless this process, or the world that runs, is not that of the session."""
        if event is not None and self._on and self._world is state.world and self._is_here(event):
            with untraced() if is_tracing() else _NOTHING:
                for handle in self._handlers[type(event)]:  # as `tell` does, a call less
                    handle(event)

    def _is_here(self, event: Event) -> bool:
        """Return whether the thread that trains runs: the first to get so far towards a step on a GPU."""
        here, far = threading.get_ident(), _TOWARDS_A_STEP.get(type(event), 0)
        if far > self._far and _is_on_gpu(event):
            self._thread, self._far = here, far
        return here == self._thread

    # ---- functions ----------------------------------------------------------------------------------------------
    def _put_hooks(self, put: Replacements) -> None:
        known = TORCH.jit._builtins._get_builtin_table()  # TorchScript knows an operator by its function's identity
        for owner, name, before, after in _hooks():
            plain = getattr(owner, name)
            put.put(owner, **{name: self._watched(plain, before, after)})
            if id(plain) in known:
                put.put_item(known, id(getattr(owner, name)), known[id(plain)])
        data: property = SimTensor.data
        put.put(SimTensor, data=property(self._watched(data.__get__, _cut), data.fset))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            put.put(nn.utils, **{name: self._listing(getattr(nn.utils, name))})
        clock = self._world.clock
        put.put(clock, wait_until=self._watched(clock.wait_until, _read))
        put.put(self._world, on_upload=lambda source: self._seen(events.Copied(source)))
        put.put(self._world, on_recorded=lambda: self._seen(events.Recorded()))
        put.call(imports.after("torch._dynamo.callback", functools.partial(self._put_compiling, put)))
        put.put(self._world, on_host_dependency=lambda why: self._seen(events.Asked(why, asker())))

    def _put_compiling(self, put: Replacements, module: Any) -> None:
        handler, seen = module.CompilationCallbackHandler, self._seen
        plain = handler.run_start_callbacks

        def run_start_callbacks(callbacks: Any, args: Any) -> None:
            if args.callback_trigger.name == "DYNAMO":
                seen(events.Compiling(args.compile_id.partition("/")[0]))
            plain(callbacks, args)

        put.put(handler, run_start_callbacks=run_start_callbacks)

    def _watched(self, plain: Callable[..., Any], before: Look | None = None, after: Look | None = None) -> Any:
        """Return `plain` with an event before it, made of the arguments, and one after it, of result and arguments."""
        seen = self._seen

        @functools.wraps(plain)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                seen(_event(before, args, kwargs))
            try:
                result = plain(*args, **kwargs)
            except BaseException as error:
                _leave_out_here(error)
                raise
            if after is not None:
                seen(after(result, *args, **kwargs))
            return result

        return _inlined(observed, plain)

    def _listing(self, plain: Callable[..., Any]) -> Any:
        """Return a function that clips gradients and gets its parameters as a list, which may be read twice."""

        @functools.wraps(plain)
        def clips(parameters: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            known = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._seen(events.Clip(parameters, known, options := [*args, *kwargs.values()]))
            norm = plain(known, *args, **kwargs)
            if norm is not None:
                self._seen(events.Clipped(norm, options[0]))
            return norm

        return _inlined(clips, plain)

    # ---- modules, loaders and optimizers ------------------------------------------------------------------------
    def _put_calls(self, put: Replacements) -> None:
        call, load, seen = nn.Module.__call__, _BaseDataLoaderIter.__next__, self._seen

        @functools.wraps(call)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = None
            with uncompiled():
                seen(events.Forward(module, args, kwargs))
            try:
                result = call(module, *args, **kwargs)
                return result
            except BaseException as error:
                _leave_out_here(error)
                raise
            finally:
                with uncompiled():
                    seen(events.ForwardEnd(module, args, kwargs, result))

        @functools.wraps(load)
        def __next__(iterator: Any) -> Any:
            starts, begun_s = iterator._num_workers > 0 and iterator._num_yielded == 0, turns.elapsed_s()
            batch = load(iterator)
            seen(events.Loaded(iterator, turns.elapsed_s() - begun_s, starts))
            return batch

        put.put(nn.Module, __call__=_inlined(__call__, call))
        put.put(_BaseDataLoaderIter, __next__=__next__)

    def _on_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen(events.Update(optimizer, _parameters(optimizer), places.has_closure(args, kwargs)))


def _is_on_gpu(event: Any) -> bool:
    """Return whether a call of a model, a backward pass or an optimizer's step has tensors of a simulated GPU."""
    names = {events.Backward: "roots", events.Update: "parameters"}
    parts = getattr(event, names[type(event)]) if type(event) in names else (*event.args, *event.kwargs.values())
    return any(isinstance(one, SimTensor) for one in parts)


_observers: "weakref.WeakSet[Observer]" = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [observer.leave() for observer in list(_observers)])


def on_gradient(tensor: torch.Tensor, look: Callable[[torch.Tensor], None]) -> None:
    """Call `look` with the gradient of a tensor whenever a backward pass comes through it."""
    tensor.register_hook(look)


def asker() -> str:
    """Return the name of the module that has called what stands in simgpu."""
    frame = caller()
    return "" if frame is None else frame.f_globals.get("__name__", "")


def caller(besides: str = "simgpu.") -> FrameType | None:
    """Return the frame that has called what stands in simgpu, or in the module `besides`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("simgpu.", besides)):
        frame = frame.f_back
    return frame


def is_dropped() -> bool:
    """Return whether the next instruction of the reader's code, which has called what runs, drops the result."""
    frame = caller()
    if frame is None or not places.is_readers(frame.f_code.co_filename, frame.f_code.co_name):
        return False
    code, at = frame.f_code.co_code, frame.f_lasti + 2
    while opcode.opname[code[at]] == "CACHE":
        at += 2
    return opcode.opname[code[at]] == "POP_TOP"


# ---- what is patched --------------------------------------------------------------------------------------------
def _hooks() -> Iterable[tuple[Any, str, Look | None, Look | None]]:
    """Yield what is patched, and how its arguments become an event before it runs, or after."""
    backward = torch.autograd
    yield backward, "backward", _backward, lambda *_, **__: events.BackwardEnd()
    yield backward, "grad", lambda outputs, inputs, *_, **__: events.Grad(_tensors(inputs)), (
        lambda *_, **__: events.GradEnd()
    )  # fmt: skip
    for owner in (Optimizer, nn.Module):
        yield owner, "zero_grad", lambda owner, *_, **__: events.Clear(owner, _parameters(owner)), None
    yield Optimizer, "__init__", None, lambda _, optimizer, *__, **___: events.OptimizerBuilt(optimizer)
    yield Optimizer, "add_param_group", None, lambda _, optimizer, *__, **___: events.ParametersAdded(
        optimizer.param_groups[-1]["params"]
    )  # fmt: skip
    yield nn.Module, "train", lambda module, mode=True: events.ModeSet(module, mode), None
    for owner, name in ((nn.Module, "to"), (nn.Module, "cuda"), (torch, "load")):
        yield owner, name, lambda *_, **__: events.Moved(), None
    yield nn.Module, "state_dict", None, _state
    yield nn.Module, "load_state_dict", lambda model, state_dict, *_, **__: events.Kept(state_dict, model), None
    yield torch, "save", lambda obj, *_, **__: events.Kept(obj, None), None
    yield DistributedDataParallel, "__init__", lambda _, module, *__, **___: events.Wrapped(module), None
    yield GradScaler, "__init__", None, lambda _, scaler, *__, **___: _scaler_call("__init__", scaler)
    for name in ("scale", "unscale_", "get_scale", "step"):
        yield GradScaler, name, functools.partial(_scaler_call, name), None
    yield _F, "kl_div", lambda input, target, *_, **__: events.Loss("kl_div", input, target, -100), None
    for name in ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"):
        yield _F, name, functools.partial(_loss, name), None
    for name in ("softmax", "log_softmax"):
        yield SimTensor, name, lambda scores, dim, *_, **__: _softmax(scores, dim), None
        yield torch, name, lambda input, dim, *_, **__: _softmax(input, dim), None
    for name in ("__truediv__", "div"):
        yield SimTensor, name, lambda self, other, *_, **__: _divided(self, other), None
    yield SimTensor, "detach", _cut, None
    yield SimTensor, "tolist", _cut, None
    for kind in (LRScheduler, CosineAnnealingWarmRestarts, SequentialLR, ReduceLROnPlateau):
        yield kind, "step", lambda scheduler, *_, **__: events.Scheduled(scheduler, "step"), None
        yield kind, "__init__", None, lambda _, scheduler, *__, **___: events.Scheduled(scheduler, "__init__")
    yield _F, "dropout", lambda input, p=0.5, training=None, *_, **__: events.Dropout(p, training), None
    yield _F, "scaled_dot_product_attention", _attention, None
    yield from _hooks_of_arithmetic()
    yield DataLoader, "__init__", _loader_built, None
    yield DataLoader, "__iter__", None, lambda iterator, loader: events.LoaderBegun(loader, iterator)
    yield DistributedSampler, "__iter__", lambda sampler: events.Ordered(sampler), None
    calls = [(torch.cuda, name) for name in ("manual_seed", "empty_cache", "synchronize")]
    calls += [(owner, name) for owner in (torch.mps, torch.xpu) for name in ("empty_cache", "synchronize")]
    calls += [(torch.accelerator, "synchronize")]
    for owner, name in (*calls, (torch, "manual_seed"), (gc, "collect")):
        yield owner, name, functools.partial(_housekeeping, name), None
    for kind in (torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly):
        yield kind, "__init__", lambda *_, **__: events.Housekeeping("anomaly", ()), None


def _hooks_of_arithmetic() -> Iterable[tuple[Any, str, Look | None, Look | None]]:
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        yield _F, name, lambda input, target, *_, **__: _difference(input, target, True), None
    for name in ("__sub__", "sub"):
        yield SimTensor, name, lambda self, other, *_, **__: _difference(self, other), None
    # of a subclass with a method of its own, Python would call this first for `cpu - cuda`, and no `__sub__`
    yield torch.Tensor, "__rsub__", lambda self, other, *_, **__: _difference(self, other), None
    for name in ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__"):
        yield torch.Tensor, name, lambda self, *_, **__: events.Changed(self), None
    for name in ("clamp", "clip", "clamp_min", "clamp_max", "mul", "add"):
        yield SimTensor, name, _dropped, None
        yield torch, name, lambda input, *_, **__: _dropped(input), None
    for name in ("mul_", "add_", "lerp_", "copy_"):
        yield torch.Tensor, name, functools.partial(_blended, name), None


def _backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False, **more: Any
) -> Event:
    return events.Backward(_tensors(tensors), bool(retain_graph), create_graph or bool(more.get("inputs")))


def _state(state: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Event | None:
    return None if args or "destination" in kwargs else events.StateTaken(model, state)  # else it is a part


def _scaler_call(name: str, scaler: GradScaler, *args: Any, **kwargs: Any) -> Event:
    return events.ScalerCall(name, scaler.is_enabled())


def _loss(name: str, input: torch.Tensor, target: Any, weight: Any = None, *rest: Any, **more: Any) -> Event:
    ignored = more.get("ignore_index", rest[1] if len(rest) > 1 else -100)
    return events.Loss(name, input, target, ignored, weight, more.get("reduction") != "none")


def _softmax(scores: Any, dim: Any) -> Event | None:
    return events.Softmax(scores, dim % scores.dim()) if isinstance(dim, int) and scores.dim() else None


def _divided(tensor: torch.Tensor, divisor: Any) -> Event | None:
    number = isinstance(divisor, int | float) and not tensor.dim() and graph_of(tensor) is not None
    return events.Divided(tensor, divisor) if number else None


def _blended(name: str, into: torch.Tensor, other: Any, share: Any = 1.0, alpha: float = 1.0, **_: Any) -> Event | None:
    if name == "mul_":
        return events.Blended(name, into, None, other) if isinstance(other, int | float) else None
    return events.Blended(name, into, other, alpha) if isinstance(other, torch.Tensor) else None


def _housekeeping(name: str, *args: Any, **kwargs: Any) -> Event | None:
    if asker().startswith("torch."):  # as PyTorch's compiler looks for garbage
        return None
    return events.Housekeeping(name, (*args, *kwargs.values()))


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any, **__: Any):
    return events.Attention(dropout_p)


def _cut(tensor: torch.Tensor) -> Event | None:
    return None if graph_of(tensor) is None else events.Cut(tensor)


def _dropped(tensor: torch.Tensor, *_: Any, **__: Any) -> Event | None:
    return events.Dropped(tensor) if tensor.is_leaf and is_dropped() else None


def _difference(first: Any, second: Any, is_loss: bool = False) -> Event | None:
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return events.Difference(first, second, is_loss) if both else None


def _loader_built(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> Event:
    return events.LoaderBuilt(loader, dataset, bool(kwargs.get("sampler") or kwargs.get("batch_sampler")))


def _read(when_ns: int, reason: str) -> Event | None:
    return events.Read(asker()) if "D2H" in reason else None


def _event(look: Look, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event | None:
    try:
        return look(*args, **kwargs)
    except TypeError:  # the call lacks an argument: PyTorch says so
        return None


def _tensors(roots: Any) -> list[torch.Tensor]:
    given = roots if isinstance(roots, list | tuple) else [roots]
    return [one for one in given if isinstance(one, torch.Tensor)]


def _parameters(owner: Optimizer | nn.Module) -> list[nn.Parameter]:
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    return [one for group in owner.param_groups for one in group["params"]]


def _inlined(observed: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `observed`, with what PyTorch's compiler looks into instead."""
    observed._torchdynamo_inline = plain  # pyright: ignore[reportFunctionMemberAccess]
    return observed


def _leave_out_here(error: BaseException) -> None:
    """Leave out of an error's traceback the function that has caught it, and is about to raise it again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
