"""Error of memory forecasts: published peaks, beside those that a forecast predicts.

    python -m benchmarks.memory            # predicts every row again and stores it

simgpu's memory_peaks.csv has peaks of plain PyTorch, measured beside Liger Kernel's own kernels by
`torch.cuda.max_memory_allocated` in a loop that keeps its gradients:
https://github.com/linkedin/Liger-Kernel/blob/ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c/benchmark/data/all_benchmark_data.csv
The programs are written again here, with all published values in sight. Every second row of a program, by size, is set
aside, a rule fixed before the first forecast; rows of the other half were why a program was corrected. Found on
28 November 2026, with torch 2.13: of 67 rows set aside the median error is 0.1 %, and 51 are within 5 %. Rows that are
missed stay: the process that measured `embedding` held 12 GB of what had run before; tensors of `softmax` are smaller
than an allocator's block; the products of `gated` have workspaces of 16.25 MiB, which a forecast leaves out.

Of two other publishers are 16 rows, `attention` and `head`, chosen before their first forecast. As the programs were
first written here they missed by 33 % in the median: a name that keeps a matrix, a graph kept beside and a backward
pass were missing; so these rows count in no figure. With what the publishers' code does the median is 1.4 %, all too
small: mostly by the 16.25 MiB of workspaces, which are much of the smallest.
https://github.com/damek/cs336-assignment2-systems/blob/067d8091f7/cs336_systems/outputs/attention_benchmark.md (its GPU
is not stated), https://github.com/NVIDIA/TileGym/pull/65
"""

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from simgpu import evidence

_CORRECTED = ("attention", "head")
TURNS = 3  # of a loop: in the first one no gradient is there yet


class RMSNorm(nn.Module):
    """The norm of Llama: in float32 inside."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


class Gated(nn.Module):
    """The feed-forward layer of Llama."""

    def __init__(self, kind: str, wide: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(wide, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, wide, bias=False)
        self.act = nn.SiLU() if kind == "silu" else nn.GELU("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return attention by its formula, with the softmax that a course on language models has its students write."""
    query.grad = key.grad = value.grad = None
    scores = torch.einsum("bqd,bkd->bqk", query, key) / query.shape[-1] ** 0.5
    shifted = scores - scores.max(-1, keepdim=True)[0]
    raised = shifted.exp()
    return torch.einsum("bqk,bkd->bqd", raised / raised.sum(-1, keepdim=True), value)


