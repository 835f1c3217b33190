"""The exercise “Arithmetic intensity”."""

import torch

from gpu_course.checks import Case, exercise


@exercise(
    minutes=8,
    difficulty=1,
    hints=(
        "FLOPs: each of the n × m results takes k multiplications and k additions.",
        "Bytes: n k + k m are read, n m are written; each element has dtype.itemsize bytes.",
        "Divide the FLOPs by the bytes, which are the sum of the three sizes times dtype.itemsize: mind the brackets.",
    ),
)
def intensity(n: int, k: int, m: int, dtype: torch.dtype) -> float:
    """Return the FLOPs for each byte of an (n, k) times a (k, m) matrix."""
    flops = 2 * n * k * m  # k multiplications and k additions for each of n m results
    nbytes = (n * k + k * m + n * m) * dtype.itemsize  # two matrices read, one written
    return flops / nbytes


intensity.exempt("a matrix has rows and columns, of which none is a limit", "number_zero number_negative limit")


@intensity.checks
def _(case: Case) -> None:
    for n, k, m, dtype in (
        (4, 4, 4, torch.float32),
        (1, 1000, 1000, torch.float32),
        (1024, 1024, 1024, torch.float16),
        (32, 4096, 512, torch.bfloat16),
        (256, 64, 8, torch.float64),
        (100, 300, 200, torch.float8_e4m3fn),
        (33, 5, 7, torch.int8),
        (3, 5, 7, torch.int64),
        (3, 4, 5, torch.bool),
        (3, 4, 5, torch.complex64),
        (2**31, 3, 1, torch.float32),
    ):
        got = case.call(n, k, m, dtype)
        flops, nbytes = 2 * n * k * m, (n * k + k * m + n * m) * torch.empty((), dtype=dtype).nbytes
        expected = flops / nbytes
        _not_rounded(case, got, expected)
        case.equal(got, expected, rtol=1e-12, atol=0, why=f"{flops:,} FLOPs and {nbytes:,} bytes")


def _not_rounded(case: Case, got: object, expected: float) -> None:
    rounded = isinstance(got, float) and any(0 != got == round(expected, digits) != expected for digits in range(1, 5))
    case.fail_if(rounded, "rounds the number", "return it as it is; print it rounded", expected=expected, got=got)
