"""The exercise “Reshard a checkpoint”."""

import math

import torch

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS

# ---- reshard -------------------------------------------------------------------------------------------------------


@exercise(
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


reshard.exempt("rows are handed on as they are", "scalar permuted sliced huge tiny not_finite zero negative tied")
reshard.exempt("of two formats each is kept", "half double whole bool complex")
reshard.exempt("files are read to the CPU", "cpu elsewhere")
reshard.exempt(RANKS, "default_type numbers")
reshard.exempt("each of several ranks has a file, and a case has them in another order", "no_entries one_entry order")


@reshard.checks
def _(case: Case) -> None:
    for rows, old, new, others, dtype in _CUTS:
        whole = torch.arange(1, rows * math.prod(others) + 1, device=case.device).div(3).to(dtype).view(rows, *others)
        files = {f"rank{rank}": part.clone() for rank, part in enumerate(whole.tensor_split(old))}
        got = case.call(dict(sorted(files.items())[::-1]), new)
        why = f"{rows} rows, from {old} ranks to {new}"
        case.equal(got, [whole[mine.start : mine.stop] for mine in _rows(rows, new)], why=why)
        views = [part for part in got if part.untyped_storage().nbytes() > part.nbytes]
        why = "torch.save writes all of the storage behind a view: each file would be as large as the model"
        case.fail_if(views, "returns views of the whole tensor", why)
