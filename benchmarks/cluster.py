"""Error of the simulated cluster's clock against published throughput.

    python -m benchmarks.cluster    # some minutes; needs a C++ compiler

What runs on several GPUs is stored as runs of the regime "several GPUs" beside those of `benchmarks.published`.

- FSDP: Llama 3.1 8B by torchtitan on 8 and on 128 H100, bfloat16, 2 texts of 8,192 tokens a GPU, selective
  checkpointing, without torch.compile: 5,762 and 5,605 tokens a second and GPU, 82.4 and 67.0 GiB.
  https://github.com/pytorch/torchtitan/blob/b5bcd76c66d0acb1a08b176d9639425bc55e0b2a/benchmarks/llama3_h100_202412_torchtitan.md
  These cards had HBM2e at 2.4 TB/s and were held to 500 W; 400 Gb/s for each GPU.
- DDP: NVIDIA's ResNet-50 without torch.compile, SGD with momentum. By NVIDIA on 1 and on 8 A100 80GB in a DGX, 256
  images a GPU: in TF32, channels first, 938 and 7,248 images a second, in float16, channels last, 2,470 and 16,621,
  with the reading of images in the time. By Lambda on 1 and on 8 H100 SXM, channels first, on images that are made
  once: in TF32 with 640 images a GPU 1,903 and 15,043 a second, in float16 with 1,280 2,804 and 22,167: medians over 37
  machines with one GPU and 22 with eight, each of its second epoch of 100 steps, none further off than 4 %.
  https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895/PyTorch/Classification/ConvNets/resnet50v1.5/README.md
  https://github.com/lambdal/deeplearning-benchmark/tree/aa5addb6a53675a649a80036dad548f1c27cbcc4/pytorch/results_v2
- DDP of a language model: GPT-2 of 124M by modded-nanogpt on 8 H100 SXM of 700 W, autocast to bfloat16, 64 texts of
  1,024 tokens a GPU, no accumulation, fused AdamW, torch 2.5 with torch.compile: 138.6 ms a step over 5,090 steps.
  https://github.com/KellerJordan/modded-nanogpt/blob/f411b3d346aa52d3504324ca93c230fd84c6c07f/records/track_1_short/2024-10-29_Optimizers/95a9fd44-7c13-49c7-b324-3e7d9e23a499.txt

Predicted: the same models, written again below, as rank 0 of so many (`simgpu.forecast`); nothing is fitted to these.
An estimate is of eager PyTorch. For the compiled step, what is neither a product, attention nor the optimizer is priced
by the bytes that kernels move after fusion, as TorchInductor counts them when it compiles for 1 and for 2 texts.
Errors of the throughput on 22 November 2026, by torch 2.13: ResNet-50 on A100 +74 % on one GPU and +78 % on 8 in TF32,
+29 % and +50 % in float16; on H100 +57 % and +57 %, +62 % and +63 %; GPT-2 +18 % fused (-57 % eager); FSDP +22 % on 8,
+27 % on 128 (128 beside 8: 1.01, published 0.97), with the data sheet's 3.35 TB/s +37 % and +41 %. Memory: 69 GiB live
against 82 reserved, 58 against 67. One GPU's step is predicted too short, and with it that of many; what sharing costs
is right but where images are read. If norms, ReLU and sums of ResNet-50 on an H100 are priced rightly, its convolutions
reach 83 and 102 TFLOP/s, channels first: far less than by the clock, and we found no measurement to price them by.
"""

from __future__ import annotations

import functools
import json
import math
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import simgpu
from benchmarks import published as published_runs
from simgpu import evidence, gpus

