"""Train an image classifier on whatever this machine has, and say whether its GPU is used well: a file to take away.

    python train.py                                       the GPU that works here, otherwise the CPU
    python train.py --epochs 8 --checkpoint run.pt        saves after each epoch; the same line goes on from there
    python train.py --compile --batch 512 --workers 4     options that the checklist may ask for
    torchrun --standalone --nproc-per-node 2 train.py     two processes, each with a share of every batch
    python -m simgpu --gpu T4 train.py                    a report for a GPU that is not here (needs simgpu)

It imports nothing but PyTorch. Put your own into two places, `make_datasets` and `make_model`: the rest can stay.
After two epochs (the first one also loads and compiles) it answers what it can of six questions:

1. Is a GPU used at all, and in which number format? On NVIDIA's and Intel's it should be 16 bits.
2. Does the loader keep up? If the host waits for data more than 5 % of the time, take more `--workers`, make a sample
   cheaper (decode once, send bytes), or keep the data on the GPU.
3. How often does the host read a value of the GPU? Here once an epoch. Each `.item()`, `print(loss)` or `if loss > 1`
   more in the loop makes it wait. `python -m simgpu train.py` names such lines.
4. Is the batch large enough? Double `--batch` until samples/s stop rising, or until memory ends. (Raise the learning
   rate as well, and look at the accuracy.)
5. Does `--compile` help? It does where many small kernels run. The first epoch then also compiles.
6. Do more GPUs help? Two should give nearly twice the samples/s. If not, ask question 2 again.

A run that was stopped goes on with the same losses, if it goes on with as many processes: order and dropout of an epoch
follow from its number. On a GPU the last digits may differ.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

CLASSES = 10


def make_datasets(samples):
    """Return data for training and for the test: put your own here. An item is an image, uint8, and its label.

    Here an image is noise with a brighter square, and the label says in which of ten places it is.
    """
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (samples,), generator=draw)
    images = torch.randint(190, (samples, 3, 24, 24), dtype=torch.uint8, generator=draw)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 5)
        image[:, 4 + 10 * row :, 1 + 4 * column :][:, :5, :5] += 50
    held_out = samples // 5  # the model never learns from these
    return TensorDataset(images[held_out:], labels[held_out:]), TensorDataset(images[:held_out], labels[:held_out])


def make_model():
    """Return the model: put your own here."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 6 * 6, CLASSES)),
    )


def works(device):
    """Return whether a small kernel runs on `device`: a GPU that PyTorch sees may still be unusable."""
    try:
        return (torch.ones(2, device=device) + 1).tolist() == [2, 2]
    except (RuntimeError, AssertionError):
        return False


def join():
    """Return the device of this process, after it has joined the others if torchrun started it."""
    if "RANK" not in os.environ:
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device(found.type, 0) if found is not None and works(found) else torch.device("cpu")
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:  # a GPU for each process
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def format_for(device):
    """Return the number format of autocast: bf16 where the GPU has it, else fp16; None is float32."""
    if device.type not in ("cuda", "xpu"):
        return None
    gpu = torch.get_device_module(device)
    return torch.bfloat16 if gpu.is_bf16_supported(including_emulation=False) else torch.float16


def forward(model, images, labels, dtype):
    """Return logits in float32 and the mean loss of a batch."""
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not None):
        logits = model(images / 127.5 - 1)  # bytes travel, a quarter of float32
    return logits.float(), F.cross_entropy(logits.float(), labels)


def over_ranks(sums):
    """Return sums over all processes as floats: the one read of an epoch."""
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums.tolist()


def train_epoch(model, optimizer, scaler, loader, device, dtype):
    """Train one epoch; return its mean loss, samples a second, and the share of the time that it waited for data."""
    sums = torch.zeros(2, device=device)  # of the losses, and of the samples
    waited_s, began = 0.0, time.perf_counter()
    asked = began
    for images, labels in loader:
        waited_s += time.perf_counter() - asked
        images = images.to(device, non_blocking=images.is_pinned())
        labels = labels.to(device, non_blocking=labels.is_pinned())
        _, loss = forward(model, images, labels, dtype)
        scaler.scale(loss).backward()  # DistributedDataParallel averages the gradients here
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        sums += torch.stack((loss.detach(), torch.ones_like(loss))) * len(labels)  # stays on the device
        asked = time.perf_counter()
    loss, samples = over_ranks(sums)  # waits for the device, so that the clock is right
    took_s = time.perf_counter() - began
    return loss / samples, samples / took_s, waited_s / took_s


