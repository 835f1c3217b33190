"""How long does it take, and what limits it? The exercises of lesson 03."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from course_utils.checks import Case, lesson
from course_utils.exercises.common.numbers import as_float, is_number
from course_utils.exercises.lesson03.losses import gradient_cases, huber_mistake, huber_of_row, lost_mistake
from course_utils.exercises.lesson03.queue import Bench, slow_kernels
from course_utils.exercises.lesson03.speeds import BOUNDS, MEASURED, PRODUCTS, bound_mistake, intensity_mistake

__all__ = ["huber", "intensity", "lost_share", "median_time_s", "name_bound", "pad_vocabulary"]

exercise = lesson("03")

# One line for each mistake and for each hint.
# fmt: off


@exercise(title="Write an honest timer", minutes=10, difficulty=2, simulated=True, hints=(
    "For each repetition: empty the queue, read the clock, work, empty the queue, read the clock.",
    "The warm-up is a loop of its own, without the clock. Collect one time for each repetition in a list.",
    "In the loop: synchronize(); begin = clock(); work(); synchronize(); times_s.append(clock() - begin). "
    "After it: return statistics.median(times_s).",
))
def median_time_s(
    work: Callable[[], object], clock: Callable[[], float], synchronize: Callable[[], None], warmup: int, repeats: int
) -> float:
    """Return the median time of one call of `work` in seconds, after `warmup` calls that are not timed."""
    for _ in range(warmup):
        work()
    times_s = []
    for _ in range(repeats):
        synchronize()  # what was queued before is not part of this repetition
        begin = clock()
        work()
        synchronize()  # `work` returned when it was queued, not when it was done
        times_s.append(clock() - begin)
    return statistics.median(times_s)


# Warm-up calls, kernels of each call (warm-up first), kernels in the queue before: the smallest that shows a mistake.
_BENCHES = (
    (0, (3,), 0),
    (0, (3,), 20),
    (2, (40, 30, 3), 0),
    (1, (50, 9, 1, 30, 2, 11, 5, 7, 4, 3), 10),
    (0, (5, 1, 9), 0),
    (3, (30, 8, 8, 2, 6, 4, 12), 5),
)


@median_time_s.checks
def _(case: Case) -> None:
    for warmup, kernels, queued in _BENCHES:
        with slow_kernels():
            bench = Bench(case.device, warmup, kernels, queued)
            got = case.call(bench.work, bench.clock, bench.synchronize, warmup, bench.repeats)
            torch.sim.synchronize()
        name, why = bench.unused()
        case.instead(name, name, why)
        _expect_number(case, got)
        got_s = as_float(got)
        if not bench.right(got_s):
            name, why = bench.mistake(got_s)
            expected, got = (float(f"{seconds:.6g}") for seconds in (statistics.median(bench.truth.times_s), got_s))
            case.fail(name or "is not the median of the repetitions", why, expected=expected, got=got)


def _expect_number(case: Case, got: Any) -> None:
    kind = "a tensor" if isinstance(got, torch.Tensor) else type(got).__name__
    case.instead(got is None, "returns None: is a return missing?")
    case.instead(not is_number(got), f"returns {kind}, expected a number", "the caller computes with it")


@exercise(title="Arithmetic intensity", minutes=5, difficulty=1, hints=(
    "FLOPs: each of the n × m results takes k multiplications and k additions.",
    "Bytes: n k + k m are read, n m are written; each element has dtype.itemsize bytes.",
    "return 2 * n * k * m / ((n * k + k * m + n * m) * dtype.itemsize)",
))
def intensity(n: int, k: int, m: int, dtype: torch.dtype) -> float:
    """Return the FLOPs for each byte of the product of an (n, k) and a (k, m) matrix, each matrix moved once."""
    flops = 2 * n * k * m  # k multiplications and k additions for each of n m results
    nbytes = (n * k + k * m + n * m) * dtype.itemsize  # two matrices read, one written
    return flops / nbytes


@intensity.checks
def _(case: Case) -> None:
    answers = [case.call(*given) for given in PRODUCTS]
    for given, got in zip(PRODUCTS, answers, strict=True):
        n, k, m, dtype = given
        flops, nbytes = 2 * n * k * m, sum(torch.empty(size, dtype=dtype).nbytes for size in (n * k, k * m, n * m))
        expected = flops / nbytes
        if not math.isclose(number := as_float(got), expected, rel_tol=1e-6):
            case.call(*given)  # so that the message shows this call
            _expect_number(case, got)
            name, why = intensity_mistake([as_float(answer) for answer in answers])
            case.instead(name, name, why, expected=expected, got=got)
            case.instead(abs(number - expected) < 0.006, "rounds the number", "return it as it is; print it rounded",
                         expected=expected, got=got)
            case.fail(f"{flops:,} FLOPs and {nbytes:,} bytes give another number", expected=expected, got=got)


@exercise(title="Name the bound", minutes=5, difficulty=2, hints=(
    "How long would the arithmetic take alone at its peak, and the memory traffic alone at its bandwidth?",
    "compute_ms = flops / (peak_tflops * 1e9), memory_ms = nbytes / (bandwidth_gbps * 1e6); the roof is the larger.",
    'If time_ms > 2 * max(compute_ms, memory_ms): return "overhead". After it: '
    'return "compute" if compute_ms > memory_ms else "bandwidth".',
))
def name_bound(flops: float, nbytes: float, time_ms: float, peak_tflops: float, bandwidth_gbps: float) -> str:
    """Return what limits a measured operation: "compute", "bandwidth" or "overhead"."""
    compute_ms = flops / (peak_tflops * 1e9)  # 1 TFLOP/s is 10**9 operations a millisecond
    memory_ms = nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond
    if time_ms > 2 * max(compute_ms, memory_ms):
        return "overhead"  # neither the arithmetic nor the memory explains this time
    return "compute" if compute_ms > memory_ms else "bandwidth"


@name_bound.checks
def _(case: Case) -> None:
    answers = [case.call(*given[:5]) for given in MEASURED]
    for given, got in zip(MEASURED, answers, strict=True):
        flops, nbytes, time_ms, peak_tflops, bandwidth_gbps, expected = given
        if not isinstance(got, str) or got != expected:
            case.call(*given[:5])  # so that the message shows this call
            case.instead(got is None, "returns None: is a return missing?")
            case.instead(not isinstance(got, str) or got not in BOUNDS,
                         'returns none of "compute", "bandwidth" and "overhead"', got=got)
            name, why = bound_mistake(answers)
            case.instead(name, name, why, expected=expected, got=got)
            parts = f"arithmetic {flops / peak_tflops / 1e9:.3g} ms, memory {nbytes / bandwidth_gbps / 1e6:.3g} ms"
            case.fail(f"at its peaks: {parts}; measured {time_ms:g} ms", expected=expected, got=got)


@exercise(title="Remove a branch and a loop", minutes=10, difficulty=2, hints=(
    "Work on all elements at once: error = (prediction - target).abs() has their shape.",
    "torch.where(condition, a, b) takes both branches, and chooses for each element on the device.",
    "each = torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)); return each.mean(dim=1)",
))
def huber(prediction: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the mean Huber loss of each row, shape (rows,), without a Python loop or an `if` on a value."""
    error = (prediction - target).abs()
    each = torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))  # both branches, then a choice
    return each.mean(dim=1)


