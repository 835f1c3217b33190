"""Scatter, gather and broadcast of `nn.DataParallel`, in Python in the place of C++."""

from collections.abc import Sequence

import torch

from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH


def replace(put: Replacements) -> None:
    """Install them in `torch.nn.parallel`."""
    put.put(
        torch._C, _scatter=_scatter, _gather=_gather, _broadcast=_broadcast, _broadcast_coalesced=_broadcast_coalesced,
    )  # fmt: skip
    put.put(TORCH.cuda.nccl, is_available=lambda tensors: False)  # gradients are added by copies


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: object = None,
) -> tuple[torch.Tensor, ...]:
    """Return the parts of a tensor along `dim`, each on its GPU; `sizes` are equal unless given."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return tuple(part.to(torch.device("cuda", index)) for part, index in zip(parts, devices, strict=False))


def _gather(tensors: Sequence[torch.Tensor], dim: int, device: int | None = None) -> torch.Tensor:
    """Return the tensors as one, on GPU `device`: the current one where it is None, the CPU where it is -1."""
    target = torch.device("cpu") if device == -1 else torch.device("cuda", device) if device is not None else "cuda"
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """Return a tensor on each of the GPUs; where it is already, itself."""
    return [tensor.to(torch.device("cuda", index)) for index in devices]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Return for each of the GPUs all tensors; C++ sends them in pieces of `buffer_size` bytes."""
    copies = [_broadcast(tensor, devices) for tensor in tensors]
    return [list(of_device) for of_device in zip(*copies, strict=True)]
