"""Further wrong answers to lesson 09, each with what the message must say."""

import torch
import torch.distributed as dist


def _yields(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    yield both[0] / both[1]


def _passes_all_of_it(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        arrived = torch.empty_like(passing)
        sent = dist.isend(passing, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        total, passing = total + arrived, arrived
    return total


def _all_graphs(model, batches, loss_fn):
    model.zero_grad()
    (sum(loss_fn(model(x), y) for x, y in batches) / len(batches)).backward()


def _synchronises_the_first(model, batches, loss_fn):
    model.zero_grad()
    (x, y), *rest = batches
    (loss_fn(model(x), y) / len(batches)).backward()
    with model.no_sync():
        for x, y in rest:
            (loss_fn(model(x), y) / len(batches)).backward()


WRONG = {
    "global_mean": [
        ("rank 0 returned what cannot be sent", _yields),
    ],
    "ring_all_reduce": [
        ("a ring needs at most", _passes_all_of_it),
    ],
    "accumulate": [
        ("graphs of 4 micro-batches are alive", _all_graphs),
        ("rank 0 and rank 1 have different gradients", _synchronises_the_first),
    ],
}
