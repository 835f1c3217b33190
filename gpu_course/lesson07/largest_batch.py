"""The exercise “Find the largest batch”."""

import sys
from collections.abc import Callable

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.budgets import Floor


@exercise(
    minutes=12,
    difficulty=2,
    simulated=True,
    hints=(
        "Keep a size that fits and one that fails. Try the middle: it replaces one of the two, until they are "
        "neighbours.",
        "Catch torch.OutOfMemoryError alone. Try the next size after the except block has ended: only then is memory "
        "free.",
        "Begin with fits = 0, which needs no try, and fails = limit + 1. While they are not neighbours, try the size "
        "between them: it becomes `fits` after step(size), `fails` in the except block.",
    ),
)
def largest_batch(step: Callable[[int], object], limit: int) -> int:
    """Return the largest size up to `limit` for which step has memory enough, or 0."""
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            fails = size  # the error and its frames are gone when this block ends
    return fits


class _Tries:
    """A training step that takes 3 KiB for each row, and the sizes with which it was called."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.sizes, self.inside = device, [], False

    def step(self, size: int) -> torch.Tensor:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"size must be a whole number, not {size!r}")
        self.sizes.append(size)
        self.inside |= sys.exc_info()[0] is not None  # whoever calls is still in an except block
        if len(self.sizes) > 300:
            raise RuntimeError(f"does not end: it called step 300 times, with size {size} again and again")
        rows = torch.ones(size, 256, device=self.device)
        doubled = rows * 2
        (rows + doubled).sum()
        return doubled  # a third of the memory stays with whoever keeps it

    def __repr__(self) -> str:
        return "step"


largest_batch.exempt("a limit is a small number above 0", "number_zero number_negative number_large")
largest_batch.exempt("it is handed a function", "second_call unchanged")


@largest_batch.checks
def _(case: Case) -> None:
    floor = Floor()
    edges.note("limit")  # each size fits, and none does
    for largest, limit in ((1, 1), (8, 8), (0, 5), (37, 100), (6, 9), (1, 64), (63, 64), (500, 1000)):
        tries = _Tries(case.device)
        before = floor.used_bytes
        with floor.memory.budget(3 * 1024 * largest + 1024 + 512):
            got = case.call(tries.step, limit, modifies=True)
        outside = [size for size in tries.sizes if not 1 <= size <= limit]
        why = "there are no more rows, and a step without rows may fail for other reasons"
        case.fail_if(outside, f"calls step({outside[0] if outside else ''}), and sizes go from 1 to {limit}", why)
        why = "there the error still holds the tensors of the try that failed: leave the block first"
        case.fail_if(
            tries.inside and got != largest, "tries again inside the except block", why, expected=largest, got=got
        )
        knows = f"{largest} rows have enough memory" if largest else "no size has enough memory"
        why = (
            f"{knows}, {'limit is' if largest == limit else 'and not'} "
            f"{limit if largest == limit else largest + 1}; it called step {len(tries.sizes)} times"
        )
        case.equal(got, largest, why=why)
        left = floor.used_bytes - before
        why = "something still refers to what step made, a stored error perhaps"
        case.fail_if(left > 0, f"leaves {left} bytes alive", why)
        why = "each one costs a step: halve the range"
        case.budget("calls of step", len(tries.sizes), 2 * limit.bit_length() + 2, why)
    for fits, error in (
        (0, RuntimeError("unsupported memory format option")),
        (0, RuntimeError("the disk of the cache is out of memory")),
        (0, ValueError("a batch of 50 rows cannot be divided by 8")),
        (0, torch.AcceleratorError("CUDA error: an illegal memory access was encountered")),
        (40, MemoryError("the host has no memory left")),  # after a try that fitted, and two that did not
    ):
        _raises_on(case, fits, error)


def _raises_on(case: Case, fits: int, error: Exception) -> None:
    """Fail unless the answer lets `error` of a step out: for sizes up to `fits` it works, above 60 there is no memory.

    "Catch no other error."
    """

    def step(size: int) -> None:
        if size > 60:
            raise torch.OutOfMemoryError("out of memory")
        if size > fits:
            raise error

    raised = case.error_of(step, 100)
    why = "catch torch.OutOfMemoryError alone, not every RuntimeError, nor by the words of a message"
    case.fail_if(
        raised is not error, f"hides an error that torch.OutOfMemoryError is not: {type(error).__name__}: {error}", why
    )
