import json

import pytest
import strategies
import torch
import torch.distributed as dist

from course_utils import simulator
from course_utils.launch import RankError, launch, rank_device

H100 = simulator.Cluster("H100 SXM", per_machine=2)
SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"]


def assert_equal(found: list[dict], expected: dict) -> None:
    """Each rank has parameters and gradients of all, or of its own stages; together they are those of one process."""
    together = {name: value for of_rank in found for name, value in of_rank.items()}
    assert together.keys() == expected.keys()
    for of_rank in found:
        for name, value in of_rank.items():
            assert (value is None) == (expected[name] is None), name
            if value is not None:
                torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


SHARED = [
    (strategies.by_hand, 2), (strategies.ddp, 2), (strategies.fsdp, 4), (strategies.tensor_parallel, 2),
    (strategies.fsdp_and_tensor_parallel, 4),
]  # fmt: skip


@pytest.mark.parametrize("cluster", [H100, None], ids=["sim", "gloo"])
@pytest.mark.parametrize(("way", "ranks"), SHARED, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_share_the_work_trains_as_one_process(way, ranks, cluster):
    assert_equal(launch(way, nprocs=ranks, cluster=cluster), strategies.one_process())


def test_a_pipeline_by_hand_trains_as_one_process():
    assert_equal(launch(strategies.pipeline_by_hand, nprocs=2, cluster=H100), strategies.pipeline_alone(2))


@pytest.mark.parametrize("name", [*SCHEDULES[:3], *(pytest.param(one, marks=pytest.mark.slow) for one in SCHEDULES[3:])])
def test_schedules_of_pytorch_train_as_one_process(name):
    layers = 2 if name in SCHEDULES[:2] else 4
    assert_equal(launch(strategies.pipeline, name, cluster=H100), strategies.pipeline_alone(layers))
