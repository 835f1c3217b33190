"""Cases of compiled steps that are no faster, in which a line of the step sends the compiler back to work."""

import random
from collections.abc import Callable

import torch
from torch import nn

from gpu_course.common.tracing import Alone, keeping
from gpu_course.lesson11.unknown import Unknown

__all__ = ["BREAKS", "NUMBER", "SIZES", "SLOW", "slow"]

NUMBER, SIZES, BREAKS = SLOW = (
    "a number in Python changes at each step",
    "each batch has a size of its own, and dynamic=False",
    "a line of the step breaks the graph",
)
_STEPS = 6


class _Step(nn.Module):
    """A layer that weights what it gets by the number of its calls, and may print, in the middle."""

    def __init__(self, calls: int | torch.Tensor, prints: bool) -> None:
        super().__init__()
        self.calls, self.prints = calls, prints
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.layer(x) / self.calls
        if self.prints:
            print(end="")
        return torch.relu(x)


def slow(cause: str, seed: int = 0) -> Unknown:
    """Return a compiled step that is no faster than before, for the `cause`, one of `SLOW`; six steps are taken."""
    rows = random.Random(seed).sample(range(2, 40), _STEPS) if cause == SIZES else [8] * _STEPS
    batches = [torch.ones(size, 4) for size in rows]
    torch._dynamo.reset()
    model = _Step(0 if cause == NUMBER else torch.zeros(()), cause == BREAKS)
    graphs: list = []
    step = Alone(torch.compile(model, backend=keeping(graphs), dynamic=False), "step")
    counts = []
    for batch in batches:
        step(batch)
        counts.append(len(graphs))
    explained = Alone(torch._dynamo.explain(model), "explain")(batches[0])
    lines = [reason.user_stack[-1].line.strip() for reason in explained.break_reasons]
    seen = {
        "graphs": f"graphs after each step: {', '.join(map(str, counts))}",
        "breaks": f"explain names these lines: {'; '.join(lines) or 'none'}",
        "guards": f"the guard that fails in the second step: {_guard(step, batches)}",
        "batches": f"rows of the batches: {', '.join(map(str, rows))}",
    }
    against = {NUMBER: seen["guards"], SIZES: seen["batches"], BREAKS: seen["breaks"]}
    return Unknown("A step was compiled, and is slower than before.", SLOW, seen, against, cause)


def _guard(step: Callable, batches: list[torch.Tensor]) -> str:
    """Return the guard of the first step that fails in the second, "none" where none fails."""
    torch._dynamo.reset()
    step(batches[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            step(batches[1])
        except RuntimeError as error:
            return str(error).partition("- 0/0: ")[2].splitlines()[0].partition("#")[0].strip()
    return "none"
