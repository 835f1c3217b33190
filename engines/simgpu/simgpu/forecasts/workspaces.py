"""Memory of kernels that PyTorch's functions of shapes leave out."""

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from simgpu.ground import cudnn_rnn
from simgpu.ground.torch_internals import Args, Operator
from simgpu.machine.operator_table import row_of

_ATEN = torch.ops.aten


def added(func: Operator, args: Args, result: Any, mode_of_tensors: FakeTensorMode) -> Any:
    """Return what an operator returned for tensors of a fake mode, with the memory that it lacks.

    That is the reserve of a recurrent layer, and the loss of each element, which some losses keep behind their mean.
    """
    if isinstance(result, torch.Tensor) and not result.ndim and _keeps_elements(func):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        with mode_of_tensors:
            return torch.empty(shape, dtype=result.dtype, device=result.device).resize_(())
    if row_of(func).workspace != "states":
        return result
    x, mode, hidden, layers, dropout, train, bidirectional = (args[place] for place in (0, 6, 7, 9, 11, 12, 13))
    size = cudnn_rnn.reserve_bytes(x, mode, hidden, layers, dropout, train, bidirectional)
    with mode_of_tensors:
        return (*result[:3], torch.empty(size, dtype=torch.uint8), result[4])


@functools.cache
def _keeps_elements(func: Operator) -> bool:
    """Return whether this loss is a view of the storage in which it computed each element's: a small real run says."""
    if row_of(func).workspace != "elements":
        return False
    with unset_fake_temporarily():
        loss = func(torch.zeros(2), torch.zeros(2))
        return loss.untyped_storage().nbytes() > loss.nbytes
