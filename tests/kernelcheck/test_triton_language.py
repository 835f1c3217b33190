"""Does a Triton kernel compute here what it computes elsewhere, and is what is wrong with one named at its line?"""

import linecache
import re
import types

import pytest
import torch

import kernelcheck
from kernelcheck.triton import memory
from tests.kernelcheck.cuda_samples import CASES
from tests.kernelcheck.triton_samples import SAMPLES, Sample

triton, tl = kernelcheck.triton(interpreter=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(memory, "_MOST_TURNS", 500)


WITH_RESULT = [name for name, sample in SAMPLES.items() if sample.call()[-1] is not None]


def run(name, *edits, options=()):
    """Return the report of a sample, with edits in its text, and whether its result is the expected one."""
    sample = SAMPLES[name]
    grid, args, usual, want = sample.call()
    report = kernelcheck.checked(sample.kernel(triton, tl, *edits), grid, *args, **usual | dict(options))
    result = report.results.get(sample.out)
    good = result is not None and want is not None and torch.allclose(result, want, rtol=1e-3, atol=1e-4)
    return report, good


@pytest.mark.parametrize("name", WITH_RESULT)
def test_kernels_compute_what_they_are_to(name):
    report, good = run(name)
    assert report.fault is None and good, str(report)
    grid, args, options, want = SAMPLES[name].call()
    SAMPLES[name].kernel(triton, tl)[grid](*args, **options)
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.shape == want.shape]
    assert any(torch.allclose(one, want, rtol=1e-3, atol=1e-4) for one in tensors)


@pytest.mark.parametrize(("name", "kind", "phrase", "edits"), [(*row[:3], row[3:]) for row in CASES["wrong"]])
def test_what_is_wrong_is_named(name, kind, phrase, edits):
    report, good = run(name, *edits)
    if not kind:  # wrong numbers, which no machine can tell from right ones
        assert report.fault is None and not good
        return
    assert report.fault is not None, "nothing was found"
    assert report.fault.kind in kind and phrase in str(report.fault), str(report.fault)
    assert report.fault.line.startswith("sample_") and len(str(report.fault).splitlines()) <= 3


@pytest.mark.parametrize(("name", "edits"), [(row[0], row[1:]) for row in CASES["right"]])
def test_other_styles_are_right(name, edits):
    report, good = run(name, *edits)
    assert report.fault is None and good, str(report)


def kernel(text, **more):
    """Return a kernel whose lines are `text`; `x` and `out` are pointers, `n` is a number."""
    lines = "".join(f"    {line}\n" for line in text.split("; "))
    names = "".join(f", {name}: tl.constexpr" for name in more)
    return Sample(f"@triton.jit\ndef kernel(x, out, n{names}):\n{lines}", lambda: ()).kernel(triton, tl)


def computed(text, x, out, n=0, grid=(1,)):
    """Return what a kernel leaves in `out`."""
    kernel(text)[grid](x, out, n)
    return out


ROW = "at = tl.arange(0, 8); v = tl.load(x + at); "
NUMBERS = torch.tensor([-9, -8, -1, 0, 1, 2, 7, 2**31 - 1], dtype=torch.int32)


@pytest.mark.parametrize(("number", "told"), [
    ("tl.program_id(0).to(tl.int16)", True),
    ("(tl.program_id(0) * 2 - tl.program_id(0))[None].to(tl.uint8)", True),
    ("tl.program_id(0).to(tl.int64)", False),
    ("(tl.program_id(0) % 2).to(tl.int8)", False),
    ("tl.load(x).to(tl.int8)", False),
])  # fmt: skip
def test_a_program_s_number_in_few_bits_is_told_in_a_grid_that_is_small(number, told):
    triton, tl = kernelcheck.triton(interpreter=True)
    text = f"def kernel(x):\n    number = {number}\n    tl.store(x + number, tl.load(x + number))\n"
    linecache.cache["few_bits.py"] = len(text), None, text.splitlines(keepends=True), "few_bits.py"
    exec(compile(text, "few_bits.py", "exec"), space := {"tl": tl})
    report = kernelcheck.checked(triton.jit(space["kernel"]), (1,), torch.zeros(3))
    assert report.fault is None and report.narrowed == (f"few_bits.py:2: number = {number}" if told else "")


