"""The exercise “Does it fit?”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=8,
    difficulty=2,
    hints=(
        "Turn everything into bytes: elements × bytes of each, MiB × 2**20, GiB × 2**30.",
        "math.prod(shape) multiplies the sizes; dtype.itemsize is the size of one element in bytes.",
        "Tensor and workspace are in memory at the same time. Add their bytes; the sum must be <= the free bytes.",
    ),
)
def fits(shape: tuple[int, ...], dtype: torch.dtype, free_gib: float, workspace_mib: float) -> bool:
    """Return whether a tensor of `shape` and `dtype` fits beside the workspace."""
    tensor_bytes = math.prod(shape) * dtype.itemsize
    return tensor_bytes + workspace_mib * 2**20 <= free_gib * 2**30


fits.exempt("no size is below 0", "number_negative")


@fits.checks
def _(case: Case) -> None:
    edges.note("limit")  # "if they fill the memory exactly, they fit"
    for shape, dtype, free_gib, workspace_mib in (
        ((1024, 1024, 128), torch.float32, 1.0, 0.0),
        ((1024, 1024, 256), torch.float32, 1.0, 0.0),
        ((1024, 1024, 257), torch.float32, 1.0, 4.0),
        ((1024, 1024, 256), torch.float32, 1.0, 1.0),
        ((1024, 1024, 255), torch.float32, 1.0, 4.0),
        ((1024, 1024, 255), torch.float32, 1.0, 4.1),
        ((1024, 1024, 200), torch.float32, 1.0, 300.0),
        ((1024, 1024, 230), torch.float32, 1.0, 60.0),
        ((4, 256, 1024, 236), torch.float32, 1.0, 0.0),  # four dimensions, more than nine tenths
        ((2, 2, 1024, 2**17), torch.float32, 1.0, 0.0),
        ((1024, 1024, 230), torch.float32, 1.0, 36.0),
        ((1_050_000_000,), torch.uint8, 1.0, 0.0),
        ((1024, 1024, 256), torch.float16, 0.5, 0.0),
        ((1024, 1024, 256), torch.float64, 1.0, 0.0),
        ((), torch.float32, 0.0, 0.0),
        ((), torch.float32, 1.0, 0.0),
        ((2**30 - 2,), torch.uint8, 1.0, 4.0),
        ((2**30 - 2000,), torch.uint8, 1.0, 4.0),
        ((2**20, 2**20), torch.float32, 16.0, 0.0),
        ((1000, 1000), torch.float64, 1.0, 1017.0),
        ((0, 5), torch.float32, 0.0, 0.0),
        ((3,), torch.uint8, 3 / 2**30, 0.0),
        ((10,), torch.float32, 1.0, 1025.0),  # the workspace alone is too large
        ((2**30 + 1,), torch.uint8, 1.0, 0.0),  # a byte too many
        ((2**31,), torch.bool, 2.0, 0.0),
        ((2**27,), torch.complex64, 0.9, 0.0),
        ((2**29,), torch.bfloat16, 1.0, 0.0),
        ((2**28,), torch.int32, 1.0, 0.0),
        ((2**28,), torch.float8_e4m3fn, 0.25, 0.0),
    ):
        got = case.call(shape, dtype, free_gib, workspace_mib)
        gib = torch.empty(shape, dtype=dtype, device="meta").nbytes / 2**30
        sizes = f"the tensor takes {gib:.4g} GiB and the workspace {workspace_mib / 1024:.4g} GiB"
        case.equal(got, gib + workspace_mib / 2**10 <= free_gib, why=sizes)
