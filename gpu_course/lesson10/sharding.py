"""Do the ranks hold shards, and do the shards make up what one process holds? The exercises on sharding."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: F401 (in an alternative)
from torch.nn import functional as F

from course_utils import memory
from gpu_course.checks import Case, difference, edit, lesson
from gpu_course.common.left_out import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks

__all__ = ["Scaled", "gather_state", "reshard", "start_sharded", "train_sharded"]

exercise, _WHERE = lesson("10"), "real ranks on the CPU"


# ---- gather an optimizer's state ------------------------------------------------------------------------------------


@exercise(
    title="Gather an optimizer's state",
    where=_WHERE,
    minutes=8,
    difficulty=2,
    hints=(
        "Two of the three entries have one number for each number of the shard. The third has one for all of them.",
        "Gather exp_avg and exp_avg_sq in the order of the ranks. Which numbers of the result belong to no parameter?",
        "dist.all_gather fills a list of tensors, one for each rank, each as long as a shard. torch.cat joins them, "
        "and a slice up to total leaves out the padding. Every rank has counted the same steps.",
    ),
)
def gather_state(state: dict[str, torch.Tensor], total: int) -> dict[str, torch.Tensor]:
    """Return AdamW's state of all `total` numbers; `state` is this rank's part."""
    gathered = {"step": state["step"].clone()}  # all ranks have counted the same steps
    for name in ("exp_avg", "exp_avg_sq"):
        parts = [torch.empty_like(state[name]) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, state[name])
        gathered[name] = torch.cat(parts)[:total]  # behind it is padding
    return gathered


_TOTALS = (6, 7, 1)  # on 3 ranks: no padding, some, and ranks that hold nothing else


def _whole_state(total: int) -> dict[str, torch.Tensor]:
    """Return the state that one process would hold: zeros in it, also at its end, are moments like any other."""
    index = torch.arange(total)
    moments = (index + 1 / 3) * (index != 1) * (index != 6)  # with thirds, 16 bits on the way are seen
    return {"step": torch.tensor(5.0 + total), "exp_avg": moments, "exp_avg_sq": moments.square() / 8}


def _states(call: Callable) -> list[Any]:
    """Call the answer with this rank's shard of each state, padded with zeros."""
    rank, n, states = dist.get_rank(), dist.get_world_size(), []
    for total in _TOTALS:
        padded = {
            name: F.pad(value, (0, -total % n)) if value.dim() else value for name, value in _whole_state(total).items()
        }
        states.append(
            call(
                {name: value.chunk(n)[rank].clone() if value.dim() else value for name, value in padded.items()}, total
            )
        )
    return states


gather_state.leaves_out(
    RANKS,
    "empty permuted sliced huge tiny not_finite negative formats",
    "default_type numbers lists second_call random_state four_ranks uneven",
)
gather_state.leaves_out("a mesh with a name of its own shows that it is used", "part")


@gather_state.checks
def _(case: Case) -> None:
    for nprocs in (3, 2):
        _check_states(case, nprocs)