@pytest.mark.parametrize(("expression", "dtype", "want"), [
    ("v // 2", torch.int32, torch.div(NUMBERS, 2, rounding_mode="trunc")),  # towards zero, as in C
    ("v % 4", torch.int32, torch.fmod(NUMBERS, 4)),
    ("v + 1", torch.int32, NUMBERS + 1),  # it overflows
    ("v.to(tl.int64) + 1", torch.int64, NUMBERS.long() + 1),
    ("v / 2", torch.float32, NUMBERS.float() / 2),
    ("-v >> 1", torch.int32, -NUMBERS >> 1),
    ("tl.extra.libdevice.clz(v)", torch.int32, torch.tensor([0, 0, 0, 32, 31, 30, 29, 1])),
    ("tl.extra.libdevice.ffs(v)", torch.int32, torch.tensor([1, 4, 1, 0, 1, 2, 1, 1])),
    ("tl.extra.libdevice.clz(v.to(tl.int64))", torch.int32, torch.tensor([0, 0, 0, 64, 63, 62, 61, 33])),
    ("tl.extra.libdevice.llrint(v.to(tl.float64) / 2)", torch.int64, (NUMBERS.double() / 2).round().long()),
    ("tl.extra.libdevice.float2int_ru(v.to(tl.float32) / 4)", torch.int32, (NUMBERS.float() / 4).ceil()),
    ("tl.extra.libdevice.erfc(v.to(tl.float32))", torch.float32, torch.erfc(NUMBERS.float())),
    ("(tl.minimum(v / 0.0, 1.0, tl.PropagateNan.ALL) == 1).to(tl.int32)", torch.int32, NUMBERS > 0),
    ("v.to(tl.float16) * 3.1", torch.float32, (NUMBERS.half() * torch.tensor(3.1).half()).float()),
    ("v.to(tl.bfloat16) * 3.1", torch.float32, (NUMBERS.bfloat16() * torch.tensor(3.1).bfloat16()).float()),
    ("v.to(tl.float16) + tl.zeros((8,), tl.bfloat16)", torch.float16, NUMBERS.half()),
    ("v.to(tl.float32) * 0.3", torch.bfloat16, (NUMBERS.float() * 0.3).bfloat16()),
    ("(v * -2.7).to(tl.int32)", torch.int32, (NUMBERS.float() * -2.7).double().trunc().long().int()),
    ("tl.where(v > 0, v, -v)", torch.int64, NUMBERS.abs().long()),
    ("(v > 0) & ~(v == 2)", torch.bool, (NUMBERS > 0) & (NUMBERS != 2)),
    ("tl.max(v.to(tl.float16)) + v * 0", torch.float32, torch.full((8,), float("inf"))),
    ("tl.cumsum(v.to(tl.int64), 0, reverse=True)", torch.int64, NUMBERS.long().flip(0).cumsum(0).flip(0)),
    ("n - v.to(tl.int64)", torch.int64, 2**40 - NUMBERS.long()),
])  # fmt: skip
def test_types_are_those_of_the_device(expression, dtype, want):
    out = computed(f"{ROW}tl.store(out + at, {expression})", NUMBERS, torch.zeros(8, dtype=dtype), 2**40)
    assert torch.equal(out, want.to(dtype)), out


@pytest.mark.parametrize(("expression", "first", "last"), [
    ("tl.argmax(v, 0, tie_break_left={})", 1, 6),
    ("tl.argmin(v, 0, tie_break_left={})", 0, 5),
    ("tl.max(v, 0, return_indices=True, return_indices_tie_break_left={})[1]", 1, 6),
    ("tl.min(v, 0, return_indices=True, return_indices_tie_break_left={})[1]", 0, 5),
])  # fmt: skip
def test_of_equal_ones_the_first_is_kept_only_where_it_is_asked_for(expression, first, last):
    x = torch.tensor([0.0, 3, 0, 3, 1, 0, 3, 2])
    for asked, want in ((True, first), (False, last)):
        out = computed(f"{ROW}tl.store(out, {expression.format(asked)})", x, torch.zeros(1, dtype=torch.int32))
        assert out.item() == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8])
def test_small_types_are_read_and_written_as_torch_does(dtype):
    x = torch.tensor([0.3, 1.7, 3.0, 5.3, 17.9, 100.2, 0.0, 7.0])
    out = computed(f"{ROW}tl.store(out + at, v.to(tl.float32) * 2)", x.to(dtype), torch.zeros(8, dtype=dtype))
    assert torch.equal(out.float(), (x.to(dtype).float() * 2).to(dtype).float())


def test_pointers_walk_over_the_storage():
    x = torch.arange(64.0).view(8, 8)
    for part, want in ((x.t(), x[0]), (x[::2], x[0]), (x[3], x[3]), (x[1:, 2], x[1, 2:].tolist() + x[2, :2].tolist())):
        assert computed(f"{ROW}tl.store(out + at, v)", part, torch.zeros(8)).tolist() == torch.as_tensor(want).tolist()
    report = kernelcheck.checked(kernel(f"{ROW}tl.store(out + at, v)"), (1,), x[3, :4], torch.zeros(8), 0)
    assert report.fault.kind == "out of bounds" and report.fault.element == 4  # what lies behind is not the tensor's


def test_tensors_that_share_memory_are_one_memory():
    one_up = kernel("i = tl.program_id(0); tl.store(out + i, tl.load(x + i) + 1)")
    x = torch.zeros(8)
    assert kernelcheck.checked(one_up, (8,), x, x, 0).results["out"].tolist() == [1.0] * 8
    report = kernelcheck.checked(one_up, (7,), x[:7], x[1:], 0)
    assert report.fault.kind == "race" and x.tolist() == [0.0] * 8


def test_what_is_counted():
    x = torch.zeros(1024)
    for step, sectors in ((1, 32), (2, 64), (32, 256)):
        copy = kernel(f"at = tl.arange(0, 256); tl.store(out + at, tl.load(x + at * {step} % 1024, mask=at >= 0))")
        report = kernelcheck.checked(copy, (1,), x, torch.zeros(256), 0)
        assert report.by_array["x"] == kernelcheck.Traffic(1024, 0, 8, sectors)
        assert report.by_array["out"].stored_bytes == 1024
    text = "r = tl.arange(0, 32); at = r[:, None] + r[None, :] * 32; tl.store(out + at, tl.load(x + at) * 2 + 1)"
    report = kernelcheck.checked(kernel(text), (1,), x, torch.zeros(1024), 0)
    assert (report.sectors, report.requests, report.flops, report.programs) == (256, 64, 2048, 1)
    assert (report.loaded_bytes, report.stored_bytes) == (4096, 4096)
    text = "r = tl.arange(0, 16); at = r[:, None] * 16 + r; a = tl.load(x + at); tl.store(out + at, tl.dot(a, a))"
    assert kernelcheck.checked(kernel(text), (1,), x, torch.zeros(256), 0).flops == 2 * 16**3


