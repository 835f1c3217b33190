"""Right answers of lesson 03 that are no edits of the reference."""

import math

import torch
from torch import nn


def sorts_the_times(work, clock, synchronize, warmup, repeats):
    def done():
        work()
        synchronize()

    for _ in range(warmup):
        done()
    synchronize()
    times = []
    while len(times) < repeats:
        before = clock()
        done()
        after = clock()
        times.append(after - before)
    times.sort()
    middle = repeats // 2
    if repeats % 2:
        return times[middle]
    return (times[middle - 1] + times[middle]) / 2


def keeps_all_readings(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    begins, ends = [], []
    for _ in range(repeats):
        synchronize()
        begins.append(clock())
        work()
        synchronize()
        ends.append(clock())
    times = torch.tensor([end - begin for begin, end in zip(begins, ends, strict=True)], dtype=torch.float64)
    return times.quantile(0.5).item()


def names_every_part(n, k, m, dtype):
    multiplications = n * m * k
    additions = n * m * k
    elements = n * k
    elements += k * m
    elements += n * m
    return (multiplications + additions) / (elements * dtype.itemsize)


def sums_shapes(n, k, m, dtype):
    return 2 * math.prod((n, k, m)) / (dtype.itemsize * sum(map(math.prod, [(n, k), (k, m), (n, m)])))


def works_in_seconds(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    arithmetic = flops / (peak_tflops * 1e12)
    traffic = nbytes / (bandwidth_gbps * 1e9)
    roof = arithmetic if arithmetic > traffic else traffic
    if time_ms / 1e3 > 2 * roof:
        return "overhead"
    elif roof == arithmetic:
        return "compute"
    else:
        return "bandwidth"


def asks_both_parts(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps):
    compute_ms, memory_ms = flops / peak_tflops / 1e9, nbytes / bandwidth_gbps / 1e6
    if compute_ms * 2 < time_ms and memory_ms * 2 < time_ms:
        answer = "overhead"
    else:
        answer = ["bandwidth", "compute"][compute_ms > memory_ms]
    return answer


def clamps_the_error(prediction, target, delta):
    error = torch.abs(target - prediction)
    small = error.clamp(max=delta)
    losses = small * (error - 0.5 * small)
    return losses.sum(dim=1) / losses.shape[1]


def multiplies_masks(prediction, target, delta):
    size = (prediction - target).abs()
    inside = size <= delta
    square = size * size / 2
    line = delta * size - delta**2 / 2
    return (square * inside + line * ~inside).mean(-1)


def counts_what_is_left(gradients, dtype, scale):
    scaled = gradients * scale
    stored = scaled.to(dtype).float()
    kept = (stored != 0) & torch.isfinite(stored)
    there = int((gradients != 0).sum())
    lost = there - int((kept & (gradients != 0)).sum())
    return lost / there


def loops_over_numbers(gradients, dtype, scale):
    lost = there = 0
    for value in gradients.flatten():
        if value == 0:
            continue
        there += 1
        stored = (value * scale).to(dtype).item()
        if stored == 0 or math.isinf(stored):
            lost += 1
    return lost / there


def writes_into_zeros(weight, multiple):
    vocabulary, width = weight.shape
    rows = math.ceil(vocabulary / multiple) * multiple
    padded = torch.zeros(rows, width, dtype=weight.dtype, device=weight.device)
    padded[:vocabulary] = weight
    return padded


def returns_a_multiple_early(weight, multiple):
    left = weight.size(0) % multiple
    if left == 0:
        return weight.clone()
    return nn.ZeroPad2d((0, 0, 0, multiple - left))(weight)


RIGHT = {
    "median_time_s": [sorts_the_times, keeps_all_readings],
    "intensity": [names_every_part, sums_shapes],
    "name_bound": [works_in_seconds, asks_both_parts],
    "huber": [clamps_the_error, multiplies_masks],
    "lost_share": [counts_what_is_left, loops_over_numbers],
    "pad_vocabulary": [writes_into_zeros, returns_a_multiple_early],
}
