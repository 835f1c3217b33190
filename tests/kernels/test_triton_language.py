"""Does a Triton kernel compute here what it computes elsewhere, and is what is wrong with one named at its line?"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_utils import kernels
from tests.kernels.triton_samples import SAMPLES

triton, tl = kernels.triton(interpreter=True)
WITH_RESULT = [name for name, sample in SAMPLES.items() if sample.call()[-1] is not None]


def run(name, *edits, options=()):
    """Return the report of a sample, with edits in its text, and whether its result is the expected one."""
    sample = SAMPLES[name]
    grid, args, usual, want = sample.call()
    report = kernels.checked(sample.kernel(triton, tl, *edits), grid, *args, **usual | dict(options))
    result = report.results.get(sample.out)
    good = result is not None and want is not None and torch.allclose(result, want, rtol=1e-3, atol=1e-4)
    return report, good


@pytest.mark.parametrize("name", WITH_RESULT)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_kernels_compute_what_they_are_to(name, device, request):
    report, good = run(name)
    assert report.fault is None and good, str(report)
    grid, args, options, want = SAMPLES[name].call()
    if device == "sim":
        request.getfixturevalue("sim")
    moved = [one.to(device) if isinstance(one, torch.Tensor) else one for one in args]
    SAMPLES[name].kernel(triton, tl)[grid](*moved, **options)
    assert any(
        one.shape == want.shape and torch.allclose(one.cpu(), want, rtol=1e-3, atol=1e-4)
        for one in moved
        if isinstance(one, torch.Tensor)
    )


WRONG = [
    ("vector add", "out of bounds", "reads element 1,000 of x_ptr, which has 1,000, and 23 more", ("x_ptr + at, mask=mask", "x_ptr + at")),
    ("vector add", "out of bounds", "writes element 1,000 of out_ptr", ("x + y, mask=mask", "x + y")),
    ("vector add", "out of bounds", "the mask lets it through", ("at < n", "at <= n")),
    ("vector add", "out of bounds", "reads element -1 of x_ptr", ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK) - 1")),
    ("vector add", "race", "writes element", ("pid * BLOCK", "pid * (BLOCK // 2)")),
    ("vector add", "race", "of out_ptr, which program", ("pid * BLOCK + ", "")),
    ("vector add", "race", "writes element", ("axis=0", "axis=1")),
    ("vector add", "arguments", "annotate the parameter with tl.constexpr", ("BLOCK: tl.constexpr", "BLOCK")),
    ("vector add", "shapes", "power of two, and it is 255", ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)")),
    ("vector add", "arguments", "tl.store takes a pointer", ("tl.store(out_ptr + at", "tl.store(at")),
    ("vector add", "arguments", "x_ptr is a pointer, not its values", ("tl.load(x_ptr + at, mask=mask)", "x_ptr * 2")),
    ("vector add", "arguments", "a mask says yes or no", ("mask = at < n", "mask = at")),
    ("vector add", "error", "NameError: name 'z' is not defined", ("x + y, mask", "x + z, mask")),
    ("vector add", "language", "no `break`", ("    pid =", "    for i in range(3):\n        break\n    pid =")),
    ("bias and GELU", "out of bounds", "reads element 37 of b_ptr", ("at % width", "at")),
    ("bias and GELU", "out of bounds", "writes element 481 of out_ptr", ("gelu(x + b), mask=inside", "gelu(x + b)")),
    ("bias and GELU", "arguments", "tl.erf takes fp32 or fp64", ("erf(v * 0.7071067811865476)", "erf(v.to(tl.float16))")),
    ("bias and GELU", "error", "NameError", ("0.5 * v", "0.5 * u")),
    ("softmax", "undefined", "loads x_ptr with a mask and without `other`", (', other=-float("inf")', "")),
    ("softmax", "out of bounds", "of x_ptr", ("mask=columns < n, other", "other")),
    ("softmax", "out of bounds", "of x_ptr", ("row * x_stride", "row * x_stride * 2")),
    ("softmax", ("race", "out of bounds"), "of out_ptr", ("axis=0), mask=columns < n", "axis=0)")),
    ("softmax", "race", "of out_ptr", ("row * out_stride", "row")),
    ("softmax", "shapes", "the axis 1 does not exist", ("tl.max(x, axis=0)", "tl.max(x, axis=1)")),
    ("softmax", None, "", ('other=-float("inf")', "other=0.0")),
    ("softmax", None, "", ("e / tl.sum", "x / tl.sum")),
    ("online softmax", "undefined", "", ('at < n, other=-float("inf")', "at < n")),
    ("online softmax", "endless", "does a loop never end?", ("d = 0.0\n    for start in range(0, n, BLOCK):", "d = 0.0\n    start = row * 0\n    while start < n:")),
    ("online softmax", None, "", ("d * tl.exp(m - new)", "d")),
    ("matrix product", "out of bounds", "of a_ptr", (" & (inner[None, :] < K - k * BK)", "")),
    ("matrix product", "out of bounds", "of b_ptr", ("(inner[:, None] < K - k * BK) & (col", "(col")),
    ("matrix product", "out of bounds", "of out_ptr", ("c, mask=(rows[:, None] < M)", "c, mask=(rows[:, None] <= M)")),
    ("matrix product", None, "", ("am + inner[None, :] * ak", "ak + inner[None, :] * am")),
    ("matrix product", "race", "of out_ptr", ("tl.program_id(1) * BN", "tl.program_id(0) * BN")),
    ("matrix product", "shapes", "inner sizes differ", ("tl.dot(a, b)", "tl.dot(b, a)")),
    ("matrix product", "shapes", "the accumulator is fp16", ("dtype=tl.float32", "dtype=tl.float16"), ("acc += tl.dot(a, b)", "acc = tl.dot(a, b, acc)")),
    ("matrix product", "shapes", "do not go together", ("acc += tl.dot(a, b)", "acc += tl.trans(tl.dot(a, b))")),
    ("matrix product", None, "", ("        a_ptrs += BK * ak\n", "")),
    ("matrix product in 16 bits", "arguments", "blocks of one type", ("tl.dot(a, b)", "tl.dot(a, b.to(tl.float32))")),
    ("attention", "undefined", "loads v_ptr with a mask", ("v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < n, other=0.0", "v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < n")),
    ("attention", "race", "of out_ptr", ("out_ptr + base", "out_ptr")),
    ("attention", "out of bounds", "of q_ptr", ("d[None, :], mask=rows[:, None] < n, other=0.0)", "d[None, :])")),
    ("attention", None, "", ("tl.where(keys[None, :] < n, tl.dot(q, k) * scale, -float(\"inf\"))", "tl.dot(q, k) * scale")),
    ("attention", None, "", ("acc * shrink[:, None]", "acc")),
    ("transpose", ("out of bounds", "race"), "of out_ptr", ("mask=tl.trans(inside)", "mask=inside")),
    ("transpose", "out of bounds", "of out_ptr", ("columns[:, None] * M", "columns[:, None] * N")),
    ("transpose", ("race", "out of bounds"), "", ("tl.program_id(1)", "tl.program_id(0)")),
    ("transpose", "undefined", "loads x_ptr", ("tl.trans(x)", "x")),
    ("reduction", "race", "of out_ptr", ("tl.atomic_add(out_ptr, tl.sum(x, axis=0))", "tl.store(out_ptr, tl.load(out_ptr) + tl.sum(x, axis=0))")),
    ("reduction", "race", "writes element 0 of out_ptr", ("tl.atomic_add(", "tl.store(")),
    ("reduction", "undefined", "without `other`", (", other=0.0", "")),
    ("reduction", "shapes", "pointer to one element", ("tl.sum(x, axis=0)", "x")),
    ("reduction", "out of bounds", "of out_ptr, which has 1", ("(out_ptr,", "(out_ptr + tl.program_id(0),")),
    ("last program", "race", "of parts_ptr", ("== tl.num_programs(0) - 1", ">= 0")),
    ("lock", "race", "of out_ptr", ("    while tl.atomic_cas(lock_ptr, 0, 1) == 1:\n        pass\n", "")),
    ("lock", "endless", "", ("    tl.atomic_xchg(lock_ptr, 0)\n", "")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "phrase", "edits"), [(*row[:3], row[3:]) for row in WRONG])
def test_what_is_wrong_is_named(name, kind, phrase, edits):
    report, good = run(name, *edits)
    if kind is None:  # wrong numbers, which no machine can tell from right ones
        assert report.fault is None and not good
        return
    assert report.fault is not None, "nothing was found"
    assert report.fault.kind in kind and phrase in str(report.fault), str(report.fault)
    last = edits[-1][1].strip().splitlines() or [""]
    assert len(str(report.fault).splitlines()) <= 3
    if kind in ("out of bounds", "arguments", "shapes", "language", "error") and len(last) == 1 and last[0]:
        assert report.fault.line and report.fault.line.split(": ", 1)[0].startswith("sample_")


RIGHT = [
    ("vector add", ("mask = at < n", "mask = ~(at >= n)")),
    ("vector add", ("x_ptr + at, mask=mask", "x_ptr + at, mask, 0.0")),
    ("vector add", ("at = pid * BLOCK + tl.arange(0, BLOCK)", "at = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)")),
    ("vector add", ("at = pid * BLOCK + tl.arange(0, BLOCK)", "at = pid + tl.num_programs(0) * tl.arange(0, BLOCK)")),
    ("vector add", ("    at = pid * BLOCK + tl.arange(0, BLOCK)", "    at = tl.max_contiguous(tl.multiple_of(pid * BLOCK + tl.arange(0, BLOCK), BLOCK), BLOCK)")),
    ("vector add", ("x_ptr + at, mask=mask", "x_ptr + at, mask=mask, cache_modifier=\".ca\", eviction_policy=\"evict_first\"")),
    ("bias and GELU", ("0.5 * v * (1 + tl.math.erf(v * 0.7071067811865476))", "v * 0.5 * (tl.erf(v / tl.sqrt(v * 0 + 2.0)) + 1)")),
    ("bias and GELU", ("at % width", "at - at // width * width")),
    ("softmax", ('mask=columns < n, other=-float("inf"))\n    x = x - tl.max(x, axis=0)\n    e = tl.exp(x)', "mask=columns < n, other=0.0)\n    e = tl.where(columns < n, tl.exp(x - tl.max(x)), 0.0)")),
    ("softmax", ("e / tl.sum(e, axis=0)", "tl.softmax(x, 0)")),
    ("softmax", ("row = tl.program_id(0)", "row = tl.num_programs(0) - 1 - tl.program_id(0)")),
    ("online softmax", ("    m = -float(\"inf\")\n    d = 0.0", "    m = tl.full((1,), -float(\"inf\"), tl.float32)\n    d = tl.zeros((1,), tl.float32)")),
    ("online softmax", ("tl.maximum(m, tl.max(x, axis=0))", "tl.where(m > tl.max(x, 0), m, tl.max(x, 0))")),
    ("matrix product", ("acc += tl.dot(a, b)", "acc = tl.dot(a, b, acc)")),
    ("matrix product", ("acc += tl.dot(a, b)", "acc += tl.sum(a[:, :, None] * b[None, :, :], 1)")),
    ("matrix product", ("for k in range(0, tl.cdiv(K, BK))", "for k in tl.range(0, (K + BK - 1) // BK, num_stages=2)")),
    ("matrix product", ("rows = tl.program_id(0) * BM + tl.arange(0, BM)\n", "rows = tl.program_id(0) * BM + tl.arange(0, BM)\n    tl.static_assert(BM % 16 == 0, \"tiles of 16\")\n")),
    ("attention", ("tl.where(keys[None, :] < n, tl.dot(q, k) * scale, -float(\"inf\"))", "tl.dot(q, k) * scale + tl.where(keys[None, :] < n, 0.0, -1e30)")),
    ("attention", ("tl.exp(s - new[:, None])", "tl.exp2((s - new[:, None]) * 1.44269504)")),
    ("transpose", ("mask=tl.trans(inside)", "mask=(columns[:, None] < N) & (rows[None, :] < M)")),
    ("reduction", ("tl.atomic_add(out_ptr, tl.sum(x, axis=0))", "tl.atomic_add(out_ptr + tl.arange(0, BLOCK) * 0, x)")),
    ("last program", ("tl.atomic_add(done_ptr, 1) ==", "tl.atomic_add(done_ptr, 1, sem=\"acq_rel\") ==")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edits"), [(row[0], row[1:]) for row in RIGHT])
def test_other_styles_are_right(name, edits):
    report, good = run(name, *edits)
    assert report.fault is None and good, str(report)