_ALLOWED_OPERATORS = 16


@huber.checks
def _(case: Case) -> None:
    few = None
    for rows, columns, delta in ((2, 3, 1.0), (1, 3, 0.5), (40, 5, 0.25), (3, 60, 2.0)):
        prediction, target = torch.randn(rows, columns) * 3, torch.randn(rows, columns)
        prediction[0, 0] = target[0, 0] - 2 * delta  # an error below zero, far out
        prediction[-1, -1], target[-1, -1] = 0.5 + delta, 0.5  # an error of exactly delta
        learns = rows == 3  # in the last case
        got = case.call(prediction.to(case.device).requires_grad_(learns), target.to(case.device), delta)
        counts = case.counts
        case.instead(isinstance(got, list), "returns a list", "the numbers stay on the device, in a tensor", got=got)
        _no_branch(case)
        few = counts.operators if few is None else few
        case.instead(counts.operators > few + 10, "a loop is left",
                     f"{counts.operators} operators for shape {(rows, columns)}, {few} for (2, 3): the host hands the "
                     "device each one apart, and each costs a launch")
        pairs = zip(prediction.tolist(), target.tolist(), strict=True)
        expected = torch.tensor([huber_of_row(p, t, delta) for p, t in pairs])
        if isinstance(got, torch.Tensor):
            signed = prediction - target
            name, why = huber_mistake(got.detach().cpu(), signed, delta, expected)
            case.instead(name, name, why, expected=expected.to(case.device), got=got)
        case.equal(got, expected.to(case.device), rtol=1e-4, atol=1e-5)
        case.instead(not (got.requires_grad or not learns), "cuts the gradient",
                    "a loss is there to be trained on: .tolist(), .item(), .detach() and torch.no_grad() cut it")
    case.budget("operators", case.counts.operators, _ALLOWED_OPERATORS, "each one is a launch")


