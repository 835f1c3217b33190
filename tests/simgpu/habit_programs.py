"""Small programs that train: three sound ones in three styles, edits that give each a habit, and sound variations."""

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

SAVE = "torch.save(model.state_dict(), __import__('io').BytesIO())"

# By code of the remark: what is replaced and what stands there then, and at last a part of the line that must be named.
HABITS = {
    "gradients-never-cleared": [("optimizer.zero_grad()\n", "pass\n", "loss.backward()")],
    "gradients-cleared-too-early": [
        ("loss.backward()\n", "loss.backward(); optimizer.zero_grad()\n", "optimizer.zero_grad()"),
        ("loss.backward()\n", "loss.backward(); model.zero_grad(set_to_none=False)\n", "model.zero_grad"),
    ],
    "gradients-thrown-away": [
        (
            "optimizer.zero_grad()\nscores = model(x)\nloss = F.cross_entropy(scores, y)\nloss.backward()\n",
            "for x, y in zip(x.chunk(2), y.chunk(2)):\n    optimizer.zero_grad()\n"
            "    F.cross_entropy(model(x), y).backward()\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "optimizer.zero_grad()",
        ),
    ],
    "gradients-not-used": [("scores = model(x)\n", "scores = model(x) + TEACHER(x)\n", "TEACHER(x)")],
    "optimizer-of-other-parameters": [
        ("scores = model(x)\n", "model = Net().cuda(); scores = model(x)\n", "optimizer.step()"),
        (
            "scores = model(x)\n",
            "KEPT or KEPT.append(setattr(model, 'last', nn.Linear(512, 4).cuda()))\nscores = model(x)\n",
            "optimizer.step()",
        ),
    ],
    "backward-without-model": [
        (
            "loss.backward()\n",
            "loss = torch.tensor(loss.item(), requires_grad=True, device='cuda'); loss.backward()\n",
            "loss.backward()",
        ),
    ],
    "layer-not-registered": [
        (
            "self.last = nn.Linear(512, 4)\n",
            "self.last = [nn.Linear(512, 4).cuda()]\n",
            "return self.last(",
            "return self.last[0](",
            "return self.last[0](",
        ),
    ],
    "layer-never-called": [
        ("self.drop(self.first(x).relu())", "self.first(x).relu()", "self.drop = "),
        (
            "self.last = nn.Linear(512, 4)\n",
            "self.last = nn.Linear(512, 4); self.more = nn.Linear(4, 4)\n",
            "self.more =",
        ),
    ],
    "gradients-clipped-too-late": [
        (
            "optimizer.step()\n",
            "optimizer.step(); nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "clip_grad_norm_",
        ),
        (
            "loss.backward()\n",
            "nn.utils.clip_grad_norm_(model.parameters(), 1.0); loss.backward()\n",
            "clip_grad_norm_",
        ),
    ],
    "gradients-clipped-while-scaled": [
        (
            "optimizer.zero_grad()\n",
            "scaler = torch.amp.GradScaler('cuda')\noptimizer.zero_grad()\n",
            "loss.backward()\n",
            "scaler.scale(loss).backward(); nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "optimizer.step()\n",
            "scaler.step(optimizer)\n",
            "clip_grad_norm_",
        ),
    ],
    "dropout-in-evaluation": [
        (
            "nn.Dropout(0.1)",
            "nn.Identity()",
            "self.first(x).relu()",
            "F.dropout(self.first(x), 0.1)",
            "F.dropout(self.first(x), 0.1)",
        ),
    ],
    "loss-of-all-pairs": [
        ("F.cross_entropy(scores, y)", "(scores[:, :1] - y.float()).square().mean()", "(scores[:, :1] - y"),
        ("F.cross_entropy(scores, y)", "(y.float() - scores[:, :1]).abs().mean()", "y.float() - scores"),
    ],
    "state-is-no-copy": [
        (
            "optimizer.step()\n",
            "optimizer.step(); KEPT or KEPT.append(model.state_dict())\n",
            "    return right\n",
            "    model.load_state_dict(KEPT[0]); return right\n",
            "KEPT.append(model.state_dict())",
        ),
    ],
    "training-in-evaluation-mode": [
        ("scores = model(x)\n", "model.eval(); scores = model(x)\n", "scores = model(x)"),
        (
            "nn.Dropout(0.1)",
            "nn.MultiheadAttention(512, 4, dropout=0.2)",
            "self.drop(self.first(x).relu())",
            "self.drop(*[self.first(x)] * 3)[0]",
            "scores = model(x)\n",
            "model.eval(); scores = model(x)\n",
            "scores = model(x)",
        ),
        (
            "nn.Dropout(0.1)",
            "nn.Identity()",
            "self.first(x).relu()",
            "F.dropout(self.first(x), 0.1, self.training)",
            "scores = model(x)\n",
            "model.eval(); scores = model(x)\n",
            "scores = model(x)",
        ),
    ],
    "evaluation-in-training-mode": [("    model.eval()\n", "    model.train()\n", "model(x.cuda())")],
    "softmax-before-cross-entropy": [
        ("scores = model(x)\n", "scores = model(x).softmax(1)\n", "F.cross_entropy"),
        ("F.cross_entropy(scores, y)", "nn.CrossEntropyLoss()(F.softmax(scores, dim=-1), y)", "nn.CrossEntropyLoss"),
        ("scores = model(x)\n", "scores = model(x).log_softmax(1).exp()\n", "F.cross_entropy"),
    ],
    "sigmoid-before-loss": [
        ("scores = model(x)\n", "scores = model(x).sigmoid()\n", "F.cross_entropy"),
        (
            "F.cross_entropy(scores, y)",
            "nn.BCEWithLogitsLoss()(scores.sigmoid().view(-1), F.one_hot(y, 4).float().view(-1))",
            "nn.BCEWithLogitsLoss",
        ),
    ],
    "probabilities-without-logarithm": [
        ("F.cross_entropy(scores, y)", "nn.NLLLoss()(scores.softmax(1), y)", "nn.NLLLoss"),
    ],
    "optimizer-built-anew": [
        (
            "optimizer.zero_grad()\n",
            "optimizer = torch.optim.AdamW(model.parameters()); optimizer.zero_grad()\n",
            "torch.optim.AdamW",
        ),
    ],
    "float16-without-scaler": [
        (
            "scores = model(x)\n",
            "with torch.autocast('cuda', torch.float16): scores = model(x)\n",
            "F.cross_entropy(scores, y)",
            "F.cross_entropy(scores.float(), y)",
            "loss.backward()",
        ),
    ],
    "epoch-not-set": [
        (
            "DataLoader(data, batch_size=64)",
            "DataLoader(data, 64, sampler=torch.utils.data.DistributedSampler(data, 1, 0))",
            "in loader:",
        ),
    ],
    "seed-in-each-step": [("optimizer.zero_grad()\n", "optimizer.zero_grad(); torch.manual_seed(1)\n", "manual_seed")],
    "backward-under-autocast": [
        ("loss.backward()\n", "with torch.autocast('cuda', torch.float16): loss.backward()\n", "loss.backward()"),
    ],
    "forward-not-used": [("optimizer.step()\n", "optimizer.step(); right = model(x).argmax(1)\n", "right = model(x)")],
    "forward-repeated": [
        (
            "nn.Dropout(0.1)",
            "nn.Identity()",
            "F.cross_entropy(scores, y)\n",
            "F.cross_entropy(scores, y) + model(x).abs().mean()\n",
            "model(x).abs()",
        ),
    ],
    "evaluation-with-gradients": [("with torch.inference_mode():", "if True:", "model(x.cuda())")],
    "cache-emptied-in-each-step": [
        ("optimizer.step()\n", "optimizer.step(); torch.cuda.empty_cache()\n", "empty_cache")
    ],
    "synchronised-in-each-step": [
        ("optimizer.step()\n", "optimizer.step(); torch.cuda.synchronize()\n", "synchronize")
    ],
    "garbage-collected-in-each-step": [("optimizer.step()\n", "optimizer.step(); gc.collect()\n", "gc.collect()")],
    "moved-in-each-step": [
        ("scores = model(x)\n", "scores = model(x + table.cuda()[: len(x)])\n", "table.cuda()"),
        (
            "optimizer.zero_grad()\n",
            "model.to('cuda'); optimizer.zero_grad()\n",
            "optimizer.step()\n",
            "optimizer.step(); model.to('cpu')\n",
            "    model.eval()\n",
            "    model.cuda().eval()\n",
            "model.to('cuda')",
        ),
    ],
    "host-tensor-in-forward": [
        ("        x = x\n", "        x = x + torch.arange(16.0).to(x.device)\n", "torch.arange"),
        ("        x = x\n", "        x = x + torch.zeros(1, 16).cuda()\n", "torch.zeros"),
        (
            "self.drop = nn.Dropout(0.1)\n",
            "self.drop = nn.Dropout(0.1); self.scale = torch.ones(16)\n",
            "        x = x\n",
            "        x = x * self.scale.to(x.device)\n",
            "self.scale.to",
        ),
    ],
    "samples-one-by-one": [
        ("scores = model(x)\n", "scores = torch.cat([model(row[None]) for row in x])\n", "model(row[None])"),
    ],
    "saved-in-each-step": [("optimizer.step()\n", f"optimizer.step(); {SAVE}\n", SAVE)],
    "loader-built-anew": [
        ("for x, y in loader:\n", "for x, y in DataLoader(data, batch_size=64):\n", "DataLoader(data, batch_size=64):"),
    ],
    "double-precision": [
        (
            "self.last = nn.Linear(512, 4)\n",
            "self.last = nn.Linear(512, 4); self.double()\n",
            "        x = x\n",
            "        x = x.double()\n",
            "scores = model(x)",
        ),
        (
            "scores = model(x)\n",
            "scores = model(x + torch.ones(1 << 22, dtype=torch.float64, device='cuda').mean().float())\n",
            "dtype=torch.float64",
        ),
    ],
    "small-batch": [("batch_size=64", "batch_size=2", "scores = model(x)")],
    "graph-kept-for-nothing": [("loss.backward()\n", "loss.backward(retain_graph=True)\n", "retain_graph=True")],
    "memory-grows": [
        ("optimizer.step()\n", "optimizer.step(); KEPT.append(loss)\n", "KEPT.append"),
        ("optimizer.step()\n", "optimizer.step(); KEPT.append(model.first(x))\n", "KEPT.append"),
        ("optimizer.step()\n", "optimizer.step(); KEPT[:] = [sum(KEPT) + loss]\n", "KEPT[:]"),
        (
            "optimizer.step()\n",
            "optimizer.step(); LOGS.setdefault('loss', []).append(model(x).mean())\n",
            "LOGS.setdefault",
        ),
    ],
    "host-waits": [
        ("optimizer.step()\n", "optimizer.step(); loss.item()\n", "loss.item()"),
        ("optimizer.step()\n", "optimizer.step(); print(loss)\n", "print(loss)"),
        ("optimizer.step()\n", "optimizer.step(); scores.detach().cpu()\n", ".cpu()"),
    ],
}

