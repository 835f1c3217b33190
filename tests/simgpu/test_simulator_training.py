"""Does a model train on the simulated GPU with the CPU's losses? Four models, 10 steps each."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import simgpu

STEPS, CLASSES = 10, 5


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small models: threads cost more than they give
    yield
    torch.set_num_threads(threads)


class Recurrent(nn.Module):
    """Two LSTM layers with dropout between them, and a classifier on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 12, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    """Embedding, two encoder layers with a causal mask, mean over time; checkpointed if told so."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed, self.checkpointed = nn.Embedding(11, 16), checkpointed
        layers = [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(x.mean(1))


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, CLASSES),
    )  # fmt: skip


MODELS = {
    "MLP": (lambda: nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, CLASSES)), lambda: torch.randn(16, 8)),
    "CNN": (make_cnn, lambda: torch.randn(8, 3, 8, 8)),
    "LSTM": (Recurrent, lambda: torch.randn(8, 7, 6)),
    "Transformer": (Transformer, lambda: torch.randint(0, 11, (8, 9))),
    "checkpointed Transformer": (lambda: Transformer(checkpointed=True), lambda: torch.randint(0, 11, (8, 9))),
}
OPTIMIZERS = {
    "SGD": lambda parameters, foreach: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=foreach),
    "AdamW": lambda parameters, foreach: torch.optim.AdamW(parameters, lr=0.01, foreach=foreach),
}


@functools.cache
def losses(model_name, optimizer_name, device, *, dtype=None, before_move=True):
    """Return the losses of 10 steps; with `dtype` under autocast, with a GradScaler for float16."""
    make_model, make_batch = MODELS[model_name]
    torch.manual_seed(0)
    model = make_model()
    foreach = True if device == "cpu" else None  # the default on CUDA and on `sim`
    if not before_move:
        model.to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), foreach)
    model.to(device)
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind, enabled=dtype is torch.float16, init_scale=2.0**10)
    x, y = make_batch().to(device), torch.randint(0, CLASSES, (16,)).to(device)
    found = []
    for _ in range(STEPS):
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            logits = model(x)
            loss = F.cross_entropy(logits.float(), y[: len(logits)])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    return found


# That checkpointing changes no loss is told below.
CHECKPOINTED = pytest.param("checkpointed Transformer", marks=pytest.mark.slow)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", [*(name for name in MODELS if name not in CHECKPOINTED.values), CHECKPOINTED])
def test_float32_losses_equal_the_cpus_to_the_last_bit(model, optimizer):
    expected, got = losses(model, optimizer, "cpu"), losses(model, optimizer, "sim:1", before_move=optimizer == "SGD")
    assert got == expected
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", ["MLP", "CNN", "Transformer"])
def test_amp_losses_are_near_the_cpus(model, dtype):
    """CUDA's lists of operators differ from the CPU's, so steps round elsewhere: 2 % (float16), 5 % (bfloat16)."""
    expected, got = losses(model, "AdamW", "cpu", dtype=dtype), losses(model, "AdamW", "sim", dtype=dtype)
    assert got == pytest.approx(expected, rel=0.02 if dtype is torch.float16 else 0.05)
    assert got != losses(model, "AdamW", "sim")  # autocast did something


def test_checkpointing_changes_no_loss_and_saves_memory():
    peaks = {}
    for name in ("Transformer", "checkpointed Transformer"):
        torch.sim.reset_peak_memory_stats()
        peaks[name] = (losses(name, "SGD", "sim"), torch.sim.max_memory_allocated())
    (plain, more), (checkpointed, less) = peaks.values()
    assert plain == checkpointed and less < more


def test_an_optimizer_step_is_a_few_operations_over_lists():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)]).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, device="sim")).sum().backward()
    optimizer.step()
    with simgpu.timeline() as timeline:
        optimizer.step()
    names = {record.name for record in timeline.select("kernel")}
    assert names and all(name.startswith("_foreach") for name in names)
    assert len(timeline.select("kernel")) < 30


def loss_of(optimizer, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    chosen = [p for p in model.parameters() if p.dim() == 2] if optimizer is torch.optim.Muon else model.parameters()
    stepper = optimizer(chosen, lr=0.01, **({"max_iter": 4} if optimizer is torch.optim.LBFGS else {}))
    x, y = torch.randn(32, 8).to(device), torch.randint(0, 4, (32,)).to(device)

    def closure():
        stepper.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [stepper.step(closure).item() for _ in range(4)]


NAMES = "Adadelta Adafactor Adagrad Adam Adamax ASGD LBFGS Muon NAdam RAdam RMSprop Rprop SGD"


@pytest.mark.parametrize("name", NAMES.split())
def test_every_optimizer_gives_the_cpus_losses(name):
    optimizer = getattr(torch.optim, name)
    # the CPU's default takes tensors one by one, the device's takes lists: the order of roundings may differ
    assert loss_of(optimizer, "sim") == pytest.approx(loss_of(optimizer, "cpu"), rel=1e-5)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_gradients_are_clipped_as_on_the_cpu(foreach):
    norms = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(device)
        model(torch.ones(2, 4, device=device)).sum().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach).item())
        clipped = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
        assert clipped == pytest.approx(0.5, rel=1e-4)
    assert norms[0] == pytest.approx(norms[1])


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_between_forward_and_backward_is_refused(kind, options):
    """The backward pass of the second layer needs its weight as it was in the forward pass."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).to("sim")
    optimizer = kind(model.parameters(), lr=0.1, **options)
    x = torch.ones(4, 2, device="sim")
    model(x).sum().backward()
    loss = model(x).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
