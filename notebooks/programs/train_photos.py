"""Train a small network on crops of two photographs; killed at any moment, it goes on as if nothing had happened.

    python train_photos.py --checkpoint run.pt    train, or go on from run.pt where it exists
    kill PROCESS                                  asks it to save and to end, as Slurm does before the time is up

It prints each step with its loss in full: two runs are the same run when these lines are the same. Lesson 05 kills it,
starts it again and compares. What a run needs to go on is in `Run.state_dict`. Workers save nothing: what `PhotoCrops`
draws follows from seed, epoch and index. A data set that draws from global generators would not go on to the same bits.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler

from course_utils import devices, models
from course_utils.data import PHOTO_CLASSES, PhotoCrops

SAME = ("steps", "batch", "length", "seed")  # order and learning rate follow from them: a run goes on with the same


class Order(Sampler[int]):
    """The indices 0 to length - 1 in the shuffled order of `epoch`, without the first `start` of them."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch, self.start = length, seed, 0, 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.length, generator=generator)[self.start :].tolist()

    def __len__(self) -> int:
        return self.length - self.start


class Run:
    """One training run: the model, what trains it, and how many steps are done."""

    def __init__(self, device: torch.device, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.device, self.step = device, 0
        # elsewhere a copy must be done before its source goes
        self.pins = device.type in ("cuda", "xpu", "sim")
        self.dtype = amp_dtype(device)
        features = models.ConvNet(channels_in=3, classes=32, width=8)
        head = nn.Sequential(nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, len(PHOTO_CLASSES)))
        self.model = nn.Sequential(features, head).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=self.dtype is torch.float16)

    def train(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Take one step and return the loss, which stays on the device."""
        images = images.to(self.device, non_blocking=self.pins).float() / 127.5 - 1  # bytes travel; -1 to 1
        labels = labels.to(self.device, non_blocking=self.pins)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None):
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)  # outside, in float32: log_softmax of 16 bits is rounded
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.step += 1
        return loss.detach()

    def state_dict(self) -> dict:
        """Return all that the next steps depend on. The position in the data follows from the number of steps."""
        state = {"step": self.step, "random": torch.get_rng_state()}
        if self.device.type != "cpu":
            state["device_random"] = torch.get_device_module(self.device).get_rng_state(self.device)
        for name in ("model", "optimizer", "scheduler", "scaler"):
            state[name] = getattr(self, name).state_dict()
        return state

    def load_state_dict(self, state: dict) -> None:
        """Put everything back."""
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["random"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["device_random"], self.device)


def amp_dtype(device: torch.device) -> torch.dtype | None:
    """Return the number format for autocast on `device`, None where float32 is the safe choice."""
    if device.type == "cpu":
        found = torch.cpu.get_capabilities()
        native = any(found.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))  # the last one of ARM
        return torch.bfloat16 if native else None
    if device.type == "mps":
        return None
    native = torch.get_device_module(device).is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if native else torch.float16


def save(state: dict, path: Path, pause: str = "") -> None:
    """Write `state` so that `path` holds the old checkpoint or the new one, whole, at every moment.

    `pause` is where to stand still and be killed, for the tests: half, written or replaced.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        if pause == "half":
            file.truncate(file.tell() // 2)
        file.flush()
        os.fsync(file.fileno())  # until now the bytes may be in the system's memory alone
        if pause in ("half", "written"):
            stand_still(pause)
    os.replace(temporary, path)  # one step: who opens `path` finds the old file or the new one
    if pause == "replaced":
        stand_still(pause)


def stand_still(moment: str) -> None:
    """Say where the program is, and wait to be killed."""
    print(f"standing still: {moment}", flush=True)
    time.sleep(600)


def report(run: Run, losses: list[torch.Tensor]) -> None:
    """Print the last losses: the one place where the host waits for the device."""
    first = run.step - len(losses) + 1
    for step, loss in enumerate(torch.stack(losses).tolist(), start=first):
        print(f"step {step} loss {loss!r}", flush=True)
    losses.clear()


def train(run: Run, options: argparse.Namespace) -> None:
    """Train up to step `options.steps`, with a report and a checkpoint every `options.every` steps."""
    crops = PhotoCrops(options.length, size=24, seed=options.seed, dtype=torch.uint8, decode_once=True)
    order = Order(options.length, options.seed)
    loader = DataLoader(
        crops, batch_size=options.batch, sampler=order, drop_last=True, num_workers=options.workers,
        persistent_workers=options.workers > 0,
        multiprocessing_context=options.start_method if options.workers else None,
        pin_memory=run.pins,
        generator=torch.Generator(),  # its own, so that making an iterator takes no number from the model's
    )  # fmt: skip
    moment, _, at = options.pause.partition("@")
    losses, asked = [], []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to stop"))  # after the step that is being done
    while run.step < options.steps:
        order.epoch, done = divmod(run.step, options.length // options.batch)
        order.start = done * options.batch
        crops.set_epoch(order.epoch)
        for images, labels in loader:
            losses.append(run.train(images, labels))
            last = run.step == options.steps or bool(asked)
            if last or run.step % options.every == 0:
                report(run, losses)
                state = run.state_dict() | {"options": {name: getattr(options, name) for name in SAME}}
                save(state, options.checkpoint, moment if at == str(run.step) else "")
            if last:
                return


def load(run: Run, options: argparse.Namespace) -> None:
    """Go on from the checkpoint, where there is one."""
    if not options.checkpoint.exists():
        options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        return
    try:
        with zipfile.ZipFile(options.checkpoint) as parts:
            if (broken := parts.testzip()) is not None:  # torch.save writes checksums, torch.load does not compare them
                raise ValueError(f"the checksum of {broken} is another")
        state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
        for name, old in state["options"].items():
            if getattr(options, name) != old:
                raise SystemExit(f"{options.checkpoint} is of a run with --{name} {old}: "
                                 "go on with it, or name a new file")  # fmt: skip
        run.load_state_dict(state)
    except Exception as error:  # a damaged file raises a dozen kinds
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise SystemExit(f"{options.checkpoint} is damaged, or of another program ({why}): name a new file") from error


def at_least(least: int) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers from `least`."""

    def number(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least}")
        return int(text)

    return number


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to write, and to go on from")
    parser.add_argument("--steps", type=at_least(1), default=100)
    parser.add_argument("--every", type=at_least(1), default=5, help="steps from one checkpoint to the next")
    parser.add_argument("--batch", type=at_least(1), default=16, help="samples a step")
    parser.add_argument("--length", type=at_least(1), default=160, help="samples an epoch, at least one batch")
    parser.add_argument("--workers", type=at_least(0), default=2, help="processes that decode photographs")
    # workers of a fork server, the default of newer Pythons on Linux, would outlive a program that is killed
    method = "spawn" if torch.multiprocessing.get_start_method() == "forkserver" else None
    parser.add_argument("--start-method", choices=("fork", "spawn"), default=method, help="how they are started")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="default: what the lessons use")
    parser.add_argument("--pause", default="", metavar="MOMENT@STEP", help="half, written or replaced: wait there")
    options = parser.parse_args()
    if options.batch > options.length:
        parser.error(f"--batch is {options.batch}, an epoch has only {options.length} samples")
    return options


def main() -> None:
    """Train, from the checkpoint where there is one."""
    options = arguments()
    torch.set_num_threads(1)  # for so small a network; the other cores are for the workers
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device(options.device) if options.device else devices.pick()
    run = Run(device, options.seed, options.steps)
    load(run, options)
    print(f"on {device}, {run.dtype or torch.float32}, from step {run.step}", flush=True)
    train(run, options)


if __name__ == "__main__":
    main()
