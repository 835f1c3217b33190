"""Further wrong answers to lesson 09, each with what the message must say."""

import torch
import torch.distributed as dist

from gpu_course.checks import edit


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


# fmt: off
_BOTH, _REDUCE = "torch.stack([values.sum(), values.new_tensor(len(values))])", "dist.all_reduce(both)"
_RATIO = "both[0] / both[1]"
_GATHER = "found = [torch.empty_like({0}) for _ in range(dist.get_world_size())]; dist.all_gather(found, {0})"
_OBJECTS = "found = [None] * dist.get_world_size(); dist.all_gather_object(found, {})"

_SEND, _RECV = "sent = dist.isend(parts[give], (rank + 1) % n)", "dist.recv(arrived, (rank - 1) % n)"
_PUT, _BEFORE = "parts[take] = parts[take] + arrived if adding else arrived", "    parts = ["

_PARAMETERS, _IF, _NONE = "model.parameters()", "if parameter.requires_grad:", "if parameter.grad is None:"
_SUM, _DIVIDE = "dist.all_reduce(parameter.grad)", "parameter.grad /= dist.get_world_size()"
_AVERAGE = "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)"

_CLEAR, _LAST, _AFTER = "model.zero_grad()", "x, y = batches[-1]\n    ", ".backward()  # adds"

_SAMPLER, _LOADER = "DistributedSampler(data)", "DataLoader(data, batch_size=batch, sampler=sampler)"

_EPOCH, _MODULE, _HANG = ("sampler.set_epoch(epoch)", "pass"), ("ddp(x)", "ddp.module(x)"), (
    "        dist.all_reduce(last, op=dist.ReduceOp.AVG)  # 3: on every rank, else one waits for ever\n        losses",
    "        if dist.get_rank() == 0:\n            dist.all_reduce(last, op=dist.ReduceOp.AVG)\n            losses")
_ALL, _PREFIX = ("if dist.get_rank() == 0:  # 4", "if True:  # 4"), ("ddp.module.state_dict()", "ddp.state_dict()")
_SAVE = "torch.save(ddp.module.state_dict(), path)"

