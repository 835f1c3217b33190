"""Which habits of a training program are seen while it runs, and in which of its lines?

Nothing is judged from the program's text: a habit is what PyTorch is asked to do, step after step.
"""

import functools
import gc
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground import places
from simgpu.ground.replacements import Replacements
from simgpu.reports.by_hand import HandWatch
from simgpu.reports.calls import watched
from simgpu.reports.clipping import ClipWatch
from simgpu.reports.copies import CopyWatch
from simgpu.reports.growth import GrowthWatch, Mark
from simgpu.reports.layers import LayerWatch
from simgpu.reports.losses import LossWatch
from simgpu.reports.remarks import Suspect, remark
from simgpu.reports.upkeep import UpkeepWatch

_T = TypeVar("_T")
_FEW_STEPS = 3  # from so many steps on, "in each step" is a habit
_SELDOM = 10  # steps, of which one may make a picture or a sample
_LOOKED_AT = 4  # steps: what takes long is looked at in the first ones
_SMALL_BATCH = 8
_MOST_PASSES = 256  # calls of models between two steps that are looked at: a program may make none
_LOOPED = 4  # calls of a model for one backward pass: with more, a loop over time or an environment sets the batch
_VIEWS = ("ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "SqueezeBackward", "ToCopyBackward")
_EACH_STEP = {  # what is a habit only if most steps have it
    "cache-emptied-in-each-step", "synchronised-in-each-step", "garbage-collected-in-each-step", "seed-in-each-step",
    "moved-in-each-step", "host-tensor-in-forward", "double-precision", "small-batch", "gradients-thrown-away",
    "gradients-not-used", "samples-one-by-one", "saved-in-each-step", "graph-kept-for-nothing",
    "benchmark-of-changing-sizes", "gradients-clipped-too-late", "gradients-clipped-while-scaled", "not-detached",
    "loader-begun-anew", "loss-of-all-pairs",
}  # fmt: skip
_TWICE = {
    "backward-without-model",
    "layer-not-registered",
    "gradients-never-cleared",
    "gradients-cleared-too-early",
    "optimizer-of-other-parameters",
    "forward-repeated",
    "float16-without-scaler",
    "ddp-bypassed",
}
_SAID_BY = {  # remarks that another one explains
    "optimizer-of-other-parameters": ("gradients-not-used", "not-detached"),
    "optimizer-never-steps": ("not-detached",),
    "backward-without-model": ("optimizer-of-other-parameters", "forward-not-used"),
    "layer-not-registered": ("optimizer-of-other-parameters",),
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
    given: list[tuple["weakref.ref[torch.Tensor]", int]]  # its inputs and a parameter, with their versions
    early: bool  # before any optimizer's step: perhaps a trial of shapes
    alone: torch.Size | None  # the shape of its input: one sample, which no other pass and no value read has made
    fed: bool  # whether a backward pass goes on through its input
    graph: "weakref.ref[Mark] | None" = None  # alive as long as its graph is
    before: "_Pass | None" = None  # one that had the same tensors
    used: bool = False
    filled: bool = False  # whether that backward pass has left gradients in parameters
    judged: int = 0  # how often it was looked at

    def gets_gradients(self, parts: "_Parts") -> bool:
        """Return whether a backward pass has left gradients in the model, whose weights are as they were."""
        weight, version = self.given[-1][0](), self.given[-1][1]
        unchanged = weight is not None and _version(weight) == version
        return unchanged and any(one.grad is not None for one in _alive(parts.parameters))

    @property
    def may_be_used(self) -> bool:
        """Whether a later backward pass may come through its result, as that of a generator after its critic's step."""
        return not self.used and self.judged < 2 and self.graph is not None and self.graph() is not None

    @property
    def repeats(self) -> bool:
        """Whether one before had computed the same, no chance was involved, and backward passes use both."""
        return self.before is not None and self.used and self.before.used and not self.random

    def had_the_tensors_of(self, other: "_Pass") -> bool:
        """Return whether the same model had the same tensors, unchanged."""
        if self.model is not other.model or self.random is not other.random:
            return False
        pairs = [(one(), version) for one, version in self.given]
        others = [(one(), version) for one, version in other.given]
        return len(pairs) == len(others) > 1 and all(
            one is not None and one is another and version == now
            for (one, version), (another, now) in zip(pairs, others, strict=True)
        )


@dataclass(frozen=True)
class _Leftover:
    """A call of a model that a backward pass went through: its line, and a parameter with its version then."""

    line: str
    weight: "weakref.ref[torch.Tensor]"
    version: int

    @property
    def is_left(self) -> bool:
        """Whether no optimizer has used the gradients."""
        weight = self.weight()
        return weight is not None and weight.grad is not None and _version(weight) == self.version


@dataclass(frozen=True)
class _Parts:
    """What a model is made of, kept alive by nobody here: layers that tell the modes apart, and parameters."""

    random: list["weakref.ref[nn.Module]"]
    parameters: list["weakref.ref[nn.Parameter]"]

    @classmethod
    def of(cls, model: nn.Module) -> "_Parts":
        random = [weakref.ref(one) for one in model.modules() if _tells_modes_apart(one)]
        return cls(random, [weakref.ref(one) for one in model.parameters()])


@dataclass
class _Gradients:
    """What is known of an optimizer's gradients since its last step, by one of its parameters."""

    came: bool = False
    clear: bool = False  # there were none, or zeros, before a backward pass added to them


@dataclass
class _ThrownAway:
    """Gradients that were cleared before an optimizer's step had used them, by one of their parameters."""

    backward: str  # the line that made them, and the one that cleared them
    clearing: str
    sample: "weakref.ref[nn.Parameter]"
    version: int
    others: TensorWeakRef | None = None  # what a later backward pass has made in their place

    @classmethod
    def of(cls, backward: str, parameters: Iterable[nn.Parameter]) -> "_ThrownAway | None":
        sample = next((one for one in parameters if _is_set(one.grad)), None)
        return None if sample is None else cls(backward, places.place(), weakref.ref(sample), _version(sample))

    def is_made_again(self, backward: str) -> bool:
        """Return whether a backward pass in the same line makes new ones, of unchanged weights."""
        sample = self.sample()
        return self.backward == backward and sample is not None and _version(sample) == self.version

    def keep(self) -> None:
        """Keep in mind what a backward pass has made in their place."""
        sample = self.sample()
        self.others = None if sample is None or sample.grad is None else TensorWeakRef(sample.grad)

    @property
    def step_uses_others(self) -> bool:
        """Whether an optimizer uses only what was made in their place, rather than what the program made of both."""
        sample = self.sample()
        return sample is not None and self.others is not None and sample.grad is self.others()


class HabitWatch:
    """Watches a program while `Recording` records it; `step` numbers its steps from 0."""

    def __init__(self, put: Replacements, growth: GrowthWatch) -> None:
        self.step, self._growth = 0, growth
        self._steps: dict[tuple[str, str], set[int]] = defaultdict(set)  # by code and line
        self.models_moved: Counter[str] = Counter()  # how often, by line
        self.must_read: set[str] = set()  # lines whose steps need values: of a scaler, or with a closure
        # why PyTorch itself reads or copies something, by line: "check" for the arguments of a distribution, "size" for
        # what an operator needs, such as how many values a mask picks, "index" for indices that are on the CPU
        self.asking: dict[str, str] = {}
        self._stack: list[nn.Module] = []
        self._inputs: object = ()  # of the model that runs
        self._dropped: list[bool] = []  # whether calls of `dropout` by it, not by layers, drop
        self._passes: list[_Pass] = []
        # by line: the first input of its last call, with its version
        self._fed: dict[str, tuple[Callable[[], torch.Tensor | None], int]] = {}
        self.calls: Counter[str] = Counter()  # of models before the first backward pass, by line
        self._untrained: list[_Pass] = []  # of models that no optimizer trains
        self._closure = False  # whether an optimizer makes a step that has one
        self._left: list[_Leftover] = []  # of earlier steps
        self._trained = WeakIdKeyDictionary()  # parameters that an optimizer changes
        self._gradients: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Gradients] = weakref.WeakKeyDictionary()
        self._optimized = False  # whether any optimizer has begun a step
        self._backward = self._cleared = ""  # lines, since the last step of an optimizer
        self._backwards = 0  # backward passes since then
        self._fills = True  # whether a backward pass leaves gradients in parameters; `torch.autograd.grad` returns them
        self._read: set[str] = set()  # lines that have read a value since the model's last call
        self._answered: set[str] = set()  # lines that have copied something to a GPU since then
        self._asked: set[str] = set()  # lines that read what decides over the model's next input, and copy that
        self._thrown_away: _ThrownAway | None = None
        self._clearing = ""  # the line that threw away gradients of a backward pass that came again
        self._groups = 0  # of parameters, of all optimizers
        self._loaders: dict[str, tuple[list[weakref.ref[Any]], int]] = {}  # by line: their data, and groups until then
        self._set_to_train: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # layers that `train()` was called for
        self.double_is_chosen = False
        self._seeds: dict[str, int] = {}  # the last one, by line
        self._sent = WeakIdKeyDictionary()  # the versions of tensors when they were copied to a GPU
        self._parts: weakref.WeakKeyDictionary[nn.Module, _Parts] = weakref.WeakKeyDictionary()
        put.put(state.world, sent=self._copied, asked=self._on_ask)
        put.put(state.world.clock, wait_until=watched(state.world.clock.wait_until, self._on_wait))
        self.upkeep = UpkeepWatch(put, self._note)
        self._layers = LayerWatch(self._note, self._trained, _tells_modes_apart)
        self._clips, self._losses = ClipWatch(put, self._note), LossWatch(put, self._note)
        self._copies = CopyWatch(put, self._note, self._trained)
        self.by_hand = HandWatch()
        passes = watched(torch.autograd.backward, self._on_backward, self._after_backward)
        asked = watched(torch.autograd.grad, self._on_gradients, self._after_gradients)
        put.put(torch.autograd, backward=passes, grad=asked)
        for owner in (torch.optim.Optimizer, nn.Module):
            put.put(owner, zero_grad=watched(owner.zero_grad, self._on_clear))
        put.put(torch.optim.Optimizer, add_param_group=self._adding(torch.optim.Optimizer.add_param_group))
        put.put(nn.Module, train=watched(nn.Module.train, self._on_train))
        for owner, name in ((nn.Module, "to"), (nn.Module, "cuda"), (torch, "load")):
            put.put(owner, **{name: watched(getattr(owner, name), self._on_move)})
        put.put(nn.functional, cross_entropy=watched(nn.functional.cross_entropy, self._on_cross_entropy))
        of_two = nn.functional.binary_cross_entropy_with_logits
        put.put(nn.functional, binary_cross_entropy_with_logits=watched(of_two, self._on_squashed))
        put.put(nn.functional, dropout=watched(nn.functional.dropout, self._on_dropout))
        attention = nn.functional.scaled_dot_product_attention
        put.put(nn.functional, scaled_dot_product_attention=watched(attention, self._on_attention))
        put.put(DataLoader, __init__=watched(DataLoader.__init__, self._on_loader))
        put.put(gc, collect=self._noting(gc.collect, "garbage-collected-in-each-step"))
        put.put(torch.amp.GradScaler, step=watched(torch.amp.GradScaler.step, self._on_scaled_step))
        for module in (torch, torch.cuda):
            put.put(module, manual_seed=watched(module.manual_seed, self._on_seed))
        put.put(torch.cuda, empty_cache=self._noting(torch.cuda.empty_cache, "cache-emptied-in-each-step"))
        put.put(torch.cuda, synchronize=self._noting(torch.cuda.synchronize, "synchronised-in-each-step"))

    # ---- what is found ------------------------------------------------------------------------------------------
    def found(self) -> list[Suspect]:
        """Return the habits seen until now: those about results first."""
        self._judge()
        by_hand = self.by_hand.steps > 0
        seen = self._steps.items()
        remarks = [remark(code, line, by_hand) for (code, line), steps in seen if self._is_habit(code, steps)]
        remarks += [remark("layer-never-called", line) for line in self._layers.never_called()]
        if self.step >= _SELDOM:
            remarks += [remark("optimizer-never-steps", line) for line in self.upkeep.never_stepped()]
        codes = {one.code for one in remarks}
        left_out = {code for reason, others in _SAID_BY.items() if reason in codes for code in others}
        remarks = [one for one in remarks if one.code not in left_out]
        return sorted(remarks, key=lambda one: one.about != "result")

    def _is_habit(self, code: str, steps: set[int]) -> bool:
        if code in _EACH_STEP:
            return len(steps) >= max(_FEW_STEPS, self.step / 2)
        if code == "forward-not-used":
            return len(steps) >= max(1, self.step / _SELDOM)
        return len(steps) > (1 if code in _TWICE else 0)

    def _note(self, code: str, line: str = "") -> None:
        line = line or places.place()
        if line:
            self._steps[code, line].add(self.step)

    # ---- modules ------------------------------------------------------------------------------------------------
    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module begins; one that nobody's forward pass calls, and that has parameters, is a model."""
        if not self._stack:
            self._inputs, self._dropped = (args, kwargs), []
        self.upkeep.before_forward(module, args)
        self._layers.before_forward(module, self._stack[0] if self._stack else None)
        self._stack.append(module)

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A module has ended, or failed."""
        if module in self._stack:
            del self._stack[self._stack.index(module) :]
        if self._stack:
            return
        self._inputs = ()
        if result is None:
            return
        parts = self._parts_of(module)
        if next(module.parameters(), None) is not next(_alive(parts.parameters), None):
            return  # it has other weights for this call alone, as `torch.func.functional_call` gives
        if not parts.parameters:
            return
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        made = [one for one in results if one.requires_grad]
        modes = [*self._modes(module, parts), *self._dropped]
        random = any(modes) if modes else None
        versions = [(weakref.ref(one), _version(one)) for one in [*given, *list(_alive(parts.parameters))[:1]]]
        self._losses.samples = batch = _batch_of(given, results)
        if given and given[0].is_leaf and given[0].requires_grad:
            batch = 0  # what is trained may be one picture
        for one in given:
            self._copies.given(one)
        alone = batch == 1 and not self._read and not any(one.requires_grad for one in given)
        called = _Pass(
            module,
            places.place(),
            module.training,
            random,
            bool(made),
            batch,
            versions,
            not self._optimized,
            given[0].shape if alone else None,
            any(one.requires_grad for one in given),
        )
        if not self.upkeep.graphs_used:
            self.calls[called.line] += 1
        self._ask(called)
        called.before = next((one for one in self._passes if one.had_the_tensors_of(called)), None)
        self._passes = [*self._passes[-_MOST_PASSES:], called]
        for output in made:
            output.register_hook(functools.partial(self._uses, called))
        for output in made[:1]:
            called.graph = self._growth.mark(output.grad_fn)
        self.double_is_chosen |= torch.get_default_dtype() is torch.float64
        if any(one.dtype is torch.float64 for one in [*given, *_alive(parts.parameters)]) and not self.double_is_chosen:
            self._note("double-precision", called.line)

    def _uses(self, called: _Pass, gradient: torch.Tensor) -> None:
        """A backward pass comes through the result of a call."""
        called.used, called.filled = True, called.filled or self._fills

    def _modes(self, model: nn.Module, parts: _Parts) -> list[bool]:
        """Return whether layers that tell the modes apart are in training mode, of each.

        In a model in evaluation mode those count as well that were put into it later, and that nobody has set to train.
        """
        layers = list(_alive(parts.random))
        return [one.training and (model.training or one in self._set_to_train) for one in layers]

    def _ask(self, called: _Pass) -> None:
        """Note lines that had to read something, such as an action: what was copied to a GPU then is the next input.

        Evaluation looks the same, but has no gradients, and more than one sample in a batch.
        """
        last = self._passes[-1] if self._passes else None
        if last is not None and self._answered and last.model is called.model and (last.recorded or last.batch == 1):
            self._asked |= self._read | self._answered
        self._read, self._answered = set(), set()

    def registered(self, owner: nn.Module, name: str, part: object) -> None:
        """A module got a part: what was known of the parts of modules may be no longer so."""
        self._parts.clear()
        self._layers.registered(owner, name, part)

    def _parts_of(self, module: nn.Module) -> _Parts:
        if module not in self._parts:
            self._parts[module] = _Parts.of(module)
        return self._parts[module]

    def _judge(self, last: bool = False) -> None:
        """Say what the calls of models since the last step were, but for those whose results may still be used.

        When the program has ended (`last`), what it called after its last step is used no more.
        """
        for called in self._untrained:  # of the step before: who trains them by hand has done so meanwhile
            if called.gets_gradients(self._parts_of(called.model)):
                self._note("gradients-not-used", called.line)
        self._untrained = []
        used = [called for called in self._passes if called.used]
        for called in self._passes:
            called.judged += 1
            if called.may_be_used and not (last and called.judged == 1):
                continue
            if called.repeats:
                self._note("forward-repeated", called.line)
            trained = any(parameter in self._trained for parameter in _alive(self._parts_of(called.model).parameters))
            if called.used:
                self._judge_used(called, trained)
            elif called.recorded and trained and not called.early:
                self._note("forward-not-used" if called.training else "evaluation-with-gradients", called.line)
            elif not called.recorded and trained and called.random and called.training:
                self._note("evaluation-in-training-mode", called.line)
        self._judge_batches(used)
        self._left = [one for one in [*self._left, *self._leftovers()] if one.is_left]
        self._passes = [called for called in self._passes if called.may_be_used]

    def _judge_used(self, called: _Pass, trained: bool) -> None:
        """Say what a call was through whose result a backward pass came; `trained`: an optimizer has the model."""
        if not trained:
            self._untrained.append(called)
        elif called.random is False and not called.training:
            self._note("training-in-evaluation-mode", called.line)
        if trained and self.upkeep.is_bypassed(called.model):
            self._note("ddp-bypassed", called.line)

    def _judge_batches(self, used: list[_Pass]) -> None:
        """Say which of the calls of a step got few samples: all of them, or one sample each that could be a batch."""
        largest = max((called.batch for called in used), default=0)
        calls = Counter(called.model for called in used)
        rows: Counter[tuple[nn.Module, torch.Size | None]] = Counter((called.model, called.alone) for called in used)
        whole = any([self._has_all(called) for called in used])
        for called in used:
            looped = calls[called.model] > _LOOPED * self._backwards
            alike = rows[called.model, called.alone]
            if looped and called.alone is not None and alike > _LOOPED * self._backwards:
                self._note("samples-one-by-one", called.line)
            elif called.batch and largest <= _SMALL_BATCH and not looped and not whole:
                self._note("small-batch", called.line)

    def _has_all(self, called: _Pass) -> bool:
        """Return whether a call had all the data that there are: what a step before had, or a loader's only batch."""
        reference, version = called.given[0]
        before, self._fed[called.line] = self._fed.get(called.line, (lambda: None, 0)), called.given[0]
        again = reference() is not None and before[0]() is reference() and before[1] == version
        return again or self.upkeep.only_batch

    # ---- optimizers ---------------------------------------------------------------------------------------------
    def trains(self, weights: Iterable[torch.Tensor]) -> None:
        """The program changes these weights itself."""
        for weight in weights:
            self._trained[weight] = True

    def before_step(self, optimizer: torch.optim.Optimizer, closure: bool) -> None:
        """An optimizer's step begins, with a `closure` or without."""
        self._closure = closure
        if closure:
            self.must_read.add(places.place())
        self._layers.before_step(optimizer)
        parameters = _parameters_of(optimizer)
        self._optimized = True
        known = self._gradients.get(optimizer)
        if known is None:
            known = self._gradients[optimizer] = _Gradients(clear=True)
            self.trains(parameters)
            sample = next((one for one in parameters if one.requires_grad), None)
            if sample is not None:
                sample.register_hook(_arriving(weakref.ref(sample), known))
        elif known.came and not known.clear and self._backward:
            self._note("gradients-never-cleared", self._backward)
        if self._clearing and not closure and self._thrown_away is not None and self._thrown_away.step_uses_others:
            self._note("gradients-thrown-away", self._clearing)
        if self._cleared and not any(_is_set(one.grad) for one in parameters):
            self._note("gradients-cleared-too-early", self._cleared)
        elif self._backward and all(one.grad is None for one in parameters):
            self._note("optimizer-of-other-parameters")
        elif self.step < _LOOKED_AT and any(one.requires_grad and one.grad is None for one in parameters):
            used = [
                one for called in self._passes if called.used for one in _alive(self._parts_of(called.model).parameters)
            ]
            if any(one.grad is not None and one not in self._trained for one in used):
                self._note("optimizer-of-other-parameters")

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended."""
        self._gradients[optimizer].came = self._gradients[optimizer].clear = False
        self._backward = self._cleared = self._clearing = ""
        self._thrown_away, self._closure = None, False
        self.upkeep.after_step(optimizer)
        self._clips.after_step(optimizer)

    def finish(self, whole: bool = True) -> None:
        """The program has ended; not `whole`: in the midst of its work, which might have used its results later."""
        if not whole:
            self._passes = [called for called in self._passes if called.used or not called.recorded]
        elif not self._optimized and not self.upkeep.graphs_used:
            self._judge_inference()
        self._judge(last=True)

    def _judge_inference(self) -> None:
        """Say what is amiss with calls of models in a program that has trained none and asked for no gradient."""
        lines = Counter(called.line for called in self._passes)
        for called in self._passes:
            if lines[called.line] < _FEW_STEPS:
                continue
            if called.recorded and not called.training:
                self._note("evaluation-with-gradients", called.line)
            elif called.random and called.training and not called.recorded:
                self._note("evaluation-in-training-mode", called.line)

    def end_step(self) -> None:
        """A step of the program has ended."""
        self._judge()
        self._backwards = 0
        self._asked.clear()
        self.upkeep.end_step()
        self._copies.end_step()
        self._layers.end_step()
        self.step += 1

    # ---- calls that are watched ---------------------------------------------------------------------------------
    def _adding(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return `add_param_group`, after which the group's parameters are known as trained."""

        @functools.wraps(plain)
        def adds(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            self._groups += 1
            self.trains(optimizer.param_groups[-1]["params"])

        return adds

    def _noting(self, plain: Callable[..., Any], code: str) -> Callable[..., Any]:
        return watched(plain, lambda *args, **kwargs: self._note(code))

    def _on_backward(self, *args: Any, **kwargs: Any) -> None:
        if not self._groups and self.by_hand.before_backward(args[0] if args else kwargs.get("tensors")):
            self._note("gradients-never-cleared")
        self._backward, self._cleared = places.place(), ""
        self._backwards += 1
        self.upkeep.on_backward(*args, **kwargs)
        self._losses.on_backward(*args[:1])
        self.must_read |= self._asked
        self._read, self._answered = set(), set()
        if self._thrown_away is not None and self._thrown_away.is_made_again(self._backward):
            self._clearing = self._thrown_away.clearing

    def _after_backward(self) -> None:
        self._after_gradients()
        if self._clearing and self._thrown_away is not None:
            self._thrown_away.keep()
        if torch._C._is_any_autocast_enabled():
            self._note("backward-under-autocast")

    def _on_gradients(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        if not self._groups:
            given = inputs if isinstance(inputs, list | tuple) else [inputs]
            self.by_hand.before_gradients(one for one in given if isinstance(one, torch.Tensor))
        self._fills = False

    def _after_gradients(self) -> None:
        self._fills = True
        if not self._groups:
            self.by_hand.after_backward()

    def _on_clear(self, owner: torch.optim.Optimizer | nn.Module, *args: Any, **kwargs: Any) -> None:
        parameters = list(owner.parameters()) if isinstance(owner, nn.Module) else _parameters_of(owner)
        if isinstance(owner, torch.optim.Optimizer):
            self.upkeep.on_clear(owner, any(one.grad is not None for one in parameters))
        if self._backward:
            self._cleared = places.place()
            self._thrown_away = _ThrownAway.of(self._backward, parameters)
        elif not self._closure:  # which an optimizer calls as often as it likes
            self._look_at_left(parameters)

    def _look_at_left(self, cleared: list[nn.Parameter]) -> None:
        """Name calls that need not be in the graph: others made a step since, and theirs are cleared without one."""
        known = set(map(id, cleared))
        for one in [*self._left, *self._leftovers()]:
            if id(one.weight()) in known and one.is_left:
                self._note("not-detached", one.line)
        self._left = [one for one in self._left if id(one.weight()) not in known]

    def _leftovers(self) -> Iterator["_Leftover"]:
        """Yield what backward passes have made for the sake of models, by the calls of these since the last step."""
        passes = (called for called in self._passes if called.filled and not called.fed)
        return (_Leftover(called.line, *called.given[-1]) for called in passes)

    def _on_move(self, *args: Any, **kwargs: Any) -> None:
        self.models_moved[places.place()] += 1

    def _on_train(self, module: nn.Module, mode: bool = True) -> None:
        if mode:
            self._set_to_train.add(module)

    def _on_cross_entropy(self, scores: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if _made_by(scores).startswith("SoftmaxBackward") or (self.step < _LOOKED_AT and _are_probabilities(scores)):
            self._note("softmax-before-cross-entropy")
        else:
            self._on_squashed(scores)

    def _on_squashed(self, scores: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if _made_by(scores).startswith("SigmoidBackward"):
            self._note("sigmoid-before-loss")

    def _on_ask(self, why: str) -> None:
        self.asking.setdefault(places.place(), why)

    def _on_wait(self, when_ns: int, reason: str) -> None:
        if "D2H" in reason:
            self._read.add(places.place())
            if _asks().startswith("torch.distributions"):
                self.asking[places.place()] = "check"

    def _on_seed(self, seed: int) -> None:
        line = places.place()
        if self._seeds.get(line) == seed:
            self._note("seed-in-each-step", line)
        self._seeds[line] = seed

    def _on_scaled_step(self, *args: Any, **kwargs: Any) -> None:
        self.must_read.add(places.place())

    def _on_dropout(
        self, input: torch.Tensor, p: float = 0.5, training: bool | None = None, inplace: bool = False
    ) -> None:
        """Dropout is asked of the function; who leaves `training` out has it in evaluation too."""
        if self._stack and p > 0 and not isinstance(self._stack[-1], nn.modules.dropout._DropoutNd):
            self._dropped.append(training is not False)
            self._layers.drops_by_function = True
            if training is None and not self._stack[-1].training:
                self._note("dropout-in-evaluation")

    def _on_attention(self, *args: Any, **kwargs: Any) -> None:
        self._layers.drops_by_function |= bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))

    def _on_loader(self, loader: DataLoader[Any], dataset: Any, *args: Any, **kwargs: Any) -> None:
        """A loader is built: anew where it has the data of the one before, for the same optimizers.

        A sampler may choose another part of the same data, as in cross-validation.
        """
        line = places.place()
        before, groups = self._loaders.get(line, ([], -1))
        data = [] if kwargs.get("sampler") or kwargs.get("batch_sampler") else _data_of(dataset)
        same = len(before) == len(data) > 0 and all(old() is new for old, new in zip(before, data, strict=True))
        if same and groups == self._groups:
            self._note("loader-built-anew", line)
        self._loaders[line] = [weakref.ref(one) for one in data], self._groups

    def _copied(self, source: torch.Tensor) -> None:
        """A tensor of the host is copied to a GPU."""
        if source.dim() == 0:
            return
        if self._stack:
            is_input = any(source is one or source._base is one for one in tree_leaves(self._inputs))
            if not is_input and _asks() != "torch.nn.utils.rnn":  # which wants the lengths of a batch on the CPU
                self._note("host-tensor-in-forward")
            return
        if self._read:
            self._answered.add(places.place())
        self._copies.given(source)
        version = _version(source)
        if self._sent.get(source) == (version, self.step - 1):
            self._note("moved-in-each-step")
        self._sent[source] = version, self.step


def _batch_of(given: list[torch.Tensor], results: list[torch.Tensor]) -> int:
    """Return the samples that a model got: the rows of its first tensor, 0 if nobody can say.

    A vector of numbers is one sample, unless the result has as many rows.
    """
    if not given or not given[0].dim():
        return 0
    rows = given[0].shape[0]
    is_vector = given[0].dim() == 1 and given[0].is_floating_point()
    return 1 if is_vector and all(one.shape[:1] != (rows,) for one in results) else rows


def _asks() -> str:
    """Return the name of the module that has called what stands in simgpu."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("simgpu."):
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _data_of(dataset: Any) -> list[Any]:
    """Return the objects that tell the data of a loader from those of another; none where nothing can be kept in mind.

    Two `TensorDataset`s of the same tensors have the same data.
    """
    data = list(dataset.tensors) if isinstance(dataset, TensorDataset) else [dataset]
    return [] if any(isinstance(one, list | tuple | dict) for one in data) else data


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; 0 where PyTorch does not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _tells_modes_apart(layer: nn.Module) -> bool:
    """Return whether a layer does something else in training than in evaluation."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase):
        return layer.dropout > 0 and layer.num_layers > 1
    if isinstance(layer, nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _made_by(scores: torch.Tensor) -> str:
    """Return the name of the operator in the graph that made scores, but for views of them."""
    node = scores.grad_fn
    while node is not None and node.name().startswith(_VIEWS):
        node = node.next_functions[0][0]
    return "" if node is None else node.name()


def _are_probabilities(scores: torch.Tensor) -> bool:
    """Return whether the scores of each sample are at least 0 and sum to 1; nothing is asked of a GPU."""
    values = values_of(scores).detach()
    if state.world.only_shapes or type(values) is not torch.Tensor or not values.numel() or values.dim() == 0:
        return False
    sums = values.sum(1 if values.dim() > 1 else 0, dtype=torch.float64)
    return bool((values >= 0).all()) and bool((sums - 1).abs().max() < 1e-2)


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
    """Yield the remarks, one of small batches, and only where launches keep the GPU waiting and there is `room`."""
    worth = launching >= 0.3 and room
    for suspect in remarks:
        if suspect.code != "small-batch":
            yield suspect
        elif worth:
            worth = False
            yield replace(suspect, text=suspect.text.format(launching=f"{launching:.0%}"))
