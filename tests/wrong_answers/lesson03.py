"""Answers to lesson 03 that people give, each with what the message must say."""

import math
import statistics
import time

import numpy as np
import torch


# ---- median_time_s
def _none_at_all(work, clock, synchronize, warmup, repeats):
    times = []
    for _ in range(warmup):
        work()
    for _ in range(repeats):
        begin = clock()
        work()
        times.append(clock() - begin)
    return statistics.median(times)


def _none_before(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        begin = clock()
        work()
        synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def _none_after(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        synchronize()
        begin = clock()
        work()
        times.append(clock() - begin)
    return statistics.median(times)


def _clock_too_early(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        synchronize()
        begin = clock()
        work()
        end = clock()
        synchronize()
        times.append(end - begin)
    return statistics.median(times)


def _no_warmup(work, clock, synchronize, warmup, repeats):
    times = []
    for _ in range(repeats):
        synchronize()
        begin = clock()
        work()
        synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def _one_warmup(work, clock, synchronize, warmup, repeats):
    work()
    return _no_warmup(work, clock, synchronize, warmup, repeats)


def _times(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        synchronize()
        begin = clock()
        work()
        synchronize()
        times.append(clock() - begin)
    return times


def _mean(work, clock, synchronize, warmup, repeats):
    return statistics.mean(_times(work, clock, synchronize, warmup, repeats))


def _one_block(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    synchronize()
    begin = clock()
    for _ in range(repeats):
        work()
    synchronize()
    return (clock() - begin) / repeats


def _one_block_never_done(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    synchronize()
    begin = clock()
    for _ in range(repeats):
        work()
    return (clock() - begin) / repeats


def _fastest(work, clock, synchronize, warmup, repeats):
    return min(_times(work, clock, synchronize, warmup, repeats))


def _unsorted_middle(work, clock, synchronize, warmup, repeats):
    times = _times(work, clock, synchronize, warmup, repeats)
    return times[len(times) // 2]


def _warmup_counted(work, clock, synchronize, warmup, repeats):
    return statistics.median(_times(work, clock, synchronize, 0, warmup + repeats))


def _milliseconds(work, clock, synchronize, warmup, repeats):
    return 1000 * statistics.median(_times(work, clock, synchronize, warmup, repeats))


def _list_of_times(work, clock, synchronize, warmup, repeats):
    return _times(work, clock, synchronize, warmup, repeats)


def _own_clock(work, clock, synchronize, warmup, repeats):
    return statistics.median(_times(work, time.perf_counter, synchronize, warmup, repeats))


def _own_synchronize(work, clock, synchronize, warmup, repeats):
    return statistics.median(_times(work, clock, torch.sim.synchronize, warmup, repeats))


def _synchronize_not_called(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        synchronize  # noqa: B018
        begin = clock()
        work()
        synchronize  # noqa: B018
        times.append(clock() - begin)
    return statistics.median(times)


def _one_reading(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    synchronize()
    times, begin = [], clock()
    for _ in range(repeats):
        work()
        synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def _clock_after_the_work(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        work()
        synchronize()
        begin = clock()
        times.append(clock() - begin)
    return statistics.median(times)


def _microseconds(work, clock, synchronize, warmup, repeats):
    return 1e6 * statistics.median(_times(work, clock, synchronize, warmup, repeats))


def _example(work, clock, synchronize, warmup, repeats):
    return 0.000272


def _emptied_on_the_clock(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        begin = clock()
        synchronize()
        work()
        synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


def _backwards(work, clock, synchronize, warmup, repeats):
    return -_milliseconds(work, clock, synchronize, warmup, repeats) / 1e3


def _divided_again(work, clock, synchronize, warmup, repeats):
    return _milliseconds(work, clock, synchronize, warmup, repeats) / 1e3 / repeats


def _beside_the_median(work, clock, synchronize, warmup, repeats):
    times = sorted(_times(work, clock, synchronize, warmup, repeats))
    return times[min((len(times) + 1) // 2, len(times) - 1)]


def _divided_by_1000(work, clock, synchronize, warmup, repeats):
    return statistics.median(_times(work, clock, synchronize, warmup, repeats)) / 1000


def _printed(work, clock, synchronize, warmup, repeats):
    print(statistics.median(_times(work, clock, synchronize, warmup, repeats)))


def _larger_than_a_float(work, clock, synchronize, warmup, repeats):
    _times(work, clock, synchronize, warmup, repeats)
    return 10**400


# ---- intensity
def _no_output(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + k * m) * dtype.itemsize)


def _elements(n, k, m, dtype):
    return 2 * n * k * m / (n * k + k * m + n * m)


def _multiplications(n, k, m, dtype):
    return n * k * m / ((n * k + k * m + n * m) * dtype.itemsize)


def _four_bytes(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + k * m + n * m) * 4)


def _upside_down(n, k, m, dtype):
    return (n * k + k * m + n * m) * dtype.itemsize / (2 * n * k * m)


def _bits(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + k * m + n * m) * torch.finfo(dtype).bits)


def _square(n, k, m, dtype):
    return 2 * n**3 / (3 * n * n * dtype.itemsize)


def _one_factor(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + n * m) * dtype.itemsize)


def _whole(n, k, m, dtype):
    return 2 * n * k * m // ((n * k + k * m + n * m) * dtype.itemsize)


def _text(n, k, m, dtype):
    return f"{2 * n * k * m / ((n * k + k * m + n * m) * dtype.itemsize)} FLOP/byte"


def _rounded(n, k, m, dtype):
    return round(2 * n * k * m / ((n * k + k * m + n * m) * dtype.itemsize), 3)


def _without_brackets(n, k, m, dtype):
    return 2 * n * k * m / (n * k + k * m + n * m) * dtype.itemsize


def _additions(n, k, m, dtype):
    return (2 * k - 1) * n * m / ((n * k + k * m + n * m) * dtype.itemsize)


def _times_the_elements(n, k, m, dtype):
    return 2 * n * k * m / dtype.itemsize * (n * k + k * m + n * m)


def _bytes_of_the_output_alone(n, k, m, dtype):
    return 2 * n * k * m / (n * k + k * m + n * m * dtype.itemsize)


def _output_like_the_first_factor(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + k * m + n * k) * dtype.itemsize)


def _output_twice(n, k, m, dtype):
    return 2 * n * k * m / ((n * k + k * m + 2 * n * m) * dtype.itemsize)


def _whole_numbers(n, k, m, dtype):
    return round(2 * n * k * m / ((n * k + k * m + n * m) * dtype.itemsize))


def _no_float(n, k, m, dtype):
    return 10**400


# ---- name_bound
def _by_the_ridge(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    ridge = peak_tflops * 1e12 / (bandwidth_gbps * 1e9)
    return "compute" if flops / nbytes > ridge else "bandwidth"


def _only_arithmetic(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    if time_ms > 2 * compute_ms:
        return "overhead"
    return "compute" if compute_ms > memory_ms else "bandwidth"


def _without_peaks(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    if time_ms > 2 * max(flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6):
        return "overhead"
    return "compute" if flops > nbytes else "bandwidth"


def _swapped(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    if time_ms > 2 * max(compute_ms, memory_ms):
        return "overhead"
    return "bandwidth" if compute_ms > memory_ms else "compute"


def _seconds(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_s, memory_s = flops / peak_tflops / 1e12, nbytes / bandwidth_gbps / 1e9
    if time_ms > 2 * max(compute_s, memory_s):
        return "overhead"
    return "compute" if compute_s > memory_s else "bandwidth"


def _both_tera(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e9
    if time_ms > 2 * max(compute_ms, memory_ms):
        return "overhead"
    return "compute" if compute_ms > memory_ms else "bandwidth"


def _sum(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    if time_ms > 2 * (compute_ms + memory_ms):
        return "overhead"
    return "compute" if compute_ms > memory_ms else "bandwidth"


def _other_words(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    return "compute-bound" if flops / peak_tflops / 1e9 > nbytes / bandwidth_gbps / 1e6 else "memory-bound"


def _one_word(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    return "bandwidth"


def _bound(compute_ms, memory_ms, limit_ms, time_ms):
    if time_ms > limit_ms:
        return "overhead"
    return "compute" if compute_ms > memory_ms else "bandwidth"


def _binary(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 2**30, nbytes / bandwidth_gbps / 2**20
    return _bound(compute_ms, memory_ms, 2 * max(compute_ms, memory_ms), time_ms)


def _shorter(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    return _bound(compute_ms, memory_ms, 2 * min(compute_ms, memory_ms), time_ms)


def _twice_above(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    return _bound(compute_ms, memory_ms, 3 * max(compute_ms, memory_ms), time_ms)


def _peaks_of_the_t4(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / 8.1 / 1e9, nbytes / 320 / 1e6
    return _bound(compute_ms, memory_ms, 2 * max(compute_ms, memory_ms), time_ms)


def _ridge_in_mixed_units(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    if time_ms > 2 * max(flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6):
        return "overhead"
    return "compute" if flops / nbytes > peak_tflops / bandwidth_gbps else "bandwidth"


def _bound_printed(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    print(_one_word(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps))


def _array_of_bounds(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    return np.array(["compute", "bandwidth"])


# ---- huber
def _loop_over_rows(prediction, target, delta):
    means = []
    for p, t in zip(prediction, target, strict=True):
        error = (p - t).abs()
        means.append(torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean())
    return torch.stack(means)


def _loop_over_columns(prediction, target, delta):
    total = torch.zeros_like(prediction[:, 0])
    for column in range(prediction.shape[1]):
        error = (prediction[:, column] - target[:, column]).abs()
        total = total + torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))
    return total / prediction.shape[1]


def _loop_with_branch(prediction, target, delta):
    means = []
    for p_row, t_row in zip(prediction, target, strict=True):
        total = 0.0
        for p, t in zip(p_row, t_row, strict=True):
            error = abs(p - t)
            total = total + (0.5 * error**2 if error <= delta else delta * (error - 0.5 * delta))
        means.append(total / len(p_row))
    return torch.stack(means)


def _lists(prediction, target, delta):
    rows = []
    for p, t in zip(prediction.tolist(), target.tolist(), strict=True):
        errors = [abs(a - b) for a, b in zip(p, t, strict=True)]
        rows.append(sum(0.5 * e * e if e <= delta else delta * (e - 0.5 * delta) for e in errors) / len(errors))
    return torch.tensor(rows, device=prediction.device)


def _host(prediction, target, delta):
    error = (prediction.cpu() - target.cpu()).abs()
    each = torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))
    return each.mean(dim=1).to(prediction.device)


def _by_index(prediction, target, delta):
    error = (prediction - target).abs()
    each = 0.5 * error**2
    far = error > delta
    each[far] = delta * (error[far] - 0.5 * delta)
    return each.mean(dim=1)


def _signed(prediction, target, delta):
    error = prediction - target
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _branches_swapped(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error > delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _no_half(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _all_squares(prediction, target, delta):
    return (0.5 * (prediction - target) ** 2).mean(dim=1)


def _one_number(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean()


def _sums(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).sum(dim=1)


def _other_dimension(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=0)


def _kept(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1, keepdim=True)


def _whole_branch(prediction, target, delta):
    error = (prediction - target).abs()
    if (error <= delta).all():
        return (0.5 * error**2).mean(dim=1)
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _delta_ignored(prediction, target, delta):
    return torch.nn.functional.huber_loss(prediction, target, reduction="none").mean(dim=1)


def _smooth_l1(prediction, target, delta):
    return torch.nn.functional.smooth_l1_loss(prediction, target, reduction="none", beta=delta).mean(dim=1)


def _without_gradients(prediction, target, delta):
    with torch.no_grad():
        return torch.nn.functional.huber_loss(prediction, target, reduction="none", delta=delta).mean(dim=1)


def _list_of_losses(prediction, target, delta):
    return torch.nn.functional.huber_loss(prediction, target, reduction="none", delta=delta).mean(dim=1).tolist()


def _signed_line(prediction, target, delta):
    error = prediction - target
    return torch.where(error.abs() <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _small_errors_alone(prediction, target, delta):
    error = (prediction - target).abs()
    return (0.5 * error**2 * (error <= delta)).mean(dim=1)


def _clamped(prediction, target, delta):
    return (0.5 * (prediction - target).clamp(-delta, delta) ** 2).mean(dim=1)


def _both_branches_at_delta(prediction, target, delta):
    error = (prediction - target).abs()
    return (0.5 * error**2 * (error <= delta) + delta * (error - 0.5 * delta) * (error >= delta)).mean(dim=1)


def _no_branch_at_delta(prediction, target, delta):
    error = (prediction - target).abs()
    return (0.5 * error**2 * (error < delta) + delta * (error - 0.5 * delta) * (error > delta)).mean(dim=1)


def _mean_squared(prediction, target, delta):
    return torch.nn.functional.mse_loss(prediction, target, reduction="none").mean(dim=1)


def _mean_absolute(prediction, target, delta):
    return torch.nn.functional.l1_loss(prediction, target, reduction="none").mean(dim=1)


def _no_half_in_the_line(prediction, target, delta):
    error = (prediction - target).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - delta)).mean(dim=1)


def _line_for_all(prediction, target, delta):
    return (delta * ((prediction - target).abs() - 0.5 * delta)).mean(dim=1)


# ---- lost_share
def _scaled_late(gradients, dtype, scale):
    stored = gradients.to(dtype) * scale
    there = gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _no_scale(gradients, dtype, scale):
    stored, there = gradients.to(dtype), gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _no_overflow(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return ((there & (stored == 0)).sum() / there.sum()).item()


def _no_underflow(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return ((there & stored.isinf()).sum() / there.sum()).item()


def _zeros_too(gradients, dtype, scale):
    stored = (gradients * scale).to(dtype)
    return ((stored == 0) | stored.isinf()).float().mean().item()


def _of_all(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return (there & ((stored == 0) | stored.isinf())).float().mean().item()


def _unscaled_short(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype) / scale, gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _percent(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return (100 * (there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _lost_number(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return (there & ((stored == 0) | stored.isinf())).sum().item()


def _lost_tensor(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return (there & ((stored == 0) | stored.isinf())).sum() / there.sum()


def _in_place(gradients, dtype, scale):
    stored, there = gradients.mul_(scale).to(dtype), gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _below_tiny(gradients, dtype, scale):
    size, there = (gradients * scale).abs(), gradients != 0
    limits = torch.finfo(dtype)
    return ((there & ((size < limits.tiny) | (size > limits.max))).sum() / there.sum()).item()


def _one_infinity(gradients, dtype, scale):
    stored, there = (gradients * scale).to(dtype), gradients != 0
    return ((there & ((stored == 0) | (stored == math.inf))).sum() / there.sum()).item()


def _always_half(gradients, dtype, scale):
    stored, there = (gradients * scale).half(), gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _divided_by_the_scale(gradients, dtype, scale):
    stored, there = (gradients / scale).to(dtype), gradients != 0
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _stored_then_scaled(gradients, dtype, scale):
    scaled = gradients.to(dtype).float() * scale
    return _bad_share(scaled, gradients != 0)


def _bad_share(stored, there):
    return ((there & ((stored == 0) | stored.isinf())).sum() / there.sum()).item()


def _positive_alone(gradients, dtype, scale):
    return _bad_share((gradients * scale).to(dtype), gradients > 0)


def _lost_to_kept(gradients, dtype, scale):
    share = _bad_share((gradients * scale).to(dtype), gradients != 0)
    return share / (1 - share)


def _share_in_the_format(gradients, dtype, scale):
    stored = (gradients * scale).to(dtype)[gradients != 0]
    return ((stored == 0) | stored.isinf()).to(dtype).mean().item()


def _never_a_float(gradients, dtype, scale):
    return 10**400


def _always_bfloat16(gradients, dtype, scale):
    return _bad_share((gradients * scale).bfloat16(), gradients != 0)


# ---- pad_vocabulary
def _pad(weight, rows):
    return torch.cat([weight, weight.new_zeros(rows, weight.shape[1])])


def _rounds_down(weight, multiple):
    return weight[: weight.shape[0] // multiple * multiple]


def _again(weight, multiple):
    return _pad(weight, multiple - weight.shape[0] % multiple)


def _always_one_more(weight, multiple):
    return _pad(weight, multiple)


def _power_of_two(weight, multiple):
    return _pad(weight, 2 ** math.ceil(math.log2(weight.shape[0])) - weight.shape[0])


def _width(weight, multiple):
    return torch.nn.functional.pad(weight, (0, -weight.shape[0] % multiple))


def _above(weight, multiple):
    return torch.nn.functional.pad(weight, (0, 0, -weight.shape[0] % multiple, 0))


def _ones(weight, multiple):
    return torch.cat([weight, weight.new_ones(-weight.shape[0] % multiple, weight.shape[1])])


def _on_the_cpu(weight, multiple):
    return torch.cat([weight, torch.zeros(-weight.shape[0] % multiple, weight.shape[1], dtype=weight.dtype)])


def _created_then_moved(weight, multiple):
    return torch.cat([weight, torch.zeros(-weight.shape[0] % multiple, weight.shape[1]).to(weight)])


def _float32(weight, multiple):
    return torch.cat([weight, torch.zeros(-weight.shape[0] % multiple, weight.shape[1], device=weight.device)])


def _number(weight, multiple):
    return math.ceil(weight.shape[0] / multiple) * multiple


def _remainder(weight, multiple):
    return torch.cat([weight, weight.new_zeros(weight.shape[0] % multiple, weight.shape[1])])


def _on_both_sides(weight, multiple):
    missing = -weight.shape[0] % multiple
    return torch.nn.functional.pad(weight, (0, 0, missing, missing))


def _looks_at_a_value(weight, multiple):
    if weight.isnan().any():
        raise ValueError("the weight is not a number")
    return _pad(weight, -weight.shape[0] % multiple)


WRONG = {
    "median_time_s": [
        ("never synchronises", _none_at_all),
        ("starts the clock before the queue is empty", _none_before),
        ("starts the clock before the queue is empty", _emptied_on_the_clock),
        ("does not synchronise after", _none_after),
        ("does not synchronise after", _clock_too_early),
        ("does not warm up", _no_warmup),
        ("calls `work`", _one_warmup),
        ("gives the mean of the repetitions", _mean),
        ("times all repetitions in one go", _one_block),
        ("does not synchronise after", _one_block_never_done),
        ("gives the fastest repetition", _fastest),
        ("without sorting", _unsorted_middle),
        ("counts the warm-up calls", _warmup_counted),
        ("returns milliseconds", _milliseconds),
        ("returns list, expected a number", _list_of_times),
        ("never reads the `clock`", _own_clock),
        ("never synchronises", _own_synchronize),
        ("never synchronises", _synchronize_not_called),
        ("measures each repetition from the first reading", _one_reading),
        ("does not read the clock before the work", _clock_after_the_work),
        ("returns microseconds", _microseconds),
        ("subtracts the end from the beginning", _backwards),
        ("divides by the number of repetitions", _divided_again),
        ("takes a time beside the median", _beside_the_median),
        ("divides what is in seconds already", _divided_by_1000),
        ("returns None: is a return missing?", _printed),
        ("is not the median", _larger_than_a_float),
        ("never calls `work`", _example),
    ],
    "intensity": [
        ("forgets the output", _no_output),
        ("counts elements, not bytes", _elements),
        ("counts a multiply-add as one operation", _multiplications),
        ("takes 4 bytes for every type", _four_bytes),
        ("divides bytes by FLOPs", _upside_down),
        ("takes bits for bytes", _bits),
        ("takes the matrices for square", _square),
        ("forgets the second factor", _one_factor),
        ("drops what is behind the point", _whole),
        ("returns str, expected a number", _text),
        ("rounds the number", _rounded),
        ("multiplies by the bytes of an element", _without_brackets),
        ("multiplies by the number of elements", _times_the_elements),
        ("multiplies one matrix alone by the bytes", _bytes_of_the_output_alone),
        ("takes one of the factors for the output", _output_like_the_first_factor),
        ("counts one addition less", _additions),
        ("counts the output twice", _output_twice),
        ("rounds to whole numbers", _whole_numbers),
        ("give another number", _no_float),
    ],
    "name_bound": [
        ("never says overhead", _by_the_ridge),
        ("calls overhead what bandwidth limits", _only_arithmetic),
        ("compares FLOPs with bytes", _without_peaks),
        ("swaps compute and bandwidth", _swapped),
        ("always says overhead", _seconds),
        ("takes GB for TB", _both_tera),
        ("adds the two parts", _sum),
        ("returns none of", _other_words),
        ("always says bandwidth", _one_word),
        ("takes GiB for GB", _binary),
        ("compares with the shorter part", _shorter),
        ("says overhead too late", _twice_above),
        ("ignores the peaks", _peaks_of_the_t4),
        ("compares FLOPs for each byte with TFLOP/s", _ridge_in_mixed_units),
        ("returns None: is a return missing?", _bound_printed),
        ("returns none of", _array_of_bounds),
    ],
    "huber": [
        ("a loop is left", _loop_over_rows),
        ("a loop is left", _loop_over_columns),
        ("is left", _loop_with_branch),
        (".tolist()", _lists),
        ("copies to the host", _host),
        ("picks elements by a mask", _by_index),
        ("a branch is left", _whole_branch),
        ("forgets the absolute value", _signed),
        ("in the straight line too", _signed_line),
        ("leaves the large errors out", _small_errors_alone),
        ("takes delta for every larger error", _clamped),
        ("takes the straight line for every error", _line_for_all),
        ("swaps the two branches", _branches_swapped),
        ("forgets the half", _no_half),
        ("squares every error", _all_squares),
        ("takes the mean of all rows", _one_number),
        ("gives the sum of each row", _sums),
        ("takes the mean of the columns", _other_dimension),
        ("keeps a dimension of size 1", _kept),
        ("ignores `delta`", _delta_ignored),
        ("divides by delta", _smooth_l1),
        ("cuts the gradient", _without_gradients),
        ("returns a list", _list_of_losses),
        ("counts an error of exactly delta twice", _both_branches_at_delta),
        ("leaves out an error of exactly delta", _no_branch_at_delta),
        ("squares every error", _mean_squared),
        ("takes the absolute error", _mean_absolute),
        ("forgets the half in the straight line", _no_half_in_the_line),
    ],
    "lost_share": [
        ("scale before .to(dtype)", _scaled_late),
        ("scales too late, or not at all", _no_scale),
        ("scales too late, or not at all", _stored_then_scaled),
        ("looks at positive gradients alone", _positive_alone),
        ("divides by those that are kept", _lost_to_kept),
        ("rounds the share", _share_in_the_format),
        ("forgets the overflow", _no_overflow),
        ("forgets the underflow", _no_underflow),
        ("counts gradients that were 0 before", _zeros_too),
        ("divides by all gradients", _of_all),
        ("keeps them unscaled in the short format", _unscaled_short),
        ("returns a percentage", _percent),
        ("returns how many", _lost_number),
        ("returns a tensor, expected a number", _lost_tensor),
        ("modifies its input", _in_place),
        ("compares with the limits of the format", _below_tiny),
        ("forgets what overflows below zero", _one_infinity),
        ("ignores `dtype`", _always_half),
        ("divides by the scale", _divided_by_the_scale),
        ("the share is another one", _never_a_float),
        ("ignores `dtype`", _always_bfloat16),
    ],
    "pad_vocabulary": [
        ("rounds down", _rounds_down),
        ("pads a multiple again", _again),
        ("adds a whole multiple", _always_one_more),
        ("adds the remainder of the division", _remainder),
        ("rounds up to a power of two", _power_of_two),
        ("pads the width", _width),
        ("pads above", _above),
        ("fills the new rows with something else", _ones),
        ("on the same device", _on_the_cpu),
        ("moves values between host and device", _created_then_moved),
        ("has dtype", _float32),
        ("expected a tensor", _number),
        ("pads above and below", _on_both_sides),
        ("moves values between host and device", _looks_at_a_value),
    ],
}
