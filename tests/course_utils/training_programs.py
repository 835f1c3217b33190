"""Which programs are measured: ten whose peak can be added up by hand, eleven that train, and a model of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import simgpu
from course_utils import memory, models

KIB = 2**10


# ---- ten programs whose peak can be added up by hand ----------------------------------------------------------------
def kib(n: int, device: torch.device, **options: Any) -> torch.Tensor:
    """Return a tensor of `n` KiB."""
    return torch.ones(n * KIB // 4, device=device, **options)


def views(device) -> object:
    x = kib(3, device)
    return x.view(2, -1), x[10:], x.reshape(-1, 2).t(), x.detach()


def freed_in_the_middle(device) -> object:
    a, b = kib(4, device), kib(1, device)
    del a
    return b, kib(3, device)


def saved_for_backward(device) -> object:
    x = kib(1, device, requires_grad=True)
    return x.sin().cos().sum()  # sin needs x, cos needs sin, and autograd keeps them; the sum is 4 bytes


def not_saved(device) -> object:
    with torch.no_grad():
        return kib(1, device).sin().cos().sin().cos()


def backward(device) -> object:
    x = kib(1, device, requires_grad=True)
    x.exp().sum().backward()
    return x


def checkpointed(device) -> object:
    x = kib(1, device, requires_grad=True)
    checkpoint(lambda x: x.exp().exp(), x, use_reentrant=False).sum().backward()
    return x


def momentum(device) -> object:
    p = nn.Parameter(kib(4, device))
    p.grad = torch.ones_like(p)
    torch.optim.SGD([p], lr=0.1, momentum=0.9, foreach=False).step()
    return p


CASES: dict[str, tuple[Callable[[torch.device], object], int]] = {
    "views share a storage": (views, 3 * KIB),
    "in place": (lambda device: kib(2, device).add_(1).mul_(3), 2 * KIB),
    "a temporary": (lambda device: (kib(2, device) + 1) * 2, 4 * KIB),  # never three: the first is gone by then
    "freed in the middle": (freed_in_the_middle, 5 * KIB),
    "a copy in half precision": (lambda device: kib(2, device).half(), 3 * KIB),
    "saved for backward": (saved_for_backward, 3 * KIB + 4),
    "not saved under no_grad": (not_saved, 2 * KIB),
    "backward": (backward, 3 * KIB + 8),  # x, exp (saved) and the gradient of x; the sum and its gradient
    # x, both exponentials, computed again because nothing was saved, and the gradient of the first; the sum and its own
    "checkpointing": (checkpointed, 4 * KIB + 8),
    "a step with momentum": (momentum, 12 * KIB),
}


# ---- training programs ----------------------------------------------------------------------------------------------
class Program(NamedTuple):
    """A model, its batch and its optimizer, each as the function that makes it; format of autocast; loss."""

    make_model: Callable[[], nn.Module]
    make_batch: Callable[[], Any]
    make_optimizer: Callable[..., torch.optim.Optimizer]
    autocast: torch.dtype | None = None
    loss: Callable[..., torch.Tensor] | None = None  # cross-entropy unless given
    parts: int = 1  # of the batch, whose gradients are added up


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def vectors(batch: int = 512) -> Any:
    return torch.randn(batch, 512), torch.randint(0, 10, (batch,))


def images(batch: int = 64) -> Any:
    return torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))


def texts(batch: int = 32, time: int = 64) -> Any:
    return (torch.randint(0, 256, (batch, time)), torch.randint(1, time, (batch,))), torch.randint(0, 2, (batch,))


def next_tokens(batch: int = 8, time: int = 128) -> Any:
    return torch.randint(0, 256, (batch, time)), torch.randint(0, 256, (batch, time))


transformer = partial(models.TransformerLM, width=192, heads=6, layers=4)


class GRU(nn.Module):
    """Byte embedding, GRU, one output for each place: most of its memory is that of the recurrent layer."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(x))[0])  # (batch, time) -> (batch, time, 256)


sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adam, adamw, bf16 = torch.optim.Adam, torch.optim.AdamW, torch.bfloat16
OPTIMIZERS = {"SGD": partial(torch.optim.SGD, lr=0.1), "SGD, momentum": sgd, "AdamW": adamw}  # the explorer's names