def jsd(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Return the divergence of Jensen and Shannon."""
    middle = torch.lerp(log_q.exp(), log_p.exp(), 0.5)
    apart = [F.kl_div(middle.log(), one, reduction="none", log_target=True).sum(-1) for one in (log_p, log_q)]
    return ((apart[0] + apart[1]) / 2 / len(log_q)).sum()


@dataclass(frozen=True)
class Program:
    """What a row measured: a model, shapes of its batch, what is done once, and in each turn forward and backward.

    `rivals`: how many such models the process held; `cast`: whether they have the format of the batch; `retains`:
    whether a backward pass keeps its graph.
    """

    forward: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    model: Callable[[], nn.Module] = nn.Identity
    once: Callable[..., tuple[torch.Tensor, ...]] = lambda *batch: batch
    gradient: Callable[..., torch.Tensor | None] = lambda *_: None
    rivals: int = 1
    cast: bool = True
    retains: bool = True


def _program(name: str, kind: str, sizes: tuple[int, ...]) -> Program:
    """Return the program of a row."""
    given = {"gradient": lambda y, _, gradient: gradient, "rivals": 2}
    layer = lambda model, x, *_: model[0](x)  # noqa: E731
    match name:
        case "layer_norm":
            return Program(layer, (sizes, sizes), lambda: nn.LayerNorm(sizes[1]), **given)
        case "group_norm":
            return Program(layer, (sizes, sizes), lambda: nn.GroupNorm(sizes[1] // 4, sizes[1]), **given)
        case "rms_norm":
            return Program(layer, (sizes, sizes), lambda: RMSNorm(sizes[1]), cast=False, **given)
        case "softmax":
            return Program(lambda _, x: x.softmax(-1), (sizes,), gradient=lambda y, *_: torch.ones_like(y))
        case "gated":
            drawn = {"gradient": lambda y, *_: torch.randn_like(y)}
            return Program(layer, (sizes[:3],), lambda: Gated(kind, *sizes[2:]), **drawn)
        case "cross_entropy":
            return Program(lambda _, x, target: F.cross_entropy(x, target), (sizes, sizes[:1]))
        case "linear_cross_entropy":
            head = lambda: nn.Linear(sizes[1], sizes[2], bias=False)  # noqa: E731
            forward = lambda model, x, target: F.cross_entropy(model[0](x), target)  # noqa: E731
            return Program(forward, (sizes[:2], sizes[:1]), head, rivals=2)
        case "attention":
            leaves = lambda *parts: tuple(part.detach().requires_grad_() for part in parts)  # noqa: E731
            held = lambda *parts: (*(given := leaves(*parts)), kept := attention(*given), kept.sum())  # noqa: E731
            whole, once = lambda _, *parts: attention(*parts).sum(), held if kind else leaves
            return Program(whole, (sizes,) * 3, once=once, retains=False)
        case "head":
            leaf = lambda tensor: tensor.detach().requires_grad_()  # noqa: E731
            head = lambda _, x, weight, y: F.cross_entropy(F.linear(leaf(x), leaf(weight.clone())), y)  # noqa: E731
            return Program(head, (sizes[:2], sizes[:0:-1], sizes[:1]), retains=False)
        case "embedding":
            table = lambda: nn.Embedding(*sizes[2:])  # noqa: E731
            return Program(layer, (sizes[:2],), table, gradient=lambda y, *_: torch.randn_like(y), rivals=2)
    forward, squash = {
        "kl_div": (lambda _, x, target: F.kl_div(x, target, reduction="batchmean"), (F.log_softmax, F.softmax)),
        "jsd": (lambda _, x, target: jsd(x, target), (F.log_softmax, F.log_softmax)),
        "tvd": (lambda _, x, target: ((x - target).abs() / 2).sum() / len(x), (F.softmax, F.softmax)),
    }[name]
    return Program(forward, (sizes,), once=lambda x: (squash[0](x, -1), squash[1](torch.empty_like(x), -1)))


@dataclass(frozen=True)
class Peak:
    """A published peak of a program in MiB; `aside`: it is of the half that was set aside."""

    program: str
    mode: str
    sizes: tuple[int, ...]
    dtype: torch.dtype
    gpu: str
    date: str
    measured: float
    aside: bool

    def predict(self) -> float:
        """Return what a forecast says, in MiB."""
        name, _, kind = self.program.partition(" ")
        program = _program(name, kind, self.sizes)

        def batch() -> tuple[torch.Tensor, ...]:
            made = [torch.empty(shape, dtype=self.dtype) for shape in program.shapes]
            if name == "embedding":
                return (made[0].long(),)
            return (made[0].requires_grad_(), *(one.long() if one.dim() == 1 else one for one in made[1:]))

        def step(model: nn.Module, given: Any, _: object) -> None:
            given = program.once(*given)
            kept = program.forward(model, *given) if self.mode == "backward" else None
            gradient = None if kept is None else torch.randn_like(kept)
            for _ in range(TURNS):
                self._turn(program, model, given, kept, gradient)

        dtype = self.dtype if program.cast else torch.float32
        models = lambda: nn.ModuleList(program.model() for _ in range(program.rivals)).to(dtype)  # noqa: E731
        return simgpu.forecast(models, batch, step=step).memory.peak_bytes / 2**20

    def _turn(self, program: Program, model: nn.Module, given: Any, kept: Any, gradient: Any) -> None:
        output = program.forward(model, *given) if kept is None else kept
        if self.mode != "forward":
            gradient = program.gradient(output, *given) if gradient is None else gradient
            output.backward(gradient, retain_graph=program.retains)


def rows() -> list[tuple[dict[str, str], Peak]]:
    """Return the rows of the file, and their peaks.

    That of a group norm was measured forward and backward, whatever the row calls it.
    """
    found: Counter[str] = Counter()
    peaks = []
    for row in csv.DictReader(evidence.PEAKS.read_text(encoding="utf-8").splitlines()):
        key = f"{row['program']} {row['mode']}"
        sizes = tuple(map(int, row["sizes"].split()))
        where = getattr(torch, row["dtype"]), row["gpu"], row["date"], float(row["measured_mib"])
        mode = "full" if row["program"] == "group_norm" else row["mode"]
        aside = found[key] % 2 == 1 and row["program"].split()[0] not in _CORRECTED
        peaks.append((row, Peak(row["program"], mode, sizes, *where, aside=aside)))
        found[key] += 1
    return peaks


def main() -> None:
    """Predict every row, store it, and print the figures of those that were set aside."""
    stored = [row | {"predicted_mib": f"{peak.predict():.6g}", "aside": int(peak.aside)} for row, peak in rows()]
    with evidence.PEAKS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(stored[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(stored)
    print(simgpu.error_bar().of_memory)


if __name__ == "__main__":
    main()
