"""Right answers of lesson 10 that are no edits of the reference."""

import contextlib
import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as sd
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from gpu_course import lesson10
from gpu_course.lesson10 import measured
from gpu_course.lesson10.explorers import parallel_plan
from gpu_course.lesson10.sharding import Scaled
from gpu_course.lesson10.splitting import enter, leave


def writes_with_a_generator(ranks, micro):
    def line(rank):
        ahead = ranks - rank
        forward = backward = 0
        while backward < micro:
            if forward < micro and forward - backward < ahead:
                yield f"F{forward}"
                forward += 1
            else:
                yield f"B{backward}"
                backward += 1

    return "\n".join(" ".join(line(rank)) for rank in range(ranks))


def joins_three_parts(ranks, micro):
    text = ""
    for rank in range(ranks):
        warm = min(ranks - rank - 1, micro)
        first = [f"F{i}" for i in range(warm)]
        middle = [part for i in range(micro - warm) for part in (f"F{warm + i}", f"B{i}")]
        last = [f"B{i}" for i in range(micro - warm, micro)]
        text += " ".join(first + middle + last) + "\n"
    return text.rstrip("\n")


def keeps_three_dicts(line, stage, inputs, targets, loss_fn):
    leaves, losses, gradients = {}, {}, []
    for action in line.split(" "):
        number = int(action[1:])
        if action.startswith("F"):
            leaves[number] = inputs[number].clone().detach()
            leaves[number].requires_grad = True
            prediction = stage(leaves[number])
            losses[number] = loss_fn(prediction, targets[number])
            losses[number] = losses[number] / len(targets)
        if action.startswith("I"):
            (gradient,) = torch.autograd.grad(losses[number], [leaves[number]], retain_graph=True)
            gradients.append(gradient)
        if action.startswith("W"):
            trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
            if trained:
                found = torch.autograd.grad(losses[number], trained, allow_unused=True)
                for parameter, gradient in zip(trained, found, strict=True):
                    if gradient is not None:
                        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            del losses[number], leaves[number]
    return gradients


def matches_the_kind(line, stage, inputs, targets, loss_fn):
    kept, sent = {}, []

    def forward(at):
        x = inputs[at].detach().requires_grad_(True)
        kept[at] = (x, loss_fn(stage(x), targets[at]) * (1 / len(inputs)))

    def weights(at):
        _, loss = kept.pop(at)
        wanted = [p for p in stage.parameters() if p.requires_grad]
        if wanted:
            torch.autograd.backward(loss, inputs=wanted)

    for action in line.split():
        at = int(action[1:])
        match action[0]:
            case "F":
                forward(at)
            case "I":
                x, loss = kept[at]
                sent.append(torch.autograd.grad(loss, x, retain_graph=True)[0])
            case "W":
                weights(at)
    return sent


