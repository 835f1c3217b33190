"""The exercise “An index out of range”."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.tagging import tagger, texts
from gpu_course.lesson11.watched import Passes, lets_errors_out, stepped, trained


@exercise(
    minutes=4,
    difficulty=2,
    simulated=True,
    hints=(
        "The error names the line in which the host waits. Which lines before it use whole numbers as indices?",
        "For cross_entropy each tag is the number of a class. Which tags are in the batches, and which classes exist?",
        "The padding must count neither in the loss nor in its mean. cross_entropy has an argument for the one target "
        "that does not count.",
    ),
)
def train_tagger(model: nn.Module, batches: list, device: torch.device) -> list[float]:
    """Take a step on each batch, padding left out; return the mean loss of each."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for words, tags in batches:  # (texts, length) each; tag -1: no word
        words, tags = words.to(device), tags.to(device)
        logits = model(words)  # (texts, length, 3): three classes
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def _tag_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    """Return the mean loss word by word."""
    logits = model(batch[0]).flatten(0, 1).log_softmax(dim=1)
    return torch.stack([-row[tag] for row, tag in zip(logits, batch[1].flatten(), strict=True) if tag >= 0]).mean()


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Let errors of kernels come later, as on CUDA, and go back out of them."""
    simgpu.configure(errors="asynchronous")
    try:
        yield
    finally:
        simgpu.forgive()
        simgpu.configure(errors="immediate")


train_tagger.exempt(PROGRAM, "scalar empty single permuted sliced huge tiny not_finite negative")
train_tagger.exempt(PROGRAM, "half bfloat16 double bool complex")
train_tagger.exempt(PROGRAM, "elsewhere default_type models lists second_call unchanged")


@train_tagger.checks
def _(case: Case) -> None:
    model, right, batches = tagger(), tagger(), texts()
    passes = Passes(model)
    with _as_on_cuda():
        got = case.call(model, batches, case.device, modifies="training place")
        copies = case.counts.copies_d2h
        passes.check(case, rows=9)
        why = "expected is the mean loss over the words of each batch, before its step"
        case.equal(got, stepped(right, batches, _tag_loss, 0.5), rtol=1e-4, why=why)
        trained(case, model, right)
        passes.once(case, rows=9)
        case.fail_if(copies > 1, "takes the loss to the CPU", "the host would wait for it at each step")
        lets_errors_out(case, tagger(), [batches[2], (torch.zeros(2, 2), torch.zeros(2, 2).long())], case.device)
