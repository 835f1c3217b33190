"""Which data did each rank take, what did it accumulate and learn, and what is in the file?"""

import io
import warnings
from typing import Any

import torch
from torch import nn

from gpu_course.checks import Case
from gpu_course.common.rank_calls import Call
from gpu_course.common.ranks import check_call
from gpu_course.lesson09 import cases as cases


def check_shares(case: Case, calls: list[Call], length: int, batch: int, epochs: int) -> None:
    """Check the batches of all epochs that each rank returned for data of `length` numbers from `FIRST` on.

    Any order will do that a sampler may draw, so it is said what a share lacks; there are no values to compare with.
    """
    for rank, call in enumerate(calls):
        check_call(case, call, rank)
    by_rank = [_epochs(case, call.value, batch, epochs) for call in calls]
    everything, first = set(range(cases.FIRST, cases.FIRST + length)), [rank[0] for rank in by_rank]
    share = -(-length // len(by_rank))
    shown = {
        "expected": f"{share} of {length} on each rank, each of the {length} on some rank",
        "got": f"epoch 0: {first}",
    }
    for when, name, why in (
        (all(set(one) == everything for one in first), "every rank gets all the data",
         "the ranks do the same work again: give DataLoader a DistributedSampler"),
        (all(one == first[0] for one in first), "every rank gets the same data",
         "each rank needs a share of its own: DistributedSampler looks up the rank itself"),
        (all(one == sorted(one) for one in first), "the data is not shuffled",
         "DistributedSampler shuffles by default"),
    ):  # fmt: skip
        case.instead(when, name, why, **shown)
    for epoch in range(epochs):
        shares = [rank[epoch] for rank in by_rank]
        seen, shown["got"] = set().union(*shares), f"epoch {epoch}: {shares}"
        for when, name, why in (
            (seen - everything, "batches hold what is not in the data",
             "return rows of data; a sampler gives their indices"),
            (len({len(one) for one in shares}) > 1, "ranks get different numbers of samples",
             "a rank with one more batch would wait for ever in its last all_reduce: repeat a sample instead"),
            (len(shares[0]) < share, "samples are left out",
             "leave drop_last alone: it throws away the samples that do not divide evenly"),
            (seen != everything, "some samples are on no rank, and others on two",
             "all ranks must shuffle with the same seed, and then each takes its share"),
            (len(shares[0]) > share, "samples are repeated more often than needed",
             "repeat only as many as make the shares equal: each one is more work"),
        ):  # fmt: skip
            case.instead(when, name, why, **shown)
    for rank in by_rank:
        case.instead(
            len(set(map(tuple, rank))) < epochs,
            "epochs have the same order",
            "the sampler shuffles with seed + epoch: sampler.set_epoch(epoch) in each epoch",
            expected="another order in each epoch",
            got=rank,
        )
        case.instead(
            len(set(map(frozenset, rank))) == 1,
            "a rank has the same rows in every epoch",
            "no rank ever meets the rest: DistributedSampler shares all data out anew after sampler.set_epoch(epoch)",
            got=rank,
        )


def _epochs(case: Case, value: Any, batch: int, epochs: int) -> list[list[int]]:
    """Return the numbers that a rank saw in each epoch, in order."""
    right = isinstance(value, list) and len(value) == epochs and all(isinstance(epoch, list) for epoch in value)
    case.instead(not right, f"must return a list with one list of batches for each of the {epochs} epochs", got=value)
    for epoch in value:
        rows = all(isinstance(one, torch.Tensor) and one.dim() == 1 and one.dtype == torch.int64 for one in epoch)
        case.instead(not rows, "a batch must be a tensor of rows of data, as DataLoader gives it", got=epoch)
        sizes = [len(one) for one in epoch]
        case.instead(
            any(size > batch for size in sizes) or any(size < batch for size in sizes[:-1]),
            f"has batches of {sizes} rows, expected {batch} in each but the last",
        )
    return [[number for one in epoch for number in one.tolist()] for epoch in value]


def check_accumulated(case: Case, ranks: list[dict[str, Any]], count: int) -> None:
    """Check what `cases.accumulated` returned on each rank, after `count` micro-batches on each."""
    micro = [one for rank in range(len(ranks)) for one in cases.micro_batches(rank, count)]
    model, rows = cases.seeded(cases.plain), len(micro[0][0])
    for x, y in micro:
        (cases.loss_of(count)(model(x), y) / len(micro)).backward()
    for rank, seen in enumerate(ranks):
        times, right = seen["call"].counts.collectives["all_reduce"], "the result is right, but"
        for when, name, why in (
            (seen["weights"], "changes the parameters", "the optimizer does that, when the gradients are complete"),
            (times == count > 1, f"synchronises {times} times for {count} micro-batches", "a backward pass averages, "
             "unless it and its forward pass run inside of no_sync: all but the last belong there"),
            (not seen["call"].counts.collectives, "never synchronises", "each rank would take a step of its own: run "
             "the last micro-batch outside of no_sync, and call model(x), not model.module(x)"),
        ):  # fmt: skip
            case.instead(when, name, why)
        for name, parameter in model.named_parameters():
            got, other = seen["after"][name], ranks[1 - rank]["after"][name]
            case.instead(
                got is None,
                f"{name} has no gradient on rank {rank}",
                "the optimizer needs it: no zero_grad after the last backward()",
            )
            apart = got is not None and other is not None and not torch.allclose(got, other, rtol=1e-3, atol=1e-6)
            case.instead(
                apart,
                f"rank 0 and rank 1 have different gradients of {name}",
                "what is added after the synchronisation stays on its own rank: let the last micro-batch synchronise",
                expected=other,
                got=got,
            )
            case.equal(got, parameter.grad, rtol=1e-3, why=f"this is the gradient of {name} on rank {rank}")
        for when, name, why in (
            (seen["rows"] > rows, f"{right} {seen['rows']} rows are computed at once, and a micro-batch has {rows}",
             "that needs the memory of the large batch, which accumulation is to save"),
            (seen["graphs"] > 1, f"{right} the graphs of {seen['graphs']} micro-batches are alive at once",
             "call backward for each micro-batch before the next one"),
            (times > 1, f"{right} it synchronises {times} times",
             "the gradients of all micro-batches can travel once, added up"),
        ):  # fmt: skip
            case.instead(when, name, why)
        for what, there in seen["left"].items():
            case.instead(there, f"leaves {what}", "put it back: the code that runs afterwards would behave differently")


def check_training(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check what the ranks trained on, that their weights agree and equal those of one process, and the losses."""
    for number, rank in enumerate(ranks):
        check_call(case, rank["call"], number)
    share, used = -(-cases.LENGTH // len(ranks)), [len(rank["asked"]) for rank in ranks]
    asked = [[rank["asked"][at : at + share] for at in range(0, share * cases.EPOCHS, share)] for rank in ranks]
    wanted, states = share * cases.EPOCHS, [rank["state"] for rank in ranks]
    apart = any(not torch.equal(states[0][name], state[name]) for state in states for name in state)
    biases = {"expected": states[0]["linear.bias"], "got": states[1]["linear.bias"]}
    for when, name, why, shown in (
        (not any(used), "no sample is asked for in the processes of the ranks",
         "this check sees there who takes which: take them from DataLoader, and leave num_workers out", {}),
        (used[0] == cases.LENGTH * cases.EPOCHS or sorted(asked[0][0]) == sorted(asked[1][0]),
         "every rank trains on the same data",
         f"each rank takes {share} of {cases.LENGTH} samples an epoch: give DataLoader a DistributedSampler",
         {"got": [rank["asked"] for rank in ranks]}),
        (any(number != wanted for number in used),
         f"the ranks take {used} samples in {cases.EPOCHS} epochs, expected {wanted} each",
         "train in this process, on each sample of the share once an epoch", {}),
        (apart, "the ranks end with different weights",
         "ddp.module(x) goes around DistributedDataParallel, and nothing is averaged: call ddp(x)", biases),
        (all(one == sorted(one) for one in asked[0]), "the data is not shuffled",
         "DistributedSampler shuffles by default", {"got": f"rank 0: {asked[0]}"}),
        (asked[0][0] == asked[0][1], "every epoch has the same order",
         "sampler.set_epoch(epoch) at the beginning of each epoch", {"got": f"rank 0: {asked[0]}"}),
    ):  # fmt: skip
        case.instead(when, name, why, **shown)
    state, losses = _in_one_process(asked)
    case.instead(
        any(not torch.allclose(states[0][name], state[name], rtol=1e-3, atol=1e-5) for name in state),
        "trains otherwise than one process on the whole batches",
        "in each step clear the gradients, average them once, and step as the given optimizer does",
        expected=state["linear.bias"],
        got=states[0]["linear.bias"],
    )
    values = [rank["call"].value for rank in ranks]
    none = [value is None or (isinstance(value, list) and not value) for value in values]
    case.instead(not none[0] and any(none), "only rank 0 returns the losses", "each rank can return them", got=values)
    for rank, got in enumerate(values):
        case.equal(got, losses, rtol=1e-3, why=f"this is what rank {rank} returned")


def _in_one_process(asked: list[list[list[int]]]) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the weights after training on the batches of all ranks together, and the last loss of each epoch."""
    points, model, last = cases.Points(), cases.start(0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(cases.EPOCHS):
        for start in range(0, len(asked[0][epoch]), 4):
            optimizer.zero_grad()
            rows = [row for rank in asked for row in rank[epoch][start : start + 4]]  # as many of each rank
            loss = nn.functional.mse_loss(model(points.x[rows]), points.y[rows])
            loss.backward()
            optimizer.step()
        last.append(loss.item())
    return model.state_dict(), last


def check_files(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check that rank 0 alone wrote, and that a plain model can load it."""
    files = [rank["files"] for rank in ranks]
    case.instead(
        all(files),
        "every rank writes the file",
        "in a real run the path is the same for all, and ranks that write at once destroy the file: save on rank 0",
    )
    saves = max(rank["saves"] for rank in ranks)
    case.instead(saves > 1, f"writes the file {saves} times", "once is asked for, at the end: each time takes a while")
    case.instead(not files[0], "rank 0 writes no file", "save the model on rank 0, to path")
    names = ", ".join(files[0])
    case.instead(names != "model.pt", f"writes {names}, expected model.pt", "path names the file")
    try:
        with warnings.catch_warnings(action="ignore"):
            saved = torch.load(io.BytesIO(files[0]["model.pt"]), weights_only=True)
    except Exception:  # a pickled model, text, a folder
        saved = None
    case.instead(
        not isinstance(saved, dict),
        "the file does not hold the state_dict of the model",
        "torch.save(ddp.module.state_dict(), path) can be loaded everywhere",
    )
    case.instead(
        any(name.startswith("module.") for name in saved),
        'the names in the file begin with "module."',
        "a model without DistributedDataParallel cannot load them: save ddp.module.state_dict()",
    )
    case.equal(dict(saved), ranks[0]["state"], why="the file must hold the trained model")
