"""Does the explorer of lesson 10 hold and send what ranks hold and send, and what the formulas of ZeRO say?"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import simgpu
from course_utils import counting
from gpu_course.lesson10.explorers import sharding
from ranklaunch import rank_device

BILLIONS = 7_000_000_000
SETTING = {"parameters": BILLIONS, "fmt": "bf16, fp32 copy", "activations_gib": 0.0}


def stages(ranks, **changed):
    return sharding.sharding(stage=0, ranks=ranks, **SETTING | changed).stages


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_a_rank_holds_the_bytes_of_the_paper(ranks):
    """Rajbhandari et al. 2020, figure 1: 16, 4 + 12 / n, 2 + 14 / n and 16 / n bytes a parameter."""
    held = [(one.total_bytes - one.parts["gathered"]) / BILLIONS for one in stages(ranks)]
    assert held == pytest.approx([16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks, 16 / min(ranks, 8)])
    for at, one in enumerate(stages(ranks, activations_gib=2.0)):
        assert one.total_bytes - stages(ranks)[at].total_bytes == pytest.approx(2 * 2**30)
        assert one.parts["gathered"] == (0 if at < 3 else 2 * 2 * BILLIONS / sharding.BLOCKS)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_stages_1_and_2_send_what_data_parallel_does_and_stage_3_half_as_much_again(ranks):
    zero, one, two, three, hybrid = (found.sent_bytes / (2 * BILLIONS) for found in stages(ranks))
    assert [zero, one, two] == pytest.approx([2 * (ranks - 1) / ranks] * 3)
    assert three == pytest.approx(3 * (ranks - 1) / ranks)
    shards = min(ranks, 8)
    copies = ranks // shards
    assert hybrid == pytest.approx(3 * (shards - 1) / shards + 2 * (copies - 1) / copies / shards)


def test_the_time_is_that_of_the_clusters_messages():
    cluster, size = simgpu.Cluster("H100 SXM", between="Ethernet"), 2 * BILLIONS // sharding.BLOCKS
    found = stages(64, between="Ethernet")
    cost = lambda kind, nbytes, ranks: cluster.cost(kind, nbytes, ranks)[0] * sharding.BLOCKS / 1e9  # noqa: E731
    every, machine, across = range(64), range(8), range(0, 64, 8)
    assert found[0].messages_s == pytest.approx(cost("all_reduce", size, every))
    gathers = 2 * cost("all_gather", round(size / 64), every)
    assert found[3].messages_s == pytest.approx(gathers + cost("reduce_scatter", size, every))
    inside = 2 * cost("all_gather", round(size / 8), machine) + cost("reduce_scatter", size, machine)
    assert found[4].messages_s == pytest.approx(inside + cost("all_reduce", round(size / 8), across))


def shard_a_step(copies):
    """Return the parameters and what a rank gives to each collective, in a step of blocks sharded over the others."""
    mesh = init_device_mesh(rank_device().type, (copies, 4 // copies), mesh_dim_names=("copies", "shards"))
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(8))).to(rank_device())
    for unit in [*model, model]:
        fully_shard(unit, mesh=mesh if copies > 1 else mesh["shards"])
    with counting.count() as counts:
        model(torch.ones(4, 64, device=rank_device())).sum().backward()
    return sum(p.numel() for p in model.parameters()), counts.collective_bytes, dist.get_world_size() // copies


@pytest.mark.parametrize("copies", [2, pytest.param(1, marks=pytest.mark.slow)])  # which has one kind of message less
def test_fully_shard_sends_what_the_explorer_says(copies, monkeypatch):
    parameters, counted, shards = simgpu.launch(shard_a_step, copies, nprocs=4, cluster=simgpu.Cluster("H100 SXM"))[0]
    monkeypatch.setattr(sharding, "_MACHINE", shards)
    found = stages(4, parameters=parameters, fmt="fp32")[4]
    gathered, reduced = (shards - 1) * counted["all_gather"], (shards - 1) / shards * counted["reduce_scatter"]
    assert gathered + reduced == pytest.approx(found.inside_bytes, rel=0.01)
    assert 2 * (copies - 1) / copies * counted["all_reduce"] == pytest.approx(found.between_bytes)
    assert (found.between_bytes > 0) == (copies > 1)