def gathers_into_one_tensor(state, total):
    def whole(part):
        result = part.new_empty(part.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(result, part)
        return result[:total].clone()

    return {name: whole(value) if value.dim() else value.clone() for name, value in state.items()}


def stacks_both_moments(state, total):
    both = torch.stack([state["exp_avg"], state["exp_avg_sq"]])
    parts = [torch.zeros_like(both) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, both)
    joined = torch.cat(parts, dim=1)
    first, second = joined[0, :total], joined[1, :total]
    return {"step": state["step"], "exp_avg": first, "exp_avg_sq": second}


def counts_rows(files, n):
    shards = [files[f"rank{number}"] for number in range(len(files))]
    whole = torch.cat(shards, dim=0)
    rows = whole.shape[0]
    each = math.ceil(rows / n)
    result = []
    for rank in range(n):
        begin = min(rank * each, rows)
        end = min(begin + each, rows)
        result.append(whole[begin:end].clone())
    return result


def splits_in_one_expression(files, n):
    by_number = sorted(files.items(), key=lambda item: int(item[0][4:]))
    whole = torch.cat([tensor for _, tensor in by_number])
    each = -(-len(whole) // n)
    return [whole[rank * each : (rank + 1) * each].clone() for rank in range(n)]


def shards_while_it_builds(blocks, mesh, state):
    with torch.device("meta"):
        layers = [Scaled() for _ in range(blocks)]
        model = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(model, mesh=mesh)
    model.to_empty(device=torch.device("cpu"))
    options = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=True)
    sd.set_model_state_dict(model=model, model_state_dict=state, options=options)
    for layer in layers:
        layer.fill()
    return model


def scatters_each_parameter(blocks, mesh, state):
    with torch.device("meta"):
        model = nn.Sequential(*[Scaled() for _ in range(blocks)])
    for block in model:
        fully_shard(block, mesh=mesh)
        block.to_empty(device="cpu")
        block.fill()
    for name, parameter in model.named_parameters():
        parts = list(state[name].chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
        dist.scatter(parameter.to_local().detach(), parts, src=0)
    return model


def fills_before_it_loads(blocks, mesh, state):
    with torch.device("meta"):
        model = nn.Sequential()
        for number in range(blocks):
            model.add_module(str(number), Scaled())
    for block in model.children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    [block.fill() for block in model]
    options = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    sd.set_model_state_dict(model, state, options=options)
    return model


def clips_by_hand(model, mesh, batches):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for tokens, targets in batches:
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        squares = torch.stack([p.grad.to_local().square().sum() for p in model.parameters()]).sum()
        dist.all_reduce(squares)
        factor = (0.5 / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for p in model.parameters():
            p.grad.to_local().mul_(factor)
        optimizer.step()
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def loops_over_modules(model, mesh, batches):
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(tokens, targets):
        model.zero_grad()
        F.cross_entropy(model(tokens), targets).backward()
        nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=0.5)
        optimizer.step()

    for batch in batches:
        step(*batch)
    whole = {}
    for name, value in model.state_dict().items():
        whole[name] = value.full_tensor()
    return whole


def adds_owner_by_owner(layers, parameters, split, whole, data, tensor, pipeline, stage):
    own_layers = layers / pipeline
    numbers = own_layers * parameters / tensor
    result = {"parameters": 2 * numbers, "gradients": 2 * numbers, "optimizer": 12 * numbers}
    if stage > 0:
        result["optimizer"] /= data
    if stage > 1:
        result["gradients"] /= data
    if stage > 2:
        result["parameters"] /= data
        result["parameters"] += 2 * parameters / tensor
    result["activations"] = own_layers * pipeline * (split / tensor + whole)
    return result


def shares_by_stage(layers, parameters, split, whole, data, tensor, pipeline, stage):
    held = layers // pipeline * parameters / tensor
    share = [1 / data if stage >= least else 1 for least in (3, 2, 1)]
    sizes = [each * held * part for each, part in zip((2, 2, 12), share, strict=True)]
    if stage == 3:
        sizes[0] += 2 * parameters / tensor
    kept = layers // pipeline * (split / tensor + whole) * pipeline
    return dict(zip(("parameters", "gradients", "optimizer", "activations"), [*sizes, kept], strict=True))


def slices_rows(x, qkv, out, heads):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = out.weight.shape[1]
    size = width // n
    x = enter(x)

    def of(third):
        begin = third * width + rank * size
        rows = slice(begin, begin + size)
        made = F.linear(x, qkv.weight[rows], qkv.bias[rows])
        return made.unflatten(-1, (heads // n, -1)).transpose(1, 2)

    q, k, v = of(0), of(1), of(2)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed = mixed.transpose(1, 2).flatten(2)
    columns = out.weight[:, rank * size : (rank + 1) * size]
    return leave(F.linear(mixed, columns)) + out.bias


def one_product_for_q_k_and_v(x, qkv, out, heads):
    rank, n = dist.get_rank(), dist.get_world_size()
    head = out.in_features // heads
    mine = slice(rank * heads // n, (rank + 1) * heads // n)
    weight = qkv.weight.view(3, heads, head, -1)[:, mine].flatten(0, 2)
    bias = qkv.bias.view(3, heads, head)[:, mine].flatten()
    both = F.linear(enter(x), weight, bias).unflatten(-1, (3, heads // n, head))
    q, k, v = both.permute(2, 0, 3, 1, 4)
    time = x.shape[1]
    scores = q @ k.transpose(-1, -2) / head**0.5
    later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
    mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    joined = mixed.transpose(1, 2).flatten(2)
    part = F.linear(joined, out.weight.view(-1, heads, head)[:, mine].flatten(1))
    return out.bias + leave(part)


def tries_a_few_meshes():
    best = {}
    for name, task in lesson10.TASKS.items():
        found = []
        for tensor, pipeline, stage in ((1, 1, 1), (1, 1, 2), (1, 1, 3), (4, 16, 0), (8, 4, 1), (8, 8, 1)):
            with contextlib.suppress(ValueError):  # which this cluster cannot be divided into
                plan = parallel_plan.plan(**task, tensor=tensor, pipeline=pipeline, stage=stage)
            if plan.fits:
                found.append((plan.step_s, (tensor, pipeline, stage)))
        best[name] = min(found)[1]
    return best


def fills_a_dict():
    chosen = {"slow": (1, 1, 1), "wide": (1, 1, 2)}
    chosen["large"] = (8, 4, 1)
    return chosen


def takes_the_fastest_run():
    def fastest(model, gpus):
        runs = [run for run in measured.runs(model, gpus) if run.tokens_per_s]
        run = max(runs, key=lambda run: run.tokens_per_s)
        return run.data, run.tensor, run.pipeline, run.stage, run.each

    tasks = [("1B", 64), ("8B", 64), ("80B", 128)]
    return {f"{model} on {gpus} GPUs": fastest(model, gpus) for model, gpus in tasks}


def answers_with_numpys_ints_in_named_tuples():
    class Way(NamedTuple):
        data: int
        tensor: int
        pipeline: int
        stage: int
        each: int

    sizes = {"1B on 64 GPUs": (64, 1, 1), "8B on 64 GPUs": (32, 1, 2), "80B on 128 GPUs": (2, 4, 16)}
    return OrderedDict((task, Way(*np.array(mesh), stage=1, each=1)) for task, mesh in sizes.items())


def answers_with_numpys_ints():
    return {name: tuple(np.array(mesh)) for name, mesh in lesson10.choose_meshes.reference().items()}


def names_the_fields():
    result = {}
    for task in ("1B on 64 GPUs", "8B on 64 GPUs", "80B on 128 GPUs"):
        model, _, gpus, _ = task.split()
        found = sorted(
            (run for run in measured.runs(model, int(gpus)) if run.tokens_per_s), key=lambda r: -r.tokens_per_s
        )
        second = found[1]
        result[task] = tuple(getattr(second, name) for name in ("data", "tensor", "pipeline", "stage", "each"))
    return result


RIGHT = {
    "write_schedule": [writes_with_a_generator, joins_three_parts],
    "last_rank": [keeps_three_dicts, matches_the_kind],
    "gather_state": [gathers_into_one_tensor, stacks_both_moments],
    "reshard": [counts_rows, splits_in_one_expression],
    "start_sharded": [shards_while_it_builds, fills_before_it_loads, scatters_each_parameter],
    "train_sharded": [clips_by_hand, loops_over_modules],
    "rank_bytes": [adds_owner_by_owner, shares_by_stage],
    "choose_meshes": [tries_a_few_meshes, fills_a_dict, answers_with_numpys_ints],
    "choose_measured": [takes_the_fastest_run, names_the_fields, answers_with_numpys_ints_in_named_tuples],
    "split_attention": [slices_rows, one_product_for_q_k_and_v],
}
