"""The exercise “Steps with one read”."""

import weakref
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere, same_parameters


@exercise(
    minutes=12,
    difficulty=2,
    hints=(
        "Nothing in the loop may need a value: no .item(), no print, no `if` on a tensor.",
        "One cross_entropy over all places of all rows: flatten logits (rows, time, 256) to two dimensions.",
        "Inputs: window[:, :-1], targets: window[:, 1:]. Collect loss.detach(); after the loop torch.stack, tolist.",
    ),
)
def train_steps(model: nn.Module, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> list[float]:
    """Take one step for each of `windows`; return the losses, with one read in all."""
    losses = []
    for window in windows:
        optimizer.zero_grad()
        logits = model(window[:, :-1])  # (rows, time, 256)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # on the device, without its graph
    return torch.stack(losses).tolist()  # the one read


train_steps.exempt(
    TRAINING,
    "scalar empty permuted sliced huge tiny not_finite negative half bfloat16 double bool complex",
    "places default_type evaluation frozen all_frozen shared double_model scalar_parameter",
    "second_call unchanged",
)


@train_steps.checks
def _(case: Case) -> None:
    sgd = partial(torch.optim.SGD, lr=0.5, momentum=0.9)  # `optimizer` is the caller's, whichever that is
    adamw = partial(torch.optim.AdamW, lr=0.05)
    for device, shape, kind in (
        (case.device, (1, 1, 2), adamw),
        (elsewhere(case.device), (3, 2, 4), sgd),
        (case.device, (5, 3, 6), adamw),
    ):
        windows, case.device = torch.randint(256, shape), device
        windows[:, 0, 1] = 0  # a target as any other
        model, twin = _model().to(device), _model()
        optimizer, its = kind(_groups(model)), kind(_groups(twin))
        for parameter in model.parameters():  # gradients left from before do not count
            parameter.grad = torch.ones_like(parameter)
        got = case.call(model, optimizer, windows.to(device), modifies="training")
        counts = case.counts
        # the model is in training mode, and stays so
        case.fail_if(not all(model.modes), "trains in evaluation mode", "the model came in training mode")
        case.fail_if(isinstance(got, torch.Tensor), "returns a tensor, expected a list of floats", ".tolist() reads it")
        case.fail_if(  # inputs are all bytes of a window except the last
            model.times - {shape[-1] - 1},
            f"gives the model {max(model.times)} bytes of a window of {shape[-1]}",
            "inputs are all bytes of a window except the last, which is a target alone",
        )
        case.equal(got, _one_by_one(twin, its, windows), rtol=2e-5, why="this is the loss of each step, before it")
        same_parameters(case, model, twin)
        reads = counts.host_reads + counts.copies_d2h  # let the host read only once
        case.budget("reads of the host", reads, 1, "at each one the host waits, and the queue runs empty")
        case.fail_if(  # keep no graph after its step
            model.kept > 2,
            "keeps the graph of every step",
            "what holds a loss holds all that its backward pass needed: keep loss.detach()",
        )


class _Watched(nn.Sequential):
    """A model of one byte that notes at each pass its mode, the bytes of a row, and how many earlier graphs are left.

    Those stand in `modes`, `times` and `kept`.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.modes: list[bool] = []
        self.times: set[int] = set()
        self.kept, self._graphs = 0, []

    def __repr__(self) -> str:
        return "model"

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits, graph = super().forward(tokens), set()  # sets have weak references
        self.modes.append(self.training)
        self.times.add(tokens.shape[-1])
        self.kept = max(self.kept, sum(one() is not None for one in self._graphs))
        if logits.grad_fn is not None:
            logits.grad_fn.metadata["watched"] = graph  # it lives as long as the graph
            self._graphs.append(weakref.ref(graph))
        return logits


def _model() -> _Watched:
    torch.manual_seed(3)
    return _Watched(nn.Embedding(256, 8), nn.Linear(8, 256))


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups, for an optimizer."""
    first, *rest = model.parameters()
    return [{"params": [first]}, {"params": rest, "weight_decay": 0.1}]


def _one_by_one(model: nn.Module, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> list[float]:
    """Train place by place, and return the losses."""
    losses = []
    for window in windows:
        places = [
            -model(row[None, at : at + 1]).log_softmax(-1)[0, 0, row[at + 1]]
            for row in window
            for at in range(len(row) - 1)
        ]
        optimizer.zero_grad()
        loss = sum(places) / len(places)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
