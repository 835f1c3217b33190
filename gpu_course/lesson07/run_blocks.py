"""The exercise “Checkpoint the right blocks”."""

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import counting
from gpu_course.checks import Case, edges, exercise
from gpu_course.common.budgets import Floor
from gpu_course.common.probes import left_changed, state_of


@exercise(
    title="Checkpoint the right blocks",
    minutes=15,
    difficulty=3,
    simulated=True,
    hints=(
        "A checkpointed block keeps its input, which has x.nbytes, instead of its kept_bytes. Which blocks save most?",
        "All blocks cost the same to compute again. So take the largest first, and stop when the sum is small enough.",
        "Sort the places by kept_bytes, largest first, and take from the front while the sum is above limit_bytes: "
        "each frees what it keeps, less its input. Then run all blocks in order, the taken ones through "
        "checkpoint(…).",
    ),
)
def run_blocks(blocks: nn.ModuleList, x: torch.Tensor, kept_bytes: list[int], limit_bytes: int) -> torch.Tensor:
    """Run the blocks within `limit_bytes`, and checkpoint as few as possible."""
    total, chosen = sum(kept_bytes), set()
    for index in sorted(range(len(blocks)), key=lambda index: -kept_bytes[index]):
        if total > limit_bytes:
            total -= kept_bytes[index] - x.nbytes  # of a checkpointed block only the input stays
            chosen.add(index)
    for index, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if index in chosen else block(x)
    return x


@run_blocks.alternative("makes a list of steps first: good where the choice is made once, for many calls")
def _(blocks, x, kept_bytes, limit_bytes):
    steps, over = list(blocks), sum(kept_bytes) - limit_bytes
    for kept, index in sorted(((kept, index) for index, kept in enumerate(kept_bytes)), reverse=True):
        if over > 0:
            over -= kept - x.nbytes
            steps[index] = functools.partial(checkpoint, blocks[index], use_reentrant=False)
    for step in steps:
        x = step(x)
    return x


class _Chain(nn.Module):
    """One matrix product and `length` sines: keeps its input and theirs, and has the same FLOPs for every length."""

    def __init__(self, length: int, dropout: float) -> None:
        super().__init__()
        self.linear, self.length, self.dropout = nn.Linear(16, 16), length, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        for _ in range(self.length):
            x = torch.sin(x)
        return self.dropout(x)

    def __repr__(self) -> str:
        return f"block({self.length}{', dropout' if self.dropout.p else ''})"


@dataclass(frozen=True)
class _Chains:
    """Blocks of these lengths, and a limit: what is kept with the `again` largest checkpointed, and `more` bytes."""

    lengths: tuple[int, ...]
    again: int
    more: int = 0
    x_trained: bool = True
    dropout: float = 0.0
    frozen: bool = False  # the first block
    shared: bool = False  # the last block is the first once more
    dtype: torch.dtype = torch.float32

    def blocks(self) -> nn.ModuleList:
        made = [_Chain(length, self.dropout) for length in self.lengths]
        made[0].requires_grad_(not self.frozen)
        return nn.ModuleList([*made, made[0]] if self.shared else made).to(self.dtype)

    def limit(self, kept: list[int], input_bytes: int) -> int:
        least = sorted(kept)[: len(kept) - self.again]
        return sum(least) + self.again * input_bytes + self.more


_CASES = (
    _Chains((1, 6), 1),  # as in the example: the second, and then exactly the limit is kept
    _Chains((2, 1, 5, 1), 0),  # "all blocks together may keep `limit_bytes`": they do
    _Chains((6, 2, 3, 1), 1, more=-1),  # one byte too few, so that a second one is needed
    _Chains((3, 1), 1, more=-1, dtype=torch.float64),  # "it keeps only its input, `x.nbytes` bytes": 8 a number
    _Chains((1, 8, 2, 7, 1, 3), 2, more=700, dtype=torch.float64),
    _Chains((4, 4, 4), 3, x_trained=False),  # all of them; a batch needs no gradient
    # "return the result": the same numbers are drawn again; too few by most of an input, but not by all of it
    _Chains((2, 6), 1, more=-1792, dropout=0.5),
    _Chains((6, 2, 3), 1, x_trained=False, frozen=True),
    _Chains((5, 1), 1, shared=True),  # the block at one place, not at both
)


run_blocks.exempt(
    "a block says what its input is; here 32 rows of 16 numbers in float32 or float64",
    "scalar empty single odd permuted sliced half bfloat16 whole bool complex",
)
run_blocks.exempt("which numbers they are plays no part", "huge not_finite zero negative tied")
run_blocks.exempt("the simulated GPU counts the memory, and makes nothing", "places default_type")
run_blocks.exempt(
    "a block is called as it is, whatever its parameters",
    "all_frozen old_gradients scalar_parameter",
)
run_blocks.exempt("without a graph nothing is kept, and no optimizer takes part", "evaluation two_groups")
run_blocks.exempt("bytes are whole numbers above 0", "number_zero number_negative number_large")
run_blocks.exempt("blocks stand in their order, and are several", "no_entries one_entry")
run_blocks.exempt("dropout draws, and blocks cannot be kept for later", "second_call unchanged random_state")