def test_which_program_touches_what_is_known_also_of_a_wrong_one():
    halves = kernel("at = tl.program_id(0) * 4 + tl.arange(0, 4); tl.store(out + at, tl.load(x + at, mask=at < n))")
    report = kernelcheck.checked(halves, (2,), torch.zeros(8), torch.zeros(6), 7)
    assert [report.touched[name][1, 0, 0].tolist() for name in ("x", "out")] == [[4, 5, 6], [4, 5, 6, 7]]
    assert (report.fault.array, report.fault.element, report.fault.program) == ("out", 6, (1, 0, 0))
    assert "element 6 of out" in str(report) and "element 6 of out" in report._repr_html_()


def test_lines_of_a_cell_are_named_as_such(tmp_path):
    file = str(tmp_path / "ipykernel_7" / "1.py")
    text = "@triton.jit\ndef kernel(x):\n    tl.store(x + 1, 0)\n"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), space := {"triton": triton, "tl": tl, "__name__": "__main__"})
    assert kernelcheck.checked(space["kernel"], (1,), torch.zeros(1)).fault.line == "cell, line 3: tl.store(x + 1, 0)"


def test_the_order_of_programs_shows_where_no_element_is_touched_twice_without_order():
    ticket = kernel("i = tl.atomic_add(x, 1); tl.store(out + i, tl.program_id(0))")
    report = kernelcheck.checked(ticket, (8,), torch.zeros(1, dtype=torch.int32), torch.zeros(8), 0)
    assert report.fault.kind == "race" and "order in which the programs run" in str(report.fault)
    rounded = kernel("tl.atomic_add(out, tl.load(x + tl.program_id(0)))")  # which is no race
    assert kernelcheck.checked(rounded, (4,), torch.tensor([1e8, 1.0, 1.0, -1e8]), torch.zeros(1), 0).fault is None
    clash = kernel("at = tl.arange(0, 8); tl.store(out + at // 2, at)")
    assert "different values" in str(kernelcheck.checked(clash, (1,), torch.zeros(1), torch.zeros(8), 0).fault)


def test_elements_that_no_program_writes_are_counted():
    text = "at = tl.program_id(0) * 8 + tl.arange(0, 8); tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)"
    for programs, missing in ((2, 4), (3, 0)):  # the first grid is one program short
        report = kernelcheck.checked(kernel(text), (programs,), torch.ones(20), torch.zeros(20), 20)
        assert report.fault is None and report.unwritten == {"out": missing}
        assert (f"{missing} elements never written" in str(report)) == bool(missing)
    strided = kernel(text.replace("out + at", "out + at * 3"))
    column = kernelcheck.checked(strided, (2,), torch.ones(16), torch.zeros(16, 3)[:, 0], 16)
    assert column.unwritten == {"out": 0}  # what lies between belongs to others


