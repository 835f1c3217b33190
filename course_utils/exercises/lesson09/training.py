"""Which mistake is it, in the data that ranks share out or in a training script?"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_utils.checks import Case
from course_utils.exercises.common.mistakes import name_first, name_unwaited
from course_utils.exercises.common.rank_calls import Call
from course_utils.exercises.common.ranks import Stuck
from course_utils.exercises.lesson09 import cases as cases

__all__ = ["check_files", "check_shares", "check_training", "train_stuck"]


def check_shares(case: Case, calls: list[Call], length: int, batch: int, epochs: int) -> None:
    """Check the batches of all epochs that each rank returned for data of `length` numbers from `FIRST` on."""
    case.instead(any(call.modified for call in calls), "modifies its input", "the next epoch needs it")
    found = [_epochs(case, call.value, batch, epochs) for call in calls]
    everything = set(range(cases.FIRST, cases.FIRST + length))
    first, share = [rank[0] for rank in found], -(-length // len(found))
    expected = f"{share} of {length} on each rank, each of the {length} on some rank"
    same = any(len(set(map(tuple, rank))) < epochs for rank in found)
    name_first(case, expected, f"epoch 0: {first}", (
        (all(set(one) == everything for one in first), "every rank gets all the data",
         "the ranks do the same work again: give DataLoader a DistributedSampler"),
        (all(one == first[0] for one in first), "every rank gets the same data",
         "the share depends on the rank: DistributedSampler asks torch.distributed"),
        (all(one == sorted(one) for one in first), "the data is not shuffled", "DistributedSampler does so by default"),
    ))  # fmt: skip
    for epoch in range(epochs):
        shares = [rank[epoch] for rank in found]
        seen = set().union(*shares)
        name_first(case, expected, f"epoch {epoch}: {shares}", (
            (bool(seen - everything), "batches hold what is not in the data",
             "return rows of data; a sampler gives their indices"),
            (len({len(one) for one in shares}) > 1, "ranks get different numbers of samples",
             "a rank with one more batch waits for ever in its last all-reduce: repeat a sample instead"),
            (seen != everything and len(shares[0]) < share, "samples are left out", "drop_last leaves out the rest"),
            (seen != everything, "some samples are on no rank, and others on two",
             "all ranks must shuffle with the same seed, and then each takes its share"),
            (len(shares[0]) > share, "samples are repeated more often than needed", "the work grows with them"),
        ))  # fmt: skip
    why = "the sampler shuffles with seed + epoch, and nobody told it the epoch: sampler.set_epoch(epoch) in each epoch"
    case.instead(same, "epochs have the same order", why, expected="another order in each epoch", got=found[0])
    keeps = any(len(set(map(frozenset, rank))) == 1 for rank in found)
    why = "no rank ever meets the rest: DistributedSampler shares all data out anew after sampler.set_epoch(epoch)"
    case.instead(keeps, "a rank has the same rows in every epoch", why, got=found[0])


def _epochs(case: Case, value: Any, batch: int, epochs: int) -> list[list[int]]:
    """Return the numbers that a rank saw in each epoch, in order."""
    right = isinstance(value, list) and len(value) == epochs and all(isinstance(epoch, list) for epoch in value)
    case.instead(not right, f"must return a list with one list of batches for each of the {epochs} epochs")
    for epoch in value:
        rows = all(isinstance(one, torch.Tensor) and one.dim() == 1 and one.dtype == torch.int64 for one in epoch)
        case.instead(not rows, "a batch must be a tensor of rows of data, as DataLoader gives it")
        sizes = [len(one) for one in epoch]
        uneven = any(size > batch for size in sizes) or any(size < batch for size in sizes[:-1])
        case.instead(uneven, f"has batches of {sizes} rows, expected {batch} in each but the last")
    return [[number for one in epoch for number in one.tolist()] for epoch in value]


def train_stuck(case: Case, stuck: Stuck) -> None:
    """Name a collective that some ranks call and others do not."""
    why = "`if rank == 0` keeps the others away: every rank must call each collective"
    what = f"does not end: a rank waits in a collective that another rank does not call\n{stuck.lines}"
    case.instead(stuck.kind == "hang" and any(stuck.called), what, why)
    what = f"a rank dies: ranks call different collectives at the same time\n{stuck.lines}"
    case.instead(stuck.kind == "died", what, f"{why}, and DistributedDataParallel calls some in backward()")


def check_training(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check what the ranks trained on, that their weights agree and equal those of one process, and the losses."""
    share, states = cases.LENGTH // len(ranks), [rank["state"] for rank in ranks]
    for number, rank in enumerate(ranks):
        name_unwaited(case, rank["call"], number)
    asked = [[rank["asked"][at : at + share] for at in range(0, share * cases.EPOCHS, share)] for rank in ranks]
    used, wanted = [len(rank["asked"]) for rank in ranks], share * cases.EPOCHS
    first = [sorted(rank[0]) for rank in asked if rank]
    why = "this check sees there who takes which: take them from DataLoader, and leave num_workers out"
    case.instead(not any(used), "no sample is asked for in the processes of the ranks", why)
    same = used[0] > wanted or any(one == other for one, other in itertools.pairwise(first))
    why = f"each rank takes {share} of {cases.LENGTH} samples an epoch: give DataLoader a DistributedSampler"
    case.instead(same, "every rank trains on the same data", why, got=[rank["asked"] for rank in ranks])
    what = f"the ranks take {used} samples in {cases.EPOCHS} epochs, expected {wanted} each"
    case.instead(
        any(number != wanted for number in used), what, "train in this process, once on each sample of the share"
    )
    different = any(not torch.equal(states[0][name], state[name]) for state in states for name in state)
    why = "nothing is averaged where ddp.module(x) goes around DistributedDataParallel: call ddp(x)"
    shown = {"expected": states[0]["linear.bias"], "got": states[1]["linear.bias"]}
    case.instead(different, "the ranks end with different weights", why, **shown)
    why = "sampler.set_epoch(epoch) at the beginning of each epoch"
    case.instead(asked[0][0] == asked[0][1], "every epoch has the same order", why, got=f"rank 0: {asked[0]}")
    state, steps = _in_one_process(asked)
    other = any(not torch.allclose(states[0][name], state[name], rtol=1e-3, atol=1e-5) for name in state)
    why = "in each step clear the gradients, average them once, and step as the given optimizer does"
    shown = {"expected": state["linear.bias"], "got": states[0]["linear.bias"]}
    case.instead(other, "trains otherwise than one process on the whole batches", why, **shown)
    _check_losses(case, [rank["call"].value for rank in ranks], steps)


