"""The exercise “The best weights”."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained


@exercise(
    minutes=3,
    difficulty=1,
    hints=(
        "When the loop ends, does `best` still hold what was kept?",
        "state_dict() returns the very tensors that hold the model's weights, and the next step writes into them.",
        "Keep a copy: copy.deepcopy copies a dictionary and its tensors, also the averages of batch norm.",
    ),
)
def fit(model: nn.Module, batches: list, held_out: tuple, device: torch.device) -> float:
    """Take a step on each batch, end with the best weights, and return their loss."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    best, best_loss = None, float("inf")
    for x, y in batches:
        model.train()
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = F.mse_loss(model(held_out[0].to(device)), held_out[1].to(device)).item()
        if loss < best_loss:
            best, best_loss = copy.deepcopy(model.state_dict()), loss
    model.load_state_dict(best)
    return best_loss


def regression() -> nn.Module:
    """Return a model with batch norm, for 3 numbers and one result."""
    torch.manual_seed(10)
    return Layers(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


_SIGNS = 1, 1, 0, 1, 1, 1, -3


def noisy(
    signs: tuple[int, ...] = _SIGNS,
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Return batches, of which the third and the last have wrong targets, and held-out data; or with other `signs`."""
    made = torch.Generator().manual_seed(11)
    x = torch.randn(8, 16, 3, generator=made)
    y = x.sum(dim=2, keepdim=True).tanh()
    *batches, held_out = zip(x, y * torch.tensor([*signs, 1])[:, None, None], strict=True)
    return Batches(batches), held_out


_BEST_LATE, _BEST_EARLY = (1, 0, 1, 1, 1, 1, 1), (1, -1, 1, -3, -3, -3, -3)


fit.exempt(PROGRAM, "scalar empty permuted sliced huge tiny not_finite zero")
fit.exempt(PROGRAM, "formats elsewhere default_type models lists second_call unchanged")


@fit.checks
def _(case: Case) -> None:
    here, there = case.device, torch.device("cpu")  # where .cpu() is no copy
    for device, signs in dict.fromkeys(((here, _SIGNS), (there, _SIGNS), (here, _BEST_LATE), (here, _BEST_EARLY))):
        case.device = device
        model, right, (batches, held_out) = regression(), regression(), noisy(signs)
        passes, seen, states = Passes(model), [], []
        got = case.call(model, batches, held_out, device, modifies="training place mode")
        for batch in batches:
            stepped(right.train(), [batch], lambda net, one: F.mse_loss(net(one[0]), one[1]), 0.3)
            states.append(copy.deepcopy(right.state_dict()))
            with torch.no_grad():
                seen.append(F.mse_loss(right.eval()(held_out[0]), held_out[1]).item())
        right.load_state_dict(states[seen.index(min(seen))])
        passes.check(case, rows=7 * 32)
        case.equal(got, min(seen), rtol=1e-4, why="expected is the smallest of the held-out losses")
        trained(case, model, right)
        passes.once(case, rows=7 * 32)
    lets_errors_out(case, regression(), [batches[0], (torch.ones(4, 2), torch.ones(4, 1))], held_out, case.device)
