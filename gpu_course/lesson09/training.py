"""Record of distributed training: each rank's data, accumulated gradients, result, and file."""

import io
import warnings
from typing import Any

import torch
from torch import nn

from gpu_course.checks import Case, difference
from gpu_course.common.ranks import check_call
from gpu_course.lesson09 import cases


def check_shares(case: Case, by_rank: list[list[list[int]]], data: range) -> None:
    """Check the numbers of `data` that each rank had in each epoch, in order.

    Any order will do that a sampler may draw, so it is said what a share lacks; there are no values to compare with.
    """
    everything, first, share = set(data), [rank[0] for rank in by_rank], -(-len(data) // len(by_rank))
    few = len(data) < 2 * len(by_rank)  # so few that any two orders may be the same
    shown = {
        "expected": f"{share} of {len(data)} on each rank, each of the {len(data)} on some rank",
        "got": f"epoch 0: {first}",
    }
    for when, name, why in (
        (not few and all(set(one) == everything for one in first), "every rank gets all the data",
         "the ranks do the same work again: give DataLoader a DistributedSampler"),
        (not few and all(one == first[0] for one in first), "every rank gets the same data",
         "each rank needs a share of its own: DistributedSampler looks up the rank itself"),
        (not few and all(one == sorted(one) for one in by_rank[0]), "the data is not shuffled",
         "DistributedSampler shuffles by default"),
    ):  # fmt: skip
        case.fail_if(when, name, why, **shown)
    for epoch, shares in enumerate(zip(*by_rank, strict=True)):
        seen, shown["got"] = set().union(*shares), f"epoch {epoch}: {list(shares)}"
        for when, name, why in (
            (seen - everything, "batches hold what is not in the data",
             "return rows of data; a sampler gives their indices"),
            (len({len(one) for one in shares}) > 1, "ranks get different numbers of samples",
             "a rank with one more batch would wait for ever in its last all_reduce: repeat a sample instead"),
            (len(shares[0]) < share, "samples are left out",
             "every row belongs on some rank: drop_last=True and a share rounded down throw rows away"),
            (seen != everything, "some samples are on no rank, and others on two",
             "all ranks must shuffle with the same seed, and then each takes its share"),
            (len(shares[0]) > share, "samples are repeated more often than needed",
             "repeat only as many as make the shares equal: each one is more work"),
        ):  # fmt: skip
            case.fail_if(when, name, why, **shown)
    for rank in () if few else by_rank:
        for when, name, why in (
            (len(set(map(tuple, rank))) < len(rank), "epochs have the same order",
             "the sampler shuffles with seed + epoch: sampler.set_epoch(epoch) at the beginning of each epoch"),
            (len(set(map(frozenset, rank))) == 1, "a rank has the same rows in every epoch", "no rank ever meets the "
             "rest: DistributedSampler shares all data out anew after sampler.set_epoch(epoch)"),
        ):  # fmt: skip
            case.fail_if(when, name, why, expected="another order in each epoch", got=rank)


def check_accumulated(case: Case, ranks: list[dict[str, Any]], count: int) -> None:
    """Check what `cases.accumulated` returned on each rank, after `count` micro-batches on each."""
    micro = [one for rank in range(len(ranks)) for one in cases.micro_batches(rank, count)]
    model, rows = cases.seeded(cases.plain), len(micro[0][0])
    for x, y in micro:
        (cases.loss_of(count)(model(x), y) / len(micro)).backward()
    for rank, seen in enumerate(ranks):
        after, others, collectives = seen["after"], ranks[1 - rank]["after"], seen["call"].counts.collectives
        times = collectives["all_reduce"]
        missing = [name for name, gradient in after.items() if gradient is None]
        why = "the loss of what the model returned leads to them: call backward() on it, and no zero_grad() afterwards"
        case.fail_if(len(missing) == len(after), f"no parameter has a gradient on rank {rank}", why)
        for when, name, why in (
            (seen["weights"], "changes the parameters", "the optimizer does that, when the gradients are complete"),
            (seen["graphs"] > 1, f"the graphs of {seen['graphs']} micro-batches are alive at once",
             "call backward for each micro-batch before the next one: each graph needs memory, and "
             "DistributedDataParallel synchronises in the first backward pass after a forward pass outside of no_sync"),
            (times == count > 1, f"synchronises {times} times for {count} micro-batches", "a backward pass averages, "
             "unless it and its forward pass run inside of no_sync: all but the last belong there"),
            (not collectives, "never synchronises", "each rank would take a step of its own: run "
             "the last micro-batch outside of no_sync, and call model(x), not model.module(x)"),
            (missing, f"{', '.join(missing)} has no gradient on rank {rank}", "the optimizer needs it"),
        ):  # fmt: skip
            case.fail_if(when, name, why)
        for name, parameter in model.named_parameters():
            got, other = after[name], others[name]
            apart = got is not None and other is not None and not torch.allclose(got, other, rtol=1e-3, atol=1e-6)
            case.fail_if(
                apart,
                f"rank 0 and rank 1 have different gradients of {name}",
                "what is added after the synchronisation stays on its own rank: let the last micro-batch synchronise",
                expected=other,
                got=got,
            )
            case.equal(got, parameter.grad, rtol=1e-3, what=f"the gradient of {name} on rank {rank}")
        for when, name, why in (
            (seen["rows"] > rows, f"the result is right, but {seen['rows']} rows are computed at once, and a "
             f"micro-batch has {rows}", "that needs the memory of the large batch, which accumulation is to save"),
            (times > 1, f"the result is right, but it synchronises {times} times",
             "the gradients of all micro-batches can travel once, added up"),
        ):  # fmt: skip
            case.fail_if(when, name, why)
        for what, there in seen["left"].items():
            case.fail_if(there, f"leaves {what}", "put it back: the code that runs afterwards would behave differently")


def check_training(case: Case, ranks: list[dict[str, Any]]) -> bool:
    """Check what the ranks trained on, that their weights agree and equal those of one process, and the losses.

    Return whether all of that is right: where it is not, it names the mistake, whatever the file holds.
    """
    for number, rank in enumerate(ranks):
        check_call(case, rank["call"], number)
    taken, share = [len(rank["asked"]) for rank in ranks], -(-cases.LENGTH // len(ranks))
    for when, name, why in (
        (not any(taken), "no sample is asked for in the processes of the ranks",
         "this check sees there who takes which: take them from DataLoader, and leave num_workers out"),
        (any(number not in (share * cases.EPOCHS, cases.LENGTH * cases.EPOCHS) for number in taken),
         f"the ranks take {taken} samples in {cases.EPOCHS} epochs, expected {share * cases.EPOCHS} each",
         "train in this process, on each sample of the share once an epoch"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    asked = [torch.tensor(rank["asked"]).view(cases.EPOCHS, -1).tolist() for rank in ranks]
    check_shares(case, asked, range(cases.LENGTH))
    states, (state, losses) = [rank["state"] for rank in ranks], _in_one_process(asked)
    starts = [cases.start(rank).state_dict() for rank in range(len(ranks))]
    shown = "linear.bias"
    for when, name, why, expected, got in (
        (not _apart(states, starts), "leaves the model that it is given as it was",
         "the caller, and the file, need the trained one: wrap and train the model itself, no copy", None, states[0]),
        (_apart(states[1:], states[:1] * 2, rtol=0, atol=0), "the ranks end with different weights",
         "nothing averages their gradients: call ddp(x), not ddp.module(x), and not inside of no_sync()",
         states[0], states[1]),
        (_apart(states[:1], [state], rtol=1e-3, atol=1e-5), "trains otherwise than one process on the whole batches",
         "in each step clear the gradients, average them once, and step as the given optimizer does",
         state, states[0]),
    ):  # fmt: skip
        case.fail_if(when, name, why, expected=expected[shown] if expected else ..., got=got[shown])
    values = [rank["call"].value for rank in ranks]
    none = [value is None or (isinstance(value, list) and not value) for value in values]
    case.fail_if(not none[0] and any(none), "only rank 0 returns the losses", "each rank can return them", got=values)
    for rank, got in enumerate(values):
        case.equal(got, losses, rtol=1e-4, what=f"rank {rank}'s result")
        once = ranks[rank]["once"]
        case.fail_if(not isinstance(once, list) or len(once) != 1, "asked for one epoch, it returns no single loss",
                     "how many epochs there are is said by `epochs`", got=once)  # fmt: skip
    return all(not difference(got, losses, rtol=1e-4, atol=1e-6) for got in values)


def _apart(states: list[dict], others: list[dict], **near: float) -> bool:
    """Return whether a tensor in one of the state dicts differs from the one of its name in the other list."""
    pairs = zip(states, others, strict=True)
    return any(not torch.allclose(one[name], other[name], **near) for one, other in pairs for name in one)


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
    files, saves = [rank["files"] for rank in ranks], max(rank["saves"] for rank in ranks)
    for when, name, why in (
        (all(files), "every rank writes the file", "in a real run the path is the same for all, and ranks that write "
         "at once destroy the file: save on rank 0"),
        (saves > 1, f"writes the file {saves} times", "once is asked for, at the end: each time takes a while"),
        (not files[0], "rank 0 writes no file", "save the model on rank 0, to path"),
        ([*files[0]] != ["model.pt"], f"writes {', '.join(files[0])}, expected model.pt", "path names the file"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    try:
        with warnings.catch_warnings(action="ignore"):
            saved = torch.load(io.BytesIO(files[0]["model.pt"]), weights_only=True)
    except Exception:  # a pickled model, text, a folder
        saved = None
    for when, name, why in (
        (not isinstance(saved, dict), "the file does not hold the state_dict of the model",
         "torch.save(ddp.module.state_dict(), path) can be loaded everywhere"),
        (any(str(name).startswith("module.") for name in saved or ()), 'the names in the file begin with "module."',
         "a model without DistributedDataParallel cannot load them: save ddp.module.state_dict()"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    case.equal(dict(saved), ranks[0]["state"], why="the file must hold all of the trained model, buffers too")