def test_elements_of_a_block_that_count_at_one_place_are_a_race():
    count = "at = tl.arange(0, 8); bins = tl.load(x + at); "
    bins, out = torch.tensor([0, 1, 1, 2, 3, 3, 3, 0], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    lost = kernel(f"{count}tl.store(out + bins, tl.load(out + bins) + 1)")
    fault = kernelcheck.checked(lost, (1,), bins, out, 0).fault
    assert fault.kind == "race" and "use tl.atomic_add" in str(fault) and fault.element == 0
    atomic = kernelcheck.checked(kernel(f"{count}tl.atomic_add(out + bins, 1)"), (1,), bins, out, 0)
    assert atomic.fault is None and atomic.results["out"].tolist() == [2, 2, 1, 3]
    same = kernel(f"{count}tl.store(out + bins, 7)")  # nothing was read: all write one value
    assert kernelcheck.checked(same, (1,), bins, out, 0).fault is None


COPY = (
    "a = tl.make_block_ptr(x, (3, n), (8, 1), (0, 0), (2, 4), (1, 0)); "
    "b = tl.make_block_ptr(out, (3, n), (n, 1), (0, 0), (2, 4), (1, 0)); "
)


def copied(text, columns=6):
    x, out = torch.arange(24.0).view(3, 8), torch.zeros(3, columns)
    return kernelcheck.checked(kernel(COPY + text), (1,), x, out, columns)


def test_a_pointer_to_a_block_reaches_what_boundary_check_lets_it_reach():
    """The block lies at (2, 4) in a tensor of 3 x 6: of its eight elements two are inside."""
    moved = "a = tl.advance(a, (2, 4)); b = b.advance((2, 4)); "
    both = "boundary_check=(0, 1)"
    report = copied(f"{moved}tl.store(b, tl.load(a, {both}, padding_option='zero') + 1, {both})")
    want = torch.zeros(3, 6)
    want[2, 4:] = torch.tensor([20.0, 21.0]) + 1
    assert report.fault is None and report.results["out"].equal(want) and report.loaded_bytes == 8
    typed = copied(f"{moved}tl.store(b, tl.load(a, {both}).to(b.dtype.element_ty), {both})")
    assert typed.fault is None and typed.results["out"].equal(want.clamp(min=1) - 1)
    summed = copied(f"{moved}tl.store(out, tl.sum(tl.load(a, {both}, padding_option='zero')))")
    assert summed.results["out"][0, 0] == 41
    undefined = copied(f"{moved}tl.store(out, tl.sum(tl.load(a, {both})))")
    assert undefined.fault.kind == "undefined" and "padding_option" in str(undefined.fault)
    assert copied(f"{moved}tl.store(b, tl.load(a, boundary_check=(0,)))").fault.kind == "out of bounds"
    assert copied("tl.store(out, tl.sum(tl.load(a)))").results["out"][0, 0] == sum((0, 1, 2, 3, 8, 9, 10, 11))


@pytest.mark.parametrize(("text", "said"), CASES["block_pointers"])
def test_what_a_pointer_to_a_block_cannot_do_is_said(text, said):
    assert said in str(copied(text).fault)


DESCRIBED = (
    "a = tl.make_tensor_descriptor(x, [3, n], [8, 1], [2, 4]); "
    "b = tl.make_tensor_descriptor(out, [3, n], [n, 1], [2, 4]); "
)


def described(text, columns=8):
    x, out = torch.arange(24.0).view(3, 8), torch.zeros(3, columns)
    return kernelcheck.checked(kernel(text), (1,), x, out, columns)


def test_a_tensor_descriptor_knows_the_edges_of_its_tensor():
    report = described(f"{DESCRIBED}b.store([2, 4], a.load([2, 4]) + 1)")
    want = torch.zeros(3, 8)
    want[2, 4:] = torch.arange(20.0, 24) + 1
    assert report.fault is None and report.results["out"].equal(want)
    assert (report.loaded_bytes, report.stored_bytes) == (16, 16)
    summed = described(f"{DESCRIBED}tl.store(out, tl.sum(tl.load_tensor_descriptor(a, [2, 6])))")
    assert summed.fault is None and summed.results["out"][0, 0] == 22 + 23  # what is outside is zero
    added = described(f"{DESCRIBED}b.atomic_add([0, 4], a.load([0, 4])); b.atomic_add([0, 4], a.load([0, 0]))")
    assert added.fault is None and added.results["out"][1, 4:].tolist() == [20, 22, 24, 26]
    grown = described("a = tl.make_tensor_descriptor(x, [4, n], [8, 1], [2, 4]); v = a.load([2, 4])")
    assert (grown.fault.kind, grown.fault.element) == ("out of bounds", 28)  # it is described larger than it is
    typed = described(f"{DESCRIBED}tl.store(out, a.block_shape[1] + a.shape[0] + a.load([0, 0]).to(a.dtype).shape[0])")
    assert typed.fault is None and typed.results["out"][0, 0] == 4 + 3 + 2


@pytest.mark.parametrize(("text", "said"), CASES["descriptors"])
def test_what_a_tensor_descriptor_cannot_do_is_said(text, said):
    assert said in str(described(DESCRIBED + text).fault)


def test_the_host_may_make_the_descriptor():
    @triton.jit
    def double(x, out, SIZE: tl.constexpr):
        row = tl.program_id(0) * SIZE
        out.store([row, 0], 2 * x.load([row, 0]))

    triton.set_allocator(lambda size, alignment, stream: None)
    make = triton.tools.tensor_descriptor.TensorDescriptor
    x, out = torch.arange(24.0).view(3, 8), torch.zeros(3, 8)
    arguments = make.from_tensor(x, [2, 8]), make(out, [3, 8], [8, 1], [2, 8])
    report = kernelcheck.checked(double, (2,), *arguments, SIZE=2)
    assert report.fault is None and report.results["out"].equal(2 * x) and out.eq(0).all()
    double[(2,)](*arguments, SIZE=2)
    assert out.equal(2 * x)
    assert kernelcheck.checked(double, (2,), *arguments, SIZE=1).fault is None  # both write the same to the row between
    fault = kernelcheck.checked(double, (2,), *arguments, SIZE=0).fault
    assert fault.kind == "race" and fault.array == "out" and "no program writes 8 other elements" in str(fault)


def test_random_numbers_are_those_of_triton():
    text = "at = tl.arange(0, 4); tl.store(out + at, tl.rand(n, at)); tl.store(out + 4 + at, tl.randn(n, at))"
    out = computed(text, torch.zeros(1), torch.zeros(8), 1234567)
    of_triton = 0.2825191, 0.4206941, 0.1166019, 0.1379059, -1.5718596, -0.9336427, 1.3485973, 0.1092476  # of 3.9
    assert torch.allclose(out, torch.tensor(of_triton), atol=1e-6)


def test_of_several_loads_without_other_the_one_that_matters_is_named():
    text = "at = tl.arange(0, 8); v = tl.load(x + at, mask=at < n); w = tl.load(x + at, mask=at < n); "
    harmless = kernel(f"{text}tl.store(out + at, v + w, mask=at < n)")
    for dtype in (torch.float32, torch.int32):
        x, out = torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)
        assert kernelcheck.checked(harmless, (1,), x, out, 5).fault is None
        fault = kernelcheck.checked(kernel(f"{text}tl.store(out, tl.sum(w))"), (1,), x, out, 5).fault
        assert fault.kind == "undefined" and ": w = tl.load" in fault.line
    product = kernel(f"{text}tl.store(out, tl.sum(v * w))")  # which matter together: NaN where one of them is NaN
    fault = kernelcheck.checked(product, (1,), torch.ones(8), torch.zeros(8), 5).fault
    assert fault.kind == "undefined" and ": v = tl.load" in fault.line  # and no race


