"""Observation of a cure: what reached the model, and whether other errors still come out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpu_course.checks import Case
from gpu_course.common.probes import named

_ERROR = "another error, of a batch that does not fit the model, no longer reaches the caller: repair the cause instead"


Layers = named(nn.Sequential, "model")  # layers in a row


class Batches(list):
    """Batches, which messages show in two words."""

    def __repr__(self) -> str:
        return f"{len(self)} batch{'es' * (len(self) != 1)}"


@dataclass(frozen=True)
class _Pass:
    device: torch.device
    rows: int
    training: bool
    dtype: torch.dtype


class Passes:
    """The forward passes of a model, from now on."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[_Pass] = []
        model.register_forward_hook(self._note)

    def _note(self, model: nn.Module, args: tuple, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        self.seen.append(_Pass(args[0].device, len(args[0]), model.training, first.dtype))

    def check(self, case: Case, rows: int) -> None:
        """Fail where the model got fewer than `rows` rows, or some elsewhere than on the device of the case."""
        got, other = sum(one.rows for one in self.seen), [one.device for one in self.seen if one.device != case.device]
        case.fail_if(got < rows, f"leaves data out: {got} of {rows} rows reach the model",
                     "a failure that is avoided so comes back with the next data", got=got,
                     expected=rows)  # fmt: skip
        case.fail_if(other, f"computes on {(other or ['?'])[0]}, expected on {case.device}",
                     "there the failure is only out of sight, and the device stands idle")  # fmt: skip

    def once(self, case: Case, rows: int) -> None:
        """Fail where the model got more than `rows` rows. To be asked when the result is known to be right."""
        got = sum(one.rows for one in self.seen)
        case.fail_if(got > rows, f"runs the model on {got} rows, where there are {rows}", "each pass costs time")

    def modes(self, case: Case, training: int) -> None:
        """Fail unless the first `training` passes were in training mode, and those behind them in evaluation mode."""
        case.fail_if(not all(one.training for one in self.seen[:training]), "trains in evaluation mode",
                     "dropout and batch norm then do not train: call model.train() first")  # fmt: skip
        case.fail_if(any(one.training for one in self.seen[training:]), "judges in training mode",
                     "dropout and batch norm then change the result: call model.eval() first")  # fmt: skip


def stepped(model: nn.Module, batches: Sequence[Any], loss_of: Callable, lr: float) -> list[float]:
    """Train `model` by plain SGD, written out, with the loss `loss_of(model, batch)`; return the losses."""
    losses, trained = [], [one for one in model.parameters() if one.requires_grad]
    for batch in batches:
        loss = loss_of(model, batch)
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.sub_(lr * gradient)
        losses.append(loss.item())
    return losses


def trained(case: Case, model: nn.Module, right: nn.Module, tolerance: float = 1e-4) -> None:
    """Fail unless `model` has the weights and running averages of `right`."""
    weights, wanted = ({name: one.cpu() for name, one in net.state_dict().items()} for net in (model, right))
    case.equal(weights, wanted, rtol=tolerance, atol=tolerance / 10, what="the model", why="it ends with other weights")


def lets_errors_out(case: Case, *args: Any) -> None:
    """Fail where the answer, given a batch that does not fit the model, returns as if nothing had happened."""
    case.fail_if(case.error_of(*args) is None, "swallows errors", _ERROR)
