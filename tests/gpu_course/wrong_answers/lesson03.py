"""Further wrong answers to lesson 03, each with what the message must say."""

import torch

from gpu_course.checks import edit

_EMPTY, _DONE = "synchronize()  # what was", "synchronize()  # `work` returned"
_WARM = "    for _ in range(warmup):\n        work()\n"


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


# fmt: off
_STORED, _SHARE = "(gradients * scale).to(dtype)", "(lost.sum() / there.sum()).item()"
_PAD = "return functional.pad(weight, (0, 0, 0, missing))"
_CAT = "return torch.cat([weight, torch.{}(missing, weight.shape[1]{})])"

WRONG = {
    "median_time_s": [
        ("never synchronises", edit(_EMPTY, "#", _DONE, "#")),
        ("starts the clock before the queue is empty", edit(_EMPTY, "#")),
        ("does not synchronise after", edit(_DONE, "#")),
        ("does not warm up", edit(_WARM, "")),
        ("calls `work`", edit(_WARM, "    work()\n")),
        ("times all repetitions in one go", _one_block),
        ("never reads the `clock`", edit("    for _ in range(warmup)", "    from time import perf_counter as clock\n"
                                         "    for _ in range(warmup)")),
        ("does not read the clock before the work",
         edit("begin = clock()", "pass", _EMPTY, "#", "times_s.append(", "begin = clock(); times_s.append(")),
        ("never calls `work`", lambda work, clock, synchronize, warmup, repeats: 0.000272),
    ],
    "intensity": [
        ("rounds the number", edit("flops / nbytes", "round(flops / nbytes, 3)")),
    ],
    "name_bound": [
        ("returns none of", edit('"compute" if', '"compute-bound" if')),
        ("returns none of", edit('return "overhead"', 'return ["overhead"]')),
    ],
    "huber": [
        ("a loop is left", _loop_over_rows),
        ("is left", _loop_with_branch),
        ("copies to the host", edit("(prediction - target)", "(prediction.cpu() - target.cpu())",
                                    "mean(dim=1)", "mean(dim=1).to(prediction.device)")),
        ("picks elements by a mask", _by_index),
        ("cuts the gradient", edit("each.mean(dim=1)", "each.mean(dim=1).detach()")),
        ("returns a list", edit("each.mean(dim=1)", "each.mean(dim=1).tolist()")),
        ("NaN where the error is 0", _through_a_root),
        ("its gradient is not", _half_detached),
    ],
    "lost_share": [
        ("rounds the share", edit(_SHARE, "lost[there].to(dtype).mean().item()")),
        ("modifies its input", edit(_STORED, "gradients.mul_(scale).to(dtype)")),
    ],
    "pad_vocabulary": [
        ("on the same device", edit(_PAD, _CAT.format("zeros", ", dtype=weight.dtype"))),
        ("moves values between host and device", edit(_PAD, _CAT.format("zeros", ").to(weight"))),
    ],
}
