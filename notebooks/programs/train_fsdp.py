"""Train a small language model with FSDP2, sharded over CPUs or GPUs: parameters, gradients and optimizer state.

    python train_fsdp.py                                      one process
    torchrun --standalone --nproc-per-node 2 train_fsdp.py    two, on this machine: each holds a half

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1               where processes may be started again, see train_ddp.py
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --rdzv-id 1 \\
        --max-restarts 3 train_fsdp.py --checkpoint /shared/run --shards 8    the same line on each of two machines
    sbatch train_fsdp.sbatch                                  the same under Slurm

`--shards 8` splits each parameter over 8 processes, those of one machine, and lets machines be copies of each other,
which exchange gradients alone; by default all processes share one copy. A checkpoint is a folder to which every
process writes its own part. It can be read by any number of processes, in any split: that is the point of it. It is
written beside the old one and replaces it when it is whole. Files whose checksums differ are not loaded, and weights
that are not finite are neither saved nor loaded. Started again with the same number on CPUs, a run goes on to the same
bits; with another, sums have another order, and the last digits differ. `--die-at 30` kills a process, to see that.
Asked to end (SIGTERM), it does so after its next checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional  # before there is a group: see train_ddp.py
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from course_utils import data, models

CONTEXT = 32
SAME = ("batch", "seed")  # options with which a run goes on as it began
CHECKSUMS = "checksums.json"  # in each checkpoint: of every other file


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
    parser = argparse.ArgumentParser(description="Train a small language model with FSDP2.")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16, help="texts in one step, of all processes together")
    parser.add_argument("--shards", type=int, help="processes that share one copy of the model; all, if not given")
    parser.add_argument("--checkpoint", type=Path, help="a folder: save here, and go on from here")
    parser.add_argument("--every", type=int, default=8, help="steps from one report and checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="the last rank is killed here, once: see it restart")
    options = parser.parse_args()
    for name in ("steps", "batch", "every", "shards"):
        if (given := getattr(options, name)) is not None and given < 1:
            parser.error(f"--{name} is {given}, it must be at least 1")
    return options


def join() -> torch.device:
    """Join the process group and return the device of this process.

    That is a GPU where each process of the machine has one and a first small kernel runs there. The GPUs of a machine
    are taken to be of one kind, so that all processes decide alike.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # which process of this machine
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= local_world
    use_cuda = enough and works(torch.device("cuda", local_rank))
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    bound = {"device_id": device} if use_cuda else {}
    if use_cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if use_cuda else "gloo"  # a checkpoint's plan is exchanged on the CPU
    if "RANK" in os.environ:  # torchrun says who we are and where the others wait
        dist.init_process_group(backend, **bound)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **bound)
    return device


