"""The exercise “One training step”."""

import gc

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, difference, edges, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere
from gpu_course.lesson05.training import DATA, Training, a_loss, batches, follows, models


@exercise(
    minutes=10,
    difficulty=1,
    hints=(
        'The six numbered lines under "The loop, line by line" are the step; the last line is what you return.',
        "F.cross_entropy takes logits and labels: no softmax before it. Both parts of the batch must be on the device.",
        "In this order: .to(device) twice, zero_grad of the optimizer, the loss of what the model gives, its backward, "
        "step of the optimizer. Then detach.",
    ),
)
def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Train `model` on one batch and return its loss, detached, still on `device`."""
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad(set_to_none=True)  # backward() adds to the gradients that it finds
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()  # without the graph, which would keep the batch alive


train_step.exempt(TRAINING, DATA + " half bfloat16")


@train_step.checks
def _(case: Case) -> None:
    for device in dict.fromkeys((case.device, elsewhere(case.device))):
        training = Training(device)
        for parameter in training.model.parameters():  # "each step begins with `zero_grad`": somebody left these
            parameter.grad = torch.full_like(parameter, 0.5)
        for x, y in batches((5, 1), scale=20.0):  # long gradients: clipping would show
            given = [x.clone(), y.clone()]
            got, waits = training.call(case, x, y, device)
            case.fail_if(difference([x, y], given), "modifies the batch", "the next epoch sees it again")
            training.followed(case)
            a_loss(case, got, training.expected(x, y)[0])
            training.equal(case)
            why = "a name outside holds the loss, and with it all that its backward pass needed: keep loss.detach()"
            case.fail_if(_keeps_a_graph(training.log.passes), "keeps the graph of the step", why)
            why = "print, .item(), .cpu() and synchronize() in every step keep the queue empty"
            case.fail_if(waits, "lets the host wait for the device", why)
    for model in models():  # "train `model`", whatever it is
        x = torch.randn(3, 6, dtype=next(model.parameters()).dtype)
        device = edges.supporting(case.device, model)
        model.to(device)
        follows(case, model, train_step, edges.permuted(x), torch.tensor([2, 0, 5]), device)
        follows(case, model, train_step, edges.sliced(x), torch.tensor([1, 1, 1]), device)
    pictures = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten(), nn.Linear(9, 6)).to(case.device)
    follows(case, pictures, train_step, torch.randn(3, 2, 3), torch.tensor([2, 0, 5]), case.device)


def _keeps_a_graph(passes: list) -> bool:
    """Return whether the graph of a pass is still there, also when all is freed that nobody refers to."""
    if any(step.graph() is not None for step in passes):
        gc.collect()
    return any(step.graph() is not None for step in passes)
