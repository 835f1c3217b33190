"""Device type under which Python sees a simulated GPU: `sim`, or the kind whose face is on.

What differs between kinds whatever operator runs stands here: names, number formats, words. Sources for MPS:
EmptyTensor.cpp of aten/src/ATen/mps, MPSGuardImpl.h there, OperationUtils.mm and Copy.mm of aten/src/ATen/native/mps.
For XPU without float64: https://github.com/intel/torch-xpu-ops/issues/1742.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

_DOUBLE = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use"
_UNKNOWN = "Trying to convert {} to the MPS backend but it does not have support for that dtype."
_FLOAT8 = {
    name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
}


@dataclass(frozen=True)
class Kind:
    """A kind of device, as PyTorch calls it in Python, in its dispatcher and in messages.

    - `gpu`: how a sentence calls it; `type_name`: how the engine's messages call a type of tensors, with a group for
      the format;
    - `is_cuda_like`: its kernels lack what CUDA's lack, and say so in CUDA's words;
    - `is_single`: there is one, which any index means; `has_own_numbers`: it does not draw the CPU's random numbers;
    - `has_pinned_memory`: PyTorch pins memory of the host for it;
    - `no_tensors`: formats that no tensor on it can have, and its words (TypeError);
    - `no_kernels`: formats that tensors may have and no kernel computes with, its words, and their class;
    - `dimensions`: of a tensor, at most.
    """

    name: str
    key: str
    title: str
    gpu: str
    type_name: str
    is_cuda_like: bool = False
    is_single: bool = False
    has_own_numbers: bool = False
    has_pinned_memory: bool = True
    no_tensors: Mapping[torch.dtype, str] = field(default_factory=dict)
    no_kernels: Mapping[torch.dtype, str] = field(default_factory=dict)
    wrong_format: type[Exception] = TypeError
    dimensions: int | None = None


KINDS = {
    "sim": Kind("sim", "PrivateUse1", "sim", "the simulated GPU", r"torch.sim.\1Tensor", is_cuda_like=True),
    "cuda": Kind("cuda", "CUDA", "CUDA", "CUDA", r"torch.cuda.\1Tensor", is_cuda_like=True),
    "mps": Kind(
        "mps", "MPS", "MPS", "MPS", r"MPS\1Type", is_single=True, has_own_numbers=True, has_pinned_memory=False,
        no_tensors={torch.float64: f"{_DOUBLE} float32 instead."},
        no_kernels={torch.complex128: _UNKNOWN.format("ComplexDouble")}
        | {dtype: _UNKNOWN.format(name.capitalize()) for name, dtype in _FLOAT8.items()},
        dimensions=16,
    ),
    "xpu": Kind("xpu", "XPU", "XPU", "XPU", r"torch.xpu.\1Tensor", has_own_numbers=True),
}  # fmt: skip
_NO_FP64 = "Required aspect fp64 is not supported on the device"
_WITHOUT_KERNELS = dict.fromkeys((torch.float64, torch.complex128), _NO_FP64)
XPU_WITHOUT_FP64 = replace(KINDS["xpu"], no_kernels=_WITHOUT_KERNELS, wrong_format=RuntimeError)
NAMED = ("Byte", "Char", "Double", "Float", "Int", "Long", "Short", "Half")  # by `processErrorMsg` in Exceptions.cpp
DIMENSIONS_WORDS = "MPS supports tensors with dimensions <= {}, but got {}."

kind = "sim"  # `show` sets these three
current = KINDS["sim"]
limits = False  # whether any format or number of dimensions is refused: asked first, since it is quick


def show(new: Kind) -> None:
    """Set the kind of tensors on simulated GPUs."""
    global kind, current, limits
    kind, current = new.name, new
    limits = bool(new.no_tensors or new.no_kernels or new.dimensions)


def title() -> str:
    """Return how messages call the device: "sim", or as PyTorch's own messages do, "CUDA"."""
    return current.title


def in_words(message: str) -> str:
    """Return a message of C++, which takes simulated GPUs for `meta:0` …, with the names of their devices and types."""
    if kind != "mps":  # what the CPU says, and CUDA's Blas.cpp
        message = message.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")
    message = re.sub(r"\bmeta(?=:\d| Device)", kind, message)
    message = re.sub(rf"\bMeta({'|'.join(NAMED)})Type\b", current.type_name, message)
    return re.sub(r"\bMeta(\w+)Type\b", rf"{kind.upper()}\1Type", message)


def is_ours(device: torch.device) -> bool:
    """Return whether `device` means a simulated GPU now. `sim` always does."""
    return device.type in ("sim", kind)


def refuse_tensor(dtype: torch.dtype) -> None:
    """Raise TypeError in the device's words where no tensor on it can be of this format."""
    if dtype in current.no_tensors:
        raise TypeError(current.no_tensors[dtype])


def refuse_kernel(formats: Iterable[torch.dtype]) -> None:
    """Raise in the device's words where a kernel would compute with one of these formats, which it has not."""
    for dtype in formats:
        if dtype in current.no_kernels:
            raise current.wrong_format(current.no_kernels[dtype])


def refuse_dimensions(tensor: torch.Tensor) -> None:
    """Raise RuntimeError in the device's words for a new tensor of too many dimensions."""
    if current.dimensions is not None and tensor.dim() > current.dimensions:
        raise RuntimeError(DIMENSIONS_WORDS.format(current.dimensions, tensor.dim()))


def forked() -> RuntimeError:
    """Return the error of a child process that was forked and uses a simulated GPU, in the words of CUDA's."""
    return RuntimeError(
        f"Cannot re-initialize {title()} in forked subprocess. To use {current.gpu} with multiprocessing, you must "
        "use the 'spawn' start method"
    )