PROGRAMS = {
    "MLP, Adam": Program(mlp, vectors, adam),
    "MLP, SGD, autocast": Program(mlp, vectors, sgd, bf16),
    "CNN, Adam": Program(models.ConvNet, images, adam),
    "CNN, SGD, autocast": Program(models.ConvNet, images, sgd, bf16),
    "LSTM classifier, Adam": Program(partial(models.RecurrentClassifier, 256), texts, adam),
    "GRU, Adam": Program(GRU, next_tokens, adam),
    "Transformer, AdamW": Program(transformer, next_tokens, adamw),
    "Transformer, SGD": Program(transformer, next_tokens, sgd),
    "Transformer, AdamW, autocast": Program(transformer, next_tokens, adamw, bf16),
    "Transformer, AdamW, checkpointing": Program(partial(transformer, checkpointing=True), next_tokens, adamw),
    "Transformer, SGD, both": Program(partial(transformer, checkpointing=True), next_tokens, sgd, bf16),
}


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def stepping(program: Program, kind: str) -> Callable[[nn.Module, Any, torch.optim.Optimizer], None]:
    """Return the program's training step on a kind of device."""

    def step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        parts = zip(*(x.chunk(program.parts) for x in batch), strict=True) if program.parts > 1 else [batch]
        for inputs, target in parts:
            with torch.autocast(kind, program.autocast or bf16, enabled=program.autocast is not None):
                output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
                loss = (program.loss or cross_entropy)(output, target)
            loss.backward()
        optimizer.step()

    return step


def train(program: Program, device: torch.device) -> None:
    """Build the program's model on the device and train it for two steps."""
    model = program.make_model().to(device)
    batch = tree_map_only(torch.Tensor, lambda x: x.to(device), program.make_batch())
    optimizer, step = program.make_optimizer(model.parameters()), stepping(program, device.type)
    for _ in range(2):
        step(model, batch, optimizer)


def estimated(program: Program, device: torch.device) -> simgpu.MemoryForecast:
    """Return the forecast of the program's memory."""
    return simgpu.forecast(*program[:3], step=stepping(program, device.type), device=device).memory


def compared(program: Program, device: torch.device) -> memory.Reconciled:
    """Return the estimate of the program beside its measurement."""
    return memory.reconcile(estimated(program, device), memory.measure(lambda: train(program, device), device))


# ---- language models, by the settings of the explorer ---------------------------------------------------------------
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "small, AdamW": {"width": 256, "layers": 6, "heads": 8, "vocabulary": 8192, "sequence": 256, "batch": 16},
    "small, SGD": {"width": 256, "layers": 6, "heads": 8, "vocabulary": 256, "sequence": 512, "batch": 8,
                   "optimizer": "SGD"},
    "checkpointing": {"width": 512, "layers": 12, "heads": 8, "vocabulary": 8192, "sequence": 1024, "batch": 8,
                      "checkpointing": True},
    "350 M": {"width": 1024, "layers": 24, "heads": 16, "vocabulary": 50_257, "sequence": 1024, "batch": 4},
    "1.5 B": {"width": 1600, "layers": 48, "heads": 25, "vocabulary": 50_257, "sequence": 1024, "batch": 2},
    "autocast": {"width": 768, "layers": 12, "heads": 12, "vocabulary": 50_304, "sequence": 1024, "batch": 4,
                 "fmt": "bf16 autocast"},
    "not fused": {"width": 512, "layers": 2, "heads": 8, "vocabulary": 512, "sequence": 2048, "batch": 2,
                  "optimizer": "SGD", "fused": False},
    "not fused, autocast": {"width": 512, "layers": 2, "heads": 8, "vocabulary": 512, "sequence": 2048, "batch": 2,
                            "fmt": "bf16 autocast", "fused": False},
    "not fused, checkpointing, autocast": {"width": 512, "layers": 6, "heads": 8, "vocabulary": 512, "sequence": 1024,
                                           "batch": 4, "fmt": "bf16 autocast", "checkpointing": True, "fused": False},
    "4 parts": {"width": 512, "layers": 6, "heads": 8, "vocabulary": 8192, "sequence": 512, "batch": 16,
                "accumulation": 4},
    "4 parts, not fused": {"width": 512, "layers": 2, "heads": 8, "vocabulary": 512, "sequence": 1024, "batch": 8,
                           "accumulation": 4, "fused": False},
}  # fmt: skip


class PlainBlock(models.Block):
    """A block whose attention is written out: product, mask, softmax, product; its scores are matrices in memory."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        split = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)  # (batch, heads, time, time)
        scores = scores.masked_fill(later, -math.inf)
        scores = scores.softmax(dim=3)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, time, width))


def language_model(setting: dict[str, Any]) -> nn.Module:
    """Return the model of a setting of the explorer."""
    width, layers, heads = (setting[name] for name in ("width", "layers", "heads"))
    sizes = (setting["vocabulary"], width, heads, layers, setting["sequence"])
    model = models.TransformerLM(*sizes, checkpointing=setting.get("checkpointing", False))
    if not setting.get("fused", True):
        model.blocks = nn.ModuleList([PlainBlock(width, heads) for _ in range(layers)])
    return model


def program_of(setting: dict[str, Any]) -> Program:
    """Return the training program of a setting of the explorer."""
    shape = setting["batch"], setting["sequence"]
    return Program(
        partial(language_model, setting), lambda: tuple(torch.zeros(shape, dtype=torch.int64) for _ in range(2)),
        OPTIMIZERS[setting.get("optimizer", "AdamW")], bf16 if setting.get("fmt") == "bf16 autocast" else None,
        parts=setting.get("accumulation", 1),
    )  # fmt: skip
