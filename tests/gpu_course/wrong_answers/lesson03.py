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


def _one_block_never_done(work, clock, synchronize, warmup, repeats):
    for _ in range(warmup):
        work()
    synchronize()
    begin = clock()
    for _ in range(repeats):
        work()
    return (clock() - begin) / repeats


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
_WHERE = "each = torch.where("
_STORED, _SHARE = "(gradients * scale).to(dtype)", "(lost.sum() / there.sum()).item()"
_PAD = "return functional.pad(weight, (0, 0, 0, missing))"
_CAT = "return torch.cat([weight, torch.{}(missing, weight.shape[1]{})])"
_MEDIAN = "statistics.median(times_s)"

WRONG = {
    "median_time_s": [
        ("never synchronises", edit(_EMPTY, "#", _DONE, "#")),
        ("starts the clock before the queue is empty", edit(_EMPTY, "#")),
        ("starts the clock before the queue is empty",
         edit(_EMPTY, "begin = clock()  #", "begin = clock()\n", "synchronize()\n")),
        ("does not synchronise after", edit(_DONE, "#")),
        ("does not synchronise after",
         edit(_DONE, "end = clock(); synchronize()  #", "clock() - begin", "end - begin")),
        ("does not warm up", edit(_WARM, "")),
        ("calls `work`", edit(_WARM, "    work()\n")),
        ("times all repetitions in one go", _one_block),
        ("does not synchronise after", _one_block_never_done),
        ("is of type list, expected float", edit(_MEDIAN, "times_s")),
        ("never reads the `clock`", edit("    for _ in range(warmup)", "    from time import perf_counter as clock\n"
                                         "    for _ in range(warmup)")),
        ("never synchronises", edit(_EMPTY, f"torch.sim.{_EMPTY}", _DONE, f"torch.sim.{_DONE}")),
        ("never synchronises", edit(_EMPTY, "synchronize  #", _DONE, "synchronize  #")),
        ("does not read the clock before the work",
         edit("begin = clock()", "pass", _EMPTY, "#", "times_s.append(", "begin = clock(); times_s.append(")),
        ("is None: is a return missing?", edit(f"return {_MEDIAN}", _MEDIAN)),
        ("the result is 1000", edit(_MEDIAN, "10**400")),
        ("expected:", edit(_MEDIAN, f"round({_MEDIAN}, 6)")),
        ("never calls `work`", lambda work, clock, synchronize, warmup, repeats: 0.000272),
    ],
    "intensity": [
        ("is of type str, expected float", edit("flops / nbytes", "f'{flops / nbytes} FLOP/byte'")),
        ("rounds the number", edit("flops / nbytes", "round(flops / nbytes, 3)")),
        ("expected:", edit("flops / nbytes", "10**400")),
    ],
    "name_bound": [
        ("returns none of", edit('"compute" if', '"compute-bound" if')),
        ("is None: is a return missing?", lambda flops, nbytes, time_ms, peak_tflops, bandwidth_gbps: None),
        ("returns none of", edit('return "compute" if', 'return ["bandwidth"] and "compute " if')),
        ("returns none of", edit('return "overhead"', 'return ["overhead"]')),
    ],
    "huber": [
        ("a loop is left", _loop_over_rows),
        ("a loop is left", _loop_over_columns),
        ("is left", _loop_with_branch),
        (".tolist()", _lists),
        ("copies to the host", edit("(prediction - target)", "(prediction.cpu() - target.cpu())",
                                    "mean(dim=1)", "mean(dim=1).to(prediction.device)")),
        ("picks elements by a mask", _by_index),
        ("a branch is left", edit(_WHERE, f"if (error <= 0).all(): return error.sum(dim=1)\n    {_WHERE}")),
        ("cuts the gradient", edit("each.mean(dim=1)", "each.mean(dim=1).detach()")),
        ("returns a list", edit("each.mean(dim=1)", "each.mean(dim=1).tolist()")),
        ("NaN where the error is 0", _through_a_root),
        ("its gradient is not", _half_detached),
    ],
    "lost_share": [
        ("scales too late, or not at all", edit(_STORED, "gradients.to(dtype).float() * scale")),
        ("rounds the share", edit(_SHARE, "lost[there].to(dtype).mean().item()")),
        ("expected float", edit(_SHARE, "lost.sum() / there.sum()")),
        ("modifies its input", edit(_STORED, "gradients.mul_(scale).to(dtype)")),
        ("expected:", edit(_SHARE, "10**400")),
    ],
    "pad_vocabulary": [
        ("fills the new rows with something else", edit(_PAD, _CAT.format("ones", ").to(weight"))),
        ("on the same device", edit(_PAD, _CAT.format("zeros", ", dtype=weight.dtype"))),
        ("moves values between host and device", edit(_PAD, _CAT.format("zeros", ").to(weight"))),
        ("has dtype", edit(_PAD, _CAT.format("zeros", ", device=weight.device"))),
        ("expected a tensor", edit(_PAD, "return missing + weight.shape[0]")),
        ("moves values between host and device", edit(_PAD, f"assert not weight.isnan().any(); {_PAD}")),
    ],
}
