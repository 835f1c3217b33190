"""Which number formats has only one of the CPU's and CUDA's kernels of an operator? CUDA's error, or CUDA's result."""

from collections.abc import Mapping, Sequence
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


# The 16-bit formats that CUDA's kernels have and the CPU's lack: `dtypesIfCUDA` and `dtypes` of PyTorch's own database.
# For cuFFT those of CuFFTPlanCache.h, for rrelu those of RreluWithNoise.cu
_FLOAT16, _COMPLEX32 = frozenset({torch.float16}), frozenset({torch.complex32})
ONLY_WIDE_ON_THE_CPU = dict.fromkeys((
    "avg_pool3d", "avg_pool3d_backward", "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward", "multi_margin_loss", "multi_margin_loss_backward",
    "multilabel_margin_loss_forward", "multilabel_margin_loss_backward",
), frozenset(HALF)) | {
    "polygamma": _FLOAT16, "rrelu_with_noise": _FLOAT16, "rrelu_with_noise_": _FLOAT16,
    "_fft_r2c": _FLOAT16, "_fft_c2c": _COMPLEX32, "_fft_c2r": _COMPLEX32,
}  # fmt: skip
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def computed_wide(
    func: Operator, args: Args, kwargs: Kwargs, lacking: frozenset[torch.dtype], written: Sequence[int]
) -> Any:
    """Return what an operator returns, with formats that it is `lacking` computed in 32 bits and rounded once.

    `written` are the places of arguments that it changes.
    """
    given = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    formats = given.intersection(lacking)
    if len(formats) != 1:
        return func(*args, **kwargs)
    if func._schema.name.startswith("aten::_fft_"):
        _refuse_sizes(args)
    narrow = torch.bfloat16 if torch.bfloat16 in formats else torch.float16
    back = {torch.float32: narrow, torch.complex64: torch.complex32}

    def cast(value: Any, formats: Mapping[torch.dtype, torch.dtype]) -> Any:
        return value.to(formats.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value

    wide = tree_map(lambda value: cast(value, _WIDE), (tuple(args), kwargs))
    result = func(*wide[0], **wide[1])
    for place in written:
        args[place].copy_(wide[0][place])
    changed = [place for place in written if result is wide[0][place]]
    return args[changed[0]] if changed else tree_map(lambda value: cast(value, back), result)


def _refuse_sizes(args: Args) -> None:
    """Raise cuFFT's error where a transform of 16 bits is not of sizes that are powers of two."""
    sizes = [args[0].shape[dimension] for dimension in args[1]]
    if type(args[3]) is int:  # complex to real: the size of the result
        sizes[-1] = args[3]
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a "
            f"signal size of{sizes}"
        )
