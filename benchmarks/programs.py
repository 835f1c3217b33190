"""The programs whose published times stand beside the clock's: models of timm, BERT, products of matrices, copies.

A table of `published.json` says which `programs` it timed, in which `mode` and number `format`, and how: with
batch norms `fused` into convolutions, norms in float16 (`fast_norm`), `channels_last`, a copy of the batch to the GPU
in the measured time (`copies`), the model `compiled` by torch.compile. `forecast(table, …)` runs one on tensors that
have shapes and no memory: the first step, whose optimizer has no state yet.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu

ROW = 10  # operators alone are timed as one of so many in a row
_FORMATS = {"half": torch.float16, "fp16": torch.float16, "bf16": torch.bfloat16}
_BERTS = {"bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}  # layers, width, heads


class _NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision, which timm imports for its images, and this command has none."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision") else None

    def create_module(self, spec):
        names = type("Names", (type,), {"__getattr__": lambda cls, name: name})
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: (
            names(name, (), {}) if name[0] != "_" else object.__getattribute__(module, name)
        )
        return module

    def exec_module(self, module):
        pass


@functools.cache
def timm() -> Any:
    """Return timm, also where torchvision is missing. Raises ImportError where timm is missing."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_NoTorchvision())
    import timm

    return timm


class BertLayer(nn.Module):
    """A layer of BERT by its formula: attention and a wide layer, each with dropout, a sum and a norm."""

    def __init__(self, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        parts = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        query, key, value = parts
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), 0.1, self.training)
        mixed = self.out((weights @ value).transpose(1, 2).flatten(2))
        x = self.norms[0](F.dropout(mixed, 0.1, self.training) + x)
        return self.norms[1](F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training) + x)


class Attention(nn.Module):
    """Attention by its formula, as xformers times it beside its own kernels."""

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        query, key, value = parts.unbind(1)
        return (query / query.shape[-1] ** 0.5 @ key.transpose(-2, -1)).softmax(-1) @ value