WRONG = {
    "global_mean": [
        ("never waits for an operation", edit(_REDUCE, "dist.all_reduce(both, async_op=True)")),
        ("destroys the process group", edit(_REDUCE, f"{_REDUCE}; dist.destroy_process_group()")),
        ("rank 0 returned what cannot be sent", _yields),
        ("two numbers are enough", edit(_BOTH, "None", _REDUCE, _OBJECTS.format("values"),
                                        _RATIO, "torch.cat(found).mean()")),
        ("a rank dies", edit(_REDUCE, _GATHER.format("values"), _RATIO, "torch.cat(found).mean()")),
        ("modifies its input", edit("both = ", "values += 0.5; both = ", _RATIO, f"{_RATIO} - 0.5")),
        ("waits for ranks that have returned", edit(_REDUCE, f"_ = dist.get_rank() or {_REDUCE}")),
        # one process dies, or all wait: chance decides
        ("a collective needs one shape on all", edit(_REDUCE, "dist.all_reduce(values)")),
    ],
    "ring_all_reduce": [
        ("1 rank,", edit(_BEFORE, f"    if n == 1: return None\n{_BEFORE}")),
        ("never waits for 4 operations", edit("sent = ", "", "recv(", "irecv(", "sent.wait()", "pass")),
        ("never waits for 2 operations", edit("sent.wait()", "pass")),
        ("raised IndexError", edit("tensor_split(n)", "chunk(n)")),
        ("deadlock: every rank sends, none receives", edit("sent = dist.isend", "dist.send", "sent.wait()", "pass")),
        ("deadlock: every rank receives, none sends",
         edit(f"        {_RECV}\n", "", _SEND, f"{_RECV}; dist.send(parts[give], (rank + 1) % n)", "sent.wait()", "")),
        ("deadlock: ranks wait for each other", edit(_SEND, f"{_SEND}; sent.wait()")),
        ("a ring needs at most", _passes_all_of_it),
        ("calls all_reduce", edit(_BEFORE, f"    total = x.clone(); dist.all_reduce(total); return total\n{_BEFORE}")),
        ("modifies its input", edit("part.clone() for", "part for",
                                    _PUT, "parts[take].copy_(parts[take] + arrived if adding else arrived)")),
        ("where n does not divide x", edit("empty_like(parts[take])", "empty_like(parts[-1])")),
        ("right neighbour only", edit("dist.get_rank(),", "-dist.get_rank() % dist.get_world_size(),",
                                      "(rank + 1)", "-(rank + 1)", "(rank - 1)", "-(rank - 1)")),
        ("takes 4 messages a rank and the limit is 2",
         edit("2 * (n - 1)", "2 * n", "step < n - 1", "step < n", "rank - step", "rank + (not adding) - step")),
        ("rank 0 had returned", edit(_SEND, f"{_SEND} if adding or rank else None",
                                     "sent.wait()", "_ = sent and sent.wait()")),
    ],
    "average_gradients": [
        ("all_gather takes", edit(_PARAMETERS, "dict(model.named_parameters(remove_duplicate=False)).values()",
                                  _SUM, f"{_GATHER.format('parameter.grad')}; parameter.grad = sum(found)")),
        ("never waits for 6 operations", edit(_SUM, "dist.all_reduce(parameter.grad, async_op=True)")),
        ("never waits for 5 operations",
         edit(_SUM, "work = dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True)",
              _DIVIDE, f"_ = parameter is list({_PARAMETERS})[-1] and work.wait()")),
        ("must call the same collectives, in the same order",
         edit(_PARAMETERS, f"list({_PARAMETERS})[:: 1 if dist.get_rank() else -1]")),
        ("changes the parameters",
         edit(_SUM, "dist.all_reduce(parameter.data)", _DIVIDE, "parameter.data /= dist.get_world_size()")),
        ("gives the frozen 0.weight a gradient", edit(_IF, "if True:")),
        ("raised", edit(_IF, "if True:", _NONE, "if False:")),
        ("changes requires_grad of the frozen", edit(_IF, f"{_IF[:-1]} or parameter.requires_grad_() is None:")),
        ("0.weight on rank 0 is None", edit(_DIVIDE, "parameter.grad = None")),
    ],
    "accumulate": [
        ("graphs of 4 micro-batches are alive", _all_graphs),
        ("it synchronises 6 times",
         edit("batches[:-1]", "batches", f"{_LAST}(loss_fn(model(x), y) / len(batches)).backward()",
              f"for parameter in {_PARAMETERS}: {_AVERAGE}")),
        ("the list of micro-batches changed", edit(_AFTER, ".backward(); batches.pop()  # adds")),
        ("0.weight has no gradient on rank 1",
         edit(_AFTER, f".backward(); _ = dist.get_rank() == 0 or {_CLEAR}  # adds")),
        ("the model in evaluation mode", edit(_CLEAR, f"model.eval(); {_CLEAR}")),
        ("the synchronisation switched off",
         edit(_AFTER, ".backward(); model.require_backward_grad_sync = False  # adds")),
        ("synchronises 4 times for 4 micro-batches\n", edit("with model.no_sync():", "if True:")),
        ("never synchronises", edit(_LAST, f"{_LAST}with model.no_sync(): ")),
        ("rank 0 and rank 1 have different gradients", _synchronises_the_first),
        ("changes the parameters", edit(_AFTER, f".backward(); torch.optim.SGD({_PARAMETERS}, lr=0.1).step()  # adds")),
        ("rows are computed at once",
         edit(_CLEAR, f"{_CLEAR}; batches = [[torch.cat(parts) for parts in zip(*batches)]]")),
    ],
    "epoch_batches": [
        ("for each of the 2 epochs", edit("range(epochs)", "range(3)")),
        ("every rank gets all the data", edit("sampler=sampler", "shuffle=True")),
        ("every rank gets the same data",
         edit(_SAMPLER, "DistributedSampler(data, num_replicas=dist.get_world_size(), rank=0)")),
        ("epochs have the same order", edit("sampler.set_epoch(epoch)", "pass")),
        ("some samples are on no rank", edit(_SAMPLER, "DistributedSampler(data, seed=dist.get_rank())")),
        ("the data is not shuffled", edit(_SAMPLER, "DistributedSampler(data, shuffle=False)")),
        ("samples are left out", edit(_SAMPLER, "DistributedSampler(data, drop_last=True)")),
        ("ranks get different numbers of samples",
         edit("list(loader)", "list(data[torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))"
              "[dist.get_rank() :: dist.get_world_size()]].split(batch))")),
        ("return rows of data", edit("list(loader)", "list(torch.tensor(list(sampler)).split(batch))")),
        ("the same rows in every epoch",
         edit(_LOADER, "DataLoader(data[list(sampler)], batch_size=batch, shuffle=True)")),
        ("has batches of", edit("batch_size=batch", "batch_size=batch + 1")),
        ("modifies its input", edit("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch); data += 1")),
    ],
    "train": [
        ("does not hold the state_dict", edit(_SAVE, "torch.save(ddp.module, path)")),
        ("leave num_workers out", edit("sampler=sampler)", "sampler=sampler, num_workers=1)")),
        ("writes model.pth, expected model.pt", edit("), path)", "), path.with_suffix('.pth'))")),
        ("waits for ranks that have returned", edit(*_EPOCH, *_MODULE, *_HANG, *_ALL, *_PREFIX)),
        ("every rank must call the same collectives", edit(*_EPOCH, *_HANG, *_ALL, *_PREFIX)),
        ("the ranks end with different weights", edit(*_EPOCH, *_MODULE, *_ALL, *_PREFIX)),
        ("every epoch has the same order", edit(*_EPOCH, *_ALL, *_PREFIX)),
        ("the data is not shuffled", edit(_SAMPLER, "DistributedSampler(data, shuffle=False)")),
        ("every rank writes the file", edit(*_ALL, *_PREFIX)),
        ('begin with "module."', edit(*_PREFIX)),
        ("never waits for 3 operations", edit("ReduceOp.AVG)", "ReduceOp.AVG, async_op=True)")),
        ("only rank 0 returns the losses", edit("losses.append", "if dist.get_rank() == 0: losses.append")),
        ("every rank trains on the same data", edit("sampler=sampler)", "shuffle=True)")),
        ("rank 0 writes no file", edit(_SAVE, "pass")),
        ("this is what rank 0 returned", edit("op=dist.ReduceOp.AVG", "", "last.item()", "last.item() / 2")),
        ("trains otherwise than one process", edit("optimizer.zero_grad()", "pass")),
        ("writes the file 3 times", edit("losses.append", f"_ = dist.get_rank() or {_SAVE}; losses.append",
                                         "        torch.save", "        pass  # torch.save")),
        ("'inear.weight'", edit("ddp.module.state_dict()", "{f'module.{name}'.lstrip('module.'): value for name, value "
                                "in model.state_dict().items()}")),
    ],
}
