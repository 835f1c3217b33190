"""Each step draws the same random numbers."""

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.program import Program
from simgpu.reports.rule import Rule


class SeedInEachStep(Rule):
    about = "result"
    text = "The same seed in each step draws the same random numbers again. Set it once, before the loop."
    cure = "set the seed once, before the loop"
    often = "each step"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._seeds: dict[str, int] = {}  # the last one, by line

    def on_seeded(self, event: events.Seeded) -> None:
        line = places.place()
        if self._seeds.get(line) == event.seed:
            self.note(line)
        self._seeds[line] = event.seed


BAD = [("optimizer.zero_grad()\n", "optimizer.zero_grad(); torch.manual_seed(1)\n", "manual_seed")]
GOOD = {
    "another seed in each step": (
        "optimizer.zero_grad()\n", "optimizer.zero_grad(); torch.manual_seed(len(KEPT)); KEPT.append(0)\n",
    ),
}  # fmt: skip
