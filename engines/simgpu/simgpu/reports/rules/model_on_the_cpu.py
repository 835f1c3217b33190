"""A model that learns has stayed on the CPU."""

from simgpu.reports import events
from simgpu.reports.program import alive
from simgpu.reports.rule import Rule


class ModelOnTheCpu(Rule, about="time", often="each step", explains=("host-work", "host-waits")):
    text = (
        "This model is on the CPU, and so is all that it computes, forwards and backwards: no time here counts it. "
        "Write `model.to(device)` before the optimizer is made."
    )
    cure = "`model.to(device)`"

    def on_judged(self, event: events.Judged) -> None:
        parameters = list(alive(self.program.parts(event.call.model).parameters))
        if event.call.used and event.trained and all(one.device.type == "cpu" for one in parameters):
            self.note(event.call.line)


_BODY = (
    "scores = model(x)\n", "KEPT or KEPT.append(nn.Linear(16, 16){0})\nscores = model(x + KEPT[0](x{1}).cuda())\n",
    "loss.backward()\n", "[optimizer.add_param_group({{'params': KEPT[0].parameters()}}) for _ in KEPT[1:] or [0] "
    "if len(optimizer.param_groups) == 1]; loss.backward()\n",
)  # fmt: skip


def _body(*where: str) -> tuple[str, ...]:
    return tuple(one.format(*where) if "{" in one else one for one in _BODY)
