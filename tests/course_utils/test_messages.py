"""Programs on several ranks whose messages are known: `counting` counts exactly those, on each rank."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import counting
from ranklaunch import launch


def counted(fn, nprocs=2):
    """Return the counts of each rank."""

    def run():
        with counting.count() as counts:
            fn()
        return counts

    return launch(run, nprocs=nprocs)


def test_messages_from_one_rank_to_another():
    def ring():
        rank, world = dist.get_rank(), dist.get_world_size()
        x, y = torch.full((5,), float(rank)), torch.empty(5)
        for _ in range(3):
            sent = dist.isend(x, (rank + 1) % world)
            dist.recv(y, (rank - 1) % world)
            sent.wait()

    for rank, counts in enumerate(counted(ring, nprocs=3)):
        assert (counts.messages, counts.message_bytes, counts.receives) == (3, 60, 3)
        assert counts.messages_to == {(rank + 1) % 3: 3}
        assert not counts.collectives
        assert "messages 3 (60 bytes)" in str(counts)


def test_a_batch_of_messages_and_a_receive_from_anybody():
    def talk():
        rank, x = dist.get_rank(), torch.ones(2)
        other = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, torch.empty(2), 1 - rank)]
        for work in dist.batch_isend_irecv(other):
            work.wait()
        dist.send(x, 0) if rank else dist.recv(x)

    first, second = counted(talk)
    assert (first.messages, first.receives) == (1, 2)
    assert (second.messages, second.receives) == (2, 1)


def test_collectives_are_counted_by_name_with_the_part_of_each_rank():
    def everything():
        rank, x = dist.get_rank(), torch.ones(6)
        parts = [torch.zeros(6) for _ in range(2)]
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather(parts, x)
        dist.gather(x, parts if rank == 0 else None, dst=0)
        dist.scatter(x, parts if rank == 0 else None, src=0)
        dist.reduce_scatter(x[:3].clone(), list(x.clone().chunk(2)))
        dist.all_to_all_single(torch.empty(6), x)
        dist.barrier()

    sizes = {"all_reduce": 48, "broadcast": 24, "reduce": 24, "all_gather": 24, "gather": 24, "scatter": 24}
    sizes |= {"reduce_scatter": 24, "all_to_all": 24, "barrier": 0}
    for counts in counted(everything):
        assert counts.collectives == {name: 2 if name == "all_reduce" else 1 for name in sizes}
        assert counts.collective_bytes == sizes
        assert "all_reduce 2 (48 bytes)" in str(counts)
        assert not any("c10d" in name for name in counts.by_operator)


def test_functional_collectives_count_the_same():
    def functional():
        from torch.distributed import _functional_collectives as collectives

        x, group = torch.ones(4), dist.group.WORLD
        y = collectives.all_reduce(x, "sum", group) + collectives.all_to_all_single(x, None, None, group)
        collectives.all_gather_tensor(y, 0, group)
        collectives.reduce_scatter_tensor(y, "sum", 0, group).wait()

    for counts in counted(functional):
        assert counts.collectives == {"all_reduce": 1, "all_to_all": 1, "all_gather": 1, "reduce_scatter": 1}
        assert set(counts.collective_bytes.values()) == {16}


@pytest.mark.parametrize("bucket_mb", [0.5, 100])
def test_accumulation_with_no_sync_communicates_once(bucket_mb):
    def train():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(500, 500, bias=False), nn.Linear(500, 500, bias=False))
        model = DistributedDataParallel(layers, bucket_cap_mb=bucket_mb)
        x = torch.ones(2, 500)
        model(x).sum().backward()  # the first backward pass decides on the order of the buckets
        model(x).sum().backward()
        with counting.count() as quiet, model.no_sync():
            model(x).sum().backward()
        with counting.count() as loud:
            model(x).sum().backward()
        return quiet, loud

    for quiet, loud in launch(train):
        assert quiet.collectives["all_reduce"] == 0
        assert loud.collectives["all_reduce"] == (2 if bucket_mb < 1 else 1)
        assert loud.collective_bytes["all_reduce"] == 2 * 500 * 500 * 4