def test_a_race_names_the_line_of_the_other_program():
    @triton.jit
    def rows(out):
        row = tl.program_id(0)
        tl.store(out + row * 4 + tl.arange(0, 8), row + 1.0)

    fault = kernelcheck.checked(rows, (2,), torch.zeros(16)).fault
    assert fault.kind == "race" and "which program 0 writes too" in str(fault) and "(line" not in str(fault)

    @triton.jit
    def parts(out):
        part = tl.program_id(0)
        tl.store(out + part * 4 + tl.arange(0, 4), 1.0)
        if part > 0:
            tl.store(out + 3, 0.0)

    first = parts.fn.__code__.co_firstlineno + 3
    fault = kernelcheck.checked(parts, (2,), torch.zeros(16)).fault
    assert f"which program 0 writes too (line {first})" in str(fault) and "tl.store(out + 3" in fault.line


def test_what_public_kernels_lean_on_is_there():
    room, tanh = types.ModuleType("room"), types.FunctionType(compile("0", "", "eval"), {}, "tanh")
    tanh.__module__ = "triton.language.extra.cuda.libdevice"  # as `from … import tanh` brings it of Triton

    @triton.jit
    def first(x):
        return tl.load(x)

    @triton.jit
    def second(x):
        return tanh(tl.load(x + 1))

    room.first, room.second = first, second

    @triton.heuristics({"num_warps": lambda named: 4 * named["n"], "SIZE": lambda named: named["num_warps"]})
    @triton.jit
    def both(x, out, n, SIZE: tl.constexpr):
        tl.store(out + tl.arange(0, SIZE), (room.first(x) + room.second(x))[:, None] + tl.arange(0, SIZE))

    out = kernelcheck.checked(both, (1,), torch.tensor([2.0, 0.5]), torch.zeros(8), 2).results["out"]
    torch.testing.assert_close(out, 2 + torch.tensor(0.5).tanh() + torch.arange(8))
    small = triton.reinterpret(torch.full((8,), 0x38, dtype=torch.int8), tl.float8e4nv)
    assert kernelcheck.checked(kernel("tl.store(out, tl.load(x))"), (1,), small, torch.zeros(1), 0).results["out"] == 1
    none = kernel("tl.store(out, 1.0)")
    assert kernelcheck.checked(none, (0,), torch.zeros(0), torch.zeros(0), 0).fault is None
    assert "above 0" in str(kernelcheck.checked(none, (0,), torch.zeros(1), torch.zeros(1), 0).fault)


def test_a_whole_number_divided_by_0_has_no_value():
    for text, told in (
        ("tl.store(out, 7 // n)", True), ("tl.store(out, tl.sum(at % (at - 2 + n)))", True),
        ("tl.store(out + at, at // (at + n), mask=at > 0)", False), ("tl.store(out, 7 / n)", False),
    ):  # fmt: skip
        divides = kernel(f"at = tl.arange(0, 8); {text}")
        fault = kernelcheck.checked(divides, (1,), torch.ones(8), torch.zeros(8), 0).fault
        assert bool(fault) == told and (not told or (fault.kind == "undefined" and "divides by 0" in str(fault)))


@pytest.mark.parametrize(("text", "said"), CASES["lanes"])
def test_lanes_of_a_program_wait_for_one_another_at_a_barrier_alone(text, said):
    fault = kernelcheck.checked(kernel(text), (1,), torch.arange(8.0), torch.zeros(16), 0).fault
    assert bool(fault) == bool(said) and said in str(fault) and (not fault or fault.kind == "race")


ADDED = "tl.atomic_add(out, tl.sum(tl.load(x + tl.program_id(0) * n_block + tl.arange(0, n_block))))"
SCALED = "at = tl.program_id(0) * n_block + tl.arange(0, n_block); tl.store(x + at, tl.load(x + at) * 3)"
PARTS = "at = n_block + tl.program_id(0) * 4 + tl.arange(0, 4); tl.store(out + at, tl.load(x + at) + 1)"