def works(device: torch.device) -> bool:
    """Return whether a first small kernel runs on `device`: a GPU may be there, and this PyTorch have none for it."""
    try:
        return (torch.ones(2, device=device) + 1).tolist() == [2, 2]
    except RuntimeError:
        return False


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train for `options.steps` steps, from the newest checkpoint where there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shards = options.shards or world
    if world % shards:
        raise SystemExit(f"--shards {shards} must divide the {world} processes")
    if options.batch % world:
        raise SystemExit(f"--batch is {options.batch}, it must be a multiple of the {world} processes")
    mesh = init_device_mesh(device.type, (world // shards, shards), mesh_dim_names=("copies", "shards"))
    model = sharded(mesh, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after sharding: its state is sharded with them
    step = load(options, model, optimizer)
    start = f"from step {step}" if step else "from the start"
    log(f"processes {world}, shards {shards}, backend {dist.get_backend()}, device {device.type}, {start}")

    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to stop"))  # torchrun passes it on and waits 30 seconds
    part = options.batch // world
    while step < options.steps:
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)  # of the step alone, not of the past
        x, y = data.text_batch(options.batch, CONTEXT, generator)  # of all; each process takes its part
        x, y = (each[rank * part : (rank + 1) * part].to(device) for each in (x, y))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # here parameters are gathered again, gradients averaged and scattered
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the norm of all shards, not of this one
        optimizer.step()
        step += 1
        if step == options.die_at:
            die()
        if step % options.every == 0 or step == options.steps:
            log(f"step {step} loss {mean(loss.detach())!r}")
            save(options, model, optimizer, step)
            if mean(torch.tensor(float(bool(asked)), device=device)):  # one was asked: all stop, at the same step
                return log(f"asked to stop, after step {step}")


def sharded(mesh: DeviceMesh, seed: int) -> torch.nn.Module:
    """Return the model, each block a unit that is gathered when it computes and freed after.

    Every process makes the whole model once, from the same seed. Where it does not fit, make it under
    `torch.device("meta")`, shard it, then `model.to_empty(device=...)` and fill it.
    """
    torch.manual_seed(seed)
    model = models.TransformerLM(width=64, heads=4, layers=2, context=CONTEXT).to(mesh.device_type)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": mixed if mesh.device_type == "cuda" else MixedPrecisionPolicy()}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)  # what is left: embeddings, last norm


def log(text: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def mean(value: torch.Tensor) -> float:
    """Return the mean over the processes, which have equal batches."""
    value = value.float()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def finite(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all weights and moments are finite, on all processes."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [value for value in (*model.parameters(), *moments) if isinstance(value, torch.Tensor)]
    mine = [value.to_local() if isinstance(value, DTensor) else value for value in tensors]
    strange = sum((~torch.isfinite(value)).sum() for value in mine)
    return mean(strange) == 0


def save(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let every process write its part into a folder, which gets its name when all have: it is whole or not there."""
    if options.checkpoint is None:
        return
    folder = options.checkpoint / f"step-{step:08}"
    if not finite(model, optimizer):
        words = f"after step {step} some weights are not finite: not saved, the last checkpoint stays as it is"
        raise SystemExit(words if dist.get_rank() == 0 else 1)
    writing, replaced = folder.with_name("writing"), folder.with_name("replaced")
    if dist.get_rank() == 0:
        shutil.rmtree(writing, ignore_errors=True)  # of a run that was killed while it wrote
    dist.barrier()
    dcp.save(state_of(options, model, optimizer, step), checkpoint_id=writing)
    found: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, {file.name: checksum(file) for file in own_files(writing)})
    if dist.get_rank() == 0:
        (writing / CHECKSUMS).write_text(json.dumps({name: value for part in found for name, value in part.items()}))
        if folder.exists():
            folder.rename(replaced)
        writing.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
        for old in saved(options.checkpoint)[:-1]:
            shutil.rmtree(old)
    dist.barrier()


def own_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that this process wrote; rank 0 wrote the plan as well."""
    rank = dist.get_rank()
    return [file for file in folder.iterdir() if file.match(f"__{rank}_*") or (rank == 0 and file.name == ".metadata")]


def checksum(file: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(2**20):
            found.update(part)
    return found.hexdigest()


def damaged(folder: Path) -> list[str]:
    """Return the files of a checkpoint whose checksums differ; each process looks at some of them."""
    wrong = []
    try:
        expected = json.loads((folder / CHECKSUMS).read_text())
    except (OSError, ValueError):
        expected, wrong = {}, [CHECKSUMS]
    for name in sorted(expected)[dist.get_rank() :: dist.get_world_size()]:
        if not (folder / name).is_file() or checksum(folder / name) != expected[name]:
            wrong.append(name)
    found: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(found, wrong)
    return sorted({name for part in found for name in part})


def load(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint where there is one and return its step; each process reads what it now holds.

    Rank 0 says which: another may not see yet what was written last.
    """
    found = [None]
    if options.checkpoint is not None and dist.get_rank() == 0:
        found = [([None, *saved(options.checkpoint)])[-1]]
    dist.broadcast_object_list(found)
    (folder,) = found
    if folder is None:
        return 0
    if wrong := damaged(folder):
        refuse(folder, f"the checksum of {wrong[0]} differs")
    state = state_of(options, model, optimizer, 0)
    try:
        dcp.load(state, checkpoint_id=folder)
    except (Exception, dcp.CheckpointException) as error:
        refuse(folder, type(error).__name__)
    for name in SAME:
        if state[name] != getattr(options, name):
            raise SystemExit(f"{folder} is of a run with --{name} {state[name]}: go on with it, or name a new folder")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if not finite(model, optimizer):
        refuse(folder, "some weights are not finite")
    return state["step"]


def refuse(folder: Path, why: str) -> NoReturn:
    """End this process; rank 0 says that the checkpoint is damaged."""
    words = f"{folder} is damaged ({why}): delete it, or name another folder"
    raise SystemExit(words if dist.get_rank() == 0 else 1) from None


def state_of(
    options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> dict[str, object]:
    """Return what a run needs to go on, tensors as the parts that this process holds, under the names of the model."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step} | {name: getattr(options, name) for name in SAME}


def saved(folder: Path) -> list[Path]:
    """Return the whole checkpoints in a folder, the newest last."""
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(one for one in folder.iterdir() if re.fullmatch(r"step-\d{8}", one.name))


def die() -> None:
    """Kill the last rank, in its first life: torchrun counts how often it has started the processes again."""
    if dist.get_rank() == dist.get_world_size() - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
