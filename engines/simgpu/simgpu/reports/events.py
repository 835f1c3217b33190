"""Events of a training program, as its observer tells them to analyses and rules.

An analysis or a rule has a method for each event that it needs: `on_backward(event)` for `Backward`.
"""

import re
from dataclasses import dataclass
from typing import Any, dataclass_transform

import torch
from torch import nn
from torch.optim import Optimizer

from simgpu.reports.calls import Pass


@dataclass_transform()
class Event:
    """Something that the program asks of PyTorch, or that PyTorch has done for it."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)


# ---- modules ----------------------------------------------------------------------------------------------------
class Registered(Event):
    """A module or parameter becomes part of a module."""

    owner: nn.Module
    name: str
    part: object


class Forward(Event):
    """A module is called."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class ForwardEnd(Forward):
    """A call of a module ends; `result` is None where it raised."""

    result: Any


class Called(Event):
    """A model was called from outside; `last` is the pass before it that is still of interest."""

    call: Pass
    last: Pass | None


class Judging(Event):
    """The passes since the last step are about to be judged."""


class Judged(Event):
    """It is decided whether a backward pass came through a call; `trained`: an optimizer changes its model."""

    call: Pass
    trained: bool

    @property
    def in_vain(self) -> bool:
        """Whether it has recorded a graph of a trained model that nothing has used."""
        return self.trained and self.call.recorded and not self.call.used and not self.call.early


class AllJudged(Event):
    """All passes since the last step are judged; `used` are those that a backward pass came through."""

    used: list[Pass]


class Inferred(Event):
    """A program that has trained nothing ends, in which the line of this call has called a model several times."""

    call: Pass


class ModeSet(Event):
    """`train(mode)` or `eval()` is called."""

    module: nn.Module
    training: bool


class Moved(Event):
    """A model is moved, or a file of tensors is loaded."""


class Wrapped(Event):
    """A model is given to DistributedDataParallel."""

    model: nn.Module


# ---- gradients and optimizers -----------------------------------------------------------------------------------
class Backward(Event):
    """`torch.autograd.backward` begins at `roots`; `creates`: a graph, or gradients of what it names only."""

    roots: list[torch.Tensor]
    retains: bool
    creates: bool


class BackwardEnd(Event):
    """A backward pass has filled gradients in."""


class Grad(Event):
    """`torch.autograd.grad` begins, which returns the gradients of `inputs`."""

    inputs: list[torch.Tensor]


class GradEnd(Event):
    """`torch.autograd.grad` returns."""


class Clear(Event):
    """`zero_grad()` is called."""

    owner: Optimizer | nn.Module
    parameters: list[nn.Parameter]


class Clip(Event):
    """Gradients are clipped to a norm or a value, the first of the `options`; `given` may be an iterator of them."""

    given: object
    parameters: list[torch.Tensor]
    options: list[Any]


class Clipped(Event):
    """Gradients were clipped: their norm was `norm`, and may be at most `limit`."""

    norm: torch.Tensor
    limit: float


class OptimizerBuilt(Event):
    """An optimizer is built."""

    optimizer: Optimizer


class ParametersAdded(Event):
    """An optimizer gets a group of parameters."""

    parameters: list[nn.Parameter]


class Update(Event):
    """An optimizer's `step()` begins, with a closure or without."""

    optimizer: Optimizer
    parameters: list[nn.Parameter]
    closure: bool


class Updated(Event):
    """An optimizer's `step()` ends."""

    optimizer: Optimizer


class HandStep(Event):
    """The program has changed these weights itself; `keeps`: the gradients that it used are still there."""

    weights: list[torch.Tensor]
    keeps: bool


class Scheduled(Event):
    """A scheduler is built ("__init__"), or its `step()` is called."""

    scheduler: Any
    method: str


class StepEnd(Event):
    """A training step ends: that of the first optimizer, one by hand, or where `simgpu.step()` says so."""


