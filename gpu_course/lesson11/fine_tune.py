"""The exercise “A flat loss”."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.silent import Features
from gpu_course.lesson11.watched import Batches, Passes, lets_errors_out, stepped, trained


@exercise(
    minutes=3,
    difficulty=1,
    draws=True,
    hints=(
        "The head has a gradient. Which object uses this gradient to change the head, and does it know the head?",
        "An optimizer holds the tensors that it got when it was made. Which head did the model have at that moment?",
        "Move one line: make the optimizer after the model has got the parameters that you want to train.",
    ),
)
def fine_tune(model: nn.Module, head: nn.Linear, batches: list, device: torch.device) -> list[float]:
    """Put `head` on `model`, train it alone, and return the loss of each step."""
    model.requires_grad_(False)  # the rest keeps what it knows
    model.head = head
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def features() -> tuple[Features, nn.Linear]:
    """Return the trained model, and a new head for two classes, always the same."""
    torch.manual_seed(8)
    return Features(), nn.Linear(16, 2)


def halves(count: int, different: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return `count` batches of points, (8, 4), and of which sign their first number is; or one batch `count` times."""
    made = torch.Generator().manual_seed(9)
    x = torch.randn(count if different else 1, 8, 4, generator=made).expand(count, 8, 4)
    return Batches((one.clone(), (one[:, 0] > 0).long()) for one in x)


fine_tune.exempt(PROGRAM, "scalar empty single permuted sliced huge tiny not_finite half bfloat16 double bool complex")
fine_tune.exempt(PROGRAM, "elsewhere default_type models lists second_call unchanged random_state")


@fine_tune.checks
def _(case: Case) -> None:
    (model, head), (right, other), batches = features(), features(), halves(4)
    passes, body, weight = Passes(model), dict(copy.deepcopy(model.body.state_dict())), head.weight.detach().clone()
    without: list[bool] = []  # of each step of an optimizer that holds a layer for two classes: has that no gradient?

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        held = [one for group in optimizer.param_groups for one in group["params"] if one.shape == weight.shape]
        without.append(bool(held) and held[0].grad is None)

    hook = register_optimizer_step_pre_hook(note)
    try:
        got = case.call(model, head, batches, case.device, modifies="training place model.mode model.requires_grad")
    finally:
        hook.remove()
    if torch.equal(head.weight.detach().cpu(), weight):
        case.fail_if(not without, "never calls step()", "backward fills the gradients, step uses them")
        name = "clears the gradients before the step has used them"
        case.fail_if(all(without), name, "the order is zero_grad, backward, step")
    right.requires_grad_(False)
    right.head = other
    losses = stepped(right, batches, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), 0.5)
    passes.check(case, rows=32)
    why = "the caller goes on with that one"
    case.fail_if(model.head is not head, "trains another head than the one that it is given", why)
    passes.modes(case, training=len(batches))
    case.equal(got, losses, rtol=1e-4, why="expected is the loss of each batch, before its step")
    why = "only the head was to be trained"
    case.equal({name: one.cpu() for name, one in model.body.state_dict().items()}, body, why=why)
    trained(case, model, right)
    passes.once(case, rows=32)
    lets_errors_out(case, *features(), [batches[0], (torch.ones(2, 3), torch.ones(2).long())], case.device)
