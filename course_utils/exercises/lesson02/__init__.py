"""Where is the tensor, and what did it cost to get it there? The exercises of lesson 02."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from course_utils.checks import Case, WrongAnswer, lesson
from course_utils.exercises.common.places import IGNORED, elsewhere
from course_utils.exercises.lesson02.copy_times import COPIES, mistake_in
from course_utils.exercises.lesson02.nested import changed_type, left_behind

__all__ = ["copy_time_ms", "move_batch", "move_pieces", "nearest", "normalise", "ramp"]

exercise = lesson("02")

# One line for each mistake and for each hint.
# fmt: off


@exercise(title="Create on the device", minutes=5, difficulty=1, hints=(
    "One of the functions that create tensors makes even steps, both ends included. It takes `device=`.",
    "torch.linspace(0, 1, columns, device=device) is one row. Repeat it for every row.",
    "return torch.linspace(0, 1, columns, device=device).repeat(rows, 1)",
))
def ramp(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return a (rows, columns) tensor on `device` whose rows run evenly from 0 to 1, without a copy."""
    row = torch.linspace(0, 1, columns, device=device)  # created where it is needed
    return row.repeat(rows, 1)  # the device itself writes the other rows


@ramp.checks
def _(case: Case) -> None:
    for rows, columns in ((2, 3), (1, 2), (4, 11)):
        got = case.call(rows, columns, case.device)
        expected = torch.linspace(0, 1, columns).expand(rows, columns).to(case.device)
        _same_device(case, got, case.device, "without `device=`, a new tensor is on the CPU")
        bytes_sent = case.counts.bytes_h2d
        case.instead(bytes_sent, f"creates it on the CPU and copies {bytes_sent} bytes to the device",
                     "the device can write these numbers itself: give device= to the function that creates them. "
                     "Python numbers in a list are on the host too")
        case.instead(case.counts.bytes_d2h or case.counts.host_reads, "brings values back to the host",
                     "the host must then wait for the device; nothing here needs to be read")
        if isinstance(got, torch.Tensor) and got.shape == expected.shape and rows > 1:
            down = torch.linspace(0, 1, rows)[:, None].expand(rows, columns)
            steps = (torch.arange(columns) / columns).expand(rows, columns)
            for wrong, name, why in ((down, "runs down the columns", "each row runs from 0 to 1, not each column"),
                                     (steps, "ends before 1", "columns numbers make columns - 1 steps")):
                case.instead(torch.allclose(got.cpu().float(), wrong), name, why, expected=expected, got=got)
        case.equal(got, expected)
    place = elsewhere(case.device)
    case.instead(left_behind(case.call(2, 2, place), place, "the result"), *IGNORED)


def _same_device(case: Case, got: Any, device: torch.device, why: str) -> None:
    """Fail if `got` is a tensor on another device than `device`."""
    if isinstance(got, torch.Tensor) and got.device != device:
        case.fail(f"the result is on {got.device}, expected on {device}", why)


@exercise(title="Move a nested batch", minutes=10, difficulty=2, hints=(
    "Four questions, each an `isinstance` with a return: tensor, dict, tuple or list, anything else.",
    "The function calls itself for each value of a dict and each entry of a list or tuple.",
    "A new list or tuple of the same type is type(batch)(values); a named tuple takes its values one by one: "
    "type(batch)(*values). Only a named tuple has `_fields`.",
))
def move_batch(batch: object, device: torch.device) -> object:
    """Return `batch` with every tensor in it moved to `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: move_batch(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [move_batch(value, device) for value in batch]
        # a named tuple takes its values one by one, a list or a tuple takes them all in one
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch  # text, numbers, None: nothing to move


Sample = namedtuple("Sample", "image label")


@move_batch.checks
def _(case: Case) -> None:
    for batch in _batches():
        got = case.call(batch, case.device)
        expected = tree_map_only(torch.Tensor, lambda tensor: tensor.to(case.device), batch)
        changed = changed_type(got, batch)
        case.instead(changed, f"turns a {changed} into another type",
                     "code after it may use its keys, field names or order", expected=expected, got=got)
        left = left_behind(got, case.device, "the result")
        kind = "named tuple" if hasattr(batch, "_fields") else type(batch).__name__
        case.instead(left and got is batch and not isinstance(batch, torch.Tensor), f"returns a {kind} as it came",
                     "the function has to go into dicts, lists, tuples and named tuples, and move what is in them")
        case.instead("[" in left.removeprefix("the result["), "moves only the top level",
                     f"{left} is still on another device: a container may hold containers")
        case.instead(left, f"{left} is still on another device",
                     ".to(device) returns the moved tensor: put that one into the result")
        case.equal(got, expected, why="the device changes and nothing else: values, dtypes, what is no tensor")
    place = elsewhere(case.device)
    case.instead(left_behind(case.call([torch.ones(1)], place), place, "the result"), *IGNORED)


def _batches() -> list[object]:
    """Return batches, small ones first."""
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3])
    return [
        x,
        {"x": x, "y": y},
        [x, y],
        (x, y),
        {"x": x, "name": "cat", "n": 2, "nothing": None},
        Sample(x, y),
        {"pair": (x, y)},
        [{"x": x}, {"x": y}],
        {"samples": [Sample(x, "cat"), Sample(y, None)], "empty": [], "deep": ({"y": [y]},)},
        [],
    ]


@exercise(title="Repair a function that mixes devices", minutes=5, difficulty=1, hints=(
    "One of the two must move. Which one is small?",
    "A tensor knows where it is: points.device. No name of a device is needed.",
    "query = query.to(points.device), and the rest as it was.",
))
def nearest(points: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return the index of the row of `points` nearest to `query`, on the device of `points`."""
    query = query.to(points.device)  # three numbers travel; all the points stay
    return ((points - query) ** 2).sum(dim=1).argmin()


