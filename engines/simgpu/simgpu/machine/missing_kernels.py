"""Which number formats has the CPU's kernel of an operator, and CUDA's lacks? CUDA's error for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

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
