"""Further wrong answers to lesson 03, each with what the message must say."""

import torch


def _one_block(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    synchronize()
    begin = clock()
    for _ in range(repeats):
        work()
    synchronize()
    return (clock() - begin) / repeats


def _loop_over_rows(prediction, target, delta):
    means = []
    for p, t in zip(prediction, target, strict=True):
        error = (p - t).abs()
        means.append(torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean())
    return torch.stack(means)


def _loop_with_branch(prediction, target, delta):
    means = []
    for p_row, t_row in zip(prediction, target, strict=True):
        total = 0.0
        for p, t in zip(p_row, t_row, strict=True):
            error = abs(p - t)
            total = total + (0.5 * error**2 if error <= delta else delta * (error - 0.5 * delta))
        means.append(total / len(p_row))
    return torch.stack(means)


def _by_index(prediction, target, delta):
    error = (prediction - target).abs()
    each = 0.5 * error**2
    far = error > delta
    each[far] = delta * (error[far] - 0.5 * delta)
    return each.mean(dim=1)


def _through_a_root(prediction, target, delta):
    error = ((prediction - target) ** 2).sqrt()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean(dim=1)


def _half_detached(prediction, target, delta):
    loss = torch.nn.functional.huber_loss(prediction, target, reduction="none", delta=delta).mean(dim=1)
    return 0.5 * loss + 0.5 * loss.detach()


WRONG = {
    "median_time_s": [
        ("times all repetitions in one go", _one_block),
        ("never calls `work`", lambda work, clock, synchronize, warmup, repeats: 0.000272),
    ],
    "huber": [
        ("a loop is left", _loop_over_rows),
        ("is left", _loop_with_branch),
        ("picks elements by a mask", _by_index),
        ("NaN where the error is 0", _through_a_root),
        ("its gradient is not", _half_detached),
    ],
}
