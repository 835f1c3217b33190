"""How much does each part count in a gradient that was added up from parts?"""

from collections.abc import Iterable

import torch


def vector(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all numbers of `tensors` in one float64 vector on the CPU."""
    return torch.cat([tensor.detach().cpu().double().flatten() for tensor in tensors])


def part_weights(total: torch.Tensor, parts: list[torch.Tensor], *, rest: float = 1e-3) -> list[float]:
    """Return the weights for which sum(weight * part) is `total`, or nothing where no weights give it.

    `total` and the parts are vectors; `rest` is how much of the length of `total` may be left over, as a share.
    """
    columns = torch.stack(parts, dim=1)
    weights = torch.linalg.lstsq(columns, total.unsqueeze(1)).solution
    left = (columns @ weights).squeeze(1) - total
    return weights.flatten().tolist() if left.norm() <= rest * total.norm() else []
