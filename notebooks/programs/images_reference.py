"""Train a small network to name drawn shapes: one way to level three of lesson 12, from the naive `images.py`.

    python images_reference.py          200 steps, then the share of new pictures that it names
    python images_reference.py --steps 400 --checkpoint run.pt     saves every 100 steps, and goes on from there

The pictures are drawn here, and packed as files are: a byte for the shape, then its pixels, compressed. A number of
`order` names a file and a variant: `file * 32 + variant`, where the variant says how the picture is flipped and moved.

What is changed, and why, stands in comments.
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
from torch.utils.checkpoint import checkpoint

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
    """Return the label of a packed picture, and its pixels, bytes."""
    return file[0], zlib.decompress(file[1:])


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
            x = checkpoint(stage, x, use_reentrant=False)  # keeps x alone; the rest is computed again
        return self.head(x.mean(dim=(2, 3)))


def make_model(width, layers):
    """Return the model, on the CPU."""
    return Net(width, layers)


def make_optimizer(model):
    """Return the optimizer of a model that is on its device: of several ranks each has a share of it."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        return Sharded(model)
    return adamw(model.parameters())


def adamw(parameters):
    """Return the update of one process."""
    return torch.optim.AdamW(parameters, lr=3e-3, fused=True)  # one kernel for all parameters


class Sharded:
    """AdamW on several ranks, each of which updates its share of one vector; the parameters are views of it."""

    def __init__(self, model):
        self.parameters, self.ranks = list(model.parameters()), dist.get_world_size()
        sizes = [parameter.numel() for parameter in self.parameters]
        self.room = -sum(sizes) % self.ranks  # so that all shares are equally long
        self.whole = self.vector([parameter.detach() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, self.whole.split([*sizes, self.room]), strict=False):
            parameter.data = part.view_as(parameter)
        self.share = nn.Parameter(self.whole.chunk(self.ranks)[dist.get_rank()])  # a view too
        self.update = adamw([self.share])  # its state is that of a share

    def vector(self, tensors):
        """Return the tensors as one vector, with room at the end."""
        return F.pad(torch.cat([tensor.flatten() for tensor in tensors]), (0, self.room))

    def zero_grad(self):
        """Free the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        """Add up the gradients of the share over the ranks, update it, and send it to all: two messages."""
        gradients = self.vector([parameter.grad for parameter in self.parameters])
        self.share.grad = torch.empty_like(self.share)
        dist.reduce_scatter(self.share.grad, list(gradients.chunk(self.ranks)))
        self.share.grad /= self.ranks
        self.update.step()
        self.share.grad = None
        dist.all_gather(list(self.whole.chunk(self.ranks)), self.share.detach().clone())

    def state_dict(self):
        """Return the state of this rank's share: each rank saves a file of its own."""
        return self.update.state_dict()

    def load_state_dict(self, state):
        """Put it back."""
        self.update.load_state_dict(state)


def pictures(files, codes, device):
    """Return the pictures of `codes` (...), (..., 1, side, side), their labels and variants, in one copy of bytes."""
    found = [decoded(files[code // 32]) for code in codes.flatten().tolist()]
    rows = [pixels + bytes([label, code % 32]) for (label, pixels), code in zip(found, codes.flatten(), strict=True)]
    both = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(*codes.shape, -1).to(device)
    pixels, labels, variants = both[..., :-2], both[..., -2].long(), both[..., -1].long()
    side = round(pixels.shape[-1] ** 0.5)
    return pixels.unflatten(-1, (1, side, side)), labels, variants


def moved(images, variants):
    """Return bytes (batch, 1, side, side) flipped and moved as `variants` (batch,) say, as numbers around 0.

    All pictures at once: from each pixel's place follows the one from which it comes.
    """
    side = images.shape[-1]
    places = torch.arange(side, device=images.device)
    down = (places - (variants // 2 % 4)[:, None]) % side  # (batch, side)
    right = (places - (variants // 8)[:, None]) % side
    right = torch.where((variants % 2 == 1)[:, None], side - 1 - right, right)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return images[batch, 0, down[:, :, None], right[:, None, :]][:, None] / 255 - 0.5


def train(model, optimizer, files, order, device):
    """Take one step for each row of `order` (steps, batch): which pictures, `file * 32 + variant`.

    Returns the loss of each step, as a list of floats. Of several ranks each takes its share of every row.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    images, labels, variants = pictures(files, order[:, rank::ranks], device)
    losses = torch.zeros(len(order), device=device)
    for step, batch in enumerate(zip(images, labels, variants, strict=True)):
        for image, label, variant in zip(*(one.chunk(2) for one in batch), strict=True):  # half of the activations
            loss = F.cross_entropy(model(moved(image, variant)), label) * (len(label) / len(labels[step]))
            loss.backward()  # gradients add up
            losses[step] += loss.detach()  # stays on the device, without its graph
        optimizer.step()
        optimizer.zero_grad()  # until the next backward pass there is no gradient
    if ranks > 1:
        dist.all_reduce(losses)
    losses = (losses / ranks).tolist()  # the one read
    if bad := [step for step, loss in enumerate(losses) if loss != loss]:
        raise ArithmeticError(f"the loss is not a number from step {bad[0]} on")
    return losses


@torch.inference_mode()  # no graph, and nothing kept for it
def evaluate(model, files, order, device):
    """Return the mean loss, a float, over the pictures in `order` (pictures,)."""
    total = torch.zeros((), device=device)
    for image, label, variant in zip(*(one.split(8) for one in pictures(files, order, device)), strict=True):
        total += F.cross_entropy(model(moved(image, variant)), label, reduction="sum")
    return total.item() / len(order)


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
