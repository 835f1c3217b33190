"""The exercise “Repair a sharded training”."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from gpu_course.checks import Case, difference, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import check_call, on_ranks
from gpu_course.lesson10.sharding import sharded_over

# ---- train sharded ---------------------------------------------------------------------------------------------------


@exercise(
    where="real ranks on the CPU",
    minutes=10,
    difficulty=2,
    limit_s=5.0,
    hints=(
        "Ask three questions. What is gathered at once? Which parameters does the optimizer train? Of which gradients "
        "is the norm?",
        "fully_shard puts new parameters into a module. What one call of fully_shard takes is gathered together. And a "
        "rank sees only a part of each gradient.",
        "Call fully_shard on each of model.blocks, then on the model. Make the optimizer after that. And let "
        "nn.utils.clip_grad_norm_ clip, which knows DTensors.",
    ),
)
def train_sharded(model: nn.Module, mesh: DeviceMesh, batches: list[tuple]) -> dict[str, torch.Tensor]:
    """Train `model` sharded over `mesh`; return its state dict, each tensor whole."""
    for block in model.blocks:  # each is gathered by itself, and freed behind it
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is left
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # the shards, which are there now
    for tokens, targets in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # the norm over all shards
        optimizer.step()
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


class Tower(nn.Module):
    """An embedding, six blocks, and an output layer with the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)))
        self.head = nn.Linear(32, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, 11) logits of (batch,) tokens."""
        return self.head(self.blocks(self.embed(tokens)))


def _tower() -> Tower:
    torch.manual_seed(3)
    tower = Tower()
    tower.embed.weight.data *= 0.2  # the norm is 0.47 in the first step, not to be clipped, and 1.16 in the second
    return tower


def _tokens(step: int) -> torch.Tensor:
    """Return tokens and targets of all ranks, (2, 8)."""
    return torch.randint(0, (11, 2)[step], (2, 8), generator=torch.Generator().manual_seed(step))


@functools.cache
def _alone() -> dict[str, torch.Tensor]:
    """Return the state dict after two steps of one process on the whole batches."""
    model = _tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for tokens, targets in map(_tokens, range(2)):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model.state_dict()


def _largest_unit(model: nn.Module) -> float:
    """Return which part of the numbers of `model` the largest unit gathers at once."""
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.reshard()
    gathered = [0]
    for unit in units:
        unit.unshard()
        gathered.append(sum(value.numel() for value in model.parameters() if not isinstance(value, DTensor)))
        unit.reshard()
    return max(gathered) / sum(value.numel() for value in model.parameters())


def _training(call: Callable) -> tuple[Any, bool, float]:
    """Train on this rank's half of two batches; return the call, whether all is sharded, and the largest unit's part.

    The units are asked, and no peak of bytes is measured: when a message lets go of its buffer, its thread decides.
    """
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    batches = [tuple(_tokens(step).chunk(2, 1)[dist.get_rank()]) for step in range(2)]
    trained = _tower()
    done = call(trained, mesh, batches, modifies="training hooks")
    call.meet()
    sharded = any(isinstance(module, FSDPModule) for module in trained.modules()) and sharded_over(trained, mesh)
    return done, sharded, _largest_unit(trained)


train_sharded.exempt(RANKS, "shapes huge tiny not_finite negative")
train_sharded.exempt(RANKS, "half bfloat16 double bool complex default_type lists calls three_ranks four_ranks uneven")
train_sharded.exempt(
    "the text says which model it is",
    "evaluation frozen all_frozen old_gradients two_groups double_model scalar_parameter",
)
train_sharded.exempt("a mesh with a name of its own shows that it is used", "part")


@train_sharded.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case,
        _training,
        nprocs=2,
        called="train_sharded(model, mesh, batches)",
        compiler=True,
        why="a collective needs one size on all ranks, but shards differ by a row: full_tensor() knows",
    )
    for rank, (call, sharded, largest) in enumerate(ranks):
        check_call(case, call, rank)
        got = dict(call.value) if isinstance(call.value, dict) else call.value  # state_dict() gives an OrderedDict
        spread = isinstance(got, dict) and any(isinstance(value, DTensor) for value in got.values())
        case.fail_if(spread, "returns DTensors", "each rank would return its own part: full_tensor() gathers all")
        case.equal(got, dict(_alone()), rtol=1e-4, what=f"rank {rank}'s result")
        if difference(got, dict(_alone()), rtol=1e-4, atol=1e-6):
            continue  # the values name the mistake, whatever is sharded
        blocks = sum(value.nbytes for value in _tower().blocks.parameters())
        for when, name, why in (
            (not sharded, "the result is right, but not every parameter is sharded over `mesh`",
             "what is not sharded stands whole on every rank: call fully_shard on each block, then on the model"),
            (largest > 0.5, f"the result is right, but one unit holds {largest:.0%} of the model",
             "what one call of fully_shard takes is gathered at once, and fully_shard(model) takes all that no unit "
             "has yet: call fully_shard on each of model.blocks before"),
            (call.counts.collective_bytes["all_gather"] < 2 * blocks, "the result is right, but gathered blocks stay",
             "each is freed behind its forward pass, and gathered again for its backward pass: so fully_shard does it, "
             "unless reshard_after_forward forbids that"),
        ):  # fmt: skip
            case.fail_if(when, name, why)
