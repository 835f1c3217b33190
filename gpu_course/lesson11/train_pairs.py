"""The exercise “A loss that is inf”."""

import torch
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained


@exercise(
    minutes=5,
    difficulty=3,
    hints=(
        "Print scores.max(), and the largest numbers of float16 and float32. Which function makes a number that large?",
        "exp(100) is too large for float32, too. You can avoid large numbers: subtract the maximum of each row first.",
        "PyTorch has one function for the logarithm of a sum of exponentials, which does that. Leave the scores alone.",
    ),
)
def train_pairs(model: nn.Module, batches: list, device: torch.device) -> list[float]:
    """Take a step on each batch in float16, and return the mean loss of each step."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    losses = []
    for left, right in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            scores = model(left.to(device)) @ model(right.to(device)).T  # (pairs, pairs)
            own = scores.diagonal()  # of row i with row i
            loss = (torch.logsumexp(scores, dim=1) - own).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def embedding() -> nn.Module:
    """Return a model from 6 numbers to a vector of 8."""
    torch.manual_seed(12)
    return Layers(nn.Linear(6, 8))


def pairs(scale: float = 12.0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return three batches of pairs, (5, 6) each: the right one is the left one with noise."""
    made = torch.Generator().manual_seed(13)
    left = torch.randn(3, 5, 6, generator=made)
    right = left + torch.randn(3, 5, 6, generator=made)
    return Batches((scale * one, scale * other) for one, other in zip(left, right, strict=True))


def _vector(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


def _pair_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    """Return the mean over rows of -log softmax, row by row in double precision, from scores in 16 bits."""
    with torch.autocast("cpu", dtype=torch.float16):
        scores = (model(batch[0]) @ model(batch[1]).T).double()
    most = scores.detach().amax(dim=1, keepdim=True)
    rows = zip((scores - most).exp(), scores - most, strict=True)
    return torch.stack([sum(part for part in exp).log() - row[at] for at, (exp, row) in enumerate(rows)]).mean()


train_pairs.exempt(PROGRAM, "scalar empty single permuted sliced huge tiny not_finite zero")
train_pairs.exempt(PROGRAM, "formats elsewhere default_type models lists second_call unchanged")


@train_pairs.checks
def _(case: Case) -> None:
    case.about("", edges.scaling(case.device))
    for scale in (4.0, 12.0, 20.0):
        model, right, batches = embedding(), embedding(), pairs(scale)
        passes = Passes(model)
        got = case.call(model, batches, case.device, modifies="training place")
        passes.check(case, rows=30)
        formats = {one.dtype for one in passes.seen} - {torch.float16}
        why = "float16 was asked for: the products take the time, and it is not they that fail"
        case.fail_if(formats, f"computes the products in {next(iter(formats), None)}", why)
        losses = stepped(right, batches, _pair_loss, 1e-4)
        why = "expected is the mean of log(sum(exp(scores))) - own over the rows"
        case.equal(got, losses, rtol=0.02, atol=0.05, why=why)
        trained(case, model, right, tolerance=0.05)
        moved, wanted = (_vector(net) - _vector(embedding()) for net in (model, right))
        far = not (moved - wanted).norm() <= 7e-3 * wanted.norm()
        case.fail_if(far, "takes other steps", "each one is lr times the gradient of its own batch's loss, and no more")
        passes.once(case, rows=30)
    lets_errors_out(case, embedding(), [batches[0], (torch.ones(2, 3), torch.ones(2, 3))], case.device)
