"""Which number formats has the CPU's kernel of an operator, and CUDA's lacks? CUDA's error for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_WHOLE = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.bool: "Bool",
}  # fmt: skip
_HALF = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
_LONG = {torch.int64: "Long"}
_BYTE = {torch.uint8: "Byte"}


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


# By the names of operators. What is lacking: where `dtypes` and `dtypesIfCUDA` of PyTorch's own database of operators
# differ (torch.testing._internal.common_methods_invocations); the names: what its dispatch macros are given under
# aten/src/ATen/native/cuda and aten/src/ATen/cudnn.
_KERNELS = (
    ("mm addmm addbmm", "addmm_cuda", _WHOLE), ("bmm baddbmm", "baddbmm_cuda", _WHOLE),
    ("mv addmv", "addmv_impl_cuda", _WHOLE), ("dot vdot", "dot", _WHOLE),
    ("max_pool2d_with_indices", "max_pool2d_with_indices_out_cuda_frame", _WHOLE),
    ("max_pool3d_with_indices", "max_pool3d_with_indices_out_frame", _WHOLE),
    ("avg_pool2d", "avg_pool2d_out_cuda_frame", _LONG), ("avg_pool3d", "avg_pool3d_out_cuda", _LONG),
    ("convolution", "getCudnnDataTypeFromScalarType()", _LONG),
    ("upsample_bilinear2d", "upsample_bilinear2d_out_frame", _BYTE),
    ("upsample_bicubic2d", "upsample_bicubic2d_out_frame", _BYTE),
    ("angle", "angle_cuda", _HALF), ("histc", "histc", _HALF),
    ("igamma", "igamma_cuda", _HALF), ("igammac", "igammac_cuda", _HALF),
)  # fmt: skip
LACKS = {name: Lack(kernel, formats) for names, kernel, formats in _KERNELS for name in names.split()}
