"""Does `memory.measure` on ranks give what the forecast says, and what PyTorch's own tracker counts?"""

import functools

import pytest
import torch

from course_utils import memory
from ranklaunch import launch, rank_device
from tests.simgpu import strategies
from tests.simgpu.test_cluster import SLOW, WAYS, forecast, one_step, third_step


def peak_of(step, device):
    """Return the least peak of three steps: the thread of a message may hold its buffer after the message has ended."""
    return min(memory.measure(step, device=device).peak_bytes for _ in range(3))


def peak_on_rank(way, blocks):
    """Return the peak of a step on this rank, after two others."""
    return peak_of(third_step(way, blocks), rank_device())


@pytest.mark.parametrize("way", ["fsdp", *(pytest.param(way, marks=SLOW) for way in WAYS if way != "fsdp")])
def test_a_forecast_of_memory_for_one_of_many_ranks_is_what_a_rank_measures(way):
    """Within 2 %: where DTensor waits for a result at its first use, its input lives as long, 1,280 bytes here."""
    measured, found = launch(peak_on_rank, way, 8, nprocs=4)[0], forecast(way, 8, device="cpu").memory
    assert found.peak_bytes == pytest.approx(measured, rel=0.02)


def counted_twice():
    """Return the peak of a step under FSDP2 by `memory.measure`, and by PyTorch's own tracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    model, batch = strategies.shared("fsdp", torch.device("cpu"), 6), strategies.batch(0)
    optimizer = torch.optim.AdamW(model.parameters())
    step = functools.partial(one_step, model, batch, optimizer)
    step()
    counted = []
    for _ in range(3):
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((batch,))
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        total = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
        counted.append(next(size for key, size in total.items() if "Total" in str(key)))
    return peak_of(step, torch.device("cpu")), min(counted)


def test_measured_memory_under_fsdp_is_what_pytorchs_tracker_counts():
    for measured, tracked in launch(counted_twice):
        assert measured == pytest.approx(tracked, rel=0.02)


def reads_its_shards():
    """Return the bytes at the peak while this rank reads the shards of a model's parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(64, 64), mesh=init_device_mesh("cpu", (2,)))
    return memory.measure(lambda: [p.to_local().sum().item() for p in model.parameters()], device="cpu").peak_bytes


def test_what_a_sharded_parameter_holds_is_no_leaf_and_is_measured_all_the_same():
    assert all(peak >= 4 * 65 * 32 for peak in launch(reads_its_shards, nprocs=2, devices=["cpu"] * 2))
