"""The same tensor or model is copied in each step."""

from torch.utils.weak import WeakIdKeyDictionary

from simgpu.reports import events
from simgpu.reports.program import version
from simgpu.reports.rule import Rule


class MovedInEachStep(Rule, about="time", often="each step"):
    text = "This copies the same tensor to the GPU in each step. Move it once, before the loop."
    cure = "move it once, before the loop"

    def begin(self) -> None:
        self._sent = WeakIdKeyDictionary()  # versions and steps of tensors when they were copied to a GPU

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if self.program.running or not source.dim():
            return
        now = version(source)
        if self._sent.get(source) == (now, self.program.step - 1):
            self.note()
        self._sent[source] = now, self.program.step


BAD = [
    ("scores = model(x)\n", "scores = model(x + table.cuda()[: len(x)])\n", "table.cuda()"),
    (
        "optimizer.zero_grad()\n", "model.to('cuda'); optimizer.zero_grad()\n",
        "optimizer.step()\n", "optimizer.step(); model.to('cpu')\n",
        "    model.eval()\n", "    model.cuda().eval()\n", "model.to('cuda')",
    ),
]  # fmt: skip
GOOD = {
    "batches in a list": (
        "DataLoader(data, batch_size=64)\n", "list(DataLoader(data, batch_size=64, pin_memory=True))\n",
        "x, y = x.cuda(), y.cuda()", "x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)",
    ),
}  # fmt: skip
