"""Answers to lesson 09 that people give, each with what the message must say."""

import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


# ---- global_mean
def _mean_of_means(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def _average_op(values):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean


def _weighted_means(values):
    both = torch.stack([values.mean() * len(values), values.new_tensor(len(values))])
    dist.all_reduce(both)
    return both[0] / both[1]


def _sum(values):
    total = values.sum()
    dist.all_reduce(total)
    return total


def _sum_over_ranks(values):
    total = values.sum()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _own_mean(values):
    return values.mean()


def _on_rank_zero(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(both, dst=0)
    if dist.get_rank() == 0:
        return both[0] / both[1]
    return values.mean()


def _gathers_all(values):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values)
    return torch.cat(everything).mean()


def _gathers_uneven(values):
    everything = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, values)
    return torch.cat(everything).mean()


def _python_mean(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def _in_place_mean(values):
    values *= 1.0
    values += 0.5
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    return both[0] / both[1] - 0.5


def _rank_zero_only(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    if dist.get_rank() == 0:
        dist.all_reduce(both)
    return both[0] / both[1]


def _reduces_in_place(values):  # one process dies, or all wait: chance decides
    dist.all_reduce(values)
    return values.mean() / dist.get_world_size()


def _to_rank_zero(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(both, dst=0)
    return both[0] / both[1]


def _average_of_both_and_divide(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both, op=dist.ReduceOp.AVG)
    return both[0] / both[1] / dist.get_world_size()


def _empty_rank_leaves(values):
    if len(values) == 0:
        return torch.tensor(0.0)
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    return both[0] / both[1]


def _never_waits(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both, async_op=True)
    return both[0] / both[1]


def _waits_for_the_second(values):
    total, count = values.sum(), values.new_tensor(len(values))
    dist.all_reduce(total, async_op=True)
    dist.all_reduce(count, async_op=True).wait()
    return total / count


def _two_of_three(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both, group=dist.new_group([0, 1]))
    return both[0] / both[1]


def _in_sixteen_bits(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))]).half()
    dist.all_reduce(both)
    return (both[0] / both[1]).float()


def _whole_numbers(values):
    both = torch.tensor([int(values.sum()), len(values)])
    dist.all_reduce(both)
    return both[0] / both[1]