def _no_branch(case: Case) -> None:
    """Fail where the answer looked at values on the host."""
    counts = case.counts
    case.instead(counts.copies_d2h, "copies to the host",
                 f"{counts.bytes_d2h} bytes leave the device, and the host waits for them")
    reads = counts.host_reads
    masked = sum(counts.by_operator[name] for name in ("index", "index_put", "index_put_", "nonzero", "masked_select"))
    case.instead(reads and masked, "picks elements by a mask whose number nobody knows",
                 "x[mask] must count what is true before it can make its result, and the host waits for that: "
                 "torch.where keeps the shape")
    case.instead(reads, "a branch is left: the host reads a value",
                 f"{reads} time(s) the host waits for the device: for `if`, `while`, .item() or .tolist()")


@exercise(title="Gradients that get lost", minutes=5, difficulty=2, hints=(
    "Scale first, in the format that the gradients have; store then, with .to(dtype).",
    "Lost is what was not zero and is now zero or infinite: (gradients != 0) & ((stored == 0) | stored.isinf()).",
    "stored = (gradients * scale).to(dtype); there = gradients != 0; lost = there & ((stored == 0) | stored.isinf()); "
    "return (lost.sum() / there.sum()).item()",
))
def lost_share(gradients: torch.Tensor, dtype: torch.dtype, scale: float) -> float:
    """Return the share of the gradients other than 0 that become 0 or infinite when scaled and stored in `dtype`."""
    stored = (gradients * scale).to(dtype)  # scaled while they still have their range
    there = gradients != 0
    lost = there & ((stored == 0) | stored.isinf())
    return (lost.sum() / there.sum()).item()


@lost_share.checks
def _(case: Case) -> None:
    cases = gradient_cases()
    answers = [case.call(gradients.to(case.device), dtype, scale) for gradients, dtype, scale in cases]
    for (gradients, dtype, scale), got in zip(cases, answers, strict=True):
        largest = torch.finfo(dtype).max
        stored = [torch.tensor(value * scale).to(dtype).item() for value in gradients.tolist() if value]
        expected = sum(kept == 0 or abs(kept) > largest for kept in stored) / len(stored)
        if not math.isclose(number := as_float(got), expected, rel_tol=1e-4, abs_tol=1e-9):
            case.call(gradients.to(case.device), dtype, scale)  # so that the message shows this call
            _expect_number(case, got)
            name, why = lost_mistake([as_float(answer) for answer in answers])
            case.instead(name, name, why, expected=expected, got=got)
            case.instead(abs(number - expected) < 0.006, "rounds the share", "return it as it is; compute in float32",
                         expected=expected, got=got)
            case.fail("the share is another one", expected=expected, got=got)


