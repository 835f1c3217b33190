"""Does a training step give what the naive step gives, and within which memory and time?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import data, models
from course_utils.checks import Case
from course_utils.exercises.common.budgets import Floor, Spent, over_budget, spend
from course_utils.exercises.common.part_weights import part_weights, vector
from course_utils.exercises.common.probes import left_changed, state_of

__all__ = ["Model", "Trial", "naive_step"]


def naive_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take one step on the whole batch at once and return its mean loss: the program of lesson 07 to improve."""
    optimizer.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


class Model(models.TransformerLM):
    """The same model, named shortly in messages."""

    def __repr__(self) -> str:
        return "model"


class _Optimizer(torch.optim.SGD):
    def __repr__(self) -> str:
        return "optimizer"


class Trial:
    """Two steps of the naive program and of an answer, on equal models and the same text, one after the other."""

    def __init__(self, case: Case, *, width: int, context: int, layers: int) -> None:
        self.case, self.floor = case, Floor()
        self.sizes = {"vocabulary": 256, "width": width, "heads": 2, "layers": layers, "context": context}
        drawn = torch.Generator().manual_seed(1)
        self.batches = [[one.to(case.device) for one in data.text_batch(16, context, drawn)] for _ in range(2)]
        self.copies = [[one.cpu().to(case.device) for one in batch] for batch in self.batches]
        self.naive, self.weights = self._run_naive()
        self.naive_bytes = max(one.peak_bytes for one in self.naive)

    def _start(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a model with the same first weights each time, and its optimizer."""
        torch.manual_seed(0)
        model = Model(**self.sizes).to(self.case.device)
        return model, _Optimizer(model.parameters(), lr=0.1, momentum=0.9)

    def _run_naive(self) -> tuple[list[Spent], list[torch.Tensor]]:
        model, optimizer = self._start()
        taken, weights = [], [_weights(model)]
        for batch in self.batches:
            taken.append(spend(self.floor, lambda batch=batch: naive_step(model, optimizer, *batch)))
            weights.append(_weights(model))
        return taken, weights

    def run(self) -> None:
        """Run the answer, and fail unless losses and weights are those of the naive program after each step."""
        self.model, self.optimizer = self._start()
        self.spent: list[Spent] = []
        self.state, self.moved_bytes, steps = state_of(self.model), 0, []
        self.optimizer.register_step_post_hook(lambda *given: steps.append(True))
        for number, batch in enumerate(self.batches):
            steps.clear()
            self.spent.append(spend(self.floor, lambda batch=batch: self._call(batch)))
            self.moved_bytes += self.case.counts.bytes_d2h
            self._compare(number, len(steps))

    def _call(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.case.call(self.model, self.optimizer, *batch, modifies=True)

    def within(self, limit_bytes: int, why: str) -> None:
        """Fail if a step of the answer had more than `limit_bytes` alive."""
        worst = max(self.spent, key=lambda one: one.peak_bytes)
        over_budget(self.case, self.floor, worst, limit_bytes, lambda: self._call(self.batches[0]), why)

    def leaves_the_model(self) -> None:
        """Fail if the answer left the model otherwise than it was, beside its weights."""
        changed = left_changed(self.state, state_of(self.model))
        self.case.instead(changed, f"leaves the model in another state: {changed}",
                          "the next step would go another way")  # fmt: skip

    @property
    def times(self) -> float:
        """How many times the simulated time of the naive steps the answer's took."""
        return sum(one.time_ms for one in self.spent) / sum(one.time_ms for one in self.naive)

    def _compare(self, number: int, steps: int) -> None:
        case, got, wanted = self.case, self.spent[number], self.naive[number]
        changed = any(not torch.equal(*pair) for pair in zip(self.batches[number], self.copies[number], strict=True))
        case.instead(changed, "modifies x or y", "the caller still needs the batch")
        start, expected, now = self.weights[0], self.weights[number + 1], _weights(self.model)
        case.instead(not steps, "takes no step with the given optimizer", "the weights change in optimizer.step()")
        case.instead(steps > 1, f"takes {steps} steps", "gradients of all parts add up in .grad: step once, after all")
        same = torch.allclose(now, expected, rtol=1e-4, atol=2e-6)
        if not same and number == 0:
            self._name(now - start, expected - start)
        if not same and number:
            self._name_second(now, expected)
        value = got.value
        case.instead(isinstance(value, torch.Tensor) and value.requires_grad, "returns the loss with its graph",
                     "whoever keeps it keeps the graph: return loss.detach()")  # fmt: skip
        case.equal(value, wanted.value, rtol=1e-4, why="the mean loss of all tokens of the batch, before the step")
        case.instead(got.flops < 0.99 * wanted.flops, "computes on the CPU what belongs on the device",
                     "the budget is that of the device's memory, and the work stays there")  # fmt: skip

    def _name_second(self, now: torch.Tensor, expected: torch.Tensor) -> None:
        """Fail with what of the first step is wrong in the second."""
        first = self.weights[1] - self.weights[0]  # momentum starts with it: old gradients would add it once more
        stale = float((now - expected - first).norm()) < 0.01 * float(first.norm())
        why = "clear the gradients of the step before"
        if not stale:
            why = "something of the first step is left or lost: gradients, the optimizer's state, its settings"
        self.case.fail("the first step is right, the second is not", why)

    def _name(self, mine: torch.Tensor, right: torch.Tensor) -> None:
        """Fail with the name of what is wrong with the first change of the weights."""
        self.case.instead(not mine.any(), "takes a step, and no weight changes",
                          "when optimizer.step() runs, the gradients must be in the model's parameters: no zero_grad "
                          "between backward and step")  # fmt: skip
        factor = float(mine @ right / (right @ right))
        rest = float((mine - factor * right).norm() / mine.norm())
        scaled = rest < 1e-2 and abs(factor - 1) > 0.05
        self.case.instead(scaled, f"changes the weights {factor:.3g} times as much as the naive step",
                          "the gradient must be that of the whole batch's mean: divide each part's loss by the number "
                          "of all tokens, and step once")  # fmt: skip
        self.case.instead(rest < 0.05 and not scaled, "changes the weights nearly as the naive step does",
                          "something is rounded to 16 bits: autocast computes with them")  # fmt: skip
        x, y = self.batches[0]
        shares = part_weights(-mine.double(), [self._row_gradient(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
        lost = sum(abs(share) < 0.1 * max(shares) for share in shares)
        self.case.instead(lost, f"{lost} of {len(x)} rows do not count in the step",
                          "take all rows, and no zero_grad between the parts: it drops their gradients")  # fmt: skip
        self.case.fail("changes the weights in another way than the naive step",
                       "all rows, in float32, in one step: the result must be the same, with less memory")  # fmt: skip

    def _row_gradient(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss of one row, at the first weights."""
        model, _ = self._start()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        return vector(parameter.grad for parameter in model.parameters())


def _weights(model: nn.Module) -> torch.Tensor:
    """Return all weights in one vector on the CPU."""
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
