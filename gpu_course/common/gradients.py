"""Check of averaged gradients: what ranks prepare and send back, and what that took."""

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from gpu_course.checks import Case
from gpu_course.common.rank_calls import Call
from gpu_course.common.ranks import check_call

_MORE = 256  # bytes that an answer may send beside gradients, to agree on which there are


def plain() -> nn.Sequential:
    """Return a model without peculiarities."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


class _Odd(nn.Module):
    """A layer that is used twice, a weight whose rows are not contiguous, a factor without dimensions, in 64 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.twice = nn.Linear(3, 2), nn.Linear(2, 2)
        self.narrow.weight = nn.Parameter(torch.randn(3, 2).T)  # its gradient has the same strides
        self.again, self.factor = self.twice, nn.Parameter(torch.tensor(0.7))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.again(self.twice(self.narrow(x.double())))


def odd() -> nn.Module:
    """Return a model with a shared layer, a transposed weight and a number, all in 64 bits."""
    return _Odd()


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    """Return a model of this kind, the same on every rank."""
    torch.manual_seed(7)
    return kind()


def averaged(call: Callable, kinds: tuple[Callable[[], nn.Module], ...]) -> list[dict[str, Any]]:
    """Return for each kind of model, with inputs (5, 3): the call, gradients before and after, what it changed."""
    calls = []
    for kind in kinds:
        model = seeded(kind)
        torch.manual_seed(100 + dist.get_rank())
        model(torch.randn(5, 3)).square().mean().backward()
        lists = getattr(dist, "all_reduce_coalesced", None)  # deprecated: a newer torch may be without it
        with mock.patch.object(dist, "all_reduce_coalesced", mock.Mock(wraps=lists), create=True) as listed:
            seen = watched(model, lambda model=model: call(model, modifies="gradients"))
        calls.append({**seen, "listed": listed.called})
    return calls


def watched(model: nn.Module, work: Callable[[], Call]) -> dict[str, Any]:
    """Return what `work` returned and what it did with the gradients, the weights and `requires_grad` of `model`.

    `after` holds the gradients then, `held` what the tensors that were the gradients before hold then.
    """
    before, gradients = copy.deepcopy(model), _gradients(model)
    tensors = {name: parameter.grad for name, parameter in model.named_parameters()}
    done, pairs = work(), list(zip(before.parameters(), model.parameters(), strict=True))
    return {
        "call": done, "before": gradients, "after": _gradients(model), "held": copy.deepcopy(tensors),
        "weights": any(not torch.equal(one, other) for one, other in pairs),
        "unfrozen": any(one.requires_grad != other.requires_grad for one, other in pairs),
    }  # fmt: skip


def _gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: copy.deepcopy(parameter.grad) for name, parameter in model.named_parameters()}


def check_average(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check the gradients of one model; `ranks` holds what `averaged` returned of it on each rank."""
    for rank, seen in enumerate(ranks):
        why = "average parameter.grad; it is the optimizer that changes the parameters, later"
        case.fail_if(seen["weights"], "changes the parameters", why)
        check_call(case, seen["call"], rank)
        for name, got in seen["after"].items():
            given = [one["before"][name] for one in ranks if one["before"][name] is not None]
            if given:
                what = f"the gradient of {name} on rank {rank}"
                case.fail_if(got is None, f"{what} is None", "where it took no part it counts as zero")
                rtol, atol = (1e-12, 1e-14) if given[0].dtype == torch.float64 else (1e-4, 1e-6)
                case.equal(got, sum(given) / len(ranks), rtol=rtol, atol=atol, why=f"this is {what}")
            else:
                why = "requires_grad is False: an optimizer with weight decay would now change it"
                case.fail_if(got is not None, f"gives the frozen {name} a gradient", why)
        size = sum(gradient.nbytes for gradient in seen["after"].values() if gradient is not None)
        sent, name = max([(sent, name) for name, sent in seen["call"].counts.collective_bytes.items()] + [(0, "")])
        why = "each gradient travels once: model.parameters() gives a shared parameter once, and pickles are larger"
        case.fail_if(sent > size + _MORE, f"{name} takes {sent:,} bytes of gradients that have {size:,}", why)
        case.fail_if(seen["unfrozen"], "changes requires_grad of the frozen parameters", "they stay frozen later too")
