"""Train a small GPT on Python's help texts: one way to level three of lesson 12, from the naive `capstone.py`.

    python capstone_reference.py        1500 steps, then the text that it writes, before and after
    python capstone_reference.py --steps 2000 --checkpoint run.pt     saves every 100 steps, and goes on from there

What is changed, and why, stands in comments; the last section of the lesson goes through it line by line.
"""

import argparse
import os
import time
import zipfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PROMPT = "An object "


class Attention(nn.Module):
    """Mixes in, for each place, what the places up to it have to say: (batch, time, width) -> the same shape."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        split = batch, time, 3, self.heads, width // self.heads
        q, k, v = self.qkv(x).view(split).permute(2, 0, 3, 1, 4)  # each (batch, heads, time, size)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # no mask in memory, no scores
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention, then a small network for each place; both add to `x`."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next byte of a text: (batch, time) int64 -> (batch, time, 256) logits."""

    def __init__(self, width, heads, layers, context):
        super().__init__()
        self.context = context
        self.embed, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens) + self.places.weight[: tokens.shape[1]]  # a view: nothing is made or copied
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # keeps x alone; the rest is computed again
        return self.head(self.norm(x))


def make_model(width, heads, layers, context):
    """Return the model, on the CPU."""
    return GPT(width, heads, layers, context)


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


def train(model, optimizer, text, starts, device):
    """Take one step for each row of `starts` (steps, batch): the places in `text`, uint8, where its windows begin.

    Returns the loss of each step, as a list of floats. Of several ranks each takes its share of every row.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    windows = cut(text, starts[:, rank::ranks], model.context, device)  # (steps, rows, context + 1)
    losses = torch.zeros(len(starts), device=device)
    for step, window in enumerate(windows):
        for part in window.chunk(2):  # half of the activations at a time
            loss = loss_of(model, part) * (len(part) / len(window))
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


def cut(text, starts, context, device):
    """Return the windows (..., context + 1) of `text` that begin at `starts` (...), int64, on `device`: one copy."""
    windows = text[starts[..., None] + torch.arange(context + 1)]  # on the host, still bytes
    return windows.to(device).long()  # an eighth travels; made wide where memory is fast


def loss_of(model, windows):
    """Return the mean loss over all places of all windows."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.inference_mode()  # no graph, and nothing kept for it
def evaluate(model, text, starts, device):
    """Return the mean loss, a float, over the windows of `text` that begin at `starts` (windows,)."""
    total = torch.zeros((), device=device)
    for part in cut(text, starts, model.context, device).split(16):
        total += loss_of(model, part) * len(part)
    return total.item() / len(starts)


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


@torch.no_grad()
def written(model, prompt, length, device):
    """Return `prompt` and `length` bytes that the model adds to it, drawn by their probabilities."""
    tokens = torch.tensor([list(prompt.encode())], device=device)
    for _ in range(length):
        likely = torch.softmax(model(tokens[:, -model.context :])[:, -1] / 0.8, dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(likely, 1)], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def chosen():
    """Return the accelerator if a small kernel runs on it, otherwise the CPU."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        works = (torch.ones(2, device=device) + 1).tolist() == [2, 2]
    except RuntimeError:
        works = False
    return device if works else torch.device("cpu")


def main():
    """Train, and show what the model writes before and after."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--checkpoint", type=Path, help="file to write, and to go on from")
    options = parser.parse_args()
    device = chosen()
    text = torch.frombuffer(bytearray("\n\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.uint8)
    train_text, test_text = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    torch.manual_seed(0)
    model = make_model(width=options.width, heads=4, layers=4, context=64).to(device)
    optimizer, step = make_optimizer(model), 0
    test_starts = torch.arange(0, len(test_text) - 65, 65)[:128]
    if options.checkpoint and options.checkpoint.exists():
        try:
            step = load(options.checkpoint, model, optimizer)
        except (ValueError, RuntimeError) as error:  # damaged, or of a model of another width
            raise SystemExit(str(error).partition("\n")[0] + ": name another file") from None
    print(f"step {step}, on {device}; the model writes {written(model, PROMPT, 60, device)!r}")
    while step < options.steps:
        many = min(100, options.steps - step)
        draw = torch.Generator().manual_seed(step)
        starts = torch.randint(len(train_text) - 65, (many, 16), generator=draw)
        begin = time.perf_counter()
        losses = train(model, optimizer, train_text, starts, device)  # it returns floats, so the device is done
        rate = starts.numel() * 64 / (time.perf_counter() - begin)
        step += many
        print(f"step {step}: loss {sum(losses) / many:.3f}, {rate:,.0f} tokens a second", flush=True)
        if options.checkpoint:
            save(options.checkpoint, model, optimizer, step)
    print(f"loss on text never seen: {evaluate(model, test_text, test_starts, device):.3f} nats a byte")
    print(f"the model writes\n{written(model, PROMPT, 500, device)}")


if __name__ == "__main__":
    main()