@nearest.checks
def _(case: Case) -> None:
    small = torch.tensor([[0.0, 0.0], [4.0, 4.0], [1.0, 2.0]])
    for points, query in ((small, torch.tensor([3.0, 3.0])), (torch.rand(5000, 3), torch.rand(3))):
        _nearest(case, points.to(case.device), query)
    _nearest(case, small.to(case.device), torch.tensor([1.0, 1.0]).to(case.device))
    _nearest(case, small, torch.tensor([1.0, 1.0]))
    _nearest(case, torch.tensor([[3.0, 0.0], [2.0, 2.0]]).to(case.device), torch.zeros(2))


def _nearest(case: Case, points: torch.Tensor, query: torch.Tensor) -> None:
    where = f"here `points` is on {points.device}: take the device from `points`, not from a name"
    try:
        got = case.call(points, query)
    except WrongAnswer as wrong:
        case.instead(points.device.type == "cpu" and "raises" in str(wrong), "works on one device only", where)
        raise
    case.instead(points.device != case.device and isinstance(got, torch.Tensor) and got.device != points.device,
                 "works on one device only", where)
    expected = ((points.cpu() - query.cpu()) ** 2).sum(dim=1).argmin().to(points.device)
    sent = case.counts.bytes_d2h
    case.instead(sent >= points.nbytes, "moves the large tensor instead of the small one",
                 f"{sent} bytes travelled for `points`; `query` has {query.nbytes}")
    case.instead(isinstance(got, int | float), "returns a Python number",
                 "to read it, the host waits for the device; the next operation there could use it at once", got=got)
    _same_device(case, got, points.device, "the operations after it want it where `points` is")
    case.instead(sent or case.counts.host_reads, "brings values back to the host",
                 "the host must then wait for the device; nothing here needs to be read")
    case.equal(got, expected, why="nearest is by the sum of squared differences")