# What is replaced in the sound programs without making a habit of it.
SOUND = {
    "as it is": ("", ""),
    "cleared after the step": (
        "optimizer.zero_grad()\nscores", "scores", "optimizer.step()\n", "optimizer.step(); optimizer.zero_grad()\n",
    ),
    "cleared to zero": ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
    "cleared by hand": ("optimizer.zero_grad()", "[setattr(p, 'grad', None) for p in model.parameters()]"),
    "in two parts": (
        "loss.backward()", "[F.cross_entropy(model(a), b).div(2).backward() for a, b in zip(x.chunk(2), y.chunk(2))]",
        "scores = model(x)\n", "pass\n", "loss = F.cross_entropy(scores, y)\n", "pass\n",
    ),
    "clipped": ("optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()"),
    "in mixed precision": (
        "scores = model(x)\n", "with torch.autocast('cuda', torch.bfloat16): scores = model(x)\n",
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores.float(), y)",
    ),
    "without a bias in mixed precision": (
        "nn.Linear(16, 512)", "nn.Linear(16, 512, bias=False)",
        "scores = model(x)\n", "with torch.autocast('cuda', torch.bfloat16): scores = model(x)\n",
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores.float(), y)",
    ),
    "in float16 with a scale of its own": (
        "scores = model(x)\n", "with torch.autocast('cuda', torch.float16): scores = model(x)\n",
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores.float(), y)",
        "loss.backward()", "(loss * 1024).backward(); [p.grad.div_(1024) for p in model.parameters()]",
    ),
    "a graph for two backward passes": ("loss.backward()", "loss.backward(retain_graph=True); (0.1 * loss).backward()"),
    "a graph for two losses, each without a name": (
        "loss = F.cross_entropy(scores, y)\nloss.backward()\n",
        "F.cross_entropy(scores, y).backward(retain_graph=True)\n(0.1 * scores.square().mean()).backward()\n",
    ),
    "another seed in each step": (
        "optimizer.zero_grad()\n", "optimizer.zero_grad(); torch.manual_seed(len(KEPT)); KEPT.append(0)\n",
    ),
    "saved once an epoch": ("    return right\n", f"    {SAVE}; return right\n"),
    "an optimizer that remembers nothing": (
        "optimizer.zero_grad()\n", "optimizer = torch.optim.SGD(model.parameters(), 0.1)\noptimizer.zero_grad()\n",
    ),
    "another optimizer": ("AdamW(", "SGD(lr=0.1, momentum=0.9, params="),
    "batch norm": ("nn.Dropout(0.1)", "nn.BatchNorm1d(512)"),
    "log softmax": ("F.cross_entropy(scores, y)", "F.nll_loss(F.log_softmax(scores, 1), y)"),
    "batches in a list": (
        "DataLoader(data, batch_size=64)\n", "list(DataLoader(data, batch_size=64, pin_memory=True))\n",
        "x, y = x.cuda(), y.cuda()", "x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)",
    ),
    "batches moved by the model": (
        "x, y = x.cuda(), y.cuda()", "y = y.cuda()", "        x = x\n", "        x = x.to(self.first.weight.device)\n",
    ),
    "a trial of shapes": (
        "self.last = nn.Linear(512, 4)\n",
        "self.last = nn.LazyLinear(4).cuda(); self.cuda(); self(torch.zeros(1, 16).cuda())\n",
    ),
    "two passes that chance tells apart": (
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores, y) + (model(x) - scores).square().mean()",
    ),
    "a value read once an epoch": ("    return right\n", "    return right.item()\n"),
    "a scaler": (
        "optimizer.zero_grad()\n", "scaler = torch.amp.GradScaler('cuda')\noptimizer.zero_grad()\n",
        "loss.backward()\n", "scaler.scale(loss).backward()\n", "optimizer.step()\n", "scaler.step(optimizer)\n",
    ),
    "a closure": (
        "AdamW(", "LBFGS(max_iter=2, params=",
        "optimizer.zero_grad()\nscores = model(x)\nloss = F.cross_entropy(scores, y)\nloss.backward()\n"
        "optimizer.step()\n",
        "def closure():\n    optimizer.zero_grad()\n    loss = F.cross_entropy(model(x), y)\n    loss.backward()\n"
        "    return loss\noptimizer.step(closure)\n",
    ),
    "gradients of a search thrown away": (
        "scores = model(x)\n", "F.cross_entropy(model(x.requires_grad_()), y).backward()\nx = (x + x.grad).detach()\n"
        "optimizer.zero_grad()\nscores = model(x)\n",
    ),
    "gradients of two tasks put together": (
        "optimizer.zero_grad()\nscores = model(x)\nloss = F.cross_entropy(scores, y)\nloss.backward()\n",
        "kept = []\nfor a, b in zip(x.chunk(2), y.chunk(2)):\n    optimizer.zero_grad()\n"
        "    F.cross_entropy(model(a), b).backward()\n    kept.append([p.grad.clone() for p in model.parameters()])\n"
        "for p, *both in zip(model.parameters(), *kept):\n    p.grad = both[0] + both[1]\n",
    ),
    "another part of the data in each epoch": (
        "for x, y in loader:\n", "for x, y in DataLoader(data, 64, sampler=torch.utils.data.RandomSampler(data)):\n",
    ),
    "one row beside a batch": ("F.cross_entropy(scores, y)", "F.cross_entropy(scores, y) + model(x[:1]).abs().sum()"),
    "a loss by a frozen model": ("scores = model(x)\n", "scores = TEACHER.requires_grad_(False)(model(x) @ BACK)\n"),
    "a scaler, and clipped": (
        "optimizer.zero_grad()\n", "scaler = torch.amp.GradScaler('cuda')\noptimizer.zero_grad()\n",
        "loss.backward()\n", "scaler.scale(loss).backward()\n", "optimizer.step()\n",
        "scaler.unscale_(optimizer); nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n",
    ),
    "a norm that is only measured": (
        "optimizer.step()\n", "optimizer.step(); nn.utils.clip_grad_norm_(model.parameters(), float('inf'))\n",
    ),
    "a copy of an earlier state": (
        "optimizer.step()\n",
        "optimizer.step(); KEPT or KEPT.append({k: v.clone() for k, v in model.state_dict().items()})\n",
        "    return right\n", "    model.load_state_dict(KEPT[0]); return right\n",
    ),
    "dropout that is meant": (
        "nn.Dropout(0.1)", "nn.Identity()", "self.first(x).relu()", "F.dropout(self.first(x), 0.1, training=True)",
    ),
    "a layer that only training calls": (
        "self.last = nn.Linear(512, 4)\n", "self.last = nn.Linear(512, 4); self.more = nn.Linear(16, 4)\n",
        "        x = x\n", "        x = x + self.more(x).mean() if self.training else x\n",
    ),
    "a layer whose weight a function uses": (
        "return self.last(self.drop(", "return F.linear(bias=self.last.bias, weight=self.last.weight, input=self.drop(",
    ),
    "columns and rows": (
        "F.cross_entropy(scores, y)", "(y[:, None] == y).float().mul(scores[:, :1] - scores[:, 0]).square().mean()",
    ),
    "a teacher": ("scores = model(x)\n", "scores = model(x)\nwith torch.no_grad(): wanted = TEACHER(x)\n"),
}  # fmt: skip


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
