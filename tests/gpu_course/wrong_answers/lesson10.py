"""Further wrong answers to lesson 10, each with what the message must say."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gpu_course.lesson10.splitting import enter, leave


def _two_stages_a_rank(ranks, micro):
    lines = []
    for rank in range(ranks):
        turns = [("F", rank), ("F", rank + ranks), ("B", rank + ranks), ("B", rank)]
        lines.append(" ".join(f"{stage}{kind}{at}" for kind, stage in turns for at in range(micro)))
    return "\n".join(lines)


def _gathers_the_heads(x, qkv, out, heads):
    rank, n = dist.get_rank(), dist.get_world_size()
    weights, biases = qkv.weight.chunk(3), qkv.bias.chunk(3)
    mine = [F.linear(x, w.chunk(n)[rank], b.chunk(n)[rank]) for w, b in zip(weights, biases, strict=True)]
    q, k, v = (one.unflatten(-1, (heads // n, -1)).transpose(1, 2) for one in mine)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).contiguous()
    parts = [torch.empty_like(mixed) for _ in range(n)]
    dist.all_gather(parts, mixed)
    parts[rank] = mixed
    return out(torch.cat(parts, dim=-1))


def _cuts_late(x, qkv, out, heads):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [part.chunk(n, dim=-1)[rank] for part in qkv(enter(x)).chunk(3, dim=-1)]
    q, k, v = (one.unflatten(-1, (heads // n, -1)).transpose(1, 2) for one in mine)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return leave(F.linear(mixed, out.weight.chunk(n, dim=1)[rank])) + out.bias


def _computes_all(x, qkv, out, heads):
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in qkv(x).chunk(3, dim=-1))
    return out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _one_large_batch(line, stage, inputs, targets, loss_fn):
    x = torch.cat(inputs).detach().requires_grad_()
    loss_fn(stage(x), torch.cat(targets)).backward()
    parts = x.grad.split([len(part) for part in inputs])
    return [parts[int(word[1:])] for word in line.split() if word[0] == "I"]


WRONG = {
    "write_schedule": [
        ("has 2 stages, expected 1: one a rank", _two_stages_a_rank),
    ],
    "last_rank": [
        ("does not go through the stage by itself", _one_large_batch),
    ],
    "split_attention": [
        ("the gradient of x on rank 0", _gathers_the_heads),
        ("of qkv.weight, summed over the ranks", _computes_all),
        ("more than its own heads", _cuts_late),
    ],
}
