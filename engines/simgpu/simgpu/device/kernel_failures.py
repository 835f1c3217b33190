"""Device-side asserts: on request an impossible value fails later, as on CUDA.

On CUDA indices, classes and probabilities are checked by the kernels, on the device (`CUDA_KERNEL_ASSERT`), shapes and
number formats before, by the host. So here: what fails on values alone, and not on the shapes of the same tensors, has
failed on the device, unless its message speaks of number formats.
"""

import math
import re
from typing import Any

import torch
from torch.utils._pytree import tree_map

from simgpu.device import state
from simgpu.ground.torch_internals import Args, Kwargs, Operator

_OF_THE_HOST = re.compile("dtype|scalar type")


def run(func: Operator, mutates: tuple[int | str, ...], args: Args, kwargs: Kwargs, index: int) -> Any:
    """Run an operator of GPU `index` on CPU tensors; what it gives where its kernel fails must not be read."""
    try:
        return func(*args, **kwargs)
    except (IndexError, RuntimeError) as error:
        if state.world.errors == "immediate" or _OF_THE_HOST.search(str(error)):
            raise
        try:
            result = func(*tree_map(_shape_only, args), **tree_map(_shape_only, kwargs))
        except Exception:
            result = None  # the host refuses it, on CUDA too
        if result is None:
            raise
    state.world.fail(index)
    if not mutates:
        return tree_map(lambda one: _spoil(torch.empty_like(one, device="cpu")), result)
    target = args[mutates[0]] if isinstance(mutates[0], int) else kwargs[mutates[0]]
    return _spoil(target if target.shape == result.shape else target.resize_(result.shape))


def _shape_only(value: Any) -> Any:
    return value.detach().to("meta") if isinstance(value, torch.Tensor) else value


def _spoil(tensor: torch.Tensor) -> torch.Tensor:
    """Overwrite the values with some that no kernel would give."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.fill_(math.nan)
    return tensor.fill_(True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).min or 255)
