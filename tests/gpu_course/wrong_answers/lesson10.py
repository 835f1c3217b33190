"""Further wrong answers to lesson 10, each with what the message must say."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gpu_course.checks import edit
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


# fmt: off
_PART, _RETURN = "out.weight.chunk(n, dim=1)[rank])", "leave(part) + out.bias"
_FORWARD, _INPUT = 'line.append(f"F{early + at}")', "sent += torch.autograd.grad(loss, x, retain_graph=True)"
_WEIGHTS = "loss.backward(inputs=weights)"
_GATHER, _WHOLE = "dist.all_gather(parts, state[name])", "{name: value.full_tensor() for name"
_UNIT = "    fully_shard(model, mesh=mesh)  # what is left\n"

WRONG = {
    "write_schedule": [
        ("returns list, expected one text", edit('"\\n".join(lines)', "lines")),
        ("it must be once", edit('f"F{at}"', 'f"F{0}"')),
        ("'f0' on rank 0 is no action such", edit(_FORWARD, 'line.append(f"f{early + at}")')),
        ("has 1 lines and 3 micro-batches, expected 2 and 3", edit("range(ranks)", "range(max(1, ranks - 1))")),
        ("expected 2 and 3", edit("range(micro):", "range(micro := min(micro, 2)):")),
        ("has 2 stages, expected 1: one a rank", _two_stages_a_rank),
        ("rank 0 sends F", edit("range(early)]", "range(early)]\n        line = line[::-1] if rank else line")),
        ("deadlock: rank 0 waits in B0 for B0 of rank 1", edit(
            "lines.append(", 'line = line if ranks < 3 else "F0 B0 F1 B1".split() if rank == 0 else '
            '"F0 F1 B0 B1".split()\n        lines.append(')),
    ],
    "last_rank": [
        ("backward through the graph a second time", edit("x, retain_graph=True", "x")),
        ("raises RuntimeError", edit("if p.requires_grad]", "]")),
        ("raises RuntimeError", edit(".requires_grad_()", "")),
        ("weights before W", edit(_INPUT, "loss.backward(retain_graph=True); sent.append(x.grad)", _WEIGHTS, "pass")),
        ("goes forward before W is done", edit(
            "held, sent = {}, []", "held, sent, late = {}, [], []",
            "loss = held.pop(at)[1]\n", "late.append(held.pop(at)[1])\n", f"                {_WEIGHTS}",
            f"                pass\n    for loss in late:\n        {_WEIGHTS}")),
        ("goes forward before I is done", edit(
            _INPUT, "sent.append((loss, x))", _WEIGHTS, f"{_WEIGHTS[:-1]}, retain_graph=True)",
            "return sent", "return [torch.autograd.grad(loss, x)[0] for loss, x in sent]")),
        ("gradients of the weights: those of the mean", edit("int(action[1:])", "int(action[1])")),
        ("expected", edit("sent += ", "sent += [x] or ")),
    ],
    "gather_state": [
        ("never waits for 2 operations", edit(_GATHER, f"{_GATHER[:-1]}, async_op=True)")),
        ("its shards have", edit(_GATHER, "dist.all_gather_object(parts, state[name])")),
        ("modifies its input", edit(_GATHER, f"state[name] += 1; {_GATHER}")),
        ("waits for ranks that have returned", edit(_GATHER, f"if dist.get_rank() == 0: {_GATHER}")),
    ],
    "train_sharded": [
        (".weight", edit(_UNIT, f"{_UNIT.replace('model,', 'model.embed,')}    fully_shard(model.head, mesh=mesh)\n"
                             f"{_UNIT}")),  # the tied weight in two units: PyTorch says so
        ("waits for ranks that have returned", edit(_WHOLE, f"{{}} if dist.get_rank() else {_WHOLE}")),
        ("has other values", edit("optimizer.zero_grad()", "pass")),
        ("returns DTensors", edit("value.full_tensor()", "value")),
        ("the model is not sharded", edit(
            "    for block in model.blocks:  # each is gathered by itself, and freed behind it\n"
            "        fully_shard(block, mesh=mesh)\n", "",
            _UNIT, "    model = nn.parallel.DistributedDataParallel(model)\n",
            _WHOLE, "{name: value for name", "model.state_dict()", "model.module.state_dict()")),
        ("is a return missing", edit(f"return {_WHOLE}", f"return None and {_WHOLE}")),
        ("the last unit holds 53% of the model", edit("in model.blocks:", "in model.blocks[::2]:")),
    ],
    "start_sharded": [
        ("has not a unit for each block", edit("in [*model, model]", "in [model]")),
        ("is not sharded", edit("    for unit in [*model, model]:\n        fully_shard(unit, mesh=mesh)\n", "")),
        ("waits for ranks that have returned",
         edit("    sd.set_model_state_dict(", "    if dist.get_rank() == 0:\n        sd.set_model_state_dict(")),
        ("expected an nn.Sequential", edit("return model", "return model.state_dict()")),
    ],
    "reshard": [
        ("views of the whole tensor", edit("part.clone()", "part")),
        ("of type tuple, expected list", edit("[part.clone() for part in parts]", "tuple(map(torch.clone, parts))")),
        ("has shape (0, 2), expected (0, 3)", edit("whole[:0]", "whole.new_empty(0, 2)")),
        ("3 rows, from 2 ranks to 6", edit("(n - len(parts))", "(min(n, 5) - len(parts))")),
    ],
    "split_attention": [
        ("the gradient of x on rank 0", _gathers_the_heads),
        ("of qkv.weight, summed over the ranks", _computes_all),
        ("more than its own heads", _cuts_late),
        ("rank 0 does not compute its own heads", edit("dist.get_rank(), dist", "2 - dist.get_rank(), dist")),
        ("are enough", edit("x = enter(x)", "x = enter(enter(x)); x.register_hook(lambda one: one / n)")),
        ("is a return missing", edit("return leave", "leave")),
        ("waits", edit(_RETURN, "(leave(part) if rank else part) + out.bias")),
        ("raised", edit("chunk(n, dim=1)", "chunk(n)")),
        ("are enough", edit(_RETURN, "(leave(part) + leave(part)) / 2 + out.bias")),
        ("this is what rank 0 returned", edit("is_causal=True", "is_causal=False")),
        ("modifies its input", edit("x = enter(x)", "x = enter(x); out.bias.data += 1")),
    ],
    "rank_bytes": [
        ("of type float, expected dict", edit("return {", "return sum({", "ranks\n    }", "ranks\n    }.values())")),
        ("these are the bytes of the parameters", edit("2 * (held", "4 * (held")),
        ("these are the bytes of the gradients", edit('"gradients": 2', '"gradients": 4')),
        ("these are the bytes of the optimizer", edit("stage >= 1", "stage >= 2")),
    ],
    "choose_meshes": [
        ("does not answer the three tasks", edit('"slow"', '"fast"')),
        ("is no (tensor, pipeline, stage)", edit("(1, 1, 3)", "(1, 1, 4)")),
        ("is no (tensor, pipeline, stage)", edit("(1, 1, 3)", "[1, 1, 3]")),
        ("does not divide", edit("(4, 16, 0)", "(5, 16, 0)")),
        ("does not fit", edit("(4, 16, 0)", "(1, 2, 0)")),
        ("tensor parallel across machines", edit("(1, 1, 1)", "(8, 1, 1)")),
        ("times the best", edit("(1, 1, 3)", "(8, 1, 1)")),
        ("most beside computation: pipeline", edit("(1, 1, 1)", "(1, 32, 1)")),  # slow messages, no bubble
        ("gradients are sent for every micro-batch", edit("(1, 1, 1)", "(1, 1, 2)")),
    ],
    "choose_measured": [
        ("does not answer the three tasks", edit('"8B on', '"7B on')),
        ("is not (data, tensor, pipeline, ZeRO stage", edit("(32, 1, 2, 1, 1)", "(32, 1, 2, 1)")),
        ("is a mesh of 32 GPUs, expected 64", edit("(32, 1, 2, 1, 1)", "(16, 1, 2, 1, 1)")),
        ("of this mesh they tried ZeRO 0", edit("(64, 1, 1, 1, 1)", "(64, 1, 1, 3, 1)")),
        ("was not tried by anybody", edit("(2, 4, 16, 1, 1)", "(2, 2, 32, 1, 3)")),
        ("8.9 billion parameters a rank", edit("(32, 1, 2, 1, 1)", "(64, 1, 1, 0, 1)")),
        ("times as long as the fastest", edit("(64, 1, 1, 1, 1)", "(32, 1, 2, 0, 1)")),
    ],
}
