"""The exercise “Predict the time of a copy”."""

import math

import torch

from gpu_course.checks import Case, exercise


@exercise(
    minutes=5,
    difficulty=1,
    hints=(
        "The bytes are the number of elements times the bytes of one: math.prod(shape) * dtype.itemsize.",
        "1 GB/s is 10**9 bytes a second, which is 10**6 bytes a millisecond; 1000 µs are 1 ms.",
        "Add two times in ms: latency_us / 1000, and the bytes divided by those that the bus carries in a millisecond.",
    ),
)
def copy_time_ms(shape: tuple[int, ...], dtype: torch.dtype, bandwidth_gbps: float, latency_us: float) -> float:
    """Return the milliseconds that copying a tensor of this shape and dtype takes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return latency_us / 1e3 + nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond


copy_time_ms.exempt("no size, rate or latency is below 0, and no limit of one is named", "number_negative limit")


@copy_time_ms.checks
def _(case: Case) -> None:
    for shape, dtype, bandwidth_gbps, latency_us in (
        ((1000, 1000), torch.float32, 16.0, 10.0),
        ((1000, 1000), torch.float32, 16.0, 0.0),
        ((2000, 500, 3), torch.float16, 4.0, 20.0),
        ((64, 64), torch.float64, 25.0, 5.0),
        ((10_000_000,), torch.uint8, 12.5, 8.0),
        ((), torch.float32, 16.0, 10.0),
        ((0, 5), torch.float32, 16.0, 10.0),
        ((7, 5, 3, 2, 2), torch.bfloat16, 0.5, 1.5),
        ((2**31, 3), torch.int64, 25.0, 5.0),
        ((33, 41), torch.bool, 25.0, 0.0),
        ((33, 41), torch.complex64, 25.0, 0.0),
    ):
        got = case.call(shape, dtype, bandwidth_gbps, latency_us)
        bytes_ms = torch.empty(shape, dtype=dtype, device="meta").nbytes / bandwidth_gbps / 1e6
        expected = latency_us / 1e3 + bytes_ms
        rounded = isinstance(got, float) and any(0 != got == round(expected, n) != expected for n in range(6))
        why = "the caller adds up thousands of small copies: return what you computed"
        case.fail_if(rounded, "rounds the time", why, expected=expected, got=got)
        why = f"{latency_us / 1e3:g} ms of latency, {bytes_ms:.6g} ms of bytes"
        case.equal(got, expected, rtol=1e-12, atol=0, why=why)
