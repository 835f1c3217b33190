"""Which number formats has only one of the CPU's and CUDA's kernels of an operator? CUDA's error, or CUDA's result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.ground.torch_internals import Args, Kwargs, Operator

# formats by PyTorch's names of them
WHOLE = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.bool: "Bool",
}  # fmt: skip
HALF = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
LONG = {torch.int64: "Long"}
BYTE = {torch.uint8: "Byte"}


@dataclass(frozen=True)
class Lack:
    """CUDA's kernel as its errors call it, and the number formats that it lacks, with PyTorch's names of them."""

    kernel: str
    formats: dict[torch.dtype, str]

    def refuse(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise CUDA's error where an operator of these tensors would run that kernel for a format that it lacks.

        It does not run without elements, nor for tensors of several formats, which have an error of their own.
        """
        formats = {tensor.dtype for tensor in tensors}
        if formats.isdisjoint(self.formats) or len(formats) > 1 or not all(tensor.numel() for tensor in tensors):
            return
        name = self.formats[formats.pop()]
        if self.kernel.endswith("()"):  # cuDNN is asked
            raise RuntimeError(f"{self.kernel} not supported for {name}")
        raise NotImplementedError(f'"{self.kernel}" not implemented for {name!r}')


# The 16-bit formats that CUDA's kernels have and the CPU's lack: `dtypesIfCUDA` and `dtypes` of PyTorch's own database
ONLY_WIDE_ON_THE_CPU = dict.fromkeys((
    "avg_pool3d", "avg_pool3d_backward", "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward", "multi_margin_loss", "multi_margin_loss_backward",
    "multilabel_margin_loss_forward", "multilabel_margin_loss_backward",
), frozenset(HALF)) | {"polygamma": frozenset({torch.float16})}  # fmt: skip


def computed_wide(func: Operator, args: Args, kwargs: Kwargs, lacking: frozenset[torch.dtype]) -> Any:
    """Return what an operator returns, with formats that it is `lacking` computed in float32 and rounded once."""
    given = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    formats = given.intersection(lacking)
    if len(formats) != 1:
        return func(*args, **kwargs)
    narrow = formats.pop()

    def cast(value: Any, before: torch.dtype, after: torch.dtype) -> Any:
        return value.to(after) if isinstance(value, torch.Tensor) and value.dtype is before else value

    wide = tree_map(lambda value: cast(value, narrow, torch.float32), (tuple(args), kwargs))
    return tree_map(lambda value: cast(value, torch.float32, narrow), func(*wide[0], **wide[1]))