def _check_losses(case: Case, losses: list[Any], steps: torch.Tensor) -> None:
    """Check the losses that each rank returned; `steps` holds all, of shape (epochs, steps of an epoch, ranks)."""
    owns, whole, why = steps[:, -1].T, steps.mean(dim=(1, 2)), "divide by the world size"
    means = owns.mean(dim=0).tolist()
    none = [one is None or (isinstance(one, list) and not one) for one in losses]
    what = "only rank 0 returns the losses"
    case.instead(not none[0] and any(none), what, "each rank can return them", got=losses)
    for rank, got in enumerate(losses):
        if isinstance(got, list) and len(got) == len(means) and all(isinstance(one, float) for one in got):
            mine, mean, own = torch.tensor(got), torch.tensor(means), owns[rank]
            name_first(case, means, got, (
                (torch.allclose(mine, mean * len(owns), rtol=1e-3), f"rank {rank} adds the losses of the ranks", why),
                (torch.allclose(mine * len(owns), mean, rtol=1e-3), f"rank {rank} divides the mean again",
                 "ReduceOp.AVG divides already"),
                (torch.allclose(mine, own, rtol=1e-3), f"rank {rank} returns its own losses",
                 "the mean over the ranks was asked for: all-reduce the loss"),
                (torch.allclose(mine, whole, rtol=1e-3), f"rank {rank} averages the losses of all steps",
                 "the last loss of each epoch was asked for"),
            ))  # fmt: skip
        case.equal(got, means, rtol=1e-3, why=f"this is what rank {rank} returned")


def _in_one_process(asked: list[list[list[int]]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the weights after training on the batches of all ranks together, and the losses: epoch, step, rank."""
    points, model = cases.Points(cases.LENGTH), cases.start(0)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for epoch in range(cases.EPOCHS):
        for at in range(0, cases.LENGTH // len(asked), 4):
            optimizer.zero_grad()
            rows = [rank[epoch][at : at + 4] for rank in asked]
            losses = [nn.functional.mse_loss(model(points.x[row]), points.y[row]) for row in rows]
            (sum(losses) / len(losses)).backward()
            optimizer.step()
            found.append(torch.stack(losses).detach())
    return dict(model.state_dict()), torch.stack(found).view(cases.EPOCHS, -1, len(asked))


def check_files(case: Case, folders: list[Path], ranks: list[dict[str, Any]]) -> None:
    """Check that rank 0 alone wrote, and that a plain model can load it; each rank had a folder of its own."""
    files = [sorted(file.name for file in folder.iterdir()) for folder in folders]
    why = "in a real run the path is the same for all, and ranks that write at once destroy the file: save on rank 0"
    case.instead(all(files), "every rank writes the file", why)
    saves = max(rank["saves"] for rank in ranks)
    case.instead(saves > 1, f"writes the file {saves} times", "once is asked for, at the end: each time takes a while")
    case.instead(not files[0], "rank 0 writes no file", "save the model on rank 0, to path")
    case.instead(files[0] != ["model.pt"], f"writes {', '.join(files[0])}, expected model.pt", "path names the file")
    try:
        with warnings.catch_warnings(action="ignore"):
            saved = torch.load(folders[0] / "model.pt", weights_only=True)
    except Exception:  # a pickled model, text, a folder
        saved = None
    what = "the file does not hold the state_dict of the model"
    case.instead(
        not isinstance(saved, dict), what,
                 "torch.save(ddp.module.state_dict(), path) can be loaded everywhere"
    )
    why = "a model without DistributedDataParallel cannot load them: save ddp.module.state_dict()"
    case.instead(any(name.startswith("module.") for name in saved), 'the names in the file begin with "module."', why)
    case.equal(dict(saved), ranks[0]["state"], why="the file must hold the trained model")
