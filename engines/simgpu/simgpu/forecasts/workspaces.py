"""Memory of kernels that PyTorch's functions of shapes leave out."""

import functools
import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from simgpu.ground import cudnn_rnn
from simgpu.ground.torch_internals import Args, Operator
from simgpu.machine.operator_table import row_of

_ATEN = torch.ops.aten


def added(func: Operator, args: Args, result: Any, mode_of_tensors: FakeTensorMode) -> Any:
    """Return an operator's result for tensors of a fake mode, with its missing workspace memory.

    That is the reserve of a recurrent layer, and the loss of each element, which some losses keep behind their mean.
    """
    if isinstance(result, torch.Tensor) and not result.ndim and _keeps_elements(func):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        with mode_of_tensors:
            return torch.empty(shape, dtype=result.dtype, device=result.device).resize_(())
    size = _states_bytes(row_of(func).workspace, args)
    if not size:
        return result
    with mode_of_tensors:
        return (*result[:3], torch.empty(size, dtype=torch.uint8), *result[4:])


@functools.cache
def _keeps_elements(func: Operator) -> bool:
    """Return whether this loss is a view of the storage in which it computed each element's: a small real run says."""
    if row_of(func).workspace != "elements":
        return False
    with unset_fake_temporarily():
        loss = func(torch.zeros(2), torch.zeros(2))
        return loss.untyped_storage().nbytes() > loss.nbytes


def _states_bytes(workspace: str, args: Args) -> int:
    """Return the bytes of states that a recurrent layer keeps for its backward pass, cuDNN's or the CPU's own."""
    if workspace == "reserve":
        x, mode, hidden, layers, dropout, train, bidirectional = (args[place] for place in (0, 6, 7, 9, 11, 12, 13))
        return cudnn_rnn.reserve_bytes(x, mode, hidden, layers, dropout, train, bidirectional)
    if workspace != "states" or not args[-1]:
        return 0
    time, batch, _ = args[0].shape
    return _lstm_workspace(time, batch, tuple(args[1].shape), args[10])


def _lstm_workspace(time: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    """Return its bytes: linear in the number of steps, so two short real runs give it."""
    four_steps, eight_steps = (_real_workspace(steps, batch, shape, hidden) for steps in (4, 8))
    return four_steps + math.ceil((eight_steps - four_steps) / 4 * (time - 4))


@functools.cache
def _real_workspace(steps: int, batch: int, shape: tuple[int, int], hidden: int) -> int:
    with unset_fake_temporarily(), torch.enable_grad():  # without gradients there is no workspace
        x, state = torch.zeros(steps, batch, shape[1]), torch.zeros(batch, hidden)
        weights = torch.zeros(shape), torch.zeros(shape[0], hidden), torch.zeros(shape[0]), torch.zeros(shape[0])
        result = _ATEN.mkldnn_rnn_layer(x, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True)
    return result[3].nbytes
