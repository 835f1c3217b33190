"""How long does it take, and what limits it? The exercises of lesson 03."""

import itertools
import math
import re
import statistics
from collections.abc import Callable

import torch
from torch.nn import functional

from gpu_course.checks import Case, edges, lesson
from gpu_course.common.probes import elsewhere
from gpu_course.lesson03.queue import Bench, slow_kernels

__all__ = ["huber", "intensity", "lost_share", "median_time_s", "name_bound", "pad_vocabulary"]

exercise = lesson("03")


@exercise(
    title="Write an honest timer",
    minutes=14,
    difficulty=2,
    simulated=True,
    hints=(
        "For each repetition: empty the queue, read the clock, work, empty the queue, read the clock.",
        "The warm-up is a loop of its own, without the clock. Collect one time for each repetition in a list.",
        "Inside the second loop: synchronize, read the clock, work, synchronize, read the clock again. Append the "
        "difference of the two readings to the list. statistics.median takes the list.",
    ),
)
def median_time_s(
    work: Callable[[], object],
    clock: Callable[[], float],
    synchronize: Callable[[], None],
    warmup: int,
    repeats: int,
) -> float:
    """Return the median seconds of one call of `work`, after `warmup` untimed calls."""
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


median_time_s.leaves_out("how often is a small number, and not below 0", "number_negative number_large limit")
median_time_s.leaves_out("it is handed functions, and time goes on", "second_call")


@median_time_s.checks
def _(case: Case) -> None:
    for warmup, kernels, queued in _BENCHES:
        with slow_kernels():
            bench = Bench(case.device, warmup, kernels, queued)
            got = case.call(bench.work, bench.clock, bench.synchronize, warmup, bench.repeats)
            torch.get_device_module("sim").synchronize()
        log, calls = bench.log, warmup + bench.repeats  # W: work, C: clock, S: synchronise
        count = log.count("W")
        for when, name, why in (
            (not count, "never calls `work`", "its time is what is asked for"),
            ("C" not in log, "never reads the `clock` that it is given",
             "another clock knows nothing of this device's time"),
            ("S" not in log, "never synchronises",
             "the call returns when the work is queued: you time the queueing alone"),
            (count == bench.repeats < calls, "does not warm up",
             "the first calls do set-up work that later calls are spared"),
            (count != calls, f"calls `work` {count} times, not warmup + repeats = {calls} times",
             "both numbers are the caller's"),
        ):  # fmt: skip
            case.instead(when, name, why)
        expected = statistics.median(bench.alone_s[warmup:])
        if not (isinstance(got, float) and math.isclose(got, expected, rel_tol=1e-6)):
            timed = re.match(f"(?:[SC]*W){{{warmup}}}(.*)", log)[1]  # what follows the last warm-up call
            for when, name, why in (
                ("C" not in timed.partition("W")[0], "does not read the clock before the work",
                 "a time is the difference of two readings: one before `work()`, one after it"),
                (re.search("WC", timed), "does not synchronise after the work",
                 "`clock` is read while the device still works: the call returned when it was queued"),
                (not re.match("[SC]*SC", timed), "starts the clock before the queue is empty",
                 "what was queued before, warm-up included, is billed to the first repetition"),
                (re.search("W[^C]*W", timed), "times all repetitions in one go",
                 "that gives their mean: one slow repetition moves it; time each, and take the median"),
            ):  # fmt: skip
                case.instead(when, name, why)
        case.equal(got, expected, rtol=1e-6, atol=0, why="the median of the repetitions, each timed alone")
    for failing, kind in itertools.product((0, 1), (ZeroDivisionError, torch.OutOfMemoryError)):
        bench = Bench(case.device, 1, (1, 1, 1))
        error = case.error_of(_fails_once(failing, kind), bench.clock, bench.synchronize, 1, 2)
        hidden = not isinstance(error, kind)  # an error of `work` reaches the caller
        case.instead(hidden, "hides an error of `work`", "work that fails has no time: let the error pass")


def _fails_once(failing: int, kind: type[Exception]) -> Callable[[], None]:
    """Return work whose call with this number, from 0 on, raises an error of this kind."""
    calls = itertools.count()

    def work() -> None:
        if next(calls) == failing:
            raise kind("work failed")

    return work


