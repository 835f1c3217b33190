"""Further wrong answers to lesson 12, each with what the message must say."""

import torch
import torch.nn.functional as F

from gpu_course.checks import edit

_LONG = "windows.to(device).long()"
_EACH = "torch.stack([text[one : one + context + 1].to(device) for one in starts.flatten().tolist()])"
_GATHER = "text[starts[..., None] + torch.arange(context + 1)]"


def _looping(x, qkv, heads):
    size, mixed = x.shape[2] // heads, []
    mask = torch.tril(torch.ones(x.shape[1], x.shape[1])).to(x.device)
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (F.linear(x, weight[rows]) for weight in qkv.weight.chunk(3))
        scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(mask == 0, float("-inf"))
        mixed.append(scores.softmax(-1) @ v)
    return torch.cat(mixed, dim=-1)


def _looping_on_the_device(x, qkv, heads):
    parts = [F.scaled_dot_product_attention(*one, is_causal=True)
             for one in zip(*(part.chunk(heads, dim=2) for part in qkv(x).chunk(3, dim=2)), strict=True)
             for _ in range(9)]  # fmt: skip
    return torch.cat(parts[::9], dim=2)


WRONG = {
    "cut": [
        ("bytes travel", edit(_LONG, "windows.long().to(device)")),
        ("copies to the device", edit(_GATHER, _EACH, _LONG, f"{_LONG}.view(*starts.shape, context + 1)")),
    ],
    "attend": [
        ("copies something to the device", _looping),
        ("operators and the limit is 20", _looping_on_the_device),
        ("cuts the graph: no gradient reaches the weight", edit("mixed.transpose", "mixed.detach().transpose")),
        ("cuts the graph: no gradient reaches v", edit("(q, k, v, is", "(q, k, v.detach(), is")),
    ],
    "train_steps": [
        ("reads of the host", edit("losses.append(loss.detach())", "losses.append(loss.detach()); loss.item()")),
        ("expected a list of floats", edit("torch.stack(losses).tolist()", "torch.stack(losses)")),
        ("this is the loss of each step", edit("torch.stack(losses).tolist()", "torch.stack(losses[::-1]).tolist()")),
        ("keeps the graph of every step",
         edit("loss.backward()", "loss.backward(retain_graph=True)", "loss.detach()", "loss")),
        ("leaves the model in evaluation mode", edit("    return torch", "    model.eval()\n    return torch")),
    ],
    "average": [
        ("messages", edit("dist.all_reduce(flat)", "dist.all_reduce(flat[:1]); dist.all_reduce(flat[1:])")),
        ("never waits", edit("dist.all_reduce(flat)", "dist.all_reduce(flat, async_op=True)")),
        ("changes the parameters", edit("flat /=", "[p.data.mul_(2) for p in model.parameters()]; flat /=")),
    ],
    "model_flops": [
        ("this is what PyTorch counts", edit("width**2", "width")),
    ],
}  # fmt: skip
