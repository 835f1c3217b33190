"""Do the explorers of lesson 03 compute what formulas and PyTorch's own types say, over all their settings?"""

import math
import random
import struct

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_utils import gpus, timing
from gpu_course.lesson03.explorers import number_formats, roofline
from gpu_course.lesson03.explorers.formats import FORMATS, store
from gpu_course.lesson03.explorers.roofline import HEAD, IMAGE, LAYERS
from tests.gpu_course.explorer_settings import LIVE, settings

BY_NAME = {fmt.name: fmt for fmt in FORMATS}


# ---- roofline


def test_operations_are_those_that_pytorch_counts():
    m, n = 6, 64
    x, square = torch.randn(m, n), torch.randn(m, n, n)
    heads = torch.randn(1, m, n, HEAD)
    images, kernel = torch.randn(2, 4, IMAGE, IMAGE), torch.randn(4, 4, 3, 3)
    cases = {
        "linear": (lambda: F.linear(x, square[0]), m, n),
        "matrix products": (lambda: square @ square, m, n),
        "convolution": (lambda: F.conv2d(images, kernel, padding=1), 2, 4),
        "attention, fused": (lambda: F.scaled_dot_product_attention(heads, heads, heads), m, n),
    }
    for name, (run, rows, size) in cases.items():
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            run()
        assert counter.get_total_flops() == LAYERS[name].flops(rows, size), name


def test_bytes_are_those_of_the_arrays_that_a_layer_touches():
    m, n = 6, 64
    x, w, b = torch.randn(m, n), torch.randn(n, n), torch.randn(n)
    y = F.linear(x, w, b)
    assert LAYERS["linear"].elements(m, n) == sum(t.numel() for t in (x, w, b, y))
    assert LAYERS["element-wise sum"].elements(m, n) == 3 * x.numel()
    assert LAYERS["softmax"].elements(m, n) == 2 * x.numel()
    assert LAYERS["layer norm"].elements(m, n) == 2 * x.numel() + 2 * n
    conv = torch.nn.Conv2d(n, n, 3, padding=1)
    images = torch.randn(m, n, IMAGE, IMAGE)
    weights = sum(p.numel() for p in conv.parameters())
    assert LAYERS["convolution"].elements(m, n) == images.numel() + weights + conv(images).numel()
    scores = m * n * n  # written, read and written by softmax, read
    fused, open_ = LAYERS["attention, fused"], LAYERS["attention, scores in memory"]
    assert open_.elements(m, n) - fused.elements(m, n) == 4 * scores and open_.flops(m, n) == fused.flops(m, n)


def test_a_layer_takes_the_longer_of_arithmetic_and_memory_and_lies_on_the_roof():
    for setting in settings(roofline.explore(LIVE)):
        p = roofline.roofline(**setting, live=LIVE)
        assert p.nbytes > 0 and p.flops > 0
        if p.time_s is None:
            assert p.unit not in p.roof.rates_tflops and p.bound is None
            continue
        assert p.time_s == pytest.approx(p.flops / (p.attainable_tflops * 1e12))
        assert p.time_s == max(p.compute_s, p.memory_s)
        assert (p.bound == "compute") == (p.intensity >= p.roof.ridge(p.unit))


def test_a_format_without_a_stated_rate_says_so_and_a_simulated_roof_is_drawn_as_simulated():
    p = roofline.roofline(machine="T4", fmt="bf16", layer="linear", size=64, rows=1)
    assert p.time_s is None and "no stated rate for bf16" in roofline.describe(p)
    assert roofline.roofline(machine="T4", fmt="bf16", layer="softmax", size=64, rows=1).time_s  # needs float32 alone
    roof = timing.Roofline(gpus.get("T4").bandwidth_gbps, {"fp32": 8.1}, "simulated", "sim:0")
    p = roofline.roofline(machine="this machine", fmt="fp32", layer="linear", size=64, rows=8, live=roof)
    curves = {line.get_label(): line for line in roofline.draw(p).axes[0].lines}
    assert curves["this machine fp32, simulated"].get_linestyle() == "-." and "simulated" in roofline.describe(p)


# ---- number formats


def single(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


def grid():
    """Return values whose bits must be right: special ones, ends of every range, ties, and many drawn ones."""
    found = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.1, math.pi, 448.0, 449.0, 464.0, 465.0, 1e30, -1e30]
    for fmt in FORMATS:
        for edge in (fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest, 1.0, 3.0):
            step = fmt.spacing(edge)
            found += [edge + k * step / 4 for k in range(-6, 7)] + [edge / 2, edge * 2]
    drawn = random.Random(0)
    found += [single(drawn.getrandbits(32)) for _ in range(1000)]
    return [sign * value for value in found for sign in (1, -1)]


