"""Train a small network to name drawn shapes. The program is correct, and naive: lesson 12 lets you make it fast.

    python images.py                    200 steps, then the share of new pictures that it names
    python images.py --steps 400 --checkpoint run.pt     saves every 100 steps, and goes on from there

The pictures are drawn here, and packed as files are: a byte for the shape, then its pixels, compressed. A number of
`order` names a file and a variant: `file * 32 + variant`, where the variant says how the picture is flipped and moved.

Copy it, and change what you like, but keep the six functions that the score of lesson 12 calls, with what they take and
return: make_model, make_optimizer, train, evaluate, save and load. The parameters keep their names and shapes, so that
a checkpoint of one version fits the other.
"""

import argparse
import os
import zipfile
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SHAPES = "square", "disc", "cross", "stripes"


def make_files(count, side, seed):
    """Return `count` packed pictures of `side` × `side` pixels, with noise."""
    draw = torch.Generator().manual_seed(seed)
    down, right = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    files = []
    for _ in range(count):
        label, high, wide = (int(torch.randint(most, (), generator=draw)) for most in (4, side // 2, side // 2))
        y, x, radius = down - high - side // 4, right - wide - side // 4, side // 5
        inside = (
            (y.abs() < radius) & (x.abs() < radius),
            y**2 + x**2 < radius**2,
            ((y.abs() < 2) | (x.abs() < 2)) & (y.abs() + x.abs() < 2 * radius),
            (y.abs() < radius) & (x.abs() < radius) & (y % 4 < 2),
        )[label]
        noise = torch.randint(6, (side, side), generator=draw)
        pixels = (inside * 8 + noise) * 16  # grey, 0 to 208
        files.append(bytes([label]) + zlib.compress(bytes(pixels.flatten().tolist())))
    return files


def decoded(file):
    """Return the label of a packed picture, and its pixels: a list of numbers from 0 to 255."""
    return file[0], list(zlib.decompress(file[1:]))


class Stage(nn.Module):
    """A convolution, normed over groups of channels; every second stage halves the picture."""

    def __init__(self, inside, outside, halves):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(4, outside)
        self.halves = halves

    def forward(self, x):
        x = F.gelu(self.norm(self.conv(x)))
        return F.avg_pool2d(x, 2) if self.halves else x


class Net(nn.Module):
    """Names the shape in a picture: (batch, 1, side, side) -> (batch, 4) logits."""

    def __init__(self, width, layers):
        super().__init__()
        sizes = [1] + [width * 2 ** (at // 2) for at in range(layers)]
        self.stages = nn.ModuleList([Stage(sizes[at], sizes[at + 1], at % 2 == 1) for at in range(layers)])
        self.head = nn.Linear(sizes[-1], len(SHAPES))

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


def make_model(width, layers):
    """Return the model, on the CPU."""
    return Net(width, layers)


def make_optimizer(model):
    """Return the optimizer of a model that is on its device."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)


def picture(file, variant, device):
    """Return a picture on the device, (1, side, side), flipped and moved as the variant says, and its label."""
    label, pixels = decoded(file)
    side = round(len(pixels) ** 0.5)
    image = torch.tensor(pixels).view(1, side, side).to(device)
    if variant % 2:
        image = image.flip(2)
    image = image.roll(variant // 2 % 4, dims=1)
    image = image.roll(variant // 8, dims=2)
    return image / 255 - 0.5, torch.tensor(label).to(device)


def train(model, optimizer, files, order, device):
    """Take one step for each row of `order` (steps, batch): which pictures, `file * 32 + variant`.

    Returns the loss of each step, as a list of floats. Of several ranks each takes its share of every row.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    losses = []
    for row in order:
        images, labels = [], []
        for code in row[rank::ranks].tolist():
            image, label = picture(files[code // 32], code % 32, device)
            images.append(image)
            labels.append(label)
        optimizer.zero_grad()
        loss = 0
        for image, label in zip(images, labels, strict=True):
            loss = loss + F.cross_entropy(model(image[None]), label[None]) / len(images)
        loss.backward(retain_graph=True)
        if ranks > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            loss = loss.detach()
            dist.all_reduce(loss)
            loss /= ranks
        for name, parameter in model.named_parameters():
            if torch.isnan(parameter.grad).any():
                raise ArithmeticError(f"the gradient of {name} is not a number")
        optimizer.step()
        losses.append(loss)
    return [loss.item() for loss in losses]


def evaluate(model, files, order, device):
    """Return the mean loss, a float, over the pictures in `order` (pictures,)."""
    total = 0.0
    for code in order.tolist():
        image, label = picture(files[code // 32], code % 32, device)
        total += F.cross_entropy(model(image[None]), label[None]).item()
    return total / len(order)


def save(path, model, optimizer, step):
    """Write all that the steps after `step` need: to another file, which then takes the place of `path`."""
    with open(f"{path}.new", "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())  # it is on the disk, should the power fail
    os.replace(f"{path}.new", path)  # whoever is killed before this still has the old file, whole


def whole(path):
    """Return what `save` wrote; raises ValueError, one line with the name, where it is damaged or not finite."""
    try:
        with zipfile.ZipFile(path) as parts:
            broken = parts.testzip()  # torch.save writes checksums, and torch.load does not compare them
        saved = torch.load(path, map_location="cpu", weights_only=True)
        strange = [name for name, value in saved["model"].items() if not torch.isfinite(value).all()]
    except OSError:
        raise
    except Exception as error:  # a damaged file raises a dozen kinds
        raise ValueError(f"{path} is damaged, or no checkpoint of this program ({type(error).__name__})") from error
    if broken or strange:
        why = f"the checksum of {broken} differs" if broken else f"{strange[0]} is not finite"
        raise ValueError(f"{path} is damaged: {why}")
    return saved


def load(path, model, optimizer):
    """Put everything back, and return the step; raises ValueError where the file is damaged."""
    saved = whole(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def chosen():
    """Return the accelerator if a small kernel runs on it, otherwise the CPU."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        works = (torch.ones(2, device=device) + 1).tolist() == [2, 2]
    except RuntimeError:
        works = False
    return device if works else torch.device("cpu")


def main():
    """Train, and say how many new pictures the network names before and after."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, help="file to write, and to go on from")
    options = parser.parse_args()
    device = chosen()
    files, new = make_files(512, 32, seed=1), make_files(64, 32, seed=2)
    torch.manual_seed(0)
    model = make_model(width=16, layers=4).to(device)
    optimizer, step = make_optimizer(model), 0
    if options.checkpoint and options.checkpoint.exists():
        try:
            step = load(options.checkpoint, model, optimizer)
        except (ValueError, RuntimeError) as error:  # damaged, or of a model of another width
            raise SystemExit(str(error).partition("\n")[0] + ": name another file") from None
    unmoved = torch.arange(len(new)) * 32
    print(f"step {step}, on {device}; loss on new pictures {evaluate(model, new, unmoved, device):.3f} nats")
    while step < options.steps:
        many = min(100, options.steps - step)
        order = torch.randint(len(files) * 32, (many, 16), generator=torch.Generator().manual_seed(step))
        losses = train(model, optimizer, files, order, device)
        step += many
        print(f"step {step}: loss {sum(losses) / many:.3f}", flush=True)
        if options.checkpoint:
            save(options.checkpoint, model, optimizer, step)
    print(f"loss on new pictures: {evaluate(model, new, unmoved, device):.3f} nats")


if __name__ == "__main__":
    main()