def _check_states(case: Case, nprocs: int) -> None:
    """Check all of it on so many ranks."""
    ranks = on_ranks(
        case,
        _states,
        nprocs=nprocs,
        called="gather_state(state, total)",
        known=gather_state.mistakes if nprocs == 3 else (),
        why="every rank gathers the same entries in the same order, in tensors of the size of a shard",
    )
    for index, total in enumerate(_TOTALS):
        describe(case, f"gather_state(state, {total})", nprocs)
        for rank, calls in enumerate(ranks):
            call = calls[index]
            check_call(case, call, rank)
            case.equal(call.value, _whole_state(total), what=f"rank {rank}'s result")
            sent, shard = call.counts.collective_bytes.copy(), 4 * -(-total // nprocs)
            sent["broadcast"] //= nprocs  # counted on each rank, given by one
            case.instead(
                sent.total() > 2 * shard + 8,
                f"the result is right, but rank {rank} gives {sent.total()} bytes, and its shards have {2 * shard}",
                "each rank gives its own part: all_gather, and no pickles",
            )


gather_state.alternative(
    "writes into one tensor, so that no copy is made by torch.cat",
    edit("""
        -        parts = [torch.empty_like(state[name]) for _ in range(dist.get_world_size())]
        -        dist.all_gather(parts, state[name])
        -        gathered[name] = torch.cat(parts)[:total]  # behind it is padding
        +        whole = state[name].new_empty(dist.get_world_size() * len(state[name]))
        +        dist.all_gather(list(whole.chunk(dist.get_world_size())), state[name])
        +        gathered[name] = whole[:total]  # behind it is padding
    """),
)


# ---- train sharded ---------------------------------------------------------------------------------------------------


@exercise(
    title="Repair a sharded training",
    where=_WHERE,
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


def _over(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Return whether each parameter of `model` is sharded over `mesh`, which is told by its name from any other."""
    return all(isinstance(value, DTensor) and value.device_mesh == mesh for value in model.parameters())


def _training(call: Callable) -> tuple[Any, bool, float]:
    """Train on this rank's half of two batches; return the call, whether all is sharded, and the largest unit's part.

    The units are asked, and no peak of bytes is measured: when a message lets go of its buffer, its thread decides.
    """
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    batches = [tuple(_tokens(step).chunk(2, 1)[dist.get_rank()]) for step in range(2)]
    trained = _tower()
    done = call(trained, mesh, batches, modifies=True)
    call.meet()
    sharded = any(isinstance(module, FSDPModule) for module in trained.modules()) and _over(trained, mesh)
    return done, sharded, _largest_unit(trained)


train_sharded.leaves_out(
    RANKS,
    "shapes huge tiny not_finite negative half bfloat16 double bool complex",
    "default_type lists calls three_ranks four_ranks uneven",
)
train_sharded.leaves_out(
    "the text says which model it is",
    "evaluation frozen all_frozen old_gradients two_groups double_model scalar_parameter",
)
train_sharded.leaves_out("a mesh with a name of its own shows that it is used", "part")


@train_sharded.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case,
        _training,
        nprocs=2,
        called="train_sharded(model, mesh, batches)",
        compiler=True,
        known=train_sharded.mistakes,
        why="a collective needs one size on all ranks, but shards differ by a row: full_tensor() knows",
    )
    for rank, (call, sharded, largest) in enumerate(ranks):
        check_call(case, call, rank)
        got = dict(call.value) if isinstance(call.value, dict) else call.value  # state_dict() gives an OrderedDict
        spread = isinstance(got, dict) and any(isinstance(value, DTensor) for value in got.values())
        case.instead(
            spread, "returns DTensors", "each rank would return only its own part: full_tensor() gathers the whole"
        )
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
            case.instead(when, name, why)


train_sharded.broken(
    """
    -    for block in model.blocks:  # each is gathered by itself, and freed behind it
    -        fully_shard(block, mesh=mesh)
    +    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # the shards, which are there now
         fully_shard(model, mesh=mesh)  # what is left
    -    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # the shards, which are there now
    ...
    -        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # the norm over all shards
    +        norms = [p.grad.to_local().norm() for p in model.parameters()]
    +        norm = torch.stack(norms).norm()
    +        for p in model.parameters():
    +            p.grad *= (0.5 / norm).clamp(max=1.0)
    """
)
train_sharded.alternative(
    "units of two blocks: fewer messages, but twice as many bytes gathered at once",
    edit("""
        -    for block in model.blocks:  # each is gathered by itself, and freed behind it
        -        fully_shard(block, mesh=mesh)
        +    for pair in zip(model.blocks[::2], model.blocks[1::2]):
        +        fully_shard(list(pair), mesh=mesh)
    """),
)


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
    where=_WHERE,
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
    sharded = _over(model, mesh), _has_own_unit(model)
    return dataclasses.replace(done, value=type(done.value)), values, sharded, peak_bytes


start_sharded.leaves_out(
    RANKS, "shapes huge not_finite zero tied formats default_type numbers one_entry order calls three_ranks four_ranks"
)
start_sharded.leaves_out("a mesh with a name of its own shows that it is used", "part")


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
        case.instead(
            not issubclass(call.value, nn.Sequential),
            f"returns {call.value.__name__}, expected an nn.Sequential",
            "return the model",
        )
        for done, what in zip(sharded, ("is not sharded over `mesh`", "has not a unit for each block"), strict=True):
            case.instead(not done, f"returns a model that {what}", "call fully_shard on each block, then on the model")
        for name, expected in [*whole.named_parameters(), *whole.named_buffers()]:
            case.equal(values.get(name), expected.detach(), why=f"this is {name} on rank {rank}")
        case.instead(
            rank and peak_bytes > 0.9 * size,
            "the result is right, but rank 1 holds the whole model at once",
            f"{peak_bytes:,} bytes, and a whole model of {_MANY} blocks has {size:,}: a rank may have memory for its "
            "own shards, and for one parameter on its way",
        )


start_sharded.alternative(
    "sends each rank its own part alone; the names are yours to match",
    edit("""
        -    options = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        -    sd.set_model_state_dict(model, state, options=options)
        +    for name, p in model.named_parameters():
        +        whole = state.get(name, torch.empty(p.shape))
        +        p.detach().copy_(distribute_tensor(whole, mesh, p.placements))  # scatters what rank 0 has
    """),
)


# ---- reshard -------------------------------------------------------------------------------------------------------


@exercise(
    title="Reshard a checkpoint",
    minutes=8,
    difficulty=2,
    hints=(
        "In which order do the rows belong? And how many rows does each of the n ranks get?",
        "As text, rank10 comes before rank2, so sort by the number. Tensor.chunk cuts as fully_shard does, but it may "
        "return fewer than n parts.",
        "The sort key is the name without its prefix, as a number. Join with torch.cat, cut with chunk, and give ranks "
        "without rows an empty slice, whole[:0]. Clone the parts: a view is saved with the whole tensor behind it.",
    ),
)
def reshard(files: dict[str, torch.Tensor], n: int) -> list[torch.Tensor]:
    """Return the shards for `n` ranks; `files` is {"rank0": …, "rank1": …}."""
    names = sorted(files, key=lambda name: int(name.removeprefix("rank")))  # as text, rank10 is before rank2
    whole = torch.cat([files[name] for name in names])
    parts = list(whole.chunk(n))  # as fully_shard cuts: equal parts, the last ones smaller or not there
    parts += [whole[:0]] * (n - len(parts))
    return [part.clone() for part in parts]  # a view would be saved with all of the whole


_CUTS = (  # rows, old ranks, new ranks, the other dimensions, dtype
    (10, 4, 2, (2,), torch.float32),
    (7, 4, 3, (1,), torch.float32),
    (12, 12, 5, (3,), torch.float32),
    (3, 2, 6, (2,), torch.bfloat16),
    (3, 5, 6, (2, 2), torch.float32),
    (5, 2, 4, (), torch.float32),
    (7, 3, 3, (2,), torch.float32),  # as many ranks as before, but in the files they have 3, 2 and 2 rows
)


def _rows(rows: int, n: int) -> list[range]:
    """Return the rows of each of n ranks: as many as fit evenly, rounded up, until there are no more."""
    each = -(-rows // n)
    return [range(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(n)]


reshard.leaves_out(
    "rows are handed on as they are",
    "scalar permuted sliced huge tiny not_finite zero negative tied",
)
reshard.leaves_out("of two formats each is kept", "half double whole bool complex")
reshard.leaves_out("files are read to the CPU", "cpu elsewhere")
reshard.leaves_out(RANKS, "default_type numbers")
reshard.leaves_out(
    "there is a file for each of several ranks, and a case has them in another order",
    "no_entries one_entry order",
)


@reshard.checks
def _(case: Case) -> None:
    for rows, old, new, others, dtype in _CUTS:
        whole = torch.arange(1, rows * math.prod(others) + 1, device=case.device).div(3).to(dtype).view(rows, *others)
        files = {f"rank{rank}": part.clone() for rank, part in enumerate(whole.tensor_split(old))}
        got = case.call(dict(sorted(files.items())[::-1]), new)
        case.equal(
            got,
            [whole[mine.start : mine.stop] for mine in _rows(rows, new)],
            why=f"{rows} rows, from {old} ranks to {new}",
        )
        views = [part for part in got if part.untyped_storage().nbytes() > part.nbytes]
        case.instead(
            views,
            "returns views of the whole tensor",
            "torch.save writes all of the storage behind a view: each file would be as large as the model",
        )


@reshard.alternative("never holds the whole tensor: for one that no machine could hold")
def by_rows(files, n):
    names = sorted(files, key=lambda name: int(name.removeprefix("rank")))
    rows = [row for name in names for row in files[name].unbind()]
    each = -(-len(rows) // n)
    cuts = [rows[rank * each : (rank + 1) * each] for rank in range(n)]
    return [torch.stack(cut) if cut else files[names[0]][:0].clone() for cut in cuts]
