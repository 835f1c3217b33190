"""Which habits lie in what a training program does beside its models: optimizers, scalers, files, samplers, settings?

As in `habits`, nothing is judged from the program's text.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.weak import TensorWeakRef

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, is_leaf
from simgpu.ground.replacements import Replacements
from simgpu.reports.calls import watched

_PRODUCTS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # what autocast computes in 16 bits
_MOST_NODES = 1000  # of a graph, that are marked


class _Token:
    """What lives as long as a part of the graph that it was put into."""


@dataclass
class _Made:
    """The optimizer that a line has made last, and how its first parameter was after its last step."""

    sample: TensorWeakRef
    count: int  # of its parameters
    steps: int = 0
    cleared: int = 0  # how often gradients were cleared that had come for it
    version: int = -1
    remembers: bool = False  # whether it keeps something of earlier gradients, as momentum does
    again: int = 0  # how often the line has made one for the same parameters, and let go of what it remembered

    def has(self, sample: torch.Tensor, count: int) -> bool:
        """Return whether it has made steps with these parameters, and nobody has changed them since."""
        return self.remembers and self.sample() is sample and self.count == count and self.version == sample._version


class UpkeepWatch:
    """Watches what a program does beside its models; `note(code, line)` notes a habit, by default of the line here."""

    def __init__(self, put: Replacements, note: Callable[..., None]) -> None:
        self._note = note
        self._step = 0
        self._made: dict[str, _Made] = {}  # optimizers by the line that made them
        self._by_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Made] = weakref.WeakKeyDictionary()
        self._has_scaler = self._in_half = False  # whether there is a scaler; whether products were computed in float16
        self._retained: tuple[str, weakref.ref[_Token]] | None = None  # the last graph that was kept, by its line
        self.graphs_used = False  # whether any gradient was asked for
        self._epochs = 0  # how often a loader has begun
        self._loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # by iterator
        self._batches: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()  # by loader: how
        # many since it has begun, and in which step that was
        self.only_batch = False  # whether a loader has given the only batch it has, since the last step
        self._saved: dict[str, tuple[int, int]] = {}  # epoch and step in which a line has saved something
        self._sizes: weakref.WeakKeyDictionary[nn.Module, set[torch.Size]] = weakref.WeakKeyDictionary()
        self._samplers: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._same_order = ""  # the line whose sampler has the order of the epoch before
        self.preparing: set[str] = set()  # lines that make a DistributedDataParallel, which sends the model once
        self._wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models inside a DistributedDataParallel
        self._averaged: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of these, those whose wrapper was called
        put.put(torch.optim.Optimizer, __init__=self._making(torch.optim.Optimizer.__init__))
        put.put(torch.amp.GradScaler, __init__=self._scaling(torch.amp.GradScaler.__init__))
        put.put(torch.autograd, grad=watched(torch.autograd.grad, self._on_grad))
        put.put(torch, save=watched(torch.save, self._on_save))
        put.put(DataLoader, __iter__=self._beginning(DataLoader.__iter__))
        put.put(_BaseDataLoaderIter, __next__=watched(_BaseDataLoaderIter.__next__, self._on_batch))
        put.put(DistributedSampler, __iter__=watched(DistributedSampler.__iter__, self._on_order))
        wrap = DistributedDataParallel.__init__
        put.put(DistributedDataParallel, __init__=watched(wrap, self._on_wrap))
        put.put(nn.functional, nll_loss=watched(nn.functional.nll_loss, self._on_nll_loss))

    # ---- modules ------------------------------------------------------------------------------------------------
    def before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module begins."""
        if isinstance(module, DistributedDataParallel) and torch.is_grad_enabled():
            self._averaged.add(module.module)
        elif isinstance(module, _PRODUCTS):
            if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cuda"):
                trains = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters(recurse=False))
                self._in_half |= trains and torch.get_autocast_dtype("cuda") is torch.float16
            if torch.backends.cudnn.benchmark and isinstance(module, nn.modules.conv._ConvNd) and args:
                known = self._sizes.setdefault(module, set())
                if known and args[0].shape not in known:
                    self._note("benchmark-of-changing-sizes")
                known.add(args[0].shape)

    def _on_wrap(self, wrapper: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        self._wrapped.add(module)
        self.preparing.add(places.place())

    def is_bypassed(self, model: nn.Module) -> bool:
        """Return whether a model has been trained without the DistributedDataParallel that it was given to."""
        return model in self._wrapped and model not in self._averaged

    # ---- backward passes ----------------------------------------------------------------------------------------
    def on_backward(
        self, tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: bool = False, **more: Any
    ) -> None:
        """`torch.autograd.backward` begins, with these arguments."""
        self._look_at_retained()
        self.graphs_used = True
        roots = [one for one in (tensors if isinstance(tensors, list | tuple) else [tensors]) if one is not None]
        node = roots[0].grad_fn if len(roots) == 1 else None
        if node is not None and retain_graph and not create_graph:
            self._retained = places.place(), weakref.ref(_mark(node))
        if self._in_half and not self._has_scaler and not _is_multiplied(node):
            self._note("float16-without-scaler")
        if self._same_order:
            self._note("epoch-not-set", self._same_order)
        self._same_order = ""

    def _on_grad(self, *args: Any, **kwargs: Any) -> None:
        self._look_at_retained()
        self.graphs_used = True

    def _look_at_retained(self) -> None:
        """Say that a graph was kept for nothing where it has gone without another backward pass."""
        if self._retained is not None and self._retained[1]() is None:
            self._note("graph-kept-for-nothing", self._retained[0])
        self._retained = None

    # ---- optimizers ---------------------------------------------------------------------------------------------
    def _making(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return `Optimizer.__init__`, after which it is known which line makes it for which parameters."""

        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            line, before = places.place(), self._made.get(places.place())
            made = _Made(TensorWeakRef(parameters[0]), len(parameters))
            if before is not None and before.has(parameters[0], len(parameters)):
                made.again = before.again + 1
                if made.again > 1:
                    self._note("optimizer-built-anew", line)
            self._made[line] = self._by_optimizer[optimizer] = made

        return __init__

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended."""
        self._in_half = False
        made = self._by_optimizer.get(optimizer)
        sample = None if made is None else made.sample()
        if made is not None:
            made.steps += 1
        if made is not None and sample is not None:
            made.version = sample._version
            kept = optimizer.state.get(sample, {}).values()
            made.remembers = any(isinstance(one, torch.Tensor) and one.shape == sample.shape for one in kept)

    def on_clear(self, optimizer: torch.optim.Optimizer, came: bool) -> None:
        """An optimizer's gradients are cleared, of which some `came`."""
        if optimizer in self._by_optimizer:
            self._by_optimizer[optimizer].cleared += came

    def never_stepped(self) -> Iterator[str]:
        """Yield the lines that made optimizers whose gradients came and were cleared, and that have made no step."""
        return (line for line, made in self._made.items() if not made.steps and made.cleared > 1)

    def end_step(self) -> None:
        """A step of the program has ended."""
        self._step += 1

    def _scaling(self, plain: Callable[..., None]) -> Callable[..., None]:
        def __init__(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
            plain(scaler, *args, **kwargs)
            self._has_scaler |= scaler.is_enabled()

        return __init__

    # ---- losses, files and data ---------------------------------------------------------------------------------
    def _on_nll_loss(self, scores: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if scores.grad_fn is not None and scores.grad_fn.name().startswith("SoftmaxBackward"):
            self._note("probabilities-without-logarithm")

    def _on_save(self, *args: Any, **kwargs: Any) -> None:
        """Something is saved: a habit where the same line has saved in an earlier step of the same epoch."""
        line = places.place()
        epoch, step = self._saved.get(line, (-1, -1))
        if epoch == self._epochs and step != self._step:
            self._note("saved-in-each-step", line)
        self._saved[line] = self._epochs, self._step

    def _beginning(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return `DataLoader.__iter__`, a habit where the loader has given one of its batches since it has begun."""

        def __iter__(loader: DataLoader[Any]) -> Any:
            self._epochs += 1
            batches, step = self._batches.get(loader, (0, 0))
            if batches == 1 and step < self._step and _has_several(loader):
                self._note("loader-begun-anew")
            self._batches[loader] = 0, self._step
            iterator = plain(loader)
            self._loaders[iterator] = weakref.ref(loader)
            return iterator

        return __iter__

    def _on_batch(self, iterator: Any) -> None:
        loader = self._loaders[iterator]() if iterator in self._loaders else None
        self.only_batch = loader is not None and not _has_several(loader)
        if loader in self._batches:
            batches, step = self._batches[loader]
            self._batches[loader] = batches + 1, step

    def _on_order(self, sampler: Any) -> None:
        """A sampler of ranks gives an order of the data: for training where gradients are on."""
        self._same_order = ""
        if sampler.shuffle and torch.is_grad_enabled():
            epoch, step = self._samplers.get(sampler, (-1, -1))
            if epoch == sampler.epoch and step < self._step:
                self._same_order = places.place()
            self._samplers[sampler] = sampler.epoch, self._step


def _has_several(loader: DataLoader[Any]) -> bool:
    """Return whether a loader has more than one batch; who cannot say has."""
    try:
        return len(loader) > 1
    except TypeError:
        return True


def _mark(node: Any) -> _Token:
    """Return what is put into a node and those behind it, so that another loss of the same layers keeps it alive."""
    token = _Token()
    for inner in graph_nodes([node], most=_MOST_NODES):
        if not is_leaf(inner):  # which may live longer than any graph
            inner.metadata[__name__] = token
    return token


def _is_multiplied(node: Any) -> bool:
    """Return whether a loss was multiplied at last, as by a scale of the program's own."""
    return node is not None and node.name().startswith("MulBackward")
