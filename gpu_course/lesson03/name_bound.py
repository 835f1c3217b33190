"""The exercise “Name the bound”."""

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "How long would the arithmetic take alone at its peak, and the memory traffic alone at its bandwidth?",
        "1 TFLOP/s is 10⁹ FLOPs a millisecond, 1 GB/s 10⁶ bytes a millisecond: that makes two times in ms.",
        'First compare time_ms with twice the longer time, for "overhead". Then compare the two times with each other.',
    ),
)
def name_bound(flops: float, nbytes: float, time_ms: float, peak_tflops: float, bandwidth_gbps: float) -> str:
    """Return what limits an operation: "compute", "bandwidth" or "overhead"."""
    compute_ms = flops / (peak_tflops * 1e9)  # 1 TFLOP/s is 10**9 operations a millisecond
    memory_ms = nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond
    if time_ms > 2 * max(compute_ms, memory_ms):
        return "overhead"  # neither the arithmetic nor the memory explains this time
    return "compute" if compute_ms > memory_ms else "bandwidth"


# FLOPs, bytes, ms, peak TFLOP/s, GB/s, and the bound. The peaks are those of a T4, an A100 and a slow processor.
_MEASURED = (
    (2e9, 12e6, 0.3, 8.1, 320.0, "compute"), (1e6, 800e6, 3.0, 8.1, 320.0, "bandwidth"),
    (1e6, 12e3, 0.02, 8.1, 320.0, "overhead"), (3e11, 100e6, 1.2, 312.0, 1555.0, "compute"),
    (5e9, 200e6, 0.15, 312.0, 1555.0, "bandwidth"), (5e9, 200e6, 0.9, 312.0, 1555.0, "overhead"),
    (2e9, 12e6, 9.0, 8.1, 320.0, "overhead"), (1e9, 60e6, 0.21, 8.1, 320.0, "bandwidth"),
    (1.2e9, 40e6, 0.22, 8.1, 320.0, "compute"), (4e8, 9e6, 7.0, 0.1, 20.0, "compute"),
    (1e7, 80e6, 6.0, 0.1, 20.0, "bandwidth"), (1e7, 80e6, 60.0, 0.1, 20.0, "overhead"),
    (8.1e9, 32e6, 1.95, 8.1, 320.0, "compute"), (8.1e8, 320e6, 1.95, 8.1, 320.0, "bandwidth"),
    (8.1e9, 32e6, 2.5, 8.1, 320.0, "overhead"), (2.025e9, 64e6, 0.7, 8.1, 320.0, "overhead"),
    (8e9, 16e6, 2.0, 8.0, 320.0, "compute"),
    (8e8, 320e6, 2.0, 8.0, 320.0, "bandwidth"),  # exactly twice the roof
    (2e9, 76.8e6, 0.485, 8.0, 320.0, "compute"),  # below the sum of the parts, above twice the shorter one
    (2e9, 64e6, 0.2, 8.0, 320.0, "compute"),
    (1.6e9, 80e6, 0.2, 8.0, 320.0, "bandwidth"),  # below the roof: a cache
    (0.0, 80e6, 0.3, 8.0, 320.0, "bandwidth"),  # a copy computes nothing
    (2e9, 0.0, 0.3, 8.0, 320.0, "compute"),
    (0.0, 80e6, 0.6, 8.0, 320.0, "overhead"),
    (1.52e9, 64e6, 0.3, 8.0, 320.0, "bandwidth"),  # nearly as long
    (8e9, 16e6, 2.05, 8.0, 320.0, "overhead"),
    (4e10, 4e8, 0.3, 312.0, 1555.0, "bandwidth"),  # right of a T4's ridge, and left of this one's
    (8e6, 1e3, 0.0015, 8.0, 320.0, "compute"),  # a short time may lie on the roof, too
)  # fmt: skip


name_bound.exempt("nothing is below 0", "number_negative")


@name_bound.checks
def _(case: Case) -> None:
    edges.note("limit")  # a time of exactly twice the longer one; where both are equal, the text leaves it open
    for flops, nbytes, time_ms, peak_tflops, bandwidth_gbps, expected in _MEASURED:
        got = case.call(flops, nbytes, time_ms, peak_tflops, bandwidth_gbps)
        known = got is None or (isinstance(got, str) and got in ("compute", "bandwidth", "overhead"))
        case.fail_if(not known, 'returns none of "compute", "bandwidth" and "overhead"', got=got)
        parts = f"arithmetic {flops / peak_tflops / 1e9:.3g} ms, memory {nbytes / bandwidth_gbps / 1e6:.3g} ms"
        case.equal(got, expected, why=f"at its peaks: {parts}; measured {time_ms:g} ms")