@median_time_s.alternative("it times the warm-up as well and drops it: shorter, and a few readings of the clock more")
def _(work, clock, synchronize, warmup, repeats):
    def once():
        synchronize()
        begin = clock()
        work()
        synchronize()
        return clock() - begin

    return statistics.median([once() for _ in range(warmup + repeats)][warmup:])


@exercise(
    title="Arithmetic intensity",
    minutes=8,
    difficulty=1,
    hints=(
        "FLOPs: each of the n × m results takes k multiplications and k additions.",
        "Bytes: n k + k m are read, n m are written; each element has dtype.itemsize bytes.",
        "Divide the FLOPs by the bytes, which are the sum of the three sizes times dtype.itemsize: mind the brackets.",
    ),
)
def intensity(n: int, k: int, m: int, dtype: torch.dtype) -> float:
    """Return the FLOPs for each byte of an (n, k) times a (k, m) matrix."""
    flops = 2 * n * k * m  # k multiplications and k additions for each of n m results
    nbytes = (n * k + k * m + n * m) * dtype.itemsize  # two matrices read, one written
    return flops / nbytes


intensity.leaves_out("a matrix has rows and columns, of which none is a limit", "number_zero number_negative limit")


@intensity.checks
def _(case: Case) -> None:
    for n, k, m, dtype in (
        (4, 4, 4, torch.float32),
        (1, 1000, 1000, torch.float32),
        (1024, 1024, 1024, torch.float16),
        (32, 4096, 512, torch.bfloat16),
        (256, 64, 8, torch.float64),
        (100, 300, 200, torch.float8_e4m3fn),
        (33, 5, 7, torch.int8),
        (3, 5, 7, torch.int64),
        (3, 4, 5, torch.bool),
        (3, 4, 5, torch.complex64),
        (2**31, 3, 1, torch.float32),
    ):
        got = case.call(n, k, m, dtype)
        flops, nbytes = 2 * n * k * m, (n * k + k * m + n * m) * torch.empty((), dtype=dtype).nbytes
        expected = flops / nbytes
        _not_rounded(case, got, expected)
        case.equal(got, expected, rtol=1e-12, atol=0, why=f"{flops:,} FLOPs and {nbytes:,} bytes")


def _not_rounded(case: Case, got: object, expected: float) -> None:
    rounded = isinstance(got, float) and any(0 != got == round(expected, digits) != expected for digits in range(1, 5))
    case.instead(rounded, "rounds the number", "return it as it is; print it rounded", expected=expected, got=got)


@intensity.alternative("three tensors without memory know their bytes, whatever their shapes; it is slower")
def _(n, k, m, dtype):
    shapes = (n, k), (k, m), (n, m)
    return 2 * n * k * m / sum(torch.empty(shape, dtype=dtype, device="meta").nbytes for shape in shapes)


@exercise(
    title="Name the bound",
    minutes=10,
    difficulty=2,
    hints=(
        "How long would the arithmetic take alone at its peak, and the memory traffic alone at its bandwidth?",
        "1 TFLOP/s is 10⁹ FLOPs a millisecond, 1 GB/s 10⁶ bytes a millisecond: that makes two times in ms.",
        'First compare time_ms with twice the longer time, for "overhead". Then compare the two times with each other.',
    ),
)
def name_bound(
    flops: float,
    nbytes: float,
    time_ms: float,
    peak_tflops: float,
    bandwidth_gbps: float,
) -> str:
    """Return what limits an operation: "compute", "bandwidth" or "overhead"."""
    compute_ms = flops / (peak_tflops * 1e9)  # 1 TFLOP/s is 10**9 operations a millisecond
    memory_ms = nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond
    if time_ms > 2 * max(compute_ms, memory_ms):
        return "overhead"  # neither the arithmetic nor the memory explains this time
    return "compute" if compute_ms > memory_ms else "bandwidth"