@exercise(title="Pad a vocabulary", minutes=5, difficulty=1, hints=(
    "How many rows are missing up to the next multiple? -rows % multiple is that number, 0 where none is missing.",
    "torch.nn.functional.pad takes pairs from the last dimension on: (left, right, above, below).",
    "return functional.pad(weight, (0, 0, 0, -weight.shape[0] % multiple))",
))
def pad_vocabulary(weight: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return `weight`, shape (vocabulary, width), with rows of zeros below up to the next multiple of `multiple`."""
    missing = -weight.shape[0] % multiple  # 0 where the vocabulary is a multiple already
    return functional.pad(weight, (0, 0, 0, missing))  # (left, right, above, below)


@pad_vocabulary.checks
def _(case: Case) -> None:
    for rows, width, multiple, half in ((5, 2, 8, False), (5, 2, 4, False), (8, 2, 4, False), (3, 4, 8, True),
                                        (257, 3, 64, False), (1, 1, 1, True), (100, 5, 12, False)):
        weight = torch.randn(rows, width, dtype=torch.float16 if half else torch.float32)
        got = case.call(weight.to(case.device), multiple)
        wanted = multiple * math.ceil(rows / multiple)
        expected = torch.zeros(wanted, width, dtype=weight.dtype)
        expected[:rows] = weight
        if isinstance(got, torch.Tensor):
            _name_the_padding(case, got, weight, multiple, wanted)
        case.equal(got, expected.to(case.device))
        counts = case.counts
        case.instead(counts.bytes_d2h or counts.bytes_h2d or counts.host_reads, "moves values between host and device",
                     "zeros can be written where they are needed: new_zeros, or device=")


def _name_the_padding(case: Case, got: torch.Tensor, weight: torch.Tensor, multiple: int, wanted: int) -> None:
    """Fail with the name of the mistake if the shape or the place of the padding shows it."""
    rows, width = weight.shape
    found = got.shape[0] if got.dim() else 0
    show = {"expected": (wanted, width), "got": tuple(got.shape)}
    case.instead(rows % multiple == 0 and found == rows + multiple, "pads a multiple again",
                 f"{rows} is a multiple of {multiple} already: nothing is missing", **show)
    case.instead(found == rows + multiple, "adds a whole multiple", "only what is missing is added", **show)
    case.instead(rows % multiple and found == rows // multiple * multiple, "rounds down",
                 f"of {rows} tokens {rows - found} lose their row", **show)
    case.instead(rows % multiple and found == rows + rows % multiple, "adds the remainder of the division",
                 f"{rows % multiple} is what {rows} has too many, not what is missing up to the next multiple", **show)
    case.instead(found == 2 ** math.ceil(math.log2(rows)) != wanted, "rounds up to a power of two",
                 "a multiple is asked for; a power of two adds far more rows, and each one costs work", **show)
    case.instead(got.dim() == 2 and found == rows and got.shape[1] > width, "pads the width, not the vocabulary",
                 "a row is a token: rows are missing, at the bottom", **show)
    both = found == 2 * wanted - rows > rows
    case.instead(both and torch.equal(got[wanted - rows : wanted].cpu(), weight), "pads above and below",
                 "all new rows go below: (0, 0, 0, missing)", **show)
    if tuple(got.shape) == (wanted, width) and wanted > rows:
        mine = got.detach().cpu().to(weight.dtype)
        case.instead(torch.equal(mine[-rows:], weight) and not torch.equal(mine[:rows], weight), "pads above",
                     "token 0 must stay in row 0: the new rows go below")
        case.instead(torch.equal(mine[:rows], weight) and mine[rows:].any(), "fills the new rows with something else",
                     "zeros are asked for")