TYPES = [fmt for fmt in FORMATS if fmt.dtype]


@pytest.mark.parametrize("fmt", TYPES, ids=lambda fmt: fmt.name)
def test_bits_mean_what_the_type_of_pytorch_holds_the_nearest_number_and_of_two_the_even_one(fmt):
    for asked in grid():
        value = torch.tensor(asked, dtype=torch.float64).float()
        stored, there = store(asked, fmt), value.to(fmt.dtype)
        assert len(stored.bits) == fmt.bits == 8 * there.itemsize and "".join(stored.fields) == stored.bits
        got, held = stored.value, there.to(torch.float64).item()
        assert (math.isnan(got) and math.isnan(held)) or struct.pack("<d", got) == struct.pack("<d", held), value
        if not value.isfinite() or stored.kind in ("overflow", "saturated"):
            continue
        for neighbour in (stored.word - 1, stored.word + 1):
            other, distance = fmt.decode(neighbour % 2**fmt.bits), abs(got - value.item())
            if math.isfinite(other) and (other > 0) == (got > 0):
                further = abs(other - value.item())
                assert distance < further or (distance == further and stored.word % 2 == 0)


@pytest.mark.parametrize("fmt", TYPES, ids=lambda fmt: fmt.name)
def test_the_ends_of_a_range_are_those_that_pytorch_states_and_small_words_are_decoded_as_there(fmt):
    info = torch.finfo(fmt.dtype)
    assert (fmt.largest, fmt.smallest_normal, fmt.epsilon) == (info.max, info.smallest_normal, info.eps)
    assert fmt.spacing(1.0) == info.eps and fmt.spacing(0.0) == fmt.smallest_subnormal
    assert fmt.spacing(math.inf) is None and fmt.spacing(math.nan) is None
    if fmt.bits > 16:
        return
    words = torch.arange(2**fmt.bits, dtype=torch.int32).to({8: torch.uint8, 16: torch.int16}[fmt.bits])
    theirs = words.view(fmt.dtype).to(torch.float64).tolist()
    ours = [fmt.decode(word) for word in range(2**fmt.bits)]
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(ours, theirs, strict=True))
    assert min(v for v in ours if v > 0) == fmt.smallest_subnormal


def test_tf32_is_the_nearest_with_ten_bits_of_mantissa_and_of_two_the_one_away_from_zero():
    tf32 = BY_NAME["tf32"]
    assert store(1 + 2**-11, tf32).value == 1 + 2**-10 and store(-1 - 2**-11, tf32).value == -1 - 2**-10
    assert store(1 + 2**-11 - 2**-23, tf32).value == 1.0 and store(1 + 3 * 2**-11, tf32).value == 1 + 2 * 2**-10
    for value in grid():
        exact = torch.tensor(value, dtype=torch.float64).to(torch.float32).item()
        got = store(value, tf32).value
        if not math.isfinite(exact):
            assert got == exact or (math.isnan(got) and math.isnan(exact))
            continue
        step = tf32.spacing(exact)
        nearest = math.copysign(math.floor(abs(exact) / step + 0.5) * step, exact)
        assert got == (nearest if abs(nearest) <= tf32.largest else math.copysign(math.inf, exact))


def test_kinds_are_named():
    half, four = BY_NAME["fp16"], BY_NAME["fp8 e4m3"]
    kinds = {1.0: "normal", 1e-6: "subnormal", 1e-9: "underflow", 0.0: "zero", 65520.0: "overflow"}
    assert {value: store(value, half).kind for value in kinds} == kinds
    assert store(math.inf, half).kind == "infinity"
    assert {store(math.nan, fmt).kind for fmt in (half, four)} == {"NaN"}
    assert {store(value, four).kind for value in (448.0, 464.0)} == {"normal"}
    assert {store(value, four).kind for value in (465.0, math.inf)} <= {"saturated", "overflow"}
    assert store(1e-6, half).relative_error == pytest.approx(abs(17 * 2**-24 - 1e-6) / 1e-6)


def test_a_decimal_number_is_what_python_reads():
    n = number_formats.formats(digits=1.1, power=-3, negative=True)
    assert n.asked == -1.1e-3 and [s.format.name for s in n.stored] == [fmt.name for fmt in FORMATS]
    assert math.copysign(1, number_formats.formats(digits=0.0, power=0, negative=True).asked) == -1
    boxes = [patch for patch in number_formats.draw(n).axes[0].patches if hasattr(patch, "get_xy")]
    assert len(boxes) == sum(fmt.bits for fmt in FORMATS)