# FLOPs, bytes, ms, peak TFLOP/s, GB/s, and the bound. The peaks are those of a T4, an A100 and a slow processor.
_MEASURED = (
    (2e9, 12e6, 0.3, 8.1, 320.0, "compute"),
    (1e6, 800e6, 3.0, 8.1, 320.0, "bandwidth"),
    (1e6, 12e3, 0.02, 8.1, 320.0, "overhead"),
    (3e11, 100e6, 1.2, 312.0, 1555.0, "compute"),
    (5e9, 200e6, 0.15, 312.0, 1555.0, "bandwidth"),
    (5e9, 200e6, 0.9, 312.0, 1555.0, "overhead"),
    (2e9, 12e6, 9.0, 8.1, 320.0, "overhead"),
    (1e9, 60e6, 0.21, 8.1, 320.0, "bandwidth"),
    (1.2e9, 40e6, 0.22, 8.1, 320.0, "compute"),
    (4e8, 9e6, 7.0, 0.1, 20.0, "compute"),
    (1e7, 80e6, 6.0, 0.1, 20.0, "bandwidth"),
    (1e7, 80e6, 60.0, 0.1, 20.0, "overhead"),
    (8.1e9, 32e6, 1.95, 8.1, 320.0, "compute"),
    (8.1e8, 320e6, 1.95, 8.1, 320.0, "bandwidth"),
    (8.1e9, 32e6, 2.5, 8.1, 320.0, "overhead"),
    (2.025e9, 64e6, 0.7, 8.1, 320.0, "overhead"),
    (8e9, 16e6, 2.0, 8.0, 320.0, "compute"),
    (8e8, 320e6, 2.0, 8.0, 320.0, "bandwidth"),  # exactly twice the roof
    (2e9, 76.8e6, 0.485, 8.0, 320.0, "compute"),  # below the sum of the parts, above twice the shorter one
    (2e9, 64e6, 0.2, 8.0, 320.0, "compute"),
    (1.6e9, 80e6, 0.2, 8.0, 320.0, "bandwidth"),  # below the roof: a cache
    (0.0, 80e6, 0.3, 8.0, 320.0, "bandwidth"),  # a copy computes nothing
    (2e9, 0.0, 0.3, 8.0, 320.0, "compute"),
    (0.0, 80e6, 0.6, 8.0, 320.0, "overhead"),
    (1.52e9, 64e6, 0.3, 8.0, 320.0, "bandwidth"),  # nearly as long
    (8e9, 16e6, 2.05, 8.0, 320.0, "overhead"),
    (4e10, 4e8, 0.3, 312.0, 1555.0, "bandwidth"),  # right of a T4's ridge, and left of this one's
    (8e6, 1e3, 0.0015, 8.0, 320.0, "compute"),  # a short time may lie on the roof, too
)


name_bound.leaves_out("nothing is below 0", "number_negative")


@name_bound.checks
def _(case: Case) -> None:
    edges.note("limit")  # a time of exactly twice the longer one; where both are equal, the text leaves it open
    for flops, nbytes, time_ms, peak_tflops, bandwidth_gbps, expected in _MEASURED:
        got = case.call(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps)
        known = got is None or (isinstance(got, str) and got in ("compute", "bandwidth", "overhead"))
        case.instead(not known, 'returns none of "compute", "bandwidth" and "overhead"', got=got)
        parts = f"arithmetic {flops / peak_tflops / 1e9:.3g} ms, memory {nbytes / bandwidth_gbps / 1e6:.3g} ms"
        case.equal(got, expected, why=f"at its peaks: {parts}; measured {time_ms:g} ms")


