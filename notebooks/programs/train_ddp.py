"""Train a small network on handwritten digits with DistributedDataParallel: CPUs or GPUs, one machine or several.

    python train_ddp.py                                      one process
    torchrun --standalone --nproc-per-node 2 train_ddp.py    two, on this machine

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1              where processes may be started again, see below
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 train_ddp.py --checkpoint run.pt
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --rdzv-id 1 \\
        --max-restarts 3 train_ddp.py --checkpoint /shared/run.pt    the same line on each of two machines
    sbatch train_ddp.sbatch                                  the same under Slurm

`--batch` is the batch of all processes together, so every step learns from as many images, however many processes share
them. The losses still differ a little between one process and two (2.0417 and 2.0463 at step 8): this model has
BatchNorm, which takes mean and variance of the images of its own process.

Only rank 0 prints, saves and loads. If you start a run again with the same number of processes on CPUs, it goes on to
the same bits: two runs are the same run if their printed losses are the same. The course's tests compare them with gloo
only. On GPUs kernels may add in another order, so that the last digits differ. To see a restart, kill a process with
`--die-at 30`. When the program is asked to end (SIGTERM, which Slurm sends before the time is up), it ends after its
next checkpoint. With NCCL a process that waits for a dead one cannot do that: torchrun kills it after 30 seconds, and
only then starts all processes again.

A checkpoint is written beside the old one and then renamed, so the file is whole at every moment. A checkpoint whose
checksum is wrong, or with a number that is not finite, is neither written nor loaded.

Why the variable above? Without it torchrun shares one store of addresses with the processes. Those that it starts again
may find the addresses of dead ones there, and the connection is refused (PyTorch's issues 135712 and 167288).
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: see `join`
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from course_utils import data, models

TRAINED = 1_536  # of 1,797 images; the others are the test
SAME = ("batch", "seed")  # options with which a run goes on as it began


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
    parser = argparse.ArgumentParser(description="Train a small network with DistributedDataParallel.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images in one step, of all processes together")
    parser.add_argument("--checkpoint", type=Path, help="save here, and go on from here where it exists")
    parser.add_argument("--every", type=int, default=8, help="steps from one report and checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="the last rank is killed here, once: see it restart")
    options = parser.parse_args()
    for name in ("epochs", "batch", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it must be at least 1")
    if options.batch > TRAINED:
        parser.error(f"--batch is {options.batch}, there are only {TRAINED} images")
    return options


def join() -> torch.device:
    """Join the process group and return the device of this process: a GPU if each process of this machine has one.

    A GPU may be there and yet not work with this PyTorch. A small kernel finds that out here, before the others wait.

    An optimizer imports torch.distributed.nn.functional, whose functions keep the group that exists at that moment.
    Then gloo's threads live on after `destroy_process_group`, and now and then one ends the process with SIGABRT while
    Python ends. So this program imports it at the top, before there is a group.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # which process of this machine
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    use_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= local_world
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    torch.ones(1, device=device).add(1).cpu()  # raises what is wrong, if the GPU cannot be used
    backend, bound = ("nccl", {"device_id": device}) if use_cuda else ("gloo", {})
    if "RANK" in os.environ:  # torchrun says who we are and where the others wait
        dist.init_process_group(backend, **bound)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **bound)
    return device


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train for `options.epochs` epochs, from the checkpoint where there is one."""
    world = dist.get_world_size()
    if options.batch % world:
        raise SystemExit(f"--batch is {options.batch}, it must be a multiple of the {world} processes")
    images, labels = data.digits()
    dataset = TensorDataset(images[:TRAINED], labels[:TRAINED])
    sampler = DistributedSampler(dataset, seed=options.seed, drop_last=True)  # every process its own images
    loader = DataLoader(dataset, batch_size=options.batch // world, sampler=sampler, drop_last=True)
    torch.manual_seed(options.seed)
    model = models.ConvNet(width=8).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = load(options, model, optimizer)
    model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    start = f"from step {step}" if step else "from the start"
    log(f"processes {world}, backend {dist.get_backend()}, device {device.type}, {start}")

    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to stop"))  # torchrun passes it on and waits 30 seconds
    steps = len(loader)  # of one epoch, on each process
    for epoch in range(step // steps, options.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        for x, y in itertools.islice(loader, step % steps, None):  # reads what was seen, too; see train_photos.py
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # here the processes average their gradients
            optimizer.step()
            step += 1
            if step == options.die_at:
                die()
            if step % options.every == 0 or step % steps == 0:
                log(f"step {step} loss {mean(loss.detach())!r}")
                save(options, model.module, optimizer, step)
                if mean(torch.tensor(float(bool(asked)), device=device)):  # one was asked: all stop, at the same step
                    return log(f"asked to stop, after step {step}")
        log(f"epoch {epoch} accuracy {accuracy(model.module, images[TRAINED:], labels[TRAINED:], device):.3f}")


def log(text: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def mean(value: torch.Tensor) -> float:
    """Return the mean over the processes, which have equal batches."""
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> float:
    """Return the share of right answers. Each process takes every n-th image; sums are added, not shares.

    The running statistics of BatchNorm differ between the processes until the next forward pass of
    DistributedDataParallel. Those of rank 0 are saved, so all evaluate with these.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    own = slice(dist.get_rank(), None, dist.get_world_size())
    model.eval()
    right = model(images[own].to(device)).argmax(1).eq(labels[own].to(device))
    model.train()
    counts = torch.stack((right.sum(), torch.tensor(right.numel(), device=device)))
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let rank 0 write a checkpoint beside the old one and rename it: the file is whole at every moment.

    If a number is not finite, the old checkpoint stays, and a line says so. This model draws no random numbers. For one
    with dropout, save each rank's random state too (train_photos.py).
    """
    path = options.checkpoint
    if path is None or dist.get_rank() != 0:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    if not finite(state):
        return log(f"step {step}: the model has numbers that are not finite, so {path} stays as it is")
    state |= {name: getattr(options, name) for name in SAME}
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint where there is one and return its step. Rank 0 reads, so that all go on from the same file.

    Started again, rank 0 may be on another machine: they share the folder.
    """
    path, found = options.checkpoint, [None]
    if path is not None and dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = [read(path) if path.exists() else None]
    dist.broadcast_object_list(found)
    (state,) = found
    if state is None:
        return 0
    if isinstance(state, str):
        raise SystemExit(state if dist.get_rank() == 0 else 1)
    for name in SAME:
        if state[name] != getattr(options, name):
            raise SystemExit(f"{path} is of a run with --{name} {state[name]}: go on with it, or name a new file")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def read(path: Path) -> dict | str:
    """Return the checkpoint, or in words why it is none, for the other processes wait to be told."""
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()  # by its sums, which torch.load does not compare
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        return f"{path} is damaged ({type(error).__name__}): delete it, or name another file"
    if damaged or not isinstance(state, dict) or not {"model", "optimizer", "step", *SAME} <= state.keys():
        return f"{path} is damaged, or no checkpoint of this program: delete it, or name another file"
    if not finite(state):
        return f"{path} has numbers that are not finite: delete it, or name another file"
    return state


def finite(value: Any) -> bool:
    """Return whether all numbers are finite in the tensors of `value`, which may be nested in dicts and lists."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(finite(part) for part in parts)


def die() -> None:
    """Kill the last rank, in its first life: torchrun counts how often it has started the processes again."""
    if dist.get_rank() == dist.get_world_size() - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