CONTEXT, TEXTS = 8192, 2
RESNETS = (  # format, GPU, images for each, channels last, images a second of so many GPUs
    ("TF32", "A100 80GB", 256, False, {1: 938, 8: 7248}),
    ("float16", "A100 80GB", 256, True, {1: 2470, 8: 16621}),
    ("TF32", "H100 SXM", 640, False, {1: 1903, 8: 15043}),
    ("float16", "H100 SXM", 1280, False, {1: 2804, 8: 22167}),
)
GPT_TEXTS, GPT_TOKENS, GPT_S = 64, 1024, 0.1386
H100 = evidence.card("H100 of 500 W")
_TITAN = "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a/benchmarks/llama3_h100_202412_torchtitan.md"
_EXAMPLES = "291f0d02e815b148fa5c2b81bf07aa3552142895/PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
_NANOGPT = "f411b3d346aa52d3504324ca93c230fd84c6c07f/records/track_1_short/2024-10-29_Optimizers"
SOURCES = {  # by, address, date
    "A100 80GB": ("NVIDIA", f"https://github.com/NVIDIA/DeepLearningExamples/blob/{_EXAMPLES}", "2021-04-20"),
    "H100 SXM": (
        "Lambda", "https://github.com/lambdal/deeplearning-benchmark/tree/aa5addb6a53675a649a80036dad548f1c27cbcc4/"
        "pytorch/results_v2", "2025-12-17",
    ),
    "GPT-2": (
        "modded-nanogpt",
        f"https://github.com/KellerJordan/modded-nanogpt/blob/{_NANOGPT}/95a9fd44-7c13-49c7-b324-3e7d9e23a499.txt",
        "2024-10-29",
    ),
    "FSDP": ("torchtitan", f"https://github.com/pytorch/torchtitan/blob/{_TITAN}", "2024-12"),
}  # fmt: skip


class Norm(nn.Module):
    """RMSNorm by its formula, in float32, as torchtitan had it then."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Block(nn.Module):
    """A layer of Llama 3.1 8B: attention with 32 heads and 8 of keys and values, rotated; a gated MLP."""

    def __init__(self, width: int = 4096, heads: int = 32, shared: int = 8, wide: int = 14336) -> None:
        super().__init__()
        linear = functools.partial(nn.Linear, bias=False)
        self.heads, self.shared, self.each = heads, shared, width // heads
        self.query, self.out = linear(width, width), linear(width, width)
        self.key, self.value = linear(width, shared * self.each), linear(width, shared * self.each)
        self.gate, self.up, self.down = linear(width, wide), linear(width, wide), linear(wide, width)
        self.norms = nn.ModuleList([Norm(width), Norm(width)])

    def forward(self, x, turn):
        return checkpoint(self.compute, x, turn, use_reentrant=False, context_fn=_kept)

    def compute(self, x, turn):
        y = self.norms[0](x)
        split = lambda t, n: t.unflatten(-1, (n, self.each))  # noqa: E731
        q, k = (rotated(split(part(y), n), turn) for part, n in ((self.query, self.heads), (self.key, self.shared)))
        k, v = (t.repeat_interleave(self.heads // self.shared, 2) for t in (k, split(self.value(y), self.shared)))
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x, turn):
    """Turn pairs of numbers by angles that grow with the place, in float32."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn.unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


