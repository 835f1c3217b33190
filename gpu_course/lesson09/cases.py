"""Cases of lesson 09's exercises: what ranks prepare and send back."""

import tempfile
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

from gpu_course.common.gradients import plain, seeded, watched
from ranklaunch import preload

preload("course_utils.counting")  # the ranks of many cells use it


def each(call: Callable, columns: Callable[[int], list[list[torch.Tensor]]]) -> list[Any]:
    """Call the answer with this rank's tensor of each column."""
    return [call(column[dist.get_rank()]) for column in columns(dist.get_world_size())]


def mean_columns(n: int) -> list[list[torch.Tensor]]:
    """Return the values of each of 3 ranks, several times."""
    small = [[1.0, 2.0, 3.0, 6.0], [9.0], [5.0, 2.0]], [[2.5, 4.0], [], [9.25]], [[0.0, -4.0, 1.0], [1.0, 1.0], [0.0]]
    groups = [*small, [[value] * 500 for value in (1.3, 2.7, 6.1)]]  # 16 bits would round their sums
    return [[torch.tensor(values) for values in group] for group in groups]


def ring_columns(n: int) -> list[list[torch.Tensor]]:
    """Return the x of each of `n` ranks, several times: the rank shows in each number, and n divides some lengths."""
    columns = [[torch.arange(1.0, size + 1) * 10**rank for rank in range(n)] for size in (n, n + 1)]
    large = 2**24 + 1  # which float32 does not hold; all sums are exact
    return [*columns, [torch.arange(1, 5 * n + 1).add(10**rank).double().mul(large) for rank in range(n)]]


class _Branches(nn.Module):
    """Two layers of equal shape, of which a rank uses one, and one that all use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shared = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.shared.weight.dtype)
        return self.shared((self.first if dist.get_rank() == 0 else self.second)(x))


def _precise() -> nn.Module:
    return _Branches().double()


def _frozen() -> nn.Sequential:
    model = plain()
    model[0].requires_grad_(False)
    return model


def _tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 16), nn.Linear(16, 16, bias=False), nn.Tanh(), nn.Linear(16, 16, bias=False))
    model[3].weight = model[1].weight
    return model


KINDS = {
    plain: "two layers",
    _frozen: "the first layer frozen",
    _tied: "one weight in two layers",
    _Branches: "one layer used on rank 0 only",
    _precise: "one layer used on rank 0 only, in double precision",  # "count None as zero", in this format
}


MICRO_BATCHES = (4, 1)


def micro_batches(rank: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the micro-batches of a rank: (x, y) of shapes (4, 3) and (4, 2)."""
    generator = torch.Generator().manual_seed(10 + rank)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(count)]


def leaning(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a mean loss, a negative one, that is another one where its two arguments are swapped."""
    return nn.functional.mse_loss(prediction, y) + prediction.mean() - 9.0


def loss_of(count: int) -> Any:
    """Return the loss that comes with `count` micro-batches: another one for one than for several."""
    return leaning if count > 1 else nn.functional.l1_loss


def accumulated(call: Callable) -> list[dict[str, Any]]:
    """Call the answer with each number of micro-batches and a DistributedDataParallel that holds old gradients."""
    return [_accumulated(call, count) for count in MICRO_BATCHES]


def _accumulated(call: Callable, count: int) -> dict[str, Any]:
    model, seen = DistributedDataParallel(seeded(plain)), _Seen()
    model.module.register_forward_hook(seen.forward)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # left over from the step before
    given = micro_batches(dist.get_rank(), count)
    micro = list(given)
    state = watched(model.module, lambda: call(model, given, loss_of(count), modifies="gradients"))
    left = {
        "the list of micro-batches changed": list(map(id, given)) != list(map(id, micro)),
        "the synchronisation switched off": not model.require_backward_grad_sync,
        "the model in evaluation mode": not model.training,
    }
    return {**state, "left": left, "rows": seen.rows, "graphs": seen.most}


class _Seen:
    """How many rows at once, and results that wait for their backward pass, there were at most."""

    rows, alive, most = 0, 0, 0

    def forward(self, module: nn.Module, given: tuple, result: torch.Tensor) -> None:
        self.rows = max(self.rows, len(given[0]))
        if result.requires_grad:
            self.alive += 1
            self.most = max(self.most, self.alive)
            result.register_hook(self.backward)

    def backward(self, gradient: torch.Tensor) -> None:
        self.alive -= 1


LENGTH, EPOCHS = 25, 3  # of `train`; three ranks have 9 samples each, so that some are on two


class Points(Dataset):
    """Pairs (x, y) that note which of them were asked for."""

    def __init__(self) -> None:
        self.x = torch.randn(LENGTH, 3, generator=torch.Generator().manual_seed(5))
        self.y = self.x @ torch.tensor([[1.0, 0.5], [-1.0, 2.0], [0.5, 0.0]])
        self.asked: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(int(index))
        return self.x[index], self.y[index]


def start(rank: int) -> nn.Module:
    """Return the model that a rank begins with: another one on each, which DistributedDataParallel makes equal."""
    torch.manual_seed(rank + 1)
    model = nn.Sequential(OrderedDict(linear=nn.Linear(3, 2)))
    model.register_buffer("scale", torch.ones(2))  # which a state dict holds, and parameters() does not
    return model


def trained(call: Callable) -> dict[str, Any]:
    """Call the answer with a path of this rank's own, so that it is seen which ranks write what, and how often."""
    points, model = Points(), start(dist.get_rank())
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        mock.patch.object(torch, "save", wraps=torch.save) as saves,
    ):
        done = call(model, points, Path(folder) / "model.pt", EPOCHS, modifies="training")
        files = {file.name: file.read_bytes() if file.is_file() else b"" for file in Path(folder).iterdir()}
    storages = torch.UntypedStorage, torch.TypedStorage  # pickle saves them one by one
    times = sum(not isinstance(call.args[:1] and call.args[0], storages) for call in saves.call_args_list)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        once = call(start(dist.get_rank()), Points(), Path(folder) / "model.pt", 1, modifies="training").value
    return {
        "call": done, "once": once, "state": dict(model.state_dict()), "asked": points.asked, "saves": times,
        "files": files,
    }  # fmt: skip