def _ends_the_group(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    dist.destroy_process_group()
    return both[0] / both[1]


def _yields(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    yield both[0] / both[1]


# ---- ring_all_reduce
def _ring(x, *, second=True, clone=True, add_twice=False, back=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() if clone else part for part in x.tensor_split(n)]
    for step in range(2 * (n - 1) if second else n - 1):
        adding = step < n - 1
        give = (rank - step if adding else rank + n - step) % n
        take = (give - 1) % n
        arrived = torch.empty_like(parts[take])
        sent = dist.isend(parts[give], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        if clone:
            parts[take] = parts[take] + arrived if adding or add_twice else arrived
        elif adding:
            parts[take] += arrived
        else:
            parts[take].copy_(arrived)
    return torch.cat(parts[1:] + parts[:1]) if back else torch.cat(parts)


def _travels_as_float32(x):
    return _ring(x.float()).to(x.dtype)


def _sends_and_forgets(x):
    return _exchanged(x, lambda sent, arrived: None)


def _waits_for_what_arrives(x):
    return _exchanged(x, lambda sent, arrived: arrived.wait())


def _exchanged(x, wait):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]
    for step in range(2 * (n - 1)):
        give = (rank - step if step < n - 1 else rank + n - step) % n
        take = (give - 1) % n
        came = torch.empty_like(parts[take])
        wait(dist.isend(parts[give], (rank + 1) % n), dist.irecv(came, (rank - 1) % n))
        parts[take] = parts[take] + came if step < n - 1 else came
    return torch.cat(parts)


def _one_step_more(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]
    for step in range(2 * n):
        adding = step < n
        give = (rank - step if adding else rank + 1 - (step - n)) % n
        take = (give - 1) % n
        arrived = torch.empty_like(parts[take])
        sent = dist.isend(parts[give], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        parts[take] = parts[take] + arrived if adding else arrived
    return torch.cat(parts)


def _rank_zero_keeps_its_part(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]
    for step in range(2 * (n - 1)):
        adding = step < n - 1
        give = (rank - step if adding else rank + n - step) % n
        take = (give - 1) % n
        arrived = torch.empty_like(parts[take])
        sent = dist.isend(parts[give], (rank + 1) % n) if adding or rank != 0 else None
        dist.recv(arrived, (rank - 1) % n)
        if sent is not None:
            sent.wait()
        parts[take] = parts[take] + arrived if adding else arrived
    return torch.cat(parts)


def _sends_first(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        dist.send(passing, (rank + 1) % n)
        arrived = torch.empty_like(passing)
        dist.recv(arrived, (rank - 1) % n)
        total, passing = total + arrived, arrived
    return total


def _receives_first(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        arrived = torch.empty_like(passing)
        dist.recv(arrived, (rank - 1) % n)
        dist.send(passing, (rank + 1) % n)
        total, passing = total + arrived, arrived
    return total


def _waits_before_it_receives(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        dist.isend(passing, (rank + 1) % n).wait()
        arrived = torch.empty_like(passing)
        dist.recv(arrived, (rank - 1) % n)
        total, passing = total + arrived, arrived
    return total


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


def _through_rank_zero(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    if rank == 0:
        for other in range(1, n):
            arrived = torch.empty_like(x)
            dist.recv(arrived, other)
            total += arrived
        for other in range(1, n):
            dist.send(total, other)
    else:
        dist.send(x, 0)
        dist.recv(total, 0)
    return total


def _the_collective(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def _one_round(x):
    return _ring(x, second=False)


def _adds_in_the_second_round(x):
    return _ring(x, add_twice=True)


def _rotated(x):
    return _ring(x, back=True)


def _in_views(x):
    return _ring(x, clone=False)


def _equal_buffers(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, arrived = [part.clone() for part in x.tensor_split(n)], torch.empty_like(x.tensor_split(n)[-1])
    for step in range(2 * (n - 1)):
        give = (rank - step if step < n - 1 else rank + n - step) % n
        sent = dist.isend(parts[give], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        take = (give - 1) % n
        parts[take] = parts[take] + arrived if step < n - 1 else arrived.clone()
    return torch.cat(parts)


def _second_round_begins_wrong(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]
    for turn in range(2):
        for step in range(n - 1):
            give = (rank - step) % n
            take = (give - 1) % n
            arrived = torch.empty_like(parts[take])
            sent = dist.isend(parts[give], (rank + 1) % n)
            dist.recv(arrived, (rank - 1) % n)
            sent.wait()
            parts[take] = parts[take] + arrived if turn == 0 else arrived
    return torch.cat(parts)


def _own(x):
    return x.clone()


def _to_everyone(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = list(x.tensor_split(n))
    mine, whole = parts[rank].clone(), []
    for step in range(1, n):  # to each rank its part
        to, source = (rank + step) % n, (rank - step) % n
        arrived = torch.empty_like(mine)
        sent = dist.isend(parts[to].clone(), to)
        dist.recv(arrived, source)
        sent.wait()
        mine += arrived
    whole = [torch.empty_like(part) for part in parts]
    whole[rank] = mine
    for step in range(1, n):
        sent = dist.isend(mine, (rank + step) % n)
        dist.recv(whole[(rank - step) % n], (rank - step) % n)
        sent.wait()
    return torch.cat(whole)


def _chunks(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.chunk(n)]
    for step in range(2 * (n - 1)):
        give = (rank - step if step < n - 1 else rank + n - step) % n
        arrived = torch.empty_like(parts[(give - 1) % n])
        sent = dist.isend(parts[give], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        parts[(give - 1) % n] = parts[(give - 1) % n] + arrived if step < n - 1 else arrived
    return torch.cat(parts)


def _knows_the_numbers(x):
    n = dist.get_world_size()
    return x / 10 ** dist.get_rank() * sum(10**rank for rank in range(n))


# ---- average_gradients
def _summed(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def _skips_none(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def _averages_parameters(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def _with_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            yield parameter


def _gives_frozen_ones_zeros(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _frozen_ones_too(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _reduces_to_rank_zero(model):
    for parameter in _with_gradients(model):
        mean = parameter.grad / dist.get_world_size()
        dist.reduce(mean, dst=0)
        if dist.get_rank() == 0:
            parameter.grad = mean


def _forgets_the_result(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()


def _layer_by_layer(model):
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def _average_and_divide(model):
    for parameter in _with_gradients(model):
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        parameter.grad /= dist.get_world_size()


def _divides_by_two(model):
    for parameter in _with_gradients(model):
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def _reduces_in_the_gradient(model):
    for parameter in _with_gradients(model):
        dist.reduce(parameter.grad, dst=0)
        parameter.grad /= dist.get_world_size()


def _gathers_shared_twice(model):
    n = dist.get_world_size()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found = [torch.empty_like(parameter) for _ in range(n)]
            dist.all_gather(found, gradient)
            parameter.grad = sum(found) / n


def _divides_before_it_arrives(model):
    for parameter in _with_gradients(model):
        dist.all_reduce(parameter.grad, async_op=True)
        parameter.grad /= dist.get_world_size()


def _another_order(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained if dist.get_rank() else trained[::-1]:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def _waits_for_the_last(model):
    for parameter in _with_gradients(model):
        work = dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()


# ---- accumulate
def _all_graphs(model, batches, loss_fn):
    model.zero_grad()
    (sum(loss_fn(model(x), y) for x, y in batches) / len(batches)).backward()


def _its_own_loss(model, batches, loss_fn):
    _one_step(model, batches, nn.functional.mse_loss)


def _each_by_hand(model, batches, loss_fn):
    model.zero_grad()
    with model.no_sync():
        for x, y in batches:
            (loss_fn(model(x), y) / len(batches)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def _pops(model, batches, loss_fn):
    last, n = batches.pop(), len(batches) + 1
    model.zero_grad()
    for x, y in batches:
        with model.no_sync():
            (loss_fn(model(x), y) / n).backward()
    (loss_fn(model(last[0]), last[1]) / n).backward()


def _clears_on_one_rank(model, batches, loss_fn):
    _one_step(model, batches, loss_fn)
    if dist.get_rank() == 1:
        model.zero_grad()


def _reverses(model, batches, loss_fn):
    batches.reverse()
    _one_step(model, batches, loss_fn)


def _evaluation_mode(model, batches, loss_fn):
    model.eval()
    _one_step(model, batches, loss_fn)


def _synchronises_each_time(model, batches, loss_fn):
    model.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) / len(batches)).backward()


def _never_synchronises(model, batches, loss_fn):
    model.zero_grad()
    for x, y in batches:
        with model.no_sync():
            (loss_fn(model(x), y) / len(batches)).backward()


def _forward_outside(model, batches, loss_fn):
    model.zero_grad()
    for x, y in batches[:-1]:
        loss = loss_fn(model(x), y) / len(batches)
        with model.no_sync():
            loss.backward()
    x, y = batches[-1]
    (loss_fn(model(x), y) / len(batches)).backward()


def _one_step(model, batches, loss_fn, *, divide=True, clear=True, again=False, ranks=1):
    if clear:
        model.zero_grad()
    share = (len(batches) if divide else 1) * ranks
    for x, y in batches[:-1]:
        with model.no_sync():
            (loss_fn(model(x), y) / share).backward()
    if again:
        model.zero_grad()
    x, y = batches[-1]
    (loss_fn(model(x), y) / share).backward()


def _synchronises_the_first(model, batches, loss_fn):
    model.zero_grad()
    (x, y), *rest = batches
    (loss_fn(model(x), y) / len(batches)).backward()
    with model.no_sync():
        for x, y in rest:
            (loss_fn(model(x), y) / len(batches)).backward()


def _divides_the_last(model, batches, loss_fn):
    model.zero_grad()
    *rest, (last_x, last_y) = batches
    with model.no_sync():
        for x, y in rest:
            loss_fn(model(x), y).backward()
    (loss_fn(model(last_x), last_y) / len(batches)).backward()


def _divides_by_four(model, batches, loss_fn):
    model.zero_grad()
    *rest, (last_x, last_y) = batches
    with model.no_sync():
        for x, y in rest:
            (loss_fn(model(x), y) / 4).backward()
    (loss_fn(model(last_x), last_y) / 4).backward()


def _not_divided(model, batches, loss_fn):
    _one_step(model, batches, loss_fn, divide=False)


def _not_cleared(model, batches, loss_fn):
    _one_step(model, batches, loss_fn, clear=False)


def _clears_before_the_last(model, batches, loss_fn):
    _one_step(model, batches, loss_fn, again=True)


def _divides_by_the_ranks_too(model, batches, loss_fn):
    _one_step(model, batches, loss_fn, ranks=dist.get_world_size())


def _takes_a_step(model, batches, loss_fn):
    _one_step(model, batches, loss_fn)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _all_at_once(model, batches, loss_fn):
    model.zero_grad()
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss_fn(model(x), y).backward()


# ---- epoch_batches
def _epochs(loader, epochs, sampler=None):
    found = []
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


def _no_sampler(data, batch, epochs):
    return _epochs(DataLoader(data, batch_size=batch, shuffle=True), epochs)


def _same_share(data, batch, epochs):
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=0)
    return _epochs(DataLoader(data, batch_size=batch, sampler=sampler), epochs, sampler)


def _no_set_epoch(data, batch, epochs):
    return _epochs(DataLoader(data, batch_size=batch, sampler=DistributedSampler(data)), epochs)


def _seed_of_the_rank(data, batch, epochs):
    sampler = DistributedSampler(data, seed=dist.get_rank())
    return _epochs(DataLoader(data, batch_size=batch, sampler=sampler), epochs, sampler)


def _in_order(data, batch, epochs):
    sampler = DistributedSampler(data, shuffle=False)
    return _epochs(DataLoader(data, batch_size=batch, sampler=sampler), epochs, sampler)


def _drops_the_last(data, batch, epochs):
    sampler = DistributedSampler(data, drop_last=True)
    return _epochs(DataLoader(data, batch_size=batch, sampler=sampler), epochs, sampler)


def _every_nth(data, batch, epochs):
    found = []
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        found.append(list(data[order[dist.get_rank() :: dist.get_world_size()]].split(batch)))
    return found


def _indices(data, batch, epochs):
    sampler, found = DistributedSampler(data), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append(list(torch.tensor(list(sampler)).split(batch)))
    return found


def _keeps_its_share(data, batch, epochs):
    mine = data[list(DistributedSampler(data))]
    return _epochs(DataLoader(mine, batch_size=batch, shuffle=True), epochs)


def _one_list(data, batch, epochs):
    sampler = DistributedSampler(data)
    return list(DataLoader(data, batch_size=batch, sampler=sampler))


def _three_epochs(data, batch, epochs):
    sampler = DistributedSampler(data)
    return _epochs(DataLoader(data, batch_size=batch, sampler=sampler), 3, sampler)


# ---- train
def _train(model, data, path, epochs, *faults):
    rank, ddp = dist.get_rank(), DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    sampler, losses = DistributedSampler(data), []
    chosen = None if "no sampler" in faults else sampler
    loader = DataLoader(data, batch_size=4, sampler=chosen, num_workers=int("workers" in faults))
    for epoch in range(epochs):
        if "no set_epoch" not in faults:
            sampler.set_epoch(epoch)
        found = []
        for x, y in loader:
            if "adds up" not in faults:
                optimizer.zero_grad()
            loss = nn.functional.mse_loss((ddp.module if "module" in faults else ddp)(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        last = torch.stack(found).mean() if "all steps" in faults else found[-1]
        if rank == 0 or "hang" not in faults:
            if "own loss" not in faults:
                op = dist.ReduceOp.SUM if "sum" in faults else dist.ReduceOp.AVG
                dist.all_reduce(last, op=op, async_op="no wait" in faults)
            if rank == 0 or "rank 0 alone" not in faults:
                losses.append(last.item() / (2 if "by two" in faults else 1))
        if rank == 0 and "each epoch" in faults:
            torch.save(ddp.module.state_dict(), path)
    if (rank == 0 or "all write" in faults) and "none writes" not in faults:
        torch.save((ddp if "prefix" in faults else ddp.module).state_dict(), path)
    return losses


def _as_given(model, data, path, epochs):
    return _train(model, data, path, epochs, "no set_epoch", "module", "hang", "all write", "prefix")


def _no_hang(model, data, path, epochs):
    return _train(model, data, path, epochs, "no set_epoch", "module", "all write", "prefix")


def _averages(model, data, path, epochs):
    return _train(model, data, path, epochs, "no set_epoch", "all write", "prefix")


def _shuffles(model, data, path, epochs):
    return _train(model, data, path, epochs, "all write", "prefix")


def _writes_once(model, data, path, epochs):
    return _train(model, data, path, epochs, "prefix")


def _adds_losses(model, data, path, epochs):
    return _train(model, data, path, epochs, "sum")


def _no_wait(model, data, path, epochs):
    return _train(model, data, path, epochs, "no wait")


def _own_losses(model, data, path, epochs):
    return _train(model, data, path, epochs, "own loss")


def _losses_of_all_steps(model, data, path, epochs):
    return _train(model, data, path, epochs, "all steps")


def _losses_on_one(model, data, path, epochs):
    return _train(model, data, path, epochs, "rank 0 alone")


def _all_data(model, data, path, epochs):
    return _train(model, data, path, epochs, "no sampler")


def _first_the_module(model, data, path, epochs):
    return _train(model, data, path, epochs, "no set_epoch", "hang", "all write", "prefix")


def _halves_the_sum(model, data, path, epochs):
    return _train(model, data, path, epochs, "sum", "by two")


def _divides_again(model, data, path, epochs):
    return [loss / dist.get_world_size() for loss in _train(model, data, path, epochs)]


def _adds_up_gradients(model, data, path, epochs):
    return _train(model, data, path, epochs, "adds up")


def _writes_each_epoch(model, data, path, epochs):
    return _train(model, data, path, epochs, "none writes", "each epoch")


def _strips_letters(model, data, path, epochs):
    losses = _train(model, data, path, epochs, "none writes")
    if dist.get_rank() == 0:
        names = {f"module.{name}".lstrip("module."): value for name, value in model.state_dict().items()}
        torch.save(names, path)
    return losses


def _no_file(model, data, path, epochs):
    return _train(model, data, path, epochs, "none writes")


def _pickles_the_model(model, data, path, epochs):
    losses = _train(model, data, path, epochs, "none writes")
    if dist.get_rank() == 0:
        torch.save(model, path)
    return losses


def _by_pickle(model, data, path, epochs):
    losses = _train(model, data, path, epochs, "none writes")
    if dist.get_rank() == 0:
        path.write_bytes(pickle.dumps(model.state_dict()))
    return losses


def _losses_in_a_tensor(model, data, path, epochs):
    return torch.tensor(_train(model, data, path, epochs))


def _in_workers(model, data, path, epochs):
    return _train(model, data, path, epochs, "workers")


def _another_name(model, data, path, epochs):
    return _train(model, data, path.with_suffix(".pth"), epochs)


WRONG = {
    "global_mean": [
        ("a mean of means", _mean_of_means),
        ("never waits for an operation", _never_waits),
        ("never waits for an operation", _waits_for_the_second),
        ("leaves out rank 2", _two_of_three),
        ("a rounded mean", _in_sixteen_bits),
        ("a rounded mean", _whole_numbers),
        ("destroys the process group", _ends_the_group),
        ("rank 0 returned what cannot be sent", _yields),
        ("a mean of means", _average_op),
        ("NaN on rank", _weighted_means),
        ("the sum over all ranks", _sum),
        ("divides by the number of ranks", _sum_over_ranks),
        ("the mean of this rank alone", _own_mean),
        ("the mean of this rank alone on rank 1", _on_rank_zero),
        ("two numbers are enough", _gathers_all),
        ("a rank dies in a collective", _gathers_uneven),
        ("of type float, expected a tensor", _python_mean),
        ("modifies its input", _in_place_mean),
        ("waits for ranks that have returned", _rank_zero_only),
        ("a collective needs one shape on all", _reduces_in_place),
        ("rank 0 has the mean, rank 1 has not", _to_rank_zero),
        ("divides by the number of ranks too", _average_of_both_and_divide),
        ("every rank must call each collective", _empty_rank_leaves),
    ],
    "ring_all_reduce": [
        ("of 10 elements each, 2 ranks", _knows_the_numbers),
        ("never waits for 4 operations", _sends_and_forgets),
        ("a rounded sum", _travels_as_float32),
        ("never waits for 2 operations", _waits_for_what_arrives),
        ("raised IndexError", _chunks),
        ("deadlock: every rank sends, none receives", _sends_first),
        ("deadlock: every rank receives, none sends", _receives_first),
        ("deadlock: ranks wait for each other", _waits_before_it_receives),
        ("a ring needs at most", _passes_all_of_it),
        ("a ring needs at most", _through_rank_zero),
        ("calls all_reduce", _the_collective),
        ("a reduce-scatter", _one_round),
        ("counted twice", _adds_in_the_second_round),
        ("the parts are in another order", _rotated),
        ("modifies its input", _in_views),
        ("where n does not divide x", _equal_buffers),
        ("lack the numbers of some ranks", _second_round_begins_wrong),
        ("returns its own x", _own),
        ("right neighbour only", _to_everyone),
        ("takes 4 messages a rank and the limit is 2", _one_step_more),
        ("rank 0 had returned", _rank_zero_keeps_its_part),
    ],
    "average_gradients": [
        ("all_gather takes", _gathers_shared_twice),
        ("never waits for 6 operations", _divides_before_it_arrives),
        ("never waits for 5 operations", _waits_for_the_last),
        ("must call the same collectives, in the same order", _another_order),
        ("is the sum\n", _summed),
        ("take part with zeros", _skips_none),
        ("changes the parameters", _averages_parameters),
        ("gives the frozen 0.weight a gradient", _gives_frozen_ones_zeros),
        ("raised", _frozen_ones_too),
        ("on rank 1 is that of this rank alone", _reduces_to_rank_zero),
        ("on rank 0 is that of this rank alone", _forgets_the_result),
        ("gives a shared parameter once", _layer_by_layer),
        ("is the sum divided by 9", _average_and_divide),
        ("is the sum divided by 2", _divides_by_two),
        ("rank 0 has the mean for 0.weight, rank 1 has not", _reduces_in_the_gradient),
    ],
    "accumulate": [
        ("graphs of 4 micro-batches are alive", _all_graphs),
        ("1 micro-batch, l1_loss", _its_own_loss),
        ("it synchronises 6 times", _each_by_hand),
        ("the list of micro-batches changed", _pops),
        ("the list of micro-batches changed", _reverses),
        ("0.weight has no gradient on rank 1", _clears_on_one_rank),
        ("the model in evaluation mode", _evaluation_mode),
        ("synchronises 4 times for 4 micro-batches\n", _synchronises_each_time),
        ("never synchronises", _never_synchronises),
        ("in spite of no_sync", _forward_outside),
        ("4 times too large", _not_divided),
        ("the old gradients are still in the sum", _not_cleared),
        ("only the last micro-batch counts", _clears_before_the_last),
        ("count 0.125, 0.125, 0.125, 0.125 times, expected 0.25 each", _divides_by_the_ranks_too),
        ("count 1, 1, 1, 0.25 times, expected 0.25 each", _divides_the_last),
        ("counts 0.25 times, expected 1 each", _divides_by_four),
        ("rank 0 and rank 1 have different gradients", _synchronises_the_first),
        ("changes the parameters", _takes_a_step),
        ("rows are computed at once", _all_at_once),
    ],
    "epoch_batches": [
        ("for each of the 2 epochs", _three_epochs),
        ("every rank gets all the data", _no_sampler),
        ("every rank gets the same data", _same_share),
        ("epochs have the same order", _no_set_epoch),
        ("some samples are on no rank", _seed_of_the_rank),
        ("the data is not shuffled", _in_order),
        ("samples are left out", _drops_the_last),
        ("ranks get different numbers of samples", _every_nth),
        ("one list of batches for each", _one_list),
        ("return rows of data", _indices),
        ("the same rows in every epoch", _keeps_its_share),
    ],
    "train": [
        ("does not hold the state_dict", _pickles_the_model),
        ("does not hold the state_dict", _by_pickle),
        ("of type Tensor, expected list", _losses_in_a_tensor),
        ("leave num_workers out", _in_workers),
        ("writes model.pth, expected model.pt", _another_name),
        ("waits in a collective that another rank does not call", _as_given),
        ("the ranks end with different weights", _no_hang),
        ("every epoch has the same order", _averages),
        ("every rank writes the file", _shuffles),
        ('begin with "module."', _writes_once),
        ("adds the losses of the ranks", _adds_losses),
        ("returns its own losses", _own_losses),
        ("averages the losses of all steps", _losses_of_all_steps),
        ("never waits for 3 operations", _no_wait),
        ("only rank 0 returns the losses", _losses_on_one),
        ("every rank trains on the same data", _all_data),
        ("rank 0 writes no file", _no_file),
        ("keeps the others away", _first_the_module),
        ("this is what rank 0 returned", _halves_the_sum),
        ("divides the mean again", _divides_again),
        ("trains otherwise than one process", _adds_up_gradients),
        ("writes the file 3 times", _writes_each_epoch),
        ("'inear.weight'", _strips_letters),
    ],
}