@run_blocks.checks
def _(case: Case) -> None:
    floor = Floor()
    edges.note("limit")  # blocks that keep exactly as much as they may
    for chains in _CASES:
        torch.manual_seed(0)
        blocks, x = chains.blocks().to(case.device), torch.rand(32, 16, dtype=chains.dtype).to(case.device)
        _check_blocks(case, floor, blocks, x.requires_grad_(chains.x_trained), chains)


def _check_blocks(case: Case, floor: Floor, blocks: nn.ModuleList, x: torch.Tensor, chains: _Chains) -> None:
    """Check the answer with the blocks of `chains`, on the device, and their limit."""
    kept, expected = [], x
    torch.manual_seed(1)  # both draw the same dropout
    for block in blocks:
        before = floor.used_bytes
        expected = block(expected)
        kept.append(floor.used_bytes - before)  # what is new: the result, as large as the input that is kept, and more
    limit = chains.limit(kept, x.nbytes)
    expected, wanted = expected.detach(), _gradients(blocks, x, expected)
    before, x_before, state, given = floor.used_bytes, x.detach().cpu(), state_of(blocks), list(kept)
    torch.manual_seed(1)
    got = case.call(blocks, x, given, limit, modifies=True, draws=True)
    after = floor.used_bytes - before
    changed = left_changed(state, state_of(blocks)) or any(type(block) is not _Chain for block in blocks)
    for when, name, why in (
        (given != kept, "modifies kept_bytes", "the caller still needs it: work on a copy"),
        (changed, f"leaves the blocks changed: {changed}", "the next call would go another way"),
        (any(one.grad is not None for one in (x, *blocks.parameters())), "calls backward()",
         "the caller does, with a loss of its own; gradients would count twice"),
        (x.requires_grad != chains.x_trained, "makes x require a gradient",
         "the caller's x stays as it is: use_reentrant=False works without"),
        (not torch.equal(x.detach().cpu(), x_before), "modifies x", "a block in front may need it for backward"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    case.equal(got, expected, why="checkpointing changes memory and time, not the result")
    for when, name, why in (
        (case.counts.copies_d2h, "copies to the host",
         "a block is computed again sooner than its tensors go there and come back"),
        (case.counts.host_reads, "lets the host read values",
         "it waits for all that is queued; bytes are known without: kept_bytes, limit_bytes and x.nbytes"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    again = _backward(case, blocks, x, got, wanted)
    case.fail_if(
        after > limit,
        f"the result is right, but it goes over the budget: {after:,} bytes are kept and the budget is {limit:,}",
        f"block i keeps kept_bytes[i], or x.nbytes if it is checkpointed; {again} of {len(blocks)} were",
    )
    fewest = _fewest(kept, x.nbytes, limit)
    case.fail_if(
        again > fewest,
        f"the result is right, but {again} block{'s are' if again > 1 else ' is'} computed "
        f"again, and {fewest} would do",
        "all blocks cost the same, so take those that free most, and stop when it fits",
    )


def _backward(case: Case, blocks: nn.ModuleList, x: torch.Tensor, got: torch.Tensor, wanted: list[torch.Tensor]) -> int:
    """Fail unless the gradients are as `wanted`, and return how many blocks were computed again for them."""
    why = "no gradient flows back: checkpoint(block, x, use_reentrant=False), even if x needs none"
    case.fail_if(not got.requires_grad, "returns a result without a graph", why)
    with case.going_back(), counting.count() as counts:
        grads = _gradients(blocks, x, got)
    names = [name for name, one in (("x", x), *blocks.named_parameters()) if one.requires_grad]
    without = [name for name, grad in zip(names, grads, strict=True) if grad is None]
    why = "without a graph a block cannot learn: checkpoint(block, x, use_reentrant=False)"
    case.fail_if(without, f"gives {', '.join(without[:1])} no gradient", why)
    for name, grad, right in zip(names, grads, wanted, strict=True):
        case.equal(grad, right, what=f"the gradient of {name}", why="it must be that of the plain blocks")
    return counts.by_operator["addmm"]


def _gradients(blocks: nn.ModuleList, x: torch.Tensor, result: torch.Tensor) -> list[torch.Tensor | None]:
    """Return the gradients of the input, where it has one, and of all weights, and leave none behind."""
    result.sum().backward()
    gradients = [tensor.grad for tensor in (x, *blocks.parameters()) if tensor.requires_grad]
    x.grad = None
    blocks.zero_grad()
    return gradients


def _fewest(kept: list[int], input_bytes: int, limit: int) -> int:
    """Return how many blocks must be checkpointed at least, by trying all choices."""
    for count in range(len(kept) + 1):
        for chosen in itertools.combinations(range(len(kept)), count):
            if sum(input_bytes if i in chosen else size for i, size in enumerate(kept)) <= limit:
                return count
    raise ValueError(f"limit is {limit}, which no choice of blocks meets")
