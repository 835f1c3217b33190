"""The exercise “An epoch with one host read”."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere
from gpu_course.lesson05.training import DATA, PINNING, Training, batches, follows, loader, models


@exercise(
    minutes=15,
    difficulty=2,
    hints=(
        "Keep two sums on the device. The host can count the samples by itself, without a read.",
        "Each batch adds its detached loss times its size to one sum, and its number of right answers to the other.",
        "torch.zeros(2, device=device) holds both sums. After the loop divide it by the number of samples; .tolist() "
        "of that is the one read.",
    ),
)
def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable, device: torch.device
) -> tuple[float, float]:
    """Train one epoch; return its mean loss and share of right answers, read once."""
    sums, samples = torch.zeros(2, device=device), 0
    can_pin = device.type in ("cuda", "xpu", "sim")  # elsewhere a copy must be done before its source goes
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=can_pin), labels.to(device, non_blocking=can_pin)
        optimizer.zero_grad(set_to_none=True)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)  # the device adds, the host only asks it to
        sums[1] += (logits.argmax(dim=1) == labels).sum()
        samples += len(labels)
    mean, share = (sums / samples).tolist()  # the one read
    return mean, share


train_epoch.exempt(TRAINING, DATA + " sliced half bfloat16")
train_epoch.exempt("of no samples there is no mean", "no_entries")


@train_epoch.checks
def _(case: Case) -> None:
    for sizes, device in (((4, 3), case.device), ((5, 5, 5, 3), elsewhere(case.device))):
        training, data = Training(device), batches(sizes, scale=20.0)
        given = loader(data) if len(data) == 2 else data  # a list of batches is a loader too
        got, waits = training.call(case, given, device)
        expected, sent = [training.expected(x, y) for x, y in data], {part.nbytes for batch in data for part in batch}
        loss = sum(one.item() * size for (one, _), size in zip(expected, sizes, strict=True)) / sum(sizes)
        right = loss, sum(hits.sum().item() for _, hits in expected) / sum(sizes)
        copies = [one for one in case.counts.copies if one.direction == "h2d" and one.bytes in sent]
        name = "copies with non_blocking=True from memory that is not pinned"
        why = "this device reads the batch later, when another one may stand in its memory: non_blocking=CAN_PIN"
        case.fail_if(device.type not in PINNING and any(one.non_blocking for one in copies), name, why)
        training.followed(case, len(data))
        training.equal(case)
        why = "a sum of losses that are not detached holds all of them: add loss.detach()"
        case.fail_if(
            max((one.graphs_kept for one in training.log.passes), default=0) > 2, "keeps the graph of every batch", why
        )
        got = tuple(got) if isinstance(got, list) else got
        tensors = isinstance(got, tuple) and any(isinstance(value, torch.Tensor) for value in got)
        case.fail_if(tensors, "returns tensors, expected two floats", "one .tolist() at the end reads both", got=got)
        case.equal(got, right, rtol=1e-4, atol=1e-5)
        why = (
            "synchronize(), .item(), print, float() and an `if` on a tensor make the host wait for all that is queued: "
            "add up on the device and read once, at the end"
        )
        case.budget("synchronisations an epoch", waits, 1, why)
        held = device.type in PINNING and not all(one.non_blocking for one in copies)
        case.fail_if(held, "copies batches without non_blocking=CAN_PIN", "from pinned memory the host need not wait")
    for model in models():
        dtype = next(model.parameters()).dtype
        rows = edges.permuted(torch.randn(4, 6, dtype=dtype)), edges.sliced(torch.randn(1, 6, dtype=dtype))
        data = list(zip(rows, (torch.tensor([2, 0, 5, 5]), torch.tensor([1])), strict=True))
        device = edges.supporting(case.device, model)
        for given in (data, data[::-1], data[:1], iter(data)):
            follows(case, model.to(device), train_epoch, given, device)