@pytest.mark.parametrize(("text", "options", "said"), [
    (ADDED, {}, "element 0 of out is 8 after one run of kernel, and 16 after two"),
    (ADDED, {"reset_to_zero": ["out"]}, ""),
    (ADDED, {"reset_to_zero": ["y"]}, "names 'y', which is no argument: they are x, out, n, n_block"),
    (ADDED, {"pre_hook": lambda named: named["out"].zero_()}, ""),
    (SCALED, {}, "give it restore_value=['x']"),
    (SCALED, {"restore_value": ["x"]}, ""),
    (PARTS, {}, "if one with {'n_block': 4} came first"),
    (SCALED.replace("* 3", "+ 0"), {}, ""),  # it may run as often as it likes
])  # fmt: skip
def test_autotune_runs_a_kernel_several_times_on_the_same_tensors(text, options, said):
    hook = options.pop("pre_hook", None)
    configs = [triton.Config({"n_block": size}, pre_hook=hook) for size in (4, 8)]
    tuned = triton.autotune(configs, key=["n"], **options)(kernel(text, n_block=None))
    x, out = torch.ones(16), torch.zeros(16)
    fault = kernelcheck.checked(tuned, lambda meta: (8 // meta["n_block"],), x, out, 8).fault
    assert bool(fault) == bool(said) and said in str(fault)
    assert torch.equal(x, torch.ones(16)) and not out.any()


def test_numbers_and_tensors_may_come_in_a_tuple():
    @triton.jit
    def sums(tensors, strides, out, n):
        at = tl.arange(0, 4)
        total = tl.load(tensors[0] + at * strides[0], mask=at < n, other=0.0)
        total += tl.load(tensors[1] + at * strides[1], mask=at < n, other=0.0)
        tl.store(out + at, total, mask=at < n)

    x, y, out = torch.arange(6.0), torch.ones(3), torch.zeros(3)
    report = kernelcheck.checked(sums, (1,), (x, y), (2, 1), out, 3)
    assert report.fault is None and report.results["out"].tolist() == [1, 3, 5]
    sums[(1,)]((x, y), (2, 1), out, 3)
    assert out.tolist() == [1, 3, 5]
    fault = kernelcheck.checked(sums, (1,), (x, y), (4, 1), out, 3).fault
    assert (fault.kind, fault.array, fault.element) == ("out of bounds", "tensors[0]", 8)


@triton.constexpr_function
def sum_type(dtype):
    return tl.float32 if dtype.is_fp16() or dtype.is_bf16() else dtype


@tl.constexpr
def half(size):
    return size // 2


def test_functions_of_constants_are_pythons():
    @triton.jit
    def lowest(dtype):
        kind = dtype.value
        if kind.is_floating():
            least: tl.constexpr = float("-inf")
        else:
            least: tl.constexpr = -(2 ** (kind.int_bitwidth - 1)) if kind.is_int_signed() else 0
        return least

    @triton.jit
    def largest(x, out, n, BLOCK: tl.constexpr):
        wide: tl.constexpr = sum_type(x.dtype.element_ty)
        at = tl.arange(0, half(BLOCK.value))
        values = tl.load(x + at, mask=at < n, other=lowest(x.dtype.element_ty))
        tl.store(out, tl.max(values.to(wide)))

    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        report = kernelcheck.checked(largest, (1,), torch.tensor([-3, -2, -5]).to(dtype), torch.zeros(1), 3, BLOCK=8)
        assert report.fault is None and report.results["out"].item() == -2
    with_a_block = kernel("v = half(n)")
    with_a_block.fn.__globals__["half"] = half
    fault = kernelcheck.checked(with_a_block, (1,), torch.zeros(8), torch.zeros(8), 8).fault
    assert "what half computes with must be known" in str(fault)


@triton.jit
def uniform(bits):
    if tl.constexpr(bits.dtype == tl.int64) or tl.constexpr(bits.dtype == tl.uint64):
        numbers = tl.zeros(bits.shape, tl.float32)
    else:
        numbers = tl.uint_to_uniform_float(bits)
    return numbers


def test_the_parts_of_random_numbers_may_be_used_by_themselves():
    @triton.jit
    def whole(out):
        at = tl.arange(0, 8)
        tl.store(out + at, tl.rand(7, at))
        tl.store(out + 8 + at, tl.randn(7, at))

    @triton.jit
    def parts(out):
        at = tl.arange(0, 8)
        a, b, _, _ = tl.philox(7, at.to(tl.uint32), 0, 0, 0)
        first, second = uniform(a), uniform(b)
        normal, _ = tl.pair_uniform_to_normal(first, second)
        tl.store(out + at, first)
        tl.store(out + 8 + at, normal)

    results = [kernelcheck.checked(each, (1,), torch.zeros(16)) for each in (whole, parts)]
    assert results[0].fault is None and results[1].fault is None
    assert results[0].results["out"].equal(results[1].results["out"])


def test_more_bits_and_the_rooms_of_the_language_are_there():
    @triton.jit
    def numbers(out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        kind: tl.constexpr = tl.core.get_int_dtype(64, True)
        steps: tl.constexpr = tl.standard._log2(BLOCK)
        bits = (at.to(kind) << 61) - 5 * tl.zeros((2**steps,), kind)
        tl.store(out + at, tl.uint_to_uniform_float(bits))

    report = kernelcheck.checked(numbers, (1,), torch.ones(4), BLOCK=4)
    assert report.fault is None
    assert torch.allclose(report.results["out"], torch.tensor([0, 0.25, 0.5, 0.75]))


def test_tiles_of_a_matrix_are_taken_in_groups_of_rows():
    @triton.jit
    def places(out, rows, columns, GROUP: tl.constexpr):
        i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), rows, columns, GROUP)
        tl.store(out + i * columns + j, tl.program_id(0) * columns + tl.program_id(1))

    out = kernelcheck.checked(places, (4, 4), torch.zeros(4, 4), 4, 4, GROUP=2).results["out"]
    assert out.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    odd = kernelcheck.checked(places, (3, 3), torch.zeros(3, 3), 3, 3, GROUP=2)
    assert odd.fault is None and odd.results["out"].tolist() == [[0, 2, 4], [1, 3, 5], [6, 7, 8]]


def test_cuda_s_library_asks_for_what_is_no_number_and_has_whole_powers():
    @triton.jit
    def sums(x, out, n):
        at = tl.arange(0, 4)
        total = 0.0
        for start in range(0, n, 4):
            v = tl.load(x + start + at)
            known = tl.where(tl.extra.libdevice.isnan(v), 0.0, v)
            total += tl.sum(tl.extra.libdevice.pow(known, 2))
        tl.store(out, total)

    x = torch.tensor([1, 2, float("nan"), 3, 4, 0, 0, float("nan")])
    report = kernelcheck.checked(sums, (1,), x, torch.zeros(1), 8)
    assert report.fault is None and report.results["out"].item() == 30


def test_what_older_kernels_say_is_refused_by_name():
    @triton.jit
    def options(x, **meta):
        tl.store(x + tl.arange(0, meta["BLOCK"]), 0.0)

    assert "a kernel has no `**meta` any more" in str(kernelcheck.checked(options, (1,), torch.zeros(4), BLOCK=4).fault)


def test_a_tensor_that_no_machine_has_room_for_has_addresses():
    """Offsets of 32 bits turn negative beyond 2 ** 31, and an element that is far away is no fault."""
    text = "row = tl.program_id(0){}; tl.store(out + row, tl.load(x + row * n))"
    x, out = kernelcheck.Addresses((3, 4), (1_500_000_000, 1)), torch.ones(3)
    report = kernelcheck.checked(kernel(text.format(".to(tl.int64)")), (3,), x, out, 1_500_000_000)
    assert report.fault is None and report.touched["x"][2, 0, 0].tolist() == [3_000_000_000]
    assert report.results["out"].tolist() == [0, 0, 0] and report.by_array["x"].loaded_bytes == 12
    wrapped = kernel(text.format(""))
    fault = kernelcheck.checked(wrapped, (3,), x, out, 1_500_000_000).fault
    assert fault.kind == "out of bounds" and fault.element == 3_000_000_000 - 2**32
    assert "then they turn negative: use .to(tl.int64) before you multiply" in str(fault)
    with pytest.raises(kernelcheck.KernelFault, match="checked alone takes it"):
        wrapped[(3,)](x, out, 1)


@pytest.mark.parametrize(("text", "more", "phrase"), [
    ("pass", {"num_warps": 3}, "num_warps must be a power of two"),
    ("pass", {"BLOCK": 8}, "unexpected keyword argument 'BLOCK'"),
    ("pass", {"n": "8"}, "n is a str"),
    ("pass", {"x": torch.zeros(2, dtype=torch.complex64)}, "which Triton does not have"),
    ("pass", {"x": torch.zeros(2, device="meta")}, "on one device, with values, and are x on meta and out on cpu"),
    ("pass", {"grid": 4}, "must be a tuple"),
    ("pass", {"grid": (1.5,)}, "use triton.cdiv"),
    ("pass", {"grid": (2000, 1000)}, "too many here"),
    ("v = tl.load(x + 0.5)", {}, "moved by fp32"),
    ("v = tl.arange(0, n)", {}, "tl.constexpr"),
    ("v = tl.zeros((4,), tl.float32)[0]", {}, "only `:` and `None`"),
    ("v = tl.load(x + tl.arange(0, 8), mask=tl.arange(0, 4) < n)", {}, "do not go together"),
    ("if tl.arange(0, 4) < n:;     pass", {}, "no single yes or no"),
    ("v = tl.arange(0, 1024)[:, None] + tl.arange(0, 2048)", {}, "Triton allows 1,048,576"),
    ("v = SIZE", {}, "SIZE is a global number"),
    ("v = tl._experimental_descriptor_load(x, [0], [16], tl.float32)", {}, "made by tl.make_tensor_descriptor today"),
    ("v = tl.float32(0.0)", {}, "write tl.full((), value, tl.float32)"),
    ("v = tl.libdevice.erf(tl.load(x))", {}, "in tl.extra.libdevice today"),
    ("v = tl.zeros((16, 16), tl.float32); w = tl.dot(v, v, trans_b=True)", {}, "transpose the block by tl.trans"),
    ("v = tl.load(x) + math.sin(n)", {}, "NameError"),
])  # fmt: skip
def test_wrong_arguments_are_named(text, more, phrase):
    one = kernel(text)
    one.fn.__globals__["SIZE"] = 8
    options = {"x": torch.zeros(8), "out": torch.zeros(8), "n": 8, "grid": (1,)} | more
    grid = options.pop("grid")
    assert phrase in str(kernelcheck.checked(one, grid, **options).fault)
    if "NameError" not in phrase:
        with pytest.raises(kernelcheck.KernelFault, match=re.escape(phrase)):
            one[grid](**options)


def test_a_global_may_have_the_name_of_a_function_of_the_language():
    one = kernel("tl.store(out, tl.erf(tl.load(x)))")
    one.fn.__globals__["erf"] = torch.ones(1)
    report = kernelcheck.checked(one, (1,), torch.ones(8), torch.zeros(8), 8)
    assert report.fault is None
    assert report.results["out"][0].isclose(torch.erf(torch.tensor(1.0)))


def test_helpers_configurations_and_heuristics():
    @triton.jit
    def twice(v):
        return v * 2

    @triton.autotune(configs=[triton.Config({"BLOCK": 8}, num_warps=2), triton.Config({"BLOCK": 64})], key=["n"])
    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + at, twice(tl.load(x + at)))
        else:
            tl.store(out + at, twice(tl.load(x + at)), mask=at < n)  # wrong

    def grid(meta):
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    x, out = torch.arange(40.0), torch.zeros(40)
    kernel[grid](x, out, 40)
    assert torch.equal(out, 2 * x)
    fault = kernelcheck.checked(kernel, grid, x, out, 40).fault  # of the second configuration
    assert (fault.kind, fault.element) == ("out of bounds", 40) and "twice(tl.load(x + at)), mask=at < n" in fault.line
    with pytest.raises(RuntimeError, match="launched with a grid"):
        twice(x)
    with pytest.raises(TypeError, match=r"under @triton.jit"):
        kernelcheck.checked(len, (1,))
    assert (triton.cdiv(10, 4), triton.next_power_of_2(33), triton.next_power_of_2(1)) == (3, 64, 1)