@exercise(title="Normalise on the device", minutes=10, difficulty=2, hints=(
    "x.mean(dim=0) and x.std(dim=0) have one number a column, and broadcast against x.",
    "Where the standard deviation is 0, divide by 1 instead: torch.where(std > 0, std, 1.0).",
    "std = x.std(dim=0); return (x - x.mean(dim=0)) / torch.where(std > 0, std, 1.0)",
))
def normalise(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with each column at mean 0 and standard deviation 1, computed on the device of `x`."""
    std = x.std(dim=0)
    divisor = torch.where(std > 0, std, 1.0)  # a choice for each element, made on the device: no `if`
    return (x - x.mean(dim=0)) / divisor


@normalise.checks
def _(case: Case) -> None:
    for x in (torch.tensor([[1.0, 5.0], [3.0, 9.0]]), torch.tensor([[1.0, 5.0], [3.0, 5.0]]),
              torch.tensor([[1.0, 10.0, 7.0], [2.0, 20.0, 7.0], [6.0, 30.0, 7.0], [3.0, 80.0, 7.0]])):
        got = case.call(x.to(case.device))
        counts = case.counts
        case.instead(counts.copies_d2h, "copies to the host",
                     f"{counts.bytes_d2h} bytes leave the device, and the host waits for them")
        case.instead(counts.host_reads, "lets the host read a value",
                     ".item(), print and an `if` on a value make the host wait: choose with torch.where instead")
        columns = [[float(value) for value in x[:, i]] for i in range(x.shape[1])]
        expected = torch.tensor([_standard(column) for column in columns]).T.to(case.device)
        _same_device(case, got, case.device, "all operands are on the device, so the result can stay there")
        if isinstance(got, torch.Tensor) and got.shape == x.shape:
            _name_the_mistake(case, x, expected, got)
        case.equal(got, expected, atol=1e-5)


def _name_the_mistake(case: Case, x: torch.Tensor, expected: torch.Tensor, got: torch.Tensor) -> None:
    """Fail with the name of what was computed instead, if it is known."""
    show, mine = {"expected": expected, "got": got}, got.cpu().float()
    case.instead(mine.isnan().any(), "makes NaN of a column in which all values are equal",
                 "its standard deviation is 0, and 0 / 0 is NaN", **show)
    std, rows = x.std(dim=0), x.shape[0]
    divisor, shifted = torch.where(std > 0, std, 1.0), x - x.mean(dim=0)
    width = x.amax(dim=0) - x.amin(dim=0)
    column = "a column is one feature of all samples, with its own mean and standard deviation: dim=0"
    for wrong, name, why in (
        ((x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True), "normalises the rows", column),
        ((x - x.mean()) / x.std(), "normalises the tensor as a whole", column),
        (shifted / divisor * math.sqrt(rows / (rows - 1)), "divides by n instead of n - 1",
         "x.std(dim=0) is the standard deviation of a sample"),
        (x / divisor, "does not subtract the mean", "each column is to have mean 0: x - x.mean(dim=0)"),
        (shifted, "does not divide by the standard deviation", "each column is to have standard deviation 1"),
        (shifted / divisor**2, "divides by the variance", "the standard deviation is its square root: x.std(dim=0)"),
        ((x - x.amin(dim=0)) / torch.where(width > 0, width, 1.0), "scales to the range from 0 to 1",
         "that is another normalisation; here the mean is 0 and the standard deviation 1"),
    ):
        case.instead(torch.allclose(mine, wrong, atol=1e-5), name, why, **show)


def _standard(column: list[float]) -> list[float]:
    """Return what is right for one column, with Python's numbers."""
    mean = sum(column) / len(column)
    std = math.sqrt(sum((value - mean) ** 2 for value in column) / (len(column) - 1))
    return [(value - mean) / (std or 1.0) for value in column]


@exercise(title="Predict the time of a copy", minutes=5, difficulty=1, hints=(
    "Bytes are elements times bytes each: math.prod(shape) * dtype.itemsize.",
    "1 GB/s is 10**9 bytes a second, which is 10**6 bytes a millisecond; 1000 µs are 1 ms.",
    "return latency_us / 1e3 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6)",
))
def copy_time_ms(shape: tuple[int, ...], dtype: torch.dtype, bandwidth_gbps: float, latency_us: float) -> float:
    """Return the milliseconds that copying a tensor of this shape and dtype takes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return latency_us / 1e3 + nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond


@copy_time_ms.checks
def _(case: Case) -> None:
    answers = [case.call(*given) for given in COPIES]
    for given, got in zip(COPIES, answers, strict=True):
        expected = copy_time_ms.reference(*given)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        if not number or not math.isclose(got, expected, rel_tol=1e-6):
            case.call(*given)  # so that the message shows this call
            case.instead(not number, f"returns {type(got).__name__}, expected a number", "the caller computes with it")
            name, why = mistake_in(answers)
            case.instead(name, name, why, expected=expected, got=got)
            parts = f"{given[3] / 1e3:g} ms of latency and {expected - given[3] / 1e3:.6g} ms for the bytes"
            case.fail(f"the time is {parts}", expected=expected, got=got)
        case.equal(got, expected)


@exercise(title="One copy instead of N", minutes=5, difficulty=2, hints=(
    "Join on the host, copy, take apart on the device.",
    "torch.cat(pieces).to(device) is the one copy. Views cut it apart without another.",
    "lengths = [len(piece) for piece in pieces]; return list(torch.cat(pieces).to(device).split(lengths))",
))
def move_pieces(pieces: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of `pieces` on `device`, moved with one copy."""
    lengths = [len(piece) for piece in pieces]
    joined = torch.cat(pieces).to(device)  # latency is paid once
    return list(joined.split(lengths))  # views: nothing is copied again


@move_pieces.checks
def _(case: Case) -> None:
    for lengths in ((2, 3, 1), (4,), (5, 1, 0, 7), (6, 6, 6), tuple(range(1, 33))):
        pieces = [torch.rand(length) for length in lengths]
        got = case.call(pieces, case.device)
        got = list(got) if type(got) is tuple else got  # split gives a tuple: as good as a list here
        case.instead(isinstance(got, torch.Tensor), "returns one tensor, not a list",
                     "the caller wants the pieces back: tensor.split(lengths) gives views", got=got)
        copies, back = case.counts.copies_h2d, case.counts.copies_d2h + case.counts.host_reads
        case.instead(len(lengths) > 2 and copies >= len(lengths) - lengths.count(0), "copies each piece",
                     f"{copies} copies pay the latency {copies} times: join the pieces first, then copy once")
        left = left_behind(got, case.device, "the result")
        case.instead(left, f"{left} is still on another device", "move what torch.cat gives, then split that")
        case.equal(got, [piece.to(case.device) for piece in pieces])
        case.budget("copies from the host", copies, 1, "each pays the latency again")
        case.budget("reads or copies back to the host", back, 0, "the lengths are known on the host already")
    place = elsewhere(case.device)
    case.instead(left_behind(case.call([torch.ones(1)], place), place, "the result"), *IGNORED)
