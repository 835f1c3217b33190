"""The exercise “Start without memory”."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from course_utils import memory
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import on_ranks
from gpu_course.lesson10.sharding import sharded_over

# ---- start without memory --------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A layer whose result is scaled by numbers that no state dict holds."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("scale", torch.empty(width), persistent=False)
        self.fill()

    def fill(self) -> None:
        """Compute the buffer."""
        self.scale.copy_(torch.linspace(1, 2, len(self.scale)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, width) of (batch, width)."""
        return self.layer(x) * self.scale


@exercise(
    title="Start without memory",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=2,
    limit_s=5.0,
    hints=(
        "The order matters: shapes alone, then shards, then memory for them, then numbers. What is in no state dict?",
        'A model made under torch.device("meta") has no numbers. to_empty gives its shards memory, in which any '
        "numbers may stand. The parameters come from rank 0, and each block can compute its buffer.",
        "The lesson's cell has it all in the right order: meta, fully_shard on blocks and model, to_empty, "
        "set_model_state_dict with its options. Only then let each block call fill.",
    ),
)
def start_sharded(blocks: int, mesh: DeviceMesh, state: dict[str, torch.Tensor]) -> nn.Sequential:
    """Return `blocks` sharded blocks `Scaled()` with the numbers of `state`."""
    with torch.device("meta"):  # shapes alone
        model = nn.Sequential(*(Scaled() for _ in range(blocks)))
    for unit in [*model, model]:
        fully_shard(unit, mesh=mesh)
    model.to_empty(device="cpu")  # memory for the shards alone
    options = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    sd.set_model_state_dict(model, state, options=options)
    for block in model:
        block.fill()  # no state dict holds the buffer
    return model


# Blocks of the model whose values are looked at, and of the one whose memory is measured: each of a rank's two threads
# for messages may hold the buffer of one that has ended, and twelve blocks are far more than two.
_FEW, _MANY = 3, 12


def _whole_blocks(blocks: int) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(Scaled() for _ in range(blocks)))


def _has_own_unit(model: nn.Sequential) -> bool:
    """Return whether each block is a unit, or consists of some: when it is gathered, the next one stays sharded."""
    for block, following in itertools.pairwise(model):
        units = [module for module in block.modules() if isinstance(module, FSDPModule)]
        for unit in units:
            unit.unshard()
        alone = all(isinstance(value, DTensor) for value in following.parameters())
        for unit in units:
            unit.reshard()
        if not (units and alone):
            return False
    return True


def _started(call: Callable) -> tuple[Any, ...]:
    """Start; return the call, the units, parameters and buffers of the model, and the bytes alive at the peak."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    few, many = ({} if dist.get_rank() else dict(_whole_blocks(blocks).state_dict()) for blocks in (_FEW, _MANY))
    torch.use_deterministic_algorithms(True)  # fills with NaN what is not initialized
    try:
        done = call(_FEW, mesh, few, modifies=True)  # set_model_state_dict writes into it
        call.meet()
        peak_bytes = memory.measure(lambda: call.answer(_MANY, mesh, many), "cpu").peak_bytes
    finally:
        torch.use_deterministic_algorithms(False)
    model = done.value if isinstance(done.value, nn.Sequential) else nn.Sequential()
    values = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in [*model.named_parameters(), *model.named_buffers()]
    }
    sharded = sharded_over(model, mesh), _has_own_unit(model)
    return dataclasses.replace(done, value=type(done.value)), values, sharded, peak_bytes


start_sharded.exempt(
    RANKS, "shapes huge not_finite zero tied formats default_type numbers one_entry order calls three_ranks four_ranks"
)
start_sharded.exempt("a mesh with a name of its own shows that it is used", "part")


@start_sharded.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case,
        _started,
        nprocs=2,
        called=f"start_sharded({_FEW}, mesh, state)",
        compiler=True,
        known=start_sharded.mistakes,
        why="a collective needs one size on all ranks, also where the numbers come from rank 0",
    )
    whole, size = _whole_blocks(_FEW), sum(value.nbytes for value in _whole_blocks(_MANY).parameters())
    for rank, (call, values, sharded, peak_bytes) in enumerate(ranks):
        case.fail_if(
            not issubclass(call.value, nn.Sequential),
            f"returns {call.value.__name__}, expected an nn.Sequential",
            "return the model",
        )
        for done, what in zip(sharded, ("is not sharded over `mesh`", "has not a unit for each block"), strict=True):
            case.fail_if(not done, f"returns a model that {what}", "call fully_shard on each block, then on the model")
        for name, expected in [*whole.named_parameters(), *whole.named_buffers()]:
            case.equal(values.get(name), expected.detach(), why=f"this is {name} on rank {rank}")
        case.fail_if(
            rank and peak_bytes > 0.9 * size,
            "the result is right, but rank 1 holds the whole model at once",
            f"{peak_bytes:,} bytes, and a whole model of {_MANY} blocks has {size:,}: a rank may have memory for its "
            "own shards, and for one parameter on its way",
        )


@start_sharded.alternative("sends each rank its own part alone; the names are yours to match")
def _(blocks: int, mesh: DeviceMesh, state: dict[str, torch.Tensor]) -> nn.Sequential:
    """Return `blocks` sharded blocks `Scaled()` with the numbers of `state`."""
    with torch.device("meta"):  # shapes alone
        model = nn.Sequential(*(Scaled() for _ in range(blocks)))
    for unit in [*model, model]:
        fully_shard(unit, mesh=mesh)
    model.to_empty(device="cpu")  # memory for the shards alone
    for name, p in model.named_parameters():
        whole = state.get(name, torch.empty(p.shape))
        p.detach().copy_(distribute_tensor(whole, mesh, p.placements))  # scatters what rank 0 has
    for block in model:
        block.fill()  # no state dict holds the buffer
    return model
