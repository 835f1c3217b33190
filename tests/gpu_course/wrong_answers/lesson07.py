"""Further wrong answers to lesson 07, each with what the message must say."""

import torch
import torch.nn.functional as F

from gpu_course import lesson07


def _naive(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _naive_in_bfloat16(model, optimizer, x, y):
    with torch.autocast(x.device.type, torch.bfloat16):
        return _naive(model, optimizer, x, y)


def _packs_in_half(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.half(), lambda kept: kept.float()):
        return lesson07.run_blocks(blocks, x, kept_bytes, sum(kept_bytes))


def _offloads(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.save_on_cpu():
        return lesson07.run_blocks(blocks, x, kept_bytes, sum(kept_bytes))


def _inside(step, limit, fits=0):
    while limit > fits:
        size = (fits + limit + 1) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            return _inside(step, size - 1, fits)
    return fits


WRONG = {
    "four_parts": [
        ("of type tuple", lambda *given: tuple(lesson07.four_parts(*given).values())),
    ],
    "quarter_step": [
        ("comes near that of the whole batch", _naive_in_bfloat16),
    ],
    "run_blocks": [
        ("the gradient of x", _packs_in_half),
        ("copies to the host", _offloads),
    ],
    "largest_batch": [
        ("tries again inside the except block", _inside),
    ],
}
