"""The exercise “Backward a second time”."""

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained


@exercise(
    minutes=3,
    difficulty=2,
    hints=(
        "The first piece trains, the second one fails. What does the second get that was computed in the first?",
        "The state carries its numbers, and also the graph that computed them. backward has already used up that "
        "graph.",
        "The next piece needs the numbers, and not the graph. Which method of a tensor returns its numbers without a "
        "graph?",
    ),
)
def train_on_stream(model: nn.Module, pieces: list, device: torch.device) -> list[float]:
    """Take a step on each piece; the state goes on, gradients stay in one piece."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    state, losses = None, []  # None: the model begins with zeros
    for x, y in pieces:  # (signals, time) each
        output, state = model(x.to(device), state)
        state = state.detach()  # the numbers go on, their history ends
        loss = F.mse_loss(output, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Echo(nn.Module):
    """A small recurrent network: from signals (signals, time) and a state (signals, 4) to outputs and the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.onward, self.out = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    __repr__ = Layers.__repr__

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        state = x.new_zeros(len(x), 4) if state is None else state
        outputs = []
        for column in x.split(1, dim=1):
            state = torch.tanh(self.inward(column) + self.onward(state))
            outputs.append(self.out(state))
        return torch.cat(outputs, dim=1), state


def echo() -> nn.Module:
    """Return an `Echo`, always the same."""
    torch.manual_seed(3)
    return Echo()


def signals() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return four pieces of two signals, (2, 3) each, and as targets the sums of what came so far."""
    x = torch.randn(2, 12, generator=torch.Generator().manual_seed(4))
    return Batches(zip(x.split(3, dim=1), x.cumsum(dim=1).tanh().split(3, dim=1), strict=True))


train_on_stream.exempt(PROGRAM, "scalar empty single permuted huge tiny not_finite zero")
train_on_stream.exempt(PROGRAM, "half bfloat16 double bool complex")
train_on_stream.exempt(PROGRAM, "elsewhere default_type models lists second_call unchanged")


@train_on_stream.checks
def _(case: Case) -> None:
    model, right, pieces = echo(), echo(), signals()
    passes, memory = Passes(model), {}

    def loss_of(net: nn.Module, piece: tuple) -> torch.Tensor:
        with torch.no_grad():  # the numbers of the state that the next piece begins with
            after = net(piece[0], memory.get("state"))[1]
        output, memory["state"] = net(piece[0], memory.get("state"))[0], after
        return F.mse_loss(output, piece[1])

    got = case.call(model, pieces, case.device, modifies="training place")
    passes.check(case, rows=8)
    why = "expected is the loss of each piece, before its step"
    case.equal(got, stepped(right, pieces, loss_of, 0.2), rtol=1e-4, why=why)
    trained(case, model, right)
    passes.once(case, rows=8)
    lets_errors_out(case, echo(), [pieces[0], (torch.ones(2, 3).long(), torch.ones(2, 3))], case.device)