class Bert(nn.Module):
    """BERT that answers questions about a text: for each token whether the answer starts or ends there."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30_528) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocabulary, 512, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places, kinds = torch.arange(tokens.shape[1]), torch.zeros_like(tokens)
        x = F.dropout(self.norm(self.words(tokens) + self.places(places) + self.kinds(kinds)), 0.1, self.training)
        mask = torch.zeros(len(tokens), 1, 1, tokens.shape[1], dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x).unbind(-1)


class Program:
    """One program of a table: `model`, `batch` and `step`, as `simgpu.forecast` takes them."""

    def __init__(self, table: dict[str, Any], name: str, size: int, batch: int) -> None:
        self.table, self.name, self.size, self.number = table, name, size, batch
        self.kind, self.trains = table["programs"], table["mode"] == "training"
        self.dtype = _FORMATS.get(table["format"], torch.float32)

    def model(self) -> nn.Module:
        makers: dict[str, Callable[[], nn.Module]] = {
            "timm": self._of_timm, "bert": lambda: Bert(*_BERTS[self.name]), "bert-layer": BertLayer,
            "attention": Attention, "recurrent": self._recurrent,
        }  # fmt: skip
        network = makers.get(self.kind, nn.Identity)().to(self.dtype)
        if self.table.get("channels_last"):
            network = network.to(memory_format=torch.channels_last)
        return network.train(self.trains or self.kind == "bert-layer")  # whoever timed layers left dropout on

    def _of_timm(self) -> nn.Module:
        layers = timm().layers
        layers.set_fast_norm(bool(self.table.get("fast_norm")))
        layers.set_fused_attn(self.table["by"] == "timm" and not self.trains)  # the others are older than that kernel
        network = timm().create_model(self.name)
        return timm().utils.reparameterize_model(network) if self.table.get("fused") else network

    def _recurrent(self) -> nn.Module:
        """Return a layer such as "LSTM 512", as wide, without the product of the input, which was not timed either.

        "LSTM 512 of 293, 2 x 2" has so many features, layers and directions.
        """
        kind, width, *more = self.name.replace(",", "").split()
        features, layers, directions = (int(more[place]) for place in (1, 2, 4)) if more else (1, 1, 1)
        return getattr(nn, kind)(features, int(width), layers, bidirectional=directions == 2)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, of an operator both its inputs."""
        labels = torch.empty(self.number, dtype=torch.long)
        if self.kind == "timm":
            layout = torch.channels_last if self.table.get("channels_last") else torch.contiguous_format
            images = torch.empty(self.number, 3, self.size, self.size, dtype=self.dtype)
            return images.contiguous(memory_format=layout), labels
        if self.kind == "bert":
            return torch.empty(self.number, self.size, dtype=torch.long), labels
        if self.kind == "bert-layer":
            return torch.empty(self.number, self.size, 1024, dtype=self.dtype), labels
        if self.kind == "attention":  # "attention of 64" numbers for each token
            parts = torch.empty(self.number, 3, self.size, int(self.name.split()[-1]), dtype=self.dtype)
            return parts.requires_grad_(self.table["mode"] == "backward"), labels
        if self.kind == "recurrent":
            features = int(self.name.split(" of ")[1].split(",")[0]) if " of " in self.name else 1
            return torch.empty(self.size, self.number, features, dtype=self.dtype), labels
        if self.kind == "sdpa":  # "causal 16 x 128": heads, and numbers of each
            heads, width = (int(part) for part in self.name.split()[1::2])
            parts = torch.empty(3, self.number, heads, self.size, width, dtype=self.dtype)
            return parts.requires_grad_(self.table["mode"] == "backward"), labels
        if self.kind == "gemm":  # "8192 x 8192 x 1024": rows, columns, and what is summed over
            m, n, k = (int(part) for part in self.name.split()[::2])
            return torch.empty(m, k, dtype=self.dtype), torch.empty(k, n, dtype=self.dtype)
        shape = (self.size, self.size) if self.kind == "product" else (self.size,)
        return torch.empty(shape, dtype=self.dtype), torch.empty(shape, dtype=self.dtype)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        if not self.trains or self.kind == "bert-layer" or self.table.get("copies"):  # these timed no optimizer
            return None
        parameters = list(model.parameters())
        if self.kind == "bert":
            return torch.optim.AdamW(parameters, fused=True)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=False)

    def step(self, model: nn.Module, batch: tuple, _: None) -> None:
        x, y = batch
        if self.kind in ("attention", "sdpa", "recurrent"):
            causal = self.name.startswith("causal")
            result = F.scaled_dot_product_attention(*x, is_causal=causal) if self.kind == "sdpa" else model(x)
            result = result[0] if self.kind == "recurrent" else result
            if self.trains or self.table["mode"] == "backward":
                result.backward(torch.empty_like(result))
            return
        optimizer = self._optimizer(model)
        operators = {
            "product": lambda: x @ y,
            "gemm": lambda: x @ y,
            "copy": lambda: x.copy_(y),
            "times": lambda: x * 1.2,
        }
        if self.kind in operators:
            for _ in range(ROW):
                operators[self.kind]()
            return
        still = contextlib.nullcontext() if model.training else torch.inference_mode()
        with still, torch.autocast("cuda", torch.float16, enabled=self.table["format"] == "amp"):
            loss = self._loss(model(x), y) if self.trains else model(x)
            if self.trains and self.table["by"] == "timm":  # whose script goes back inside of autocast
                loss.backward()
        if self.trains and self.table["by"] != "timm":
            loss.backward()
        if optimizer is not None:
            if self.kind == "bert":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()

    def _loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        if self.kind == "bert-layer":
            return output.sum()
        if self.kind == "bert":
            return (F.cross_entropy(output[0], target) + F.cross_entropy(output[1], target)) / 2
        return F.cross_entropy(output[0] if isinstance(output, tuple) else output, target)


@contextlib.contextmanager
def _rounding(fmt: str) -> Iterator[None]:
    """Inside, products of float32 are rounded to TF32 where the format says so, convolutions always (the default)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if fmt == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def forecast(table: dict[str, Any], name: str, size: int, batch: int) -> simgpu.Forecast:
    """Return the forecast of one step of a program of a table. Raises ImportError where it needs timm."""
    program = Program(table, name, size, batch)
    silent = warnings.catch_warnings(action="ignore")  # timm's, of names that it has changed
    with silent, _rounding(table["format"]):
        ahead = simgpu.forecast(program.model, program.batch, step=program.step)
        return ahead.compiled() if table.get("compiled") else ahead
