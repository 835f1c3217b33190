"""Number formats in which only the CPU or only CUDA has a kernel of an operator.

PyTorch's own database says of which: `dtypes` and `dtypesIfCUDA`, `backward_dtypes` and `backward_dtypesIfCUDA`. A test
walks it. The names of kernels are those of `AT_DISPATCH_…` in the code for CUDA.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.ground import sparse
from simgpu.ground.calls import Call
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator

# formats by PyTorch's names of them
WHOLE = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.bool: "Bool",
}  # fmt: skip
HALF = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
LONG, BYTE, BOOL = {torch.int64: "Long"}, {torch.uint8: "Byte"}, {torch.bool: "Bool"}
BFLOAT16, COMPLEX_HALF = {torch.bfloat16: "BFloat16"}, {torch.complex32: "ComplexHalf"}
COMPLEX = {torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}


@dataclass(frozen=True)
class Lack:
    """CUDA's kernel as its errors call it, and the number formats that it lacks, with PyTorch's names of them.

    Where `holds` is given, only calls of which it says so run that kernel. Beside indices, `of` counts the tensors
    whose formats matter, from the first. `sparse` says which kernel it is where tensors are sparse. `words` are what
    it says in place of PyTorch's usual words.
    """

    kernel: str
    formats: dict[torch.dtype, str]
    holds: Callable[[Call], bool] | None = None
    of: int | None = None
    sparse: "Callable[[Sequence[torch.Tensor]], Lack] | None" = None
    words: str = ""

    def refuse(self, tensors: Sequence[torch.Tensor], call: Call | None = None) -> None:
        """Raise CUDA's error where an operator of these tensors would run that kernel for a format that it lacks.

        It does not run without elements, nor for tensors of several formats, which have an error of their own.
        """
        if self.sparse is not None and any(map(sparse.is_sparse, tensors)):
            self.sparse(tensors).refuse(tensors)
            return
        formats = {tensor.dtype for tensor in tensors[: self.of]}
        if formats.isdisjoint(self.formats) or len(formats) > 1 or not all(map(sparse.elements, tensors)):
            return
        if self.holds is not None and call is not None and not self.holds(call):
            return
        if self.words:
            raise RuntimeError(self.words)
        name = self.formats[formats.pop()]
        if self.kernel.endswith("()"):  # cuDNN is asked
            raise RuntimeError(f"{self.kernel} not supported for {name}")
        raise NotImplementedError(f'"{self.kernel}" not implemented for {name!r}')


def of_sparse(tensors: Sequence[torch.Tensor]) -> Lack:
    """Return the kernel of a product with sparse tensors.

    Sources: SparseCUDATensorMath.cu and SparseMatMul.cu for COO, SparseBlasImpl.cpp for CSR and CSC.
    """
    several = sum(map(sparse.is_sparse, tensors)) > 1
    if any(tensor.layout in (torch.sparse_csr, torch.sparse_csc) for tensor in tensors):
        with_vector = any(tensor.dim() == 1 for tensor in tensors)
        return Lack("spgemm" if several else "spmv" if with_vector else "spmm", WHOLE)
    if several:
        return Lack("sparse_matmul", WHOLE)
    if not any(tensor.dim() == 3 for tensor in tensors):
        return Lack("addmm_sparse_cuda", WHOLE | HALF)
    if any(tensor.dtype.is_complex for tensor in tensors):  # `getTensorCudaDataType`
        return Lack("bmm_sparse_cuda", COMPLEX, words="Tensor types must be either float32 or float64")
    return Lack("bmm_sparse_cuda", WHOLE | HALF)


_Compute: TypeAlias = Callable[[Operator, Args, Kwargs, Sequence[int]], Any]


@dataclass(frozen=True)
class Way:
    """How the CPU computes what CUDA has a kernel for and the CPU has none: always for `formats`, else by the call.

    `compute` is given the operator, its arguments, and the places of those that it changes.
    """

    formats: frozenset[torch.dtype]
    compute: _Compute


_WIDE = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64,
    torch.bool: torch.uint8,
}  # fmt: skip


def computed_wide(
    lacking: frozenset[torch.dtype], func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]
) -> Any:
    """Return what an operator returns, with formats that it is `lacking` computed in wider ones and rounded once."""
    given = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    formats = given.intersection(lacking)
    if len(formats) != 1:
        return func(*args, **kwargs)
    narrow = formats.pop()
    real = torch.float16 if narrow is torch.complex32 else narrow
    back = {_WIDE[real]: real}
    if real is torch.float16:
        back[torch.complex64] = torch.complex32
        if func._schema.name.startswith("aten::_fft_"):
            _refuse_sizes(args)

    def cast(value: Any, formats: Mapping[torch.dtype, torch.dtype]) -> Any:
        return value.to(formats.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value

    wide = tree_map(lambda value: cast(value, _WIDE), (tuple(args), kwargs))
    result = func(*wide[0], **wide[1])
    for place in written:
        args[place].copy_(wide[0][place])
    changed = [place for place in written if result is wide[0][place]]
    return args[changed[0]] if changed else tree_map(lambda value: cast(value, back), result)


def _sparse_wide(func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]) -> Any:
    """Return what an operator returns, with 16-bit formats computed in 32 where a tensor is sparse."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    lacking = frozenset(HALF) if any(map(sparse.is_sparse, tensors)) else frozenset()
    return computed_wide(lacking, func, args, kwargs, written)


def _sum_of_numbers(func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]) -> Any:
    """Return `nansum` of complex numbers, of which those count that are numbers in both parts (ReduceSumProdKernel)."""
    given = args[0]
    if not given.is_complex():
        return func(*args, **kwargs)
    call = Call(func, args, kwargs)
    wide = given.to(_WIDE.get(given.dtype, given.dtype))
    numbers = wide.masked_fill(wide.isnan(), 0)
    total = torch.sum(numbers, () if call["dim"] is None else call["dim"], call["keepdim"])
    return total.to(call["dtype"] or given.dtype)


