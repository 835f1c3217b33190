"""Sound programs that train, in three styles, and edits of them."""

import sys

from simgpu.reports.rules import RULES

HEAD = """import gc
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(192, 16), torch.randint(4, (192,)))
table = torch.randn(64, 16)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 512)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(512, 4)

    def forward(self, x):
        x = x
        return self.last(self.drop(self.first(x).relu()))


def evaluate(model, loader):
    model.eval()
    right = torch.zeros((), device="cuda")
    with torch.inference_mode():
        for x, y in loader:
            right += (model(x.cuda()).argmax(1) == y.cuda()).sum()
    model.train()
    return right


"""
STEP = """x, y = x.cuda(), y.cuda()
optimizer.zero_grad()
scores = model(x)
loss = F.cross_entropy(scores, y)
loss.backward()
optimizer.step()
"""


def indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


STYLES = {
    "loop": HEAD
    + """loader = DataLoader(data, batch_size=64)
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for x, y in loader:
"""
    + indented(STEP, 8)
    + "    right = evaluate(model, loader)\n",
    "class": HEAD
    + """class Trainer:
    def __init__(self):
        self.loader = DataLoader(data, batch_size=64)
        self.model = model = Net().cuda()
        self.optimizer = optimizer = torch.optim.AdamW(model.parameters())

    def epoch(self):
        model, optimizer, loader = self.model, self.optimizer, self.loader
        for x, y in loader:
"""
    + indented(STEP, 12)
    + """
    def run(self):
        for epoch in range(2):
            self.epoch()
            evaluate(self.model, self.loader)


Trainer().run()
""",
    "hooks": HEAD
    + """class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def configure(self):
        return torch.optim.AdamW(self.net.parameters())

    def training_step(self, x, y, optimizer):
        model = self.net
"""
    + indented(STEP, 8)
    + """

loader = DataLoader(data, batch_size=64)
module = Module().cuda()
optimizer = module.configure()
for epoch in range(2):
    for x, y in loader:
        module.training_step(x, y, optimizer)
    evaluate(module.net, loader)
""",
}


def edited(style: str, *edits: str) -> str:
    """Return a program of a style with edits: what is replaced, and what stands there then, in turn."""
    text = STYLES[style]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        spaces = next((len(line) - len(line.lstrip()) for line in text.splitlines() if old.split("\n")[0] in line), 0)
        first, *others = new.split("\n")
        new = "\n".join([first, *(" " * spaces + one if one else one for one in others)])
        old = "\n".join([old.split("\n")[0], *(" " * spaces + one if one else one for one in old.split("\n")[1:])])
        assert not old or old in text, (style, old)
        text = text.replace(old, new) if old else text
    return text


_FILES = {code: sys.modules[rule.__module__] for code, rule in RULES.items()}
BAD = {code: file.BAD for code, file in _FILES.items()}  # edits that give a program the fault, and a part of its line
GOOD = {f"{code}: {name}": edits for code, file in _FILES.items() for name, edits in file.GOOD.items()}
GOOD["as it is"] = ()
