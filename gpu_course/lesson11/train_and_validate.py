"""The exercise “Out of memory in validation”."""

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.budgets import Floor, over_budget, spend
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained

BUDGET_BYTES = 640 * 2**10


@exercise(
    minutes=4,
    difficulty=2,
    simulated=True,
    hints=(
        "Training uses batches of the same size, and fits. What does validation keep that training frees at each step?",
        "Each loss in the list keeps its graph, and the graph keeps the activations of its batch. Who needs this "
        "graph?",
        "Validation needs no graph at all: compute its losses where none is recorded.",
    ),
)
def train_and_validate(model: nn.Module, batches: list, held_out: list, device: torch.device) -> list[float]:
    """Take a step on each batch, then return the loss of each held-out sample."""
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    losses = []
    with torch.no_grad():  # else each loss keeps the activations of its batch
        for x, y in held_out:
            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
    return torch.cat(losses).tolist()


def classifier() -> nn.Module:
    """Return a model of three layers, for 16 numbers and 4 classes."""
    torch.manual_seed(5)
    return Layers(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def points(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return `count` batches of 128 points, (128, 16), and their classes."""
    made = torch.Generator().manual_seed(seed)
    x = [torch.randn(128, 16, generator=made) for _ in range(count)]
    return Batches((one, one[:, :4].argmax(dim=1)) for one in x)


train_and_validate.exempt(PROGRAM, "scalar empty single permuted sliced huge tiny not_finite")
train_and_validate.exempt(PROGRAM, "half bfloat16 double bool complex")
train_and_validate.exempt(PROGRAM, "elsewhere default_type models one_entry order second_call unchanged")


@train_and_validate.checks
def _(case: Case) -> None:
    model, right, floor = classifier(), classifier(), Floor()
    batches, held_out, passes = points(3, seed=6), points(8, seed=7), Passes(model)
    backwards = []
    model[-1].bias.register_post_accumulate_grad_hook(backwards.append)
    spent = spend(floor, lambda: case.call(model, batches, held_out, case.device, modifies="training place mode"))
    passes.check(case, rows=11 * 128)
    stepped(right, batches, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), 0.1)
    with torch.no_grad():
        wanted = torch.cat([F.cross_entropy(right(x), y, reduction="none") for x, y in held_out]).tolist()
    case.equal(spent.value, wanted, rtol=1e-4, why="expected is the loss of each held-out sample after training")
    why = (
        "that frees the graphs, but it costs the time of a training step, and adds to the gradients: record no graph "
        "instead"
    )
    case.fail_if(len(backwards) > len(batches), "calls backward for held-out batches", why)
    passes.once(case, rows=11 * 128)
    passes.modes(case, training=len(batches))
    over_budget(
        case,
        floor,
        spent,
        BUDGET_BYTES,
        lambda: case.call(classifier(), batches, held_out, case.device, modifies="training place mode"),
        "a list of losses keeps their graphs, and these the activations of each batch",
    )
    trained(case, model, right)
    lets_errors_out(case, classifier(), [], [held_out[0], (torch.ones(2, 3), torch.ones(2).long())], case.device)
