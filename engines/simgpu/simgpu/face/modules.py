"""Modules of PyTorch that reach C++ without a simulated GPU: redirected, or refused with a reason."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simgpu.device.tensor import NoNestedTensorsError, SimTensor
from simgpu.face.tensors import by_way_of_the_cpu
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

_OF_LOAD = "f", "map_location", "_extra_files", "_restore_shapes"


def replace(put: Replacements) -> None:
    """Patch `TransformerEncoder` to avoid nested tensors, and refuse to save a TorchScript module."""
    put.put(nn.TransformerEncoder, forward=_without_nested_tensors(nn.TransformerEncoder.forward))
    put.put(torch.jit, load=by_way_of_the_cpu(torch.jit.load, "map_location", *_OF_LOAD))
    for script in (TORCH.jit.RecursiveScriptModule, torch.jit.ScriptModule):  # what is traced is of the second alone
        put.put(script, **{name: _from_the_cpu(getattr(script, name)) for name in ("save", "save_to_buffer")})


def _without_nested_tensors(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the forward pass of an encoder, which leaves out padding by nested tensors where it does not train."""

    @functools.wraps(plain)
    def forward(self: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
        try:
            return plain(self, src, mask, src_key_padding_mask, is_causal)
        except NoNestedTensorsError:
            if src_key_padding_mask is None:
                raise
        padded = copy.copy(self)
        padded._modules, padded.use_nested_tensor = self._modules | {"norm": None}, False
        output = plain(padded, src, mask, src_key_padding_mask, is_causal)
        output = output.masked_fill(src_key_padding_mask.bool()[..., None], 0.0)  # as a nested tensor is padded
        return output if self.norm is None else self.norm(output)

    return forward


def _from_the_cpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the writer of TorchScript modules; C++ would read memory that simulated tensors lack."""

    @functools.wraps(plain)
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, SimTensor) for one in (*self.parameters(), *self.buffers())):
            raise NotImplementedError(
                "a TorchScript module on the simulated GPU cannot be written to a file: write module.cpu()"
            )
        return plain(self, *args, **kwargs)

    return write
