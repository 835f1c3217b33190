"""The exercise “Port a program without naming a device”."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere, same_parameters


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "Three things must be on `device`: the model, each batch, and what the loop makes itself.",
        "torch.linspace(…, device=device) makes the tensor on the device. And if you read a value in each step, the "
        "host waits in each step.",
        "Write total = torch.zeros((), device=device) before the loop, total += loss.detach() in it, and one .item() "
        "at the end.",
    ),
)
def train_on(model: nn.Module, batches: list, device: torch.device) -> float:
    """Train `model` on `device`, a step for each batch; return the mean loss."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros((), device=device)
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        weights = torch.linspace(0.5, 1.5, len(y), device=device)
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = (weights * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(batches)


train_on.exempt(
    TRAINING,
    "scalar empty permuted sliced huge tiny not_finite half bfloat16 double bool complex",
    "elsewhere default_type evaluation frozen all_frozen shared two_groups double_model scalar_parameter",
    "no_entries order second_call unchanged",
)


@train_on.checks
def _(case: Case) -> None:
    # "Let it train on `device`, whichever that is."
    for sizes, device in (((2,), case.device), ((3, 5), elsewhere(case.device)), ((4, 1, 2, 6), case.device)):
        case.device = device
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        twin = copy.deepcopy(model)
        batches = [(torch.randn(size, 3), torch.randint(3, (size,))) for size in sizes]
        trained_before = len(sizes) == 4
        for parameter in model.parameters() if trained_before else ():
            parameter.grad = torch.ones_like(parameter)
        moved = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
        copies = 2 * len(sizes) + sum(tensor is not None for tensor in moved)
        why = "this is the mean loss of the steps"
        why += "; the parameters had gradients, which the program clears before each step" if trained_before else ""
        got = case.call(model, batches, case.device, modifies="training place")
        counts = case.counts
        placed = {parameter.device for parameter in model.parameters()}
        case.fail_if(
            placed != {case.device},
            f"the model is on {', '.join(map(str, placed))}, expected {case.device}",
            "the caller says on which device: `device`",
        )
        case.equal(got, _slowly(twin, batches), rtol=1e-4, why=why)
        same_parameters(case, model, twin)
        reads = counts.host_reads + counts.copies_d2h
        case.fail_if(
            reads > 1,
            f"the host reads {reads} values",
            "at each read the host waits for the GPU, then the GPU for the host: add up on the device, read once",
        )
        case.budget(
            "copies to the device",
            counts.copies_h2d,
            copies,
            "copy the model and two tensors of each batch; torch.linspace and torch.zeros make what else you need with "
            "device=device, but torch.tensor copies Python's numbers there",
        )


def _slowly(model: nn.Module, batches: list) -> float:
    """Train on the CPU, each sample's loss by itself and each parameter by hand; return the mean loss."""
    total = 0.0
    for x, y in batches:
        parts = [-model(row[None]).log_softmax(-1)[0, label] for row, label in zip(x, y, strict=True)]
        weights = torch.linspace(0.5, 1.5, len(y)).tolist()
        loss = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / len(y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        total += loss.item()
    return total / len(batches)