@name_bound.alternative("a further limit, such as the bus, is one entry more in the dict")
def _(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    parts_ms = {"bandwidth": nbytes / (bandwidth_gbps * 1e6), "compute": flops / (peak_tflops * 1e9)}
    longest = max(parts_ms, key=parts_ms.get)
    return "overhead" if time_ms > 2 * parts_ms[longest] else longest


@exercise(
    title="Remove a branch and a loop",
    minutes=13,
    difficulty=2,
    hints=(
        "Work on all elements at once: error = (prediction - target).abs() has their shape.",
        "torch.where(condition, a, b) takes both branches, and chooses for each element on the device.",
        "torch.where with the condition error <= delta and the two formulas of huber_slow; then the mean over dim=1.",
    ),
)
def huber(prediction: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the mean Huber loss of each row, shape (rows,), with no loop or branch."""
    error = (prediction - target).abs()
    each = torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))  # both branches, then a choice
    return each.mean(dim=1)


_ALLOWED_OPERATORS = 16


huber.leaves_out("a row has elements, else it has no mean", "scalar")
huber.leaves_out("the text speaks of numbers alone", "not_finite complex bool whole")
huber.leaves_out("the square of a loss leaves the range of 16 bits", "half bfloat16")
huber.leaves_out("delta is an error, and so above 0", "number_zero number_negative number_large")
huber.leaves_out("nothing is made, so no default is asked", "default_type")


@huber.checks
def _(case: Case) -> None:
    few = None
    for rows, columns, delta in ((2, 3, 1.0), (1, 3, 0.5), (40, 5, 0.25), (3, 60, 2.0)):
        prediction, target = torch.randn(rows, columns) * 3, torch.randn(rows, columns)
        prediction[0, 0] = target[0, 0] - 2 * delta  # an error below zero, far out
        prediction[-1, -1], target[-1, -1] = 0.5 + delta, 0.5  # an error of exactly delta
        prediction[-1, 0] = target[-1, 0]  # an error of exactly 0
        learns = rows == 3  # in the last case
        leaf, other = (one.to(case.device).requires_grad_(learns) for one in (prediction, target))
        got = case.call(leaf, other, delta)
        counts = case.counts
        case.instead(isinstance(got, list), "returns a list", "the numbers stay on the device, in a tensor", got=got)
        _no_branch(case)
        few = counts.operators if few is None else few
        case.instead(
            counts.operators > few + 10,
            "a loop is left",
            f"{counts.operators} operators for shape {(rows, columns)}, {few} for (2, 3): the host hands the "
            "device each one apart, and each costs a launch",
        )
        case.equal(
            got,
            torch.tensor(
                [_huber_of_row(*pair, delta) for pair in zip(prediction.tolist(), target.tolist(), strict=True)]
            ).to(case.device),
            rtol=1e-4,
            atol=1e-5,
        )
        if learns:
            case.instead(
                not got.requires_grad,
                "cuts the gradient",
                "a loss is there to be trained on: .tolist(), .item(), .detach() and torch.no_grad() cut it",
            )
            case.backward(got)
            slope = (prediction - target).clamp(-delta, delta) / columns
            case.instead(
                leaf.grad is None or other.grad is None,
                "cuts the gradient of one input",
                "gradients must flow back to `prediction` and to `target`, as in the loop",
            )
            case.instead(
                leaf.grad.isnan().any(),
                "its gradient is NaN where the error is 0",
                "the slope of a root or of a division by the error is infinite there, and 0 times it is NaN",
            )
            for one, right in ((leaf, slope), (other, -slope)):
                case.equal(one.grad, right.to(case.device), rtol=1e-4, why="the loss is right, its gradient is not")
    edges.note("limit")  # an error of exactly delta
    case.budget("operators", case.counts.operators, _ALLOWED_OPERATORS, "each one is a launch")
    _any_tensors(case)


def _any_tensors(case: Case) -> None:
    """Fail unless the answer computes the same whatever the memory, the size, the type and the place."""
    sharp = torch.tensor([[0.0, 2e4, -3e4], [1e-6, -3.0, 0.0]])
    for prediction, device in (
        (edges.permuted(sharp), case.device),
        (edges.sliced(sharp), case.device),
        (sharp.double() + 1e-9, case.device),
        (torch.ones(0, 3), case.device),
        (torch.ones(2, 1), case.device),
        (sharp, elsewhere(case.device)),
        (sharp, torch.device("cpu")),
    ):
        device = edges.supporting(device, prediction)
        target = torch.linspace(-1, 1, prediction.numel(), dtype=prediction.dtype).view(prediction.shape)
        got = case.call(edges.on(prediction, device), target.to(device), 0.5)
        rows = zip(prediction.tolist(), target.tolist(), strict=True)
        expected = torch.tensor([_huber_of_row(*row, 0.5) for row in rows], dtype=prediction.dtype).to(device)
        exact = prediction.dtype == torch.float64
        case.equal(got, expected, rtol=1e-12 if exact else 1e-5, atol=0 if exact else 1e-5)


def _huber_of_row(prediction: list[float], target: list[float], delta: float) -> float:
    """Return the mean Huber loss of one row, with Python's numbers."""
    errors = [abs(p - t) for p, t in zip(prediction, target, strict=True)]
    return sum(0.5 * e * e if e <= delta else delta * (e - 0.5 * delta) for e in errors) / len(errors)


def _no_branch(case: Case) -> None:
    """Fail where the answer looked at values on the host."""
    counts = case.counts
    case.instead(
        counts.copies_d2h,
        "copies to the host",
        f"{counts.bytes_d2h} bytes leave the device, and the host waits for them",
    )
    reads = counts.host_reads
    masked = sum(counts.by_operator[name] for name in ("index", "index_put", "index_put_", "nonzero", "masked_select"))
    case.instead(
        reads and masked,
        "picks elements by a mask whose number nobody knows",
        "x[mask] must count what is true before it can make its result, and the host waits for that: "
        "torch.where keeps the shape",
    )
    case.instead(
        reads,
        "a branch is left: the host reads a value",
        f"{reads} time(s) the host waits for the device: for `if`, `while`, .item() or .tolist()",
    )


@huber.alternative("PyTorch has this loss, as one fused operator: look for yours before you write it")
def _(prediction, target, delta):
    return functional.huber_loss(prediction, target, reduction="none", delta=delta).mean(dim=1)


@exercise(
    title="Gradients that get lost",
    minutes=10,
    difficulty=2,
    hints=(
        "First multiply by the scale, in the format that the gradients have. Then store the result with .to(dtype).",
        "Three masks: what was not 0 before, what is 0 now, and what isinf() finds.",
        "A gradient is lost where the first mask is True, and also the second or the third. Write this with &, | and "
        "brackets. Divide the sum of this mask by the sum of the first.",
    ),
)
def lost_share(gradients: torch.Tensor, dtype: torch.dtype, scale: float) -> float:
    """Return the share of non-zero gradients that become 0 or infinite in `dtype`."""
    stored = (gradients * scale).to(dtype)  # scaled while they still have their range
    nonzero = gradients != 0
    lost = nonzero & ((stored == 0) | stored.isinf())
    return (lost.sum() / nonzero.sum()).item()


lost_share.leaves_out("there is at least one gradient, and all are numbers", "empty not_finite")
lost_share.leaves_out("gradients are stored as floating-point numbers", "whole bool complex double")
lost_share.leaves_out("a scale is no number below 0, and it meets no limit", "number_negative limit")
lost_share.leaves_out("nothing is made, so no default is asked", "default_type")


@lost_share.checks
def _(case: Case) -> None:
    wide = torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 10.0 ** torch.linspace(-12, 2, 2000)
    wide[::7] = 0
    square = torch.tensor([[2.0, 1e-8, 1e-9], [0.0, 7e4, -7e4], [1.0, 0.0, -1e-9]])
    for gradients, dtype, scale in (
        (torch.tensor([1e-3, 1e-8]), torch.float16, 1.0),
        (torch.tensor([1e-3, 0.0, 1e-8, 0.0]), torch.float16, 1.0),
        (torch.tensor([-2.0, 1e-3]), torch.float16, 2.0**16),
        (torch.tensor([4e-8, 1e-6, 65510.0, 1.0]), torch.float16, 1.0),
        (torch.tensor([-1e-3, -1e-8, 0.0, 1e-8]), torch.float16, 2.0**16),
        (torch.tensor([2.0, -1e-8, 1e-13, 0.0]), torch.float16, 2.0**16),
        (torch.tensor([2.0, 1e-8, 1e-13, 0.0]), torch.bfloat16, 2.0**16),
        (wide, torch.float16, 2.0**10),
        (wide, torch.bfloat16, 4.0),
        (torch.tensor([[2.0, 1e-8, 1e-9], [0.0, 1.0, 3.0]]), torch.float16, 1.0),
        (torch.tensor([3.4e38, 1.0]), torch.bfloat16, 1.0),  # bfloat16 has numbers of its own that it loses
        (torch.tensor(1e-9), torch.float16, 1.0),
        (torch.tensor([[-1e-9]]), torch.float16, 1e3),
        (edges.permuted(square), torch.float16, 1.0),
        (edges.sliced(square), torch.float16, 2.0),
        (square, torch.float16, 0.0),  # scaled by 0, all are lost
        (square, torch.float16, 2.0**32),
        (square, torch.float32, 1e38),
        (square, torch.float16, 1),
        (square.to(elsewhere(case.device)), torch.float16, 1.0),
        (square, torch.bfloat16, 1.0),
    ):
        device = gradients.device if gradients.device.type != "cpu" else case.device
        got = case.call(edges.on(gradients, device), dtype, scale)
        stored = [torch.tensor(value * scale).to(dtype).item() for value in gradients.flatten().tolist() if value]
        expected = sum(kept == 0 or math.isinf(kept) for kept in stored) / len(stored)
        close = isinstance(got, float) and 1e-4 * expected < abs(got - expected) < 0.006
        case.instead(close, "rounds the share", "return it as it is; compute in float32", expected=expected, got=got)
        case.equal(got, expected, rtol=1e-4, atol=1e-9)
    case.equal(case.call(torch.tensor([1e-9, 1.0]), torch.float16, 1.0), 0.5, why="the caller chooses the device")


@lost_share.alternative("easier to read, but a mask as an index makes the host wait for the number of elements")
def _(gradients, dtype, scale):
    stored = (gradients[gradients != 0] * scale).to(dtype)
    return ((stored == 0) | stored.isinf()).float().mean().item()


@exercise(
    title="Pad a vocabulary",
    minutes=8,
    difficulty=1,
    hints=(
        "How many rows are missing up to the next multiple? -rows % multiple is that number, 0 where none is missing.",
        "torch.nn.functional.pad takes pairs from the last dimension on: (left, right, above, below).",
        "Nothing to the left, to the right and above: three zeros, and the number of missing rows last.",
    ),
)
def pad_vocabulary(weight: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return `weight` with rows of zeros below, up to a multiple of `multiple` rows."""
    missing = -weight.shape[0] % multiple  # 0 where the vocabulary is a multiple already
    return functional.pad(weight, (0, 0, 0, missing))  # (left, right, above, below)


pad_vocabulary.leaves_out("the text says that the weight has two dimensions", "scalar")
pad_vocabulary.leaves_out("weights are floating-point numbers", "whole bool complex")
pad_vocabulary.leaves_out("a multiple is a small number above 0", "number_zero number_negative number_large")
pad_vocabulary.leaves_out("the text names the type: the weight's own", "default_type")


@pad_vocabulary.checks
def _(case: Case) -> None:
    edges.note("limit")  # a vocabulary that is a multiple already
    for weight, device in (  # "keep dtype and device", and each number of `weight`
        (edges.UGLY, case.device),
        (edges.permuted(edges.UGLY), case.device),
        (edges.sliced(edges.UGLY), case.device),
        (edges.UGLY.double(), case.device),
        (edges.UGLY.bfloat16(), case.device),
        (torch.ones(0, 4), case.device),
        (torch.ones(3, 1), case.device),
        (edges.UGLY, elsewhere(case.device)),
        (edges.UGLY, torch.device("cpu")),
    ):
        device = edges.supporting(device, weight)
        got = case.call(edges.on(weight, device), 3)
        case.equal(got, torch.cat((weight, torch.zeros(-len(weight) % 3, weight.shape[1]).to(weight))).to(device))
    for rows, width, multiple, half in (
        (5, 2, 8, False),
        (5, 2, 4, False),
        (8, 2, 4, False),
        (3, 4, 8, True),
        (257, 3, 64, False),
        (1, 1, 1, True),
        (100, 5, 12, False),
    ):
        weight = torch.randn(rows, width, dtype=torch.float16 if half else torch.float32)
        got = case.call(weight.to(case.device), multiple)
        expected = torch.zeros(multiple * math.ceil(rows / multiple), width, dtype=weight.dtype)
        expected[:rows] = weight
        below = got[rows:].cpu() if isinstance(got, torch.Tensor) and got.shape == expected.shape else expected[rows:]
        case.instead(below.any(), "fills the new rows with something else", "zeros are asked for")
        case.equal(got, expected.to(case.device))
        counts = case.counts
        case.instead(
            counts.bytes_d2h or counts.bytes_h2d or counts.host_reads,
            "moves values between host and device",
            "zeros can be written where they are needed: new_zeros, or device=",
        )


@pad_vocabulary.alternative("the new rows get a name, and could hold something else than zeros; one tensor more")
def _(weight, multiple):
    below = weight.new_zeros(-weight.shape[0] % multiple, weight.shape[1])  # same dtype, same device
    return torch.cat((weight, below))