def test_an_error_goes_through_and_the_next_launch_is_as_ever():
    broken = kernel("v = tl.load(x) + missing")
    with pytest.raises(NameError, match="missing"):
        broken[(1,)](torch.zeros(1), torch.zeros(1), 0)
    assert computed("tl.store(out, 1)", torch.zeros(1), torch.zeros(1)).item() == 1


@pytest.mark.parametrize(("asked", "rounds"), [
    ("", True), (', input_precision="tf32"', True), (", allow_tf32=True", True), (", allow_tf32=False", False),
    (', input_precision="ieee"', False), (', input_precision="tf32x3"', False),
])  # fmt: skip
def test_a_product_of_float32_is_rounded_to_tf32_unless_more_is_asked_for(asked, rounds):
    load, x = "r = tl.arange(0, 16); at = r[:, None] * 16 + r; a = tl.load(x + at)", torch.eye(16)
    product = kernel(f"{load}; tl.store(out + at, tl.dot(a, a{asked}))")
    x[0, 0], x[1, 1] = 1 + 2**-10, 1 + 2**-11 + 2**-20  # the last bit that TF32 keeps, and two that it does not
    x[2, 2], x[3, 3] = -torch.inf, torch.nan
    result = kernelcheck.checked(product, (1,), x, torch.zeros(256), 0).results["out"].view(16, 16)
    rounded = torch.tensor(1 + 2**-10) if rounds else x[1, 1]
    torch.testing.assert_close(result[:2, :2], torch.diag(torch.stack([x[0, 0], rounded])) ** 2, rtol=1e-7, atol=0)
    assert result[2, 2] == torch.inf and result[3, 3].isnan()


