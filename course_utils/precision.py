"""Formats in which PyTorch computes float32 products, and their restoration."""

from typing import Any

import torch

__all__ = ["put_back", "read"]


def _precise() -> tuple[Any, ...]:
    cuda, cudnn, cpu = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    return torch.backends, cuda.matmul, cudnn.conv, cudnn.rnn, cpu, cpu.matmul, cpu.conv, cpu.rnn


def read() -> tuple[Any, ...]:
    """Return the formats of float32 arithmetic: by the older functions, unless the newer have been used, and by these.

    Each of the two cannot say what the other has set: https://docs.pytorch.org/docs/stable/notes/cuda.html
    """
    older = []
    for get in (torch.get_float32_matmul_precision, torch._C._get_cudnn_allow_tf32):
        try:
            older.append(get())
        except RuntimeError:
            older.append(None)
    return *older, *(owner.fp32_precision for owner in _precise())


def put_back(before: tuple[Any, ...]) -> None:
    for put, value in zip((torch.set_float32_matmul_precision, torch._C._set_cudnn_allow_tf32), before, strict=False):
        if value is not None:
            put(value)
    with torch.backends.__allow_nonbracketed_mutation():  # PyTorch's own test tools forbid it without
        for owner, value in zip(_precise(), before[2:], strict=True):
            owner.fp32_precision = value