@torch.inference_mode()
def evaluate(model, loader, device, dtype):
    """Return the share of right answers, over all processes."""
    model.eval()
    sums = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits, _ = forward(model, images, labels, dtype)
        right = (logits.argmax(dim=1) == labels).sum()
        sums += torch.stack((right, torch.full_like(right, len(labels))))
    model.train()
    right, samples = over_ranks(sums)
    return right / samples


def save(parts, epoch, path):
    """Write a checkpoint: `path` is always a whole file, the old one or the new."""
    torch.save({"epoch": epoch} | {name: part.state_dict() for name, part in parts.items()}, f"{path}.new")
    os.replace(f"{path}.new", path)


def load(parts, path):
    """Put a checkpoint back and return how many epochs are done; 0 where there is no file."""
    if not path or not os.path.exists(path):
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["epoch"]


def checklist(device, dtype, waited, rate):
    """Print what this run can say about the questions at the top of this file."""
    form = str(dtype or torch.float32).removeprefix("torch.")
    advice = "it keeps up" if waited < 0.05 else "more --workers, or cheaper samples"
    print("Is my GPU used well?")
    print(f"  device  {device}, {form}" + (": no GPU is used" if device.type == "cpu" else ""))
    print(f"  loader  the host waited for it {waited:.0%} of the time: {advice}")
    gpu = torch.get_device_module(device) if device.type != "cpu" else None
    if hasattr(gpu, "max_memory_allocated"):
        peak, room = gpu.max_memory_allocated(), gpu.get_device_properties(device).total_memory
        print(f"  memory  {peak / 2**30:.2f} of {room / 2**30:.1f} GiB at the peak")
    print(f"  speed   {rate:,.0f} samples/s; and with twice the --batch, with --compile, with two processes?")


def main():
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="samples a step, of all processes together")
    parser.add_argument("--samples", type=int, default=2560, help="images to draw")
    parser.add_argument("--workers", type=int, default=0, help="processes that load; 0: this one does")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", help="file to write, and to go on from")
    options = parser.parse_args()
    device = join()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    dtype = format_for(device)
    torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32

    train_set, test_set = make_datasets(options.samples)
    order = DistributedSampler(train_set, ranks, rank, drop_last=True)  # shuffles; each process gets its own samples
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    pinned = {"pin_memory": device.type in ("cuda", "xpu")}
    loader = DataLoader(train_set, options.batch // ranks, sampler=order, drop_last=True, **workers, **pinned)
    test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), ranks)), options.batch)

    torch.manual_seed(0)  # the same first weights everywhere
    network = make_model().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, fused=True)  # one kernel for the update
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    parts = {"model": network, "optimizer": optimizer, "scaler": scaler}
    first = load(parts, options.checkpoint)
    model = DistributedDataParallel(network) if ranks > 1 else network
    model = torch.compile(model) if options.compile else model
    say = print if rank == 0 else lambda *_: None
    say(f"{ranks} x {device}, from epoch {first}")
    for epoch in range(first, options.epochs):
        order.set_epoch(epoch)
        torch.manual_seed(ranks * epoch + rank)  # dropout follows from the epoch
        loss, rate, waited = train_epoch(model, optimizer, scaler, loader, device, dtype)
        share = evaluate(network, test_loader, device, dtype)
        say(f"epoch {epoch}: loss {loss:.4f}, right {share:.1%}, {rate:,.0f} samples/s")
        if options.checkpoint and rank == 0:
            save(parts, epoch + 1, options.checkpoint)
    if rank == 0 and options.epochs > first + 1:
        checklist(device, dtype, waited, rate)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