def _product_of_format(func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]) -> Any:
    """Return a product of matrices in the format that it is asked for (`_mm_dtype_out_cuda` and others in Blas.cpp)."""
    place = next(place for place, argument in enumerate(func._schema.arguments) if argument.name == "out_dtype")
    *others, first, second = args[:place]
    wanted = args[place]
    if first.dtype is not second.dtype:
        raise RuntimeError("input dtypes must be the same")
    if wanted is not first.dtype and not (wanted is torch.float32 and first.dtype in HALF):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    options = {name: value for name, value in kwargs.items() if name != "out"}
    plain = getattr(torch, func.overloadpacket.__name__)
    result = plain(*(one.to(wanted) for one in (*others, first, second)), **options)
    out = kwargs.get("out")
    if out is None:
        return result
    if out.dtype is not wanted:
        raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
    return out.resize_(result.shape).copy_(result)


def _without_pivots(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both factors of matrices in one, rows that stay where they are, and which pivot is 0 first, from 1."""
    factors = matrix.clone()
    number = min(matrix.shape[-2:])
    for step in range(number):
        below = factors[..., step + 1 :, step]
        below /= factors[..., step, step, None]
        factors[..., step + 1 :, step + 1 :] -= below[..., :, None] * factors[..., step, None, step + 1 :]
    rows = torch.arange(1, number + 1, dtype=torch.int32).expand(*matrix.shape[:-2], number).contiguous()
    zero = factors.diagonal(dim1=-2, dim2=-1) == 0
    first = (zero * torch.arange(number, 0, -1)).amax(-1) if number else zero.sum(-1)
    info = torch.where(first > 0, number + 1 - first, 0).to(torch.int32)
    return factors.mT.contiguous().mT, rows, info


def _lu_factor(func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]) -> Any:
    """Run `linalg.lu_factor_ex`; `pivot=False` is CUDA's alone (`linalg_lu_factor_ex`)."""
    call = Call(func, args, kwargs)
    if call["pivot"] or args[0].dim() < 2:
        return func(*args, **kwargs)
    factors, rows, info = _without_pivots(args[0])
    if call["check_errors"]:
        TORCH._linalg_check_errors(info, "torch.linalg.lu_factor_ex", is_matrix=args[0].dim() == 2)
    return factors, rows, info


def _lu(func: Operator, args: Args, kwargs: Kwargs, written: Sequence[int]) -> Any:
    """Run `linalg.lu`; without pivots there is no permutation."""
    if Call(func, args, kwargs)["pivot"] or args[0].dim() < 2:
        return func(*args, **kwargs)
    factors, _, _ = _without_pivots(args[0])
    rows, columns = factors.shape[-2:]
    number = min(rows, columns)
    lower = factors[..., :number].tril(-1) + torch.eye(rows, number, dtype=factors.dtype)
    return factors.new_empty(0), lower, factors[..., :number, :].triu()


def _formats(*formats: torch.dtype) -> Way:
    """Return the way of an operator whose kernel for the CPU lacks these formats."""
    lacking = frozenset(formats)
    return Way(lacking, partial(computed_wide, lacking))


def _by_call(compute: _Compute, *formats: torch.dtype) -> Way:
    return Way(frozenset(formats), compute)


def _ways(names: str, way: Way) -> dict[str, Way]:
    return dict.fromkeys(names.split(), way)


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
# The formats that CUDA's kernels have and the CPU's lack. For cuFFT those of CuFFTPlanCache.h, for rrelu those of
# RreluWithNoise.cu
_ONLY_ON_CUDA: dict[str, Way] = (
    _ways(
        """avg_pool3d avg_pool3d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
        _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward multi_margin_loss multi_margin_loss_backward
        multilabel_margin_loss_forward multilabel_margin_loss_backward""",
        _formats(*HALF),
    )
    | _ways("polygamma rrelu_with_noise rrelu_with_noise_", _formats(torch.float16))
    | _ways("_fft_r2c", _formats(*HALF))  # of bfloat16 since PyTorch 2.15; the result has 32 bits
    | _ways(
        """_fft_c2c _fft_c2r acos acosh angle asin asinh atan atanh cos cosh div exp lerp log logaddexp pow prod rsqrt
        sigmoid sigmoid_backward sin sinh sqrt sum tan tanh tanh_backward""",
        _formats(torch.complex32),
    )
    | _ways("mm addmm mv add sub _sparse_addmm _sparse_sparse_matmul", _by_call(_sparse_wide))
    | _ways(
        """mm.dtype mm.dtype_out bmm.dtype bmm.dtype_out addmm.dtype addmm.dtype_out baddbmm.dtype
        baddbmm.dtype_out""",
        _by_call(_product_of_format, *_FLOATS),
    )
    | {
        "abs": _formats(torch.bool),
        "trace": _formats(torch.bool, torch.complex32),
        "nansum": _by_call(_sum_of_numbers, torch.complex32, torch.complex64, torch.complex128),
        "linalg_lu_factor_ex": _by_call(_lu_factor),
        "linalg_lu": _by_call(_lu),
    }
)


def way_of(func: Operator, name: str) -> Way | None:
    """Return how the CPU computes an operator where CUDA's kernel does more; that of an overload goes before."""
    by_name = any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in func._schema.arguments)  # out=
    return _ONLY_ON_CUDA.get(f"{name}.{func._overloadname}") or (None if by_name else _ONLY_ON_CUDA.get(name))


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
