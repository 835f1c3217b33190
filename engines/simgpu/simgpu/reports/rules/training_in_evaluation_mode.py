"""Dropout is off, and batch norm learns nothing."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class TrainingInEvaluationMode(Rule, about="result"):
    text = (
        "The model is trained in evaluation mode: dropout is off, and batch norm learns nothing. Call `model.train()` "
        "before."
    )
    cure = "`model.train()` before the training loop"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and call.trains and call.random is False and not call.training:
            self.note(call.line)


_EVAL = "scores = model(x)\n", "model.eval(); scores = model(x)\n"
BAD = [
    (*_EVAL, "scores = model(x)"),
    (
        "nn.Dropout(0.1)", "nn.MultiheadAttention(512, 4, dropout=0.2)",
        "self.drop(self.first(x).relu())", "self.drop(*[self.first(x)] * 3)[0]", *_EVAL, "scores = model(x)",
    ),
    (
        "nn.Dropout(0.1)", "nn.Identity()",
        "self.first(x).relu()", "F.dropout(self.first(x), 0.1, self.training)", *_EVAL, "scores = model(x)",
    ),
]  # fmt: skip
_ATTACK = "model.eval(); x.requires_grad_(True)\n{}\nmodel.train(); optimizer.zero_grad()\nscores = model(x.detach())\n"
_SLOPE = "torch.autograd.grad(F.cross_entropy(model(x), y), x)"
GOOD = {
    "nothing that tells the modes apart": ("nn.Dropout(0.1)", "nn.Identity()", *_EVAL),
    "an attack by FGSM": ("scores = model(x)\n", _ATTACK.format("F.cross_entropy(model(x), y).backward()")),
    "an attack by PGD": ("scores = model(x)\n", _ATTACK.format(_SLOPE)),
    "a map of what matters": (
        "    model.eval()\n", "    model.eval(); seen = torch.ones(64, 16, device='cuda', requires_grad=True)\n"
        "model(seen).sum().backward()\n",
    ),
}  # fmt: skip