def _kept():
    """torchtitan's choice: attention and every second product of matrices is kept, the rest computed again."""
    seen = {False: 0, True: 0}

    def policy(context, func, *args, **kwargs):
        products = func is torch.ops.aten.mm.default
        seen[context.is_recompute] += products
        keep = "attention" in str(func) or (products and seen[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(nn.Module):
    def __init__(self, layers: int = 32, vocabulary: int = 128_256, width: int = 4096) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, width), Norm(width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("turn", torch.empty(CONTEXT, 1, 64, 2), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.turn)
        return self.head(self.norm(x))


def fsdp() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, mesh = Llama(), init_device_mesh("cuda", (dist.get_world_size(),))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for at, block in enumerate(model.blocks):
        fully_shard(block, mesh=mesh, mp_policy=mixed, reshard_after_forward=at < len(model.blocks) - 1)
    return fully_shard(model, mesh=mesh, mp_policy=mixed)


def llama_step(model, tokens, optimizer) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()


class Bottleneck(nn.Sequential):
    def __init__(self, given: int, width: int, stride: int) -> None:
        norm, conv = nn.BatchNorm2d, functools.partial(nn.Conv2d, bias=False)
        super().__init__(
            conv(given, width, 1), norm(width), nn.ReLU(inplace=True),
            conv(width, width, 3, stride, 1), norm(width), nn.ReLU(inplace=True),
            conv(width, 4 * width, 1), norm(4 * width),
        )  # fmt: skip
        same = stride == 1 and given == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(conv(given, 4 * width, 1, stride), norm(4 * width))

    def forward(self, x):
        y = x
        for layer in list(self.children())[:-1]:
            y = layer(y)
        return F.relu(y + self.shortcut(x), inplace=True)


def tokens() -> torch.Tensor:
    return torch.zeros(TEXTS, CONTEXT, dtype=torch.int64)


def shared(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model) if dist.get_world_size() > 1 else model


def resnet(layout: torch.memory_format) -> nn.Module:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    given = 64
    for level, number in enumerate((3, 4, 6, 3)):
        for at in range(number):
            layers.append(Bottleneck(given, 64 * 2**level, 2 if level and not at else 1))
            given = 256 * 2**level
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return shared(model.to(memory_format=layout))


def images(number: int, layout: torch.memory_format) -> tuple:
    return torch.empty(number, 3, 224, 224).contiguous(memory_format=layout), torch.zeros(number, dtype=torch.int64)


def resnet_step(half: bool, model, batch, optimizer) -> None:
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16, enabled=half):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()


class GptBlock(nn.Module):
    """A layer of that GPT: attention with 6 heads, queries and keys normed and rotated; ReLU squared."""

    def __init__(self, width: int = 768, heads: int = 6) -> None:
        super().__init__()
        linear, self.heads = functools.partial(nn.Linear, bias=False), heads
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x, cos, sin):
        y = normed(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        pairs = ((a * cos + b * sin, b * cos - a * sin) for a, b in (normed(t).chunk(2, -1) for t in (q, k)))
        q, k = (torch.cat(pair, -1).type_as(x) for pair in pairs)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().flatten(2))
        return x + self.down(F.relu(self.up(normed(x))).square())


def normed(x):
    return F.rms_norm(x, x.shape[-1:])


class Gpt(nn.Module):
    def __init__(self, layers: int = 12, vocabulary: int = 50304, width: int = 768) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.embed.weight = self.head.weight
        self.blocks = nn.ModuleList(GptBlock(width) for _ in range(layers))
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(GPT_TOKENS, 1, 64, dtype=torch.bfloat16), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(normed(x)).float().flatten(0, 1), tokens.flatten())


def gpt_tokens(texts: int = GPT_TEXTS) -> torch.Tensor:
    return torch.zeros(texts, GPT_TOKENS, dtype=torch.int64)


def gpt_step(model, tokens, optimizer) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    for parameter in model.parameters():
        parameter.grad /= 1  # the program's number of accumulated batches
    optimizer.step()
    optimizer.zero_grad()


def fused_bytes(texts: int) -> int:
    """Return what TorchInductor's kernels, products and attention left out, read and write in forward and backward."""
    from torch._inductor import compile_fx, config, metrics

    model, counted = torch.compile(Gpt()), []
    counts = mock.patch.object(compile_fx.inductor_metrics_log, "isEnabledFor", lambda level: True)
    with counts, config.patch(force_disable_caches=True):  # what comes from a cache is not counted
        for number in (1, 2):  # the rest is a straight line: activations grow with the texts, weights do not
            metrics.reset()
            torch.compiler.reset()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(gpt_tokens(number))
            loss.backward()
            nodes = (node for node, _ in metrics.nodes_num_elem)
            counted.append(sum(n.get_read_write_buffers_sizes() for n in nodes if "Extern" not in type(n).__name__))
    return counted[0] + (texts - 1) * (counted[1] - counted[0])


def compiled(found: simgpu.TimeForecast, nbytes: int) -> float:
    """Return the seconds of a step of which all but products, attention and the optimizer is fused to so many bytes."""
    kept = sum(s.seconds for s in found.by_kind if s.name in ("matrix products", "attention", "optimizer"))
    row = gpus.get(found.spec)
    gbps = min(row.bandwidth_gbps * simgpu.Costs().bandwidth_share, row.best_copy_gbps or math.inf)
    return found.total_s - found.busy_s + kept + nbytes / gbps / 1e9


