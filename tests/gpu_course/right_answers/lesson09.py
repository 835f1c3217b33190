"""Right answers of lesson 09 that are no edits of the reference."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def gathers_pairs(values):
    mine = torch.tensor([float(values.sum()), float(values.numel())], dtype=values.dtype, device=values.device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    total, count = torch.stack(everyone).sum(dim=0)
    return total / count


def names_sum_and_count(values):
    total = values.sum()
    count = torch.full_like(total, len(values))
    message = torch.cat((total.reshape(1), count.reshape(1)))
    dist.all_reduce(message, op=dist.ReduceOp.SUM)
    total, count = message.unbind()
    mean = total / count
    return mean


def writes_two_rounds(x):
    n = dist.get_world_size()
    me = dist.get_rank()
    right, left = (me + 1) % n, (me - 1) % n
    parts = list(x.clone().tensor_split(n))

    def pass_on(give, take):
        arrived = torch.empty_like(parts[take])
        request = dist.irecv(arrived, left)
        dist.send(parts[give], right) if me % 2 else dist.isend(parts[give], right).wait()
        request.wait()
        return arrived

    for step in range(n - 1):
        take = (me - step - 1) % n
        parts[take] = parts[take] + pass_on((me - step) % n, take)
    for step in range(n - 1):
        take = (me - step) % n
        parts[take] = pass_on((me - step + 1) % n, take)
    return torch.cat(parts)


def keeps_what_travels(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x.clone()
    parts = [part.clone() for part in torch.tensor_split(x, n)]
    at = rank
    travelling = parts[at]
    for step in range(2 * n - 2):
        came = torch.empty_like(parts[at - 1])
        works = [dist.isend(travelling, (rank + 1) % n), dist.irecv(came, (rank + n - 1) % n)]
        for work in works:
            work.wait()
        at = (at - 1) % n
        parts[at] = parts[at] + came if step < n - 1 else came
        travelling = parts[at]
    return torch.cat(parts)


def fills_in_zeros_first(model):
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        if parameter.grad is None:
            parameter.grad = parameter.new_zeros(parameter.shape)
    for parameter in learning:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def waits_for_all_at_the_end(model):
    n = dist.get_world_size()
    waiting = []
    for _, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        waiting.append((parameter, gradient, dist.all_reduce(gradient, async_op=True)))
    for parameter, gradient, work in waiting:
        work.wait()
        parameter.grad = gradient / n


def counts_the_batches(model, batches, loss_fn):
    for parameter in model.parameters():
        parameter.grad = None
    last = len(batches) - 1
    for number, (x, y) in enumerate(batches):
        if number < last:
            with model.no_sync():
                prediction = model(x)
                loss = loss_fn(prediction, y) / (last + 1)
                loss.backward()
        else:
            prediction = model(x)
            loss = loss_fn(prediction, y) / (last + 1)
            loss.backward()


def backward_in_a_helper(model, batches, loss_fn):
    def backward(batch):
        x, y = batch
        loss_fn(model(x), y).div(len(batches)).backward()

    model.zero_grad(set_to_none=True)
    *first, last = batches
    with model.no_sync():
        for batch in first:
            backward(batch)
    backward(last)


def averages_by_hand(model, batches, loss_fn):
    model.zero_grad()
    with model.no_sync():
        for x, y in batches:
            (loss_fn(model(x), y) / len(batches)).backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for parameter, mean in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))


def one_expression(data, batch, epochs):
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch, sampler=sampler)
    return [(sampler.set_epoch(epoch), [rows for rows in loader])[1] for epoch in range(epochs)]


def new_sampler_each_epoch(data, batch, epochs):
    result = []
    n, rank = dist.get_world_size(), dist.get_rank()
    for epoch in range(epochs):
        sampler = DistributedSampler(data, num_replicas=n, rank=rank, seed=epoch)
        batches = []
        for rows in DataLoader(dataset=data, batch_size=batch, sampler=sampler):
            batches.append(rows)
        result.append(batches)
    return result


def means_by_hand(model, data, path, epochs):
    parallel = DistributedDataParallel(model)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    results = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            prediction = parallel(x)
            loss = nn.functional.mse_loss(prediction, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value = loss.detach().clone()
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
        results.append((value / dist.get_world_size()).item())
    if not dist.get_rank():
        torch.save(model.state_dict(), path)
    dist.barrier()
    return results


def gathers_the_losses(model, data, path, epochs):
    model = DistributedDataParallel(model)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    sampler, losses = DistributedSampler(data, shuffle=True), []

    def step(x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            last = step(x, y)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, last)
        losses.append(sum(everyone) / len(everyone))
    if dist.get_rank() == 0:
        state = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
        torch.save(state, path)
    return losses


RIGHT = {
    "global_mean": [gathers_pairs, names_sum_and_count],
    "ring_all_reduce": [writes_two_rounds, keeps_what_travels],
    "average_gradients": [fills_in_zeros_first, waits_for_all_at_the_end],
    "accumulate": [counts_the_batches, backward_in_a_helper, averages_by_hand],
    "epoch_batches": [one_expression, new_sampler_each_epoch],
    "train": [means_by_hand, gathers_the_losses],
}