class RunEnd(Event):
    """Recording ends; not `whole`: in the midst of the program's work, which might have used its results later."""

    whole: bool


class ScalerCall(Event):
    """A gradient scaler is built, multiplies a loss ("scale"), divides gradients ("unscale_"), is read or steps."""

    method: str
    enabled: bool


# ---- functions --------------------------------------------------------------------------------------------------
class Loss(Event):
    """A loss is called, such as "kl_div"; `ignored` targets, and those of a class of weight 0, do not count in it."""

    name: str
    scores: torch.Tensor
    target: Any
    ignored: int
    weights: Any = None
    reduces: bool = True  # to a number


class Softmax(Event):
    """Softmax, or its logarithm, is taken of scores over a dimension."""

    scores: torch.Tensor
    dim: int


class Divided(Event):
    """A tensor of one number, which has a graph, is divided by a number of Python."""

    tensor: torch.Tensor
    divisor: float


class Cut(Event):
    """`detach()`, `.data` or `tolist()` is asked of a tensor that has a graph."""

    tensor: torch.Tensor


class Difference(Event):
    """One tensor is subtracted from another, as a loss of regression does."""

    first: torch.Tensor
    second: torch.Tensor
    is_loss: bool = False


class Dropout(Event):
    """`F.dropout` is called; `training` is None where the program leaves it out."""

    rate: float
    training: bool | None


class Attention(Event):
    """`scaled_dot_product_attention` is called with a rate of dropout."""

    rate: float


class Changed(Event):
    """A tensor is changed in place by what depends on its old values."""

    tensor: torch.Tensor


class Dropped(Event):
    """A function such as `clamp()` is called of a leaf, and the program drops the result."""

    tensor: torch.Tensor


class Blended(Event):
    """`into` is changed in place: "mul_" by the number `share`, "add_", "lerp_" or "copy_" with `other`."""

    name: str
    into: torch.Tensor
    other: torch.Tensor | None
    share: float = 1.0


class StateTaken(Event):
    """`state_dict()` of a whole model returns."""

    model: nn.Module
    state: dict[str, Any]


class Kept(Event):
    """A state is loaded into a model, or something is saved, into none."""

    state: Any
    model: nn.Module | None


class Housekeeping(Event):
    """`name` is called: "empty_cache", "synchronize", "collect", "anomaly", or "manual_seed" with `args`."""

    name: str
    args: tuple[Any, ...]


class Compiling(Event):
    """PyTorch compiles a function; `frame` is the number that it gives it, the same where it compiles it anew."""

    frame: str


class Recorded(Event):
    """A compiled graph is captured as a CUDA graph for another size than before."""


# ---- data, copies and waits -------------------------------------------------------------------------------------
class LoaderBuilt(Event):
    """A DataLoader is built; `sampled`: it has a sampler of the program's."""

    loader: Any
    dataset: Any
    sampled: bool


class LoaderBegun(Event):
    """A DataLoader begins, as a `for` loop over it does."""

    loader: Any
    iterator: Any


class Loaded(Event):
    """A DataLoader has given a batch, after so many seconds; `starts`: the first one of new workers."""

    iterator: Any
    seconds: float
    starts: bool


class Ordered(Event):
    """A DistributedSampler draws the order of an epoch."""

    sampler: Any


class Copied(Event):
    """A tensor of the host is copied to a GPU."""

    source: torch.Tensor


class Asked(Event):
    """PyTorch itself needs a number of the GPU's ("size") or copies indices of the CPU ("index")."""

    why: str
    asker: str


class Read(Event):
    """The host waits for a value of a GPU; `asker` is the module that asks for it."""

    asker: str


def _all(event: type[Event]) -> list[type[Event]]:
    return [event, *(inner for child in event.__subclasses__() for inner in _all(child))]


HANDLERS = {event: "on" + re.sub("([A-Z])", r"_\1", event.__name__).lower() for event in _all(Event)}
