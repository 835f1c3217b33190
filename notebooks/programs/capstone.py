"""Train a small GPT on Python's help texts. The program is correct, and naive: lesson 12 lets you make it fast.

    python capstone.py                  1500 steps, then the text that it writes, before and after
    python capstone.py --steps 2000 --checkpoint run.pt     saves every 100 steps, and goes on from there

Copy it, and change what you like, but keep the six functions that the score of lesson 12 calls, with what they take and
return: make_model, make_optimizer, train, evaluate, save and load. The parameters keep their names and shapes, so that
a checkpoint of one version fits the other.
"""

import argparse
import math
import os
import time
import zipfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

PROMPT = "An object "


class Attention(nn.Module):
    """Mixes in, for each place, what the places up to it have to say: (batch, time, width) -> the same shape."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        time, size = x.shape[1], x.shape[2] // self.heads
        mixed = []
        for head in range(self.heads):
            rows = slice(head * size, (head + 1) * size)
            q, k, v = (F.linear(x, weight[rows]) for weight in self.qkv.weight.chunk(3))  # (batch, time, size)
            scores = q @ k.transpose(1, 2) / math.sqrt(size)
            mask = torch.tril(torch.ones(time, time)).to(x.device)
            scores = scores.masked_fill(mask == 0, -math.inf)  # no place sees a later one
            mixed.append(torch.softmax(scores, dim=-1) @ v)
        return self.out(torch.cat(mixed, dim=-1))


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
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]).to(tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(width, heads, layers, context):
    """Return the model, on the CPU."""
    return GPT(width, heads, layers, context)


def make_optimizer(model):
    """Return the optimizer of a model that is on its device."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)


def train(model, optimizer, text, starts, device):
    """Take one step for each row of `starts` (steps, batch): the places in `text`, uint8, where its windows begin.

    Returns the loss of each step, as a list of floats. Of several ranks each takes its share of every row.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    losses = []
    for row in starts:
        xs, ys = [], []
        for start in row[rank::ranks].tolist():
            window = text[start : start + model.context + 1].long()
            xs.append(window[:-1].to(device))
            ys.append(window[1:].to(device))
        x, y = torch.stack(xs), torch.stack(ys)
        optimizer.zero_grad()
        loss = 0
        for logits, targets in zip(model(x), y, strict=True):
            loss = loss + F.cross_entropy(logits, targets) / len(x)
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


def evaluate(model, text, starts, device):
    """Return the mean loss, a float, over the windows of `text` that begin at `starts` (windows,)."""
    total = 0.0
    for start in starts.tolist():
        window = text[start : start + model.context + 1].long().to(device)
        logits = model(window[None, :-1])
        total += F.cross_entropy(logits[0], window[1:]).item()
    return total / len(starts)


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
