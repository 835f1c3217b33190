"""Did an answer checkpoint the right blocks: same result, same gradients, within the limit, none too many?"""

from __future__ import annotations

import itertools

import torch
from torch import nn

from course_utils import counting, plots
from course_utils.checks import Case
from course_utils.exercises.common.budgets import Floor
from course_utils.exercises.common.probes import Chain

__all__ = ["check_blocks"]


def check_blocks(case: Case, floor: Floor, lengths: tuple[int, ...], share: float, *, trained_input: bool) -> None:
    """Check the answer with blocks of these lengths and a limit of `share` of what all keep."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Chain(16, length) for length in lengths).to(case.device)
    x = torch.rand(32, 16).to(case.device).requires_grad_(trained_input)  # a batch needs no gradient
    kept = [(1 + length) * x.nbytes for length in lengths]
    limit = int(sum(kept) * share) // x.nbytes * x.nbytes
    fewest = _fewest(kept, x.nbytes, limit)
    expected = nn.Sequential(*blocks)(x)
    wanted = _gradients(blocks, x, expected)
    before, x_before = floor.used_bytes, x.detach().cpu()
    given = list(kept)
    got = case.call(blocks, x, given, limit, modifies=True)
    case.instead(given != kept, "modifies kept_bytes", "the caller still needs it: work on a copy")
    _leaves(case, blocks, x, x_before, trained_input)
    after = floor.used_bytes - before
    case.equal(got, expected, why="checkpointing changes memory and time, not the result")
    case.instead(case.counts.copies_d2h, "copies to the host",
                 "a block is computed again sooner than its tensors go there and come back")  # fmt: skip
    again = _backward(case, blocks, x, got, wanted)
    why = "block i keeps kept_bytes[i], or x.nbytes if it is checkpointed"
    limits = f"{plots.bytes_text(after)} are kept and the budget is {plots.bytes_text(limit)}"
    case.instead(after > limit, f"the result is right, but it goes over the budget: {limits}", why)
    what = f"the result is right, but {again} block{'s are' if again > 1 else ' is'} computed again, and {fewest}"
    case.instead(again > fewest, f"{what} would do",
                 "all blocks cost the same, so take those that free most, and stop when it fits")  # fmt: skip


def _leaves(case: Case, blocks: nn.ModuleList, x: torch.Tensor, x_before: torch.Tensor, trained_input: bool) -> None:
    """Fail unless blocks and input are as they were."""
    patched = any("forward" in vars(block) or type(block) is not Chain for block in blocks)
    case.instead(patched, "leaves the blocks changed", "they would be checkpointed in the next call too")
    case.instead(any(one.grad is not None for one in (x, *blocks.parameters())), "calls backward()",
                 "the caller does, with a loss of its own; gradients would count twice")  # fmt: skip
    case.instead(x.requires_grad != trained_input, "makes x require a gradient",
                 "the caller's x stays as it is: use_reentrant=False works without")  # fmt: skip
    case.instead(not torch.equal(x.detach().cpu(), x_before), "modifies x", "a block in front may need it for backward")


def _backward(case: Case, blocks: nn.ModuleList, x: torch.Tensor, got: torch.Tensor, wanted: list[torch.Tensor]) -> int:
    """Fail unless the gradients are as `wanted`, and return how many blocks were computed again for them."""
    case.instead(not got.requires_grad, "returns a result without a graph",
                 "no gradient flows back: checkpoint(block, x, use_reentrant=False), even if x needs none")  # fmt: skip
    with case.going_back(), counting.count() as counts:
        grads = _gradients(blocks, x, got)
    case.instead(any(grad is None for grad in grads), "gives some weights no gradient",
                 "without a graph a block cannot learn: checkpoint(block, x, use_reentrant=False)")  # fmt: skip
    names = ["x", *(name for name, _ in blocks.named_parameters())]
    for name, grad, right in zip(names[not x.requires_grad :], grads, wanted, strict=True):
        case.instead(not torch.allclose(grad, right, rtol=1e-5, atol=1e-6), f"the gradient of {name} has other values",
                     "the gradients must be those of the plain blocks", expected=right, got=grad)  # fmt: skip
    return counts.by_operator["addmm"]


def _gradients(blocks: nn.ModuleList, x: torch.Tensor, result: torch.Tensor) -> list[torch.Tensor | None]:
    """Return the gradients of the input, where it has one, and of all weights, and leave none behind."""
    result.sum().backward()
    found = [tensor.grad for tensor in (x, *blocks.parameters()) if tensor.requires_grad]
    x.grad = None
    blocks.zero_grad()
    return found


def _fewest(kept: list[int], input_bytes: int, limit: int) -> int:
    """Return how many blocks must be checkpointed at least, by trying all choices."""
    for count in range(len(kept) + 1):
        for chosen in itertools.combinations(range(len(kept)), count):
            if sum(input_bytes if i in chosen else size for i, size in enumerate(kept)) <= limit:
                return count
    raise ValueError(f"limit is {limit}, which no choice of blocks meets")
