"""Train a small language model that is split in two ways at once: data parallel times tensor parallel.

    python train_2d.py                                            one process
    torchrun --standalone --nproc-per-node 4 train_2d.py --tensor 2   2 x 2: two rows of two processes

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1                   where processes may be started again, see train_ddp.py
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --rdzv-id 1 \\
        --max-restarts 3 train_2d.py --checkpoint /shared/run --tensor 8    the same line on each of two machines
    sbatch train_2d.sbatch                                        the same under Slurm

`--tensor 8` lets 8 processes share each matrix of a block: those of one machine, since they exchange activations in
every layer, forward and backward. Along the other dimension of the mesh, `data`, each row of processes takes a part of
the batch, and FSDP2 shards parameters, gradients and optimizer state over the rows, so that a matrix is cut both ways.
Norms, embeddings and the last layer are cut along `data` alone. The file train_fsdp.py must lie beside this one:
joining, checkpoints, `--die-at` and the answer to SIGTERM are its own. A checkpoint can be read in any other split;
in the same split on CPUs, a run goes on to the same bits.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from train_fsdp import die, join, load, log, mean, save

from course_utils import data

CONTEXT, VOCABULARY = 32, 256
WIDTH, HEADS, LAYERS = 64, 8, 2
PLAN = {
    **dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel()),  # each process has some of the outputs
    **dict.fromkeys(("out", "down"), RowwiseParallel()),  # and of the inputs here: their sums are added up
}


def main() -> None:
    """Join the other processes, train, leave."""
    options = arguments()
    device = join()
    try:
        train(options, device)
    finally:
        dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Train a small language model, data times tensor parallel.")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16, help="texts in one step, of all processes together")
    parser.add_argument("--tensor", type=int, default=1, help="processes that share each layer")
    parser.add_argument("--checkpoint", type=Path, help="a folder: save here, and go on from here")
    parser.add_argument("--every", type=int, default=8, help="steps from one report and checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="the last rank is killed here, once: see it restart")
    options = parser.parse_args()
    for name in ("steps", "batch", "every", "tensor"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it must be at least 1")
    return options


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train for `options.steps` steps, from the newest checkpoint where there is one."""
    mesh = make_mesh(options, device)
    rows, row = mesh["data"].size(), mesh["data"].get_local_rank()
    model = split(mesh, options.seed)
    groups = by_mesh(model)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=3e-3)
    step = load(options, model, optimizer)
    start = f"from step {step}" if step else "from the start"
    log(f"mesh {rows} x {options.tensor}, backend {dist.get_backend()}, device {device.type}, {start}")

    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to stop"))
    part = options.batch // rows
    while step < options.steps:
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)  # of the step alone, not of the past
        x, y = data.text_batch(options.batch, CONTEXT, generator)  # of all; the processes of a row take the same part
        x, y = (each[row * part : (row + 1) * part].to(device) for each in (x, y))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        clip(groups, options.tensor)
        optimizer.step()
        step += 1
        if step == options.die_at:
            die()
        if step % options.every == 0 or step == options.steps:
            log(f"step {step} loss {mean(loss.detach())!r}")
            save(options, model, optimizer, step)
            if mean(torch.tensor(float(bool(asked)), device=device)):  # one was asked: all stop, at the same step
                return log(f"asked to stop, after step {step}")


def make_mesh(options: argparse.Namespace, device: torch.device) -> DeviceMesh:
    """Return the mesh (data, tensor). Ranks beside each other, on one machine, lie along `tensor`."""
    world = dist.get_world_size()
    if world % options.tensor or HEADS % options.tensor:
        raise SystemExit(f"--tensor {options.tensor} must divide the {world} processes and the {HEADS} heads")
    rows = world // options.tensor
    if options.batch % rows:
        raise SystemExit(f"--batch is {options.batch}, it must be a multiple of the {rows} rows of processes")
    return init_device_mesh(device.type, (rows, options.tensor), mesh_dim_names=("data", "tensor"))


class Block(nn.Module):
    """Attention to the past, then a small network for each token. Of a split block, a process has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> (batch, time, width)."""
        normed = self.norm1(x)
        parts = (layer(normed) for layer in (self.query, self.key, self.value))  # (batch, time, own heads * each)
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, own heads, time, each)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Predicts the next byte of a text: (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def split(mesh: DeviceMesh, seed: int) -> nn.Module:
    """Return the model: each block cut along `tensor` first, then everything sharded along `data`."""
    torch.manual_seed(seed)  # every process makes the whole model once, the same
    model = LanguageModel().to(mesh.device_type)
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], PLAN)
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def by_mesh(model: nn.Module) -> list[list[DTensor]]:
    """Return the parameters that are cut along both dimensions, and the others: one operation takes one kind alone."""
    parameters: list[DTensor] = list(model.parameters())  # FSDP2 has made DTensors of all
    return [[one for one in parameters if one.device_mesh.ndim == n] for n in (2, 1)]


def clip(groups: list[list[DTensor]], tensor: int, limit: float = 1.0) -> None:
    """Scale the gradients down to the norm `limit`, that of all parts on all processes, with one all-reduce.

    What is not cut along `tensor`, as the biases of `out` and `down`, is the same on that many processes.
    """
    squares = torch.zeros((), device=groups[0][0].to_local().device)
    for one in (one for group in groups for one in group):
        repeated = one.device_mesh.ndim == 1 or one.placements[1].is_replicate()
        squares += one.grad.to_local().square().sum() / (tensor if repeated else 1)
    dist.all_reduce(squares)
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, limit, squares.sqrt())


if __name__ == "__main__":
    main()
