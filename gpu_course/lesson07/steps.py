"""Check of a Transformer's training step: its result, and its memory budget."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import models
from gpu_course.checks import Case
from gpu_course.common.probes import named


class Model(named(models.TransformerLM, "model")):
    """The same model; `watch` notes how many rows go through it at a time."""

    def watch(self) -> None:
        self.went, self.again = [], []
        self.blocks[0].register_forward_pre_hook(self._note)

    def _note(self, block: nn.Module, given: tuple[torch.Tensor]) -> None:
        backward = torch._C._current_graph_task_id() != -1  # a checkpoint runs the block again in there
        (self.again if backward else self.went).append(len(given[0]))


def rows_of(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def row_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Return what each row with tokens that count adds to the gradient of the batch's mean loss."""
    count = (y != -100).sum()
    gradients = []
    for part, target in zip(x.split(1), y.split(1), strict=True):
        if (target != -100).any():
            model.zero_grad()
            (token_loss(model, part, target, "sum") / count).backward()
            gradients.append(vector(parameter.grad for parameter in model.parameters()))
    model.zero_grad()
    return gradients


def vector(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all numbers of `tensors` in one float64 vector on the CPU."""
    return torch.cat([tensor.detach().cpu().double().flatten() for tensor in tensors])


def part_weights(total: torch.Tensor, parts: list[torch.Tensor]) -> list[float]:
    """Return the weights for which sum(weight * part) is `total` within 0.1 %, or nothing where there are none."""
    columns = torch.stack(parts, dim=1)
    weights = torch.linalg.lstsq(columns, total.unsqueeze(1)).solution
    left = (columns @ weights).squeeze(1) - total
    return weights.flatten().tolist() if left.norm() <= 1e-3 * total.norm() else []


def lies(mine: torch.Tensor, right: torch.Tensor) -> dict[str, dict[str, float]]:
    """Return, as expected and got, how long `mine` is along `right` and across it, in lengths of `right`."""
    along = float(mine @ right / (right @ right))
    across = float((mine - along * right).norm() / right.norm())
    parts = {"length along the right one": along, "across it": across}
    return {
        "expected": {"length along the right one": 1.0, "across it": 0.0},
        "got": {name: float(f"{value:.3g}") for name, value in parts.items()},
    }


def name_gradient(
    case: Case, what: str, mine: torch.Tensor, right: torch.Tensor, rows: Callable[[], list[torch.Tensor]]
) -> None:
    """Fail with how much each row counts in `mine`, which is not `right`: the sum of `rows()`."""
    shares = part_weights(mine, rows())
    if not shares or max(abs(share - 1) for share in shares) < 0.01:
        said = lies(mine, right)
        near = "comes near" if said["got"]["across it"] < 0.05 else "is another one than"
        name = f"{what} {near} that of the whole batch"
        why = "it must be the same: all rows and tokens, no further terms, nothing rounded to 16 bits as under autocast"
        case.fail_if(True, name, why, **said)
        return
    most = max(map(abs, shares))
    shares = [0.0 if abs(one) < 0.01 * most else one for one in shares]
    lost = shares.count(0.0)
    if lost:
        name = f"{lost} of {rows_of(len(shares))} {'does' if lost == 1 else 'do'} not count in {what}"
        why = "take all rows, and no zero_grad between the parts: it drops their gradients"
    elif max(shares) - min(shares) < 0.01 * most:
        name = f"{what} is {shares[0]:.3g} times that of the whole batch's mean"
        why = f"{_DIVIDE}, and let nothing else scale the gradient or the step"
    else:
        name, why = f"some rows count more than others in {what}", f"each row goes into one part: {_DIVIDE}"
    case.fail_if(True, name, why, expected=" ".join("1" for _ in shares), got=" ".join(f"{one:.3g}" for one in shares))


def token_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)


_DIVIDE = "divide each part's sum by the number of all tokens that count"


def compare_loss(case: Case, value: object, expected: torch.Tensor) -> None:
    """Fail unless the answer returned the loss of the whole batch, of any floating format."""
    case.fail_if(isinstance(value, float), "returns a Python number", "to read it, the host waits for the device")
    why = "whoever keeps it keeps the graph: return loss.detach()"
    case.fail_if(isinstance(value, torch.Tensor) and value.requires_grad, "returns the loss with its graph", why)
    value = value.to(expected.dtype) if isinstance(value, torch.Tensor) and value.dim() == 0 else value
    why = "the mean loss of all tokens of the batch that count, before the step"
    case.equal(value, expected, rtol=1e-4, why=why)
