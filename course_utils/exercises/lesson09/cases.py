"""What do the ranks of an exercise of lesson 09 prepare, and what do they send back to the check?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

__all__ = [
    "EPOCHS", "FIRST", "KINDS", "LENGTH", "Points", "accumulated", "batches", "each", "gradients", "loss_of", "made",
    "micro_batches", "start", "trained",
]  # fmt: skip


def each(call: Callable, columns: list[list[torch.Tensor]]) -> list[Any]:
    """Call the answer with this rank's tensor of each column."""
    return [call(column[dist.get_rank()]) for column in columns]


LENGTH, EPOCHS = 24, 3  # of the exercise `train`
FIRST = 10  # of the numbers that `epoch_batches` shares out, so that they are not their own indices

KINDS = {
    "plain": "two layers",
    "frozen": "the first layer frozen",
    "tied": "one weight in two layers",
    "unused": "one layer used on rank 0 only",
}


class _Branches(nn.Module):
    """Two layers of equal shape, of which a rank uses one, and one that all use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shared = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared((self.first if dist.get_rank() == 0 else self.second)(x))


def made(kind: str) -> nn.Module:
    """Return the model of a kind, the same on every rank."""
    torch.manual_seed(7)
    if kind == "unused":
        return _Branches()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    if kind == "frozen":
        model[0].requires_grad_(False)
    if kind == "tied":
        model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False), nn.Linear(16, 2))
        model[2].weight = model[0].weight
    return model


def gradients(call: Callable, kinds: list[str]) -> list[dict[str, Any]]:
    """For each kind: the call, the gradients before and after it, whether the weights are as before, frozen names."""
    found = []
    for kind in kinds:
        model = made(kind)
        torch.manual_seed(100 + dist.get_rank())
        x = torch.randn(5, 16 if kind == "tied" else 3)
        model(x).square().mean().backward()
        before = {name: _copied(parameter.grad) for name, parameter in model.named_parameters()}
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        done = call(model, modifies=True)
        after = {name: _copied(parameter.grad) for name, parameter in model.named_parameters()}
        kept = all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        unfrozen = frozen != [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        seen = {"kept": kept, "frozen": frozen, "unfrozen": unfrozen}
        found.append({"call": done, "before": before, "after": after, **seen})
    return found


def _copied(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def micro_batches(rank: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the micro-batches of a rank: (x, y) of shapes (4, 3) and (4, 2)."""
    generator = torch.Generator().manual_seed(10 + rank)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(count)]


def accumulated(call: Callable, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Call the answer with each number of micro-batches."""
    return [_accumulated(call, count) for count in counts]


def _accumulated(call: Callable, count: int) -> dict[str, Any]:
    """Call the answer with a DistributedDataParallel that holds old gradients; note its synchronisations."""
    model = DistributedDataParallel(made("plain"))
    synchronised, entered, rows, ordinary = [], [], [], model.no_sync

    def no_sync() -> Any:
        entered.append(True)
        return ordinary()

    def hook(state, bucket):  # PyTorch compares annotations by identity, so there are none
        synchronised.append(bucket.buffer().nbytes)
        mean = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(mean, async_op=True).get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)
    model.no_sync = no_sync
    model.module.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    most = _count_graphs(model.module)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # left over from the step before
    weights = {name: value.clone() for name, value in model.module.state_dict().items()}
    given = micro_batches(dist.get_rank(), count)
    micro = list(given)
    done = call(model, given, loss_of(count), modifies=True)
    after = {name: _copied(parameter.grad) for name, parameter in model.module.named_parameters()}
    kept = all(torch.equal(value, weights[name]) for name, value in model.module.state_dict().items())
    seen = {"synchronised": synchronised, "entered": len(entered), "rows": max(rows, default=0), "graphs": most[0]}
    left = _left(model, list(map(id, given)) != list(map(id, micro)))
    return {"call": done, "after": after, "kept": kept, "left": left, **seen}


def loss_of(count: int) -> Any:
    """Return the loss that comes with `count` micro-batches: another one for one than for several."""
    return nn.functional.mse_loss if count > 1 else nn.functional.l1_loss


def _count_graphs(module: nn.Module) -> list[int]:
    """Return, kept up to date, how many results of `module` at most waited for their backward pass together."""
    alive, most = [0], [0]

    def came(gradient: torch.Tensor) -> None:
        alive[0] -= 1

    def made_one(module: nn.Module, given: Any, result: torch.Tensor) -> None:
        if result.requires_grad:
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            result.register_hook(came)

    module.register_forward_hook(made_one)
    return most


def _left(model: DistributedDataParallel, edited: bool) -> str:
    """Return what an answer left changed, in words, or nothing."""
    if edited:
        return "the list of micro-batches changed"
    if not model.require_backward_grad_sync:
        return "the synchronisation switched off"
    return "" if model.training else "the model in evaluation mode"


class Points(Dataset):
    """Pairs (x, y) that note which of them were asked for."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(length, 3, generator=generator)
        self.y = self.x @ torch.tensor([[1.0, 0.5], [-1.0, 2.0], [0.5, 0.0]])
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(int(index))
        return self.x[index], self.y[index]


def start(rank: int) -> nn.Module:
    """Return the model that a rank begins with: another one on each, which DistributedDataParallel makes equal."""
    torch.manual_seed(rank + 1)
    return nn.Sequential(OrderedDict(linear=nn.Linear(3, 2)))


def trained(call: Callable, folder: str) -> dict[str, Any]:
    """Call the answer with a path of this rank's own, so that it is seen which ranks write."""
    rank, points = dist.get_rank(), Points(LENGTH)
    model, path = start(rank), Path(folder) / f"rank{rank}"
    path.mkdir()
    with mock.patch.object(torch, "save", wraps=torch.save) as saves:
        done = call(model, points, path / "model.pt", EPOCHS, modifies=True)
    storages = torch.UntypedStorage, torch.TypedStorage  # pickle saves them one by one
    times = sum(not isinstance(call.args[:1] and call.args[0], storages) for call in saves.call_args_list)
    return {"call": done, "state": dict(model.state_dict()), "asked": points.asked, "saves": times}


def batches(call: Callable, given: tuple[tuple[int, int, int], ...]) -> list[Any]:
    """Call the answer with data of each length, batches of each size, and each number of epochs."""
    return [call(torch.arange(FIRST, FIRST + length), size, epochs) for length, size, epochs in given]
