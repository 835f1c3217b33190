"""Do the formulas of `plans` say what `simgpu.forecast` says of the same programs, and lesson 10 of memory?"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import models
from gpu_course import lesson10
from gpu_course.lesson10 import plans
from gpu_course.lesson10.explorers import parallel_plan
from tests.gpu_course.explorer_settings import settings

SMALL = {"width": 4096, "layers": 4, "heads": 32, "vocabulary": 32_768}
RANKS, TIMES = 8, 2  # micro-batches of a step


class Block(models.Block):
    """`models.Block` whose heads tensor parallelism can share out: what `qkv` gives is of any width."""

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, SMALL["width"] // self.heads)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


def shared(way):
    """Return the model, shared by "data", "sharded" (ZeRO 3) or "tensor"."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = models.TransformerLM(context=plans.SEQUENCE, **SMALL)
    model.blocks = nn.ModuleList(Block(SMALL["width"], SMALL["heads"]) for _ in model.blocks)
    model = model.bfloat16()
    if way == "data":
        return nn.parallel.DistributedDataParallel(model)
    mesh, column = init_device_mesh("cuda", (dist.get_world_size(),)), ColwiseParallel()
    for block in model.blocks:
        if way == "sharded":
            fully_shard(block, mesh=mesh)
            continue
        columns = dict.fromkeys(("qkv", "mlp.0"), column)
        parallelize_module(block, mesh, columns | dict.fromkeys(("out", "mlp.2"), RowwiseParallel()))
    return fully_shard(model, mesh=mesh) if way == "sharded" else model


def step(model, tokens, optimizer):
    optimizer.zero_grad()
    for at in range(TIMES):
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = at == TIMES - 1
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()


WAYS = {"data": {}, "sharded": {"stage": 3}, "tensor": {"tensor": RANKS}}
CLUSTER = next(iter(plans.CLUSTERS))


def planned(way):
    sequences = TIMES * (1 if way == "tensor" else RANKS)
    return plans.plan(model="small", cluster=CLUSTER, gpus=RANKS, sequences=sequences, **WAYS[way])


def estimated_s(way):
    """Return the seconds of a step; AdamW of the products alone: its fused form takes no tensors of two kinds."""
    tokens = functools.partial(torch.zeros, 1, plans.SEQUENCE, dtype=torch.int64)
    adam = lambda given: torch.optim.AdamW([one for one in given if one.dim() == 2][2:], fused=True)  # noqa: E731
    cluster = plans.CLUSTERS[CLUSTER]
    return (
        simgpu.forecast(functools.partial(shared, way), tokens, adam, step=step, ranks=RANKS)
        .on(cluster=cluster, host="kernel launch")
        .total_s
    )


@pytest.mark.parametrize(("way", "gap"), [
    ("tensor", 0.1), ("sharded", 0.25), pytest.param("data", 0.1, marks=pytest.mark.slow)
])  # fmt: skip
def test_layers_take_the_time_that_an_estimate_of_the_program_says(way, gap, monkeypatch):
    """One layer more. The formula lets all messages of a sharded model hide; in the program some wait for others."""
    found = {}
    for layers in (2, 3):
        monkeypatch.setitem(plans.MODELS, "small", SMALL | {"layers": layers})
        monkeypatch.setitem(SMALL, "layers", layers)
        found[layers] = planned(way).step_s, estimated_s(way)
    step_s, wanted_s = (after - before for before, after in zip(found[2], found[3], strict=True))
    assert step_s == pytest.approx(wanted_s, rel=gap)


def test_memory_is_that_of_the_exercise_and_of_will_it_fit():
    for name, sizes in plans.MODELS.items():
        width, heads = sizes["width"], sizes["heads"]
        layer = {"layers": sizes["layers"], "parameters": 12 * width**2}
        kept = {"split": 2048 * (24 * width + 4 * heads), "whole": 2048 * 8 * width}
        for tensor, pipeline, stage in ((1, 1, 0), (4, 1, 1), (1, 1, 3), (2, 8, 1), (8, 1, 2)):
            mesh = {"tensor": tensor, "pipeline": pipeline, "stage": stage}
            made = plans.plan(model=name, cluster=CLUSTER, gpus=64, **mesh)
            said = lesson10.rank_bytes.reference(**layer, **kept, data=made.data, **mesh)
            outer = sizes["vocabulary"] * width / tensor
            states = outer * 12 / (made.data if stage else 1)
            assert made.parts["optimizer"] == pytest.approx(said["optimizer"] + states)
            logits = 8 * sizes["vocabulary"] / tensor * 2048
            more = logits if pipeline == 1 else 0
            assert made.parts["activations"] == pytest.approx(said["activations"] + more)
            assert made.parts["parameters"] >= said["parameters"]


def test_every_setting_gives_a_plan_and_the_fastest_that_fits_is_first():
    explorer = parallel_plan.explore()
    for setting in settings(explorer):
        chosen = explorer.compute(**setting)
        assert chosen.plan.gpus == setting["gpus"] and min(chosen.plan.parts.values()) > 0
        assert all(one.fits for one in chosen.best)
        assert [one.step_s for one in chosen.best] == sorted(one.step_s for one in chosen.best)
        assert ("does not fit" in parallel_plan.describe(chosen)) == (not chosen.plan.fits)
        assert ("No way to split fits" in parallel_plan.describe(chosen)) == (not chosen.best)


def test_what_a_split_costs():
    at = functools.partial(plans.plan, model="Cerebras-GPT 6.7B", cluster=CLUSTER, gpus=64)
    inside, outside = at(tensor=8), at(tensor=16)
    assert outside.times["tensor messages"] > 2 * inside.times["tensor messages"]
    few, many = (at(pipeline=8, sequences=n) for n in (64, 2048))
    share = lambda one: one.times["pipeline"] / one.step_s  # noqa: E731
    assert share(many) < 0.1 < share(few)
    assert at(stage=3).memory_bytes < at(stage=1).memory_bytes < at().memory_bytes
    assert at(recompute=True).parts["activations"] < at().parts["activations"]
    assert at(recompute=True).step_s > at().step_s
    with pytest.raises(ValueError, match="tensor 16 × pipeline 8 does not divide"):
        at(tensor=16, pipeline=8)
