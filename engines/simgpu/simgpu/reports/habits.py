"""Which habits of a training program are seen while it runs, and in which of its lines?

Nothing is judged from the program's text: a habit is what PyTorch is asked to do, step after step.
"""

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.device import state
from simgpu.device.readings import values_of
from simgpu.ground import places
from simgpu.ground.replacements import Replacements
from simgpu.reports.remarks import Suspect, remark

_T = TypeVar("_T")
_RANDOM = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # layers that tell the two modes apart
_FEW_STEPS = 3  # from so many steps on, "in each step" is a habit
_SMALL_BATCH = 8
_VIEWS = ("ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "SqueezeBackward", "ToCopyBackward")
_EACH_STEP = {  # what is a habit only if most steps have it
    "cache-emptied-in-each-step", "synchronised-in-each-step", "garbage-collected-in-each-step", "seed-in-each-step",
    "moved-in-each-step", "host-tensor-in-forward", "double-precision", "small-batch",
}  # fmt: skip
_TWICE = {
    "gradients-never-cleared",
    "gradients-cleared-too-early",
    "optimizer-of-other-parameters",
    "loader-built-anew",
}


@dataclass
class _Pass:
    """A call of a model from outside: its line, how it ran, and whether a backward pass came through its result."""

    model: nn.Module
    line: str
    training: bool  # the mode of the model
    random: bool | None  # whether layers that tell the modes apart were in training mode; None: there are none
    recorded: bool  # with gradients
    batch: int
    used: bool = False


@dataclass(frozen=True)
class _Parts:
    """What a model is made of, kept alive by nobody here: layers that tell the modes apart, and parameters."""

    random: list["weakref.ref[nn.Module]"]
    parameters: list["weakref.ref[nn.Parameter]"]

    @classmethod
    def of(cls, model: nn.Module) -> "_Parts":
        random = [weakref.ref(one) for one in model.modules() if isinstance(one, _RANDOM)]
        return cls(random, [weakref.ref(one) for one in model.parameters()])


@dataclass
class _Gradients:
    """What is known of an optimizer's gradients since its last step, by one of its parameters."""

    came: bool = False
    clear: bool = False  # there were none, or zeros, before a backward pass added to them


class HabitWatch:
    """Watches a program while `Recording` records it; `step` numbers its steps from 0."""

    def __init__(self, put: Replacements) -> None:
        self.step = 0
        self._steps: dict[tuple[str, str], set[int]] = defaultdict(set)  # by code and line
        self._stack: list[nn.Module] = []
        self._passes: list[_Pass] = []
        self._trained = WeakIdKeyDictionary()  # parameters that an optimizer changes
        self._gradients: dict[int, _Gradients] = {}  # by the identity of an optimizer
        self._backward = self._cleared = ""  # lines, since the last step of an optimizer
        self._sent = WeakIdKeyDictionary()  # the versions of tensors when they were copied to a GPU
        self._parts: weakref.WeakKeyDictionary[nn.Module, _Parts] = weakref.WeakKeyDictionary()
        put.put(state.world, sent=self._copied)
        put.put(torch.autograd, backward=self._before(torch.autograd.backward, self._on_backward))
        for owner in (torch.optim.Optimizer, nn.Module):
            put.put(owner, zero_grad=self._before(owner.zero_grad, self._on_clear))
        put.put(nn.functional, cross_entropy=self._before(nn.functional.cross_entropy, self._on_cross_entropy))
        put.put(DataLoader, __init__=self._before(DataLoader.__init__, self._on_loader))
        put.put(gc, collect=self._noting(gc.collect, "garbage-collected-in-each-step"))
        for module in (torch, torch.cuda):
            put.put(module, manual_seed=self._noting(module.manual_seed, "seed-in-each-step"))
        put.put(torch.cuda, empty_cache=self._noting(torch.cuda.empty_cache, "cache-emptied-in-each-step"))
        put.put(torch.cuda, synchronize=self._noting(torch.cuda.synchronize, "synchronised-in-each-step"))

    # ---- what is found ------------------------------------------------------------------------------------------
    def found(self) -> list[Suspect]:
        """Return the habits seen until now: those about results first."""
        self._judge()
        remarks = [remark(code, line) for (code, line), seen in self._steps.items() if self._is_habit(code, seen)]
        return sorted(remarks, key=lambda one: one.about != "result")

    def _is_habit(self, code: str, steps: set[int]) -> bool:
        if code in _EACH_STEP:
            return len(steps) >= max(_FEW_STEPS, self.step / 2)
        return len(steps) > (1 if code in _TWICE else 0)

    def _note(self, code: str, line: str = "") -> None:
        line = line or places.place()
        if line:
            self._steps[code, line].add(self.step)

    # ---- modules ------------------------------------------------------------------------------------------------
    def before_forward(self, module: nn.Module) -> None:
        """A module begins; one that nobody's forward pass calls, and that has parameters, is a model."""
        self._stack.append(module)

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A module has ended, or failed."""
        if module in self._stack:
            del self._stack[self._stack.index(module) :]
        if self._stack or result is None:
            return
        parts = self._parts_of(module)
        if not parts.parameters:
            return
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        batch = given[0].shape[0] if given and given[0].dim() else 0
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
        modes = [one.training for one in _alive(parts.random)]
        random = any(modes) if modes else None
        called = _Pass(module, places.place(), module.training, random, bool(made), batch)
        self._passes.append(called)
        for output in made[:1]:
            output.register_hook(lambda gradient: setattr(called, "used", True))
        if any(one.dtype is torch.float64 for one in [*given, *_alive(parts.parameters)]):
            self._note("double-precision", called.line)

    def registered(self, *what: object) -> None:
        """A module got a part: what was known of the parts of modules may be no longer so."""
        self._parts.clear()

    def _parts_of(self, module: nn.Module) -> _Parts:
        if module not in self._parts:
            self._parts[module] = _Parts.of(module)
        return self._parts[module]

    def _judge(self) -> None:
        """Say what the calls of models since the last step were."""
        for called in self._passes:
            trained = any(parameter in self._trained for parameter in _alive(self._parts_of(called.model).parameters))
            if called.used:
                if called.random is False and not called.training:
                    self._note("training-in-evaluation-mode", called.line)
                if 0 < called.batch <= _SMALL_BATCH:
                    self._note("small-batch", called.line)
            elif called.recorded and trained:
                self._note("forward-not-used" if called.training else "evaluation-with-gradients", called.line)
            elif not called.recorded and trained and called.random and called.training:
                self._note("evaluation-in-training-mode", called.line)
        self._passes.clear()

    # ---- optimizers ---------------------------------------------------------------------------------------------
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step begins."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        known = self._gradients.get(id(optimizer))
        if known is None:
            known = self._gradients[id(optimizer)] = _Gradients(clear=True)
            for parameter in parameters:
                self._trained[parameter] = True
            sample = next((one for one in parameters if one.requires_grad), None)
            if sample is not None:
                sample.register_hook(_arriving(weakref.ref(sample), known))
        elif known.came and not known.clear and self._backward:
            self._note("gradients-never-cleared", self._backward)
        if self._backward and not any(_is_set(one.grad) for one in parameters):
            code = "gradients-cleared-too-early" if self._cleared else "optimizer-of-other-parameters"
            self._note(code, self._cleared)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended."""
        self._gradients[id(optimizer)].came = self._gradients[id(optimizer)].clear = False
        self._backward = self._cleared = ""

    def end_step(self) -> None:
        """A step of the program has ended."""
        self._judge()
        self.step += 1

    # ---- calls that are watched ---------------------------------------------------------------------------------
    def _before(self, plain: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
        """Return `plain`, before which `look` gets the same arguments."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            look(*args, **kwargs)
            return plain(*args, **kwargs)

        return watched

    def _noting(self, plain: Callable[..., Any], code: str) -> Callable[..., Any]:
        return self._before(plain, lambda *args, **kwargs: self._note(code))

    def _on_backward(self, *args: Any, **kwargs: Any) -> None:
        self._backward, self._cleared = places.place(), ""
        if torch._C._is_any_autocast_enabled():
            self._note("backward-under-autocast")

    def _on_clear(self, *args: Any, **kwargs: Any) -> None:
        if self._backward:
            self._cleared = places.place()

    def _on_cross_entropy(self, scores: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        node = scores.grad_fn
        while node is not None and node.name().startswith(_VIEWS):
            node = node.next_functions[0][0]
        if node is not None and node.name().startswith("SoftmaxBackward"):
            self._note("softmax-before-cross-entropy")

    def _on_loader(self, *args: Any, **kwargs: Any) -> None:
        self._note("loader-built-anew")

    def _copied(self, source: torch.Tensor) -> None:
        """A tensor of the host is copied to a GPU."""
        if source.dim() == 0:
            return
        if self._stack:
            self._note("host-tensor-in-forward")
        now = 0 if source.is_inference() else source._version
        if self._sent.get(source) == now:
            self._note("moved-in-each-step")
        self._sent[source] = now


def _alive(references: list["weakref.ref[_T]"]) -> Iterator[_T]:
    """Yield what is still alive."""
    return (one for one in (reference() for reference in references) if one is not None)


def _arriving(sample: "weakref.ref[nn.Parameter]", known: _Gradients) -> Callable[[torch.Tensor], None]:
    """Return the hook of a parameter, which sees what its gradient was before this one is added."""

    def arrives(gradient: torch.Tensor) -> None:
        parameter = sample()
        known.came = True
        known.clear = known.clear or parameter is None or not _is_set(parameter.grad)

    return arrives


def _is_set(gradient: torch.Tensor | None) -> bool:
    """Return whether there is a gradient that is not all zeros; nothing is asked of a GPU, nor of other ranks."""
    if gradient is None:
        return False
    values = values_of(gradient)
    if state.world.only_shapes or type(values) is not torch.Tensor or values.layout is not torch.strided:
        return True
    return bool(values.any())


def small_batches(remarks: list[Suspect], *, launching: float, room: bool) -> Iterator[Suspect]:
    """Yield the remarks, of small batches only where launches keep the GPU waiting and there is `room` for more."""
    for suspect in remarks:
        if suspect.code != "small-batch" or (launching >= 0.3 and room):
            yield suspect