SMALL = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # with a sign, all numbers of four bits
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e2m1", "e5m2"), ("bf16", "e2m1"), ("e2m1", "fp16")])
def test_a_product_of_scaled_formats_is_that_of_what_they_stand_for(formats):
    @triton.jit
    def product(a, b, scales, out, A: tl.constexpr, B: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr):
        m, two = tl.arange(0, 16), tl.arange(0, 2)
        left = tl.load(a + m[:, None] * KA + tl.arange(0, KA))
        right = tl.trans(tl.load(b + m[:, None] * KB + tl.arange(0, KB)))
        scale = tl.load(scales + m[:, None] * 2 + two)
        tl.store(out + m[:, None] * 16 + m, tl.dot_scaled(left, scale, A, right, scale, B))

    scales, numbers, stored = torch.arange(112, 144, dtype=torch.uint8).view(16, 2), [], []
    for kind in formats:
        bits = torch.randint(0, 16, (16, 64))
        numbers.append(SMALL[bits & 7] * (1 - (bits >> 3) * 2))
        packed = (bits[:, ::2] | bits[:, 1::2] << 4).to(torch.uint8)
        stored.append(packed if kind == "e2m1" else numbers[-1].to(FORMATS[kind]))
    arguments = *stored, scales, torch.zeros(16, 16), *formats, *(one.shape[1] for one in stored)
    left, right = (one * torch.exp2(scales - 127.0).repeat_interleave(32, 1) for one in numbers)
    report = kernelcheck.checked(product, (1,), *arguments)
    assert report.fault is None and torch.allclose(report.results["out"], left @ right.T)
    wrong = kernelcheck.checked(product, (1,), *arguments[:4], "e2m1", "e4m1", *arguments[6:]).fault
    assert "the format 'e" in str(wrong)


def test_a_function_of_single_numbers_is_mapped_over_a_block():
    @triton.jit
    def ordered(a, b):
        if a > b:
            high, low = a, b
        else:
            high, low = b, a
        return low, high

    @triton.jit
    def pairs(x, out):
        at = tl.arange(0, 8)
        (within,) = tl.map_elementwise(ordered, tl.load(x + at), pack=2)
        low, high = tl.map_elementwise(ordered, tl.load(x + at), tl.full((1,), 0.5, tl.float32))
        tl.store(out + at, within)
        tl.store(out + 8 + at, low + 2 * high)

    x = torch.rand(8)
    out = kernelcheck.checked(pairs, (1,), x, torch.zeros(16)).results["out"]
    assert out[:8].equal(x.view(4, 2).sort()[0].flatten())
    torch.testing.assert_close(out[8:], x.clamp(max=0.5) + 2 * x.clamp(min=0.5))