def compare(name: str, published: float, predicted: float, unit: str) -> None:
    a, b = (f"{number:9,.0f}" if number > 1000 else f"{number:9.4g}" for number in (published, predicted))
    print(f"{name:45} published {a}, predicted {b} {unit}, error {predicted / published - 1:+.0%}", flush=True)


def kept(key: str, gpu: str, fmt: str, row: list) -> dict:
    """Return a table of one run on several GPUs, as `published.json` has it."""
    by, address, date = SOURCES[key]
    head = {"by": by, "gpu": gpu, "address": address, "date": date, "programs": "cluster", "mode": "training"}
    return {**head, "format": fmt, "rows": [row]}


def run(name: str, ranks: int, batch: int, published_s: float, predicted_s: float) -> list:
    """Return a row: a step of each of `ranks` GPUs with `batch` samples."""
    times_ms = (float(f"{1e3 * seconds:.4g}") for seconds in (published_s, predicted_s))
    return [name, ranks, batch, *times_ms, "several GPUs", 0]


def main() -> None:
    torch.set_float32_matmul_precision("high")
    tables = []
    sgd, predicted = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), {}
    for name, gpu, number, last, published in RESNETS:
        layout = torch.channels_last if last else torch.contiguous_format
        program = (functools.partial(resnet, layout), functools.partial(images, number, layout), sgd)
        step = functools.partial(resnet_step, name == "float16")
        for ranks, rate in published.items():
            found = simgpu.forecast(*program, step=step, ranks=ranks).on(cluster=simgpu.Cluster(gpu))
            predicted[ranks] = ranks * number / found.total_s
            compare(f"DDP, ResNet-50, {name}, {ranks} {gpu}", rate, predicted[ranks], "images/s")
            if ranks > 1:
                row = run("ResNet-50, DDP", ranks, number, ranks * number / rate, found.total_s)
                tables.append(kept(gpu, gpu, {"float16": "amp", "TF32": "tf32"}[name], row))
        compare("    speed-up", published[8] / published[1], predicted[8] / predicted[1], "times")
    adamw, cluster = functools.partial(torch.optim.AdamW, fused=True), simgpu.Cluster("H100 SXM")
    found = simgpu.forecast(lambda: shared(Gpt()), gpt_tokens, adamw, step=gpt_step, ranks=8).on(cluster=cluster)
    published = 8 * GPT_TEXTS * GPT_TOKENS / GPT_S
    for name, seconds in (("eager", found.total_s), ("fused", compiled(found, fused_bytes(GPT_TEXTS)))):
        rate = 8 * GPT_TEXTS * GPT_TOKENS / seconds
        compare(f"DDP, GPT-2 124M, predicted {name}, 8 H100 SXM", published, rate, "tokens/s")
    row = run("GPT-2 124M, DDP, compiled", 8, GPT_TEXTS, GPT_S, seconds)
    tables.append(kept("GPT-2", "H100 SXM", "bf16", row))
    adam, predicted = functools.partial(torch.optim.AdamW, foreach=True), {}
    with mock.patch.object(gpus, "ALL", (*gpus.ALL, H100)):
        for ranks, rate, gib in ((8, 5762, 82.4), (128, 5605, 67.0)):
            ahead = simgpu.forecast(fsdp, tokens, adam, step=llama_step, ranks=ranks)
            for gpu in ("H100 SXM", H100.name):
                found = ahead.on(cluster=simgpu.Cluster(gpu))
                predicted[ranks] = TEXTS * CONTEXT / found.total_s
                compare(f"FSDP, Llama 3.1 8B, {ranks} {gpu}", rate, predicted[ranks], "tokens/s each")
            row = run("Llama 3.1 8B, FSDP", ranks, TEXTS, TEXTS * CONTEXT / rate, found.total_s)
            tables.append(kept("FSDP", H100.name, "bf16", row))
            compare("    memory (published: reserved)", gib, ahead.memory.peak_bytes / 2**30, "GiB")
    compare("    128 beside 8", 5605 / 5762, predicted[128] / predicted[8], "times")
    stored = json.loads(evidence.FILE.read_text(encoding="utf-8"))
    stored["tables"] = [table for table in stored["tables"] if table["programs"] != "cluster"] + tables
    published_runs.store(stored)


if __name__ == "__main__":
    main()
