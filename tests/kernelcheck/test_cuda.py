"""Is what a CUDA kernel does named as what it is, and is a right one left alone?"""

import struct

import pytest
import torch

import kernelcheck
from kernelcheck.cuda import toolchain
from tests.kernelcheck.cuda_samples import BASES, CASES, HOSTILE, RIGHT, T

needs_compiler = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")
ADD = BASES["add"].source


def some_slow(cases, kind):
    """Return the cases as parameters: the first of each kind runs in `make test-units`, the others weekly."""
    seen, found = set(), []
    for number, case in enumerate(cases):
        marks = [pytest.mark.slow] if (key := kind(case)) in seen else []
        seen.add(key)
        found.append(pytest.param(case, id=f"{key}-{number}", marks=marks))
    return found


@needs_compiler
@pytest.mark.parametrize("one", some_slow(CASES["broken"], lambda one: one[1] or "right"))
def test_each_broken_kernel_is_named(one):
    name, kind, at, word, *edits = one
    base, source, block = BASES[name], BASES[name].source, BASES[name].block
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    block = block if edits else (33, 32)  # the row without a change: too many threads
    fault = kernelcheck.compile_cuda(source).check(base.grid, block, base.made(), limit=1.0).fault
    if not kind:
        assert fault is None
        return
    assert fault is not None and fault.kind == kind
    assert word in str(fault)
    if at:
        assert at in source.splitlines()[fault.line - 1]


@needs_compiler
@pytest.mark.parametrize("one", some_slow(RIGHT, lambda one: one[0]))
def test_each_right_kernel_is_accepted(one):
    base, arguments = BASES[one[0]], BASES[one[0]].made()
    launch = {"grid": base.grid, "block": base.block, **one[2]}
    report = kernelcheck.compile_cuda(one[1], launch.pop("name", None)).check(args=arguments, **launch)
    assert report.fault is None
    assert base.right(arguments)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("one", T, ids=lambda one: one[0])
def test_kernels_of_many_styles(one):
    _, source, grid, block, args, expect, name, shared = one
    fault = kernelcheck.compile_cuda(source, name).check(grid, block, args, shared, limit=2.0).fault
    if isinstance(expect, str):
        assert any(kind in (fault.kind if fault else "None") for kind in expect.split("|"))
    else:
        assert fault is None and (expect is None or expect())


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("source, said, args", HOSTILE)
def test_a_hostile_kernel_ends_in_a_message(source, said, args):
    try:
        heard = str(kernelcheck.compile_cuda(source).check(2, 64, args, limit=0.5).fault)
    except kernelcheck.CompileError as error:
        heard = str(error)
    assert said in heard


@needs_compiler
def test_counts_of_a_launch():
    x, y, out = torch.arange(1000.0), torch.ones(1000), torch.full((1200,), 7.0)
    report = kernelcheck.compile_cuda(ADD)(4, 256, (x, y, out[:1100], 1000))
    assert torch.equal(out[:1000], x + y) and (out[1000:] == 7).all()
    assert (report.loaded_bytes, report.stored_bytes) == (8000, 4000)
    assert (report.sectors, report.requests) == (375, 96)  # 1000 x 4 bytes / 32, three arrays; 32 warps' requests each
    assert report.by_array["x"] == report.by_array["y"] == kernelcheck.Traffic(4000, 0, 32, 125)
    assert report.by_array["out"] == kernelcheck.Traffic(0, 4000, 32, 125)
    assert report.unwritten == {"out": 100} and (report.blocks, report.threads) == (4, 1024)
    assert report.touched["out"][300] == (300, 1, 44, "write")
    assert "100 elements never written" in str(report) and "<table>" in report._repr_html_()


@needs_compiler
def test_tiles_shared_memory_and_banks_are_counted():
    naive = next(source for name, source, _ in RIGHT if name == "product")
    tiled, (a, b, c, *_) = BASES["product"].source, [torch.ones(64, 64) for _ in range(3)]
    arguments, launch = (a, b, c, 64, 64, 64), {"grid": (4, 4), "block": (16, 16)}
    slow, fast = (kernelcheck.compile_cuda(source)(**launch, args=arguments) for source in (naive, tiled))
    assert slow.loaded_bytes == 2 * 64**3 * 4 and fast.loaded_bytes == slow.loaded_bytes // 16
    assert slow.barriers == 0 and fast.barriers == 16 * 2 * 4
    source = """__global__ void k(float* x) {
        __shared__ float s[32][33]; int i = threadIdx.x; s[i][0] = 1; __syncthreads(); x[i] = s[i][0]; }"""
    both = map(kernelcheck.compile_cuda, (source, source.replace("33", "32")))
    banks = [kernel(1, 32, (torch.zeros(32),)).bank_conflicts for kernel in both]
    assert banks == [0, 62]  # a column of 32 lies in one bank: 31 further passes to write it, 31 to read it


@needs_compiler
def test_a_fault_says_where_and_nothing_is_written():
    out = torch.zeros(1000)
    with pytest.raises(kernelcheck.KernelFault) as caught:
        wrong = kernelcheck.compile_cuda(ADD.replace("i < n", "i <= n"))
        wrong(4, 256, (torch.ones(1001), torch.ones(1001), out, 1000))
    fault = caught.value
    assert (fault.kind, fault.block, fault.thread) == ("out of bounds", (3, 0, 0), (232, 0, 0))
    assert (fault.line, fault.array, fault.element) == (4, "out", 1000)
    assert str(fault).splitlines() == [
        "out of bounds: block 3, thread 232 writes element 1000 of `out`, which has 1000 (0 to 999)",
        "line 4: out[i] = x[i] + y[i];",
    ]
    assert not out.any()


@needs_compiler
def test_arguments_are_looked_at():
    add, x = kernelcheck.compile_cuda(ADD), torch.ones(64)

    def said(*args, grid=1, block=64, **options):
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        return str(add.check(grid, block, args, **options).fault)

    assert said(x, x, x, 64) == "None"
    assert "takes 4 arguments, not 3" in said(x, x, x)
    assert "argument 0 is torch.float64; `const float* x` needs torch.float32" in said(x.double(), x, x, 64)
    assert "argument 3 is 64.0; `int n` needs a whole number" in said(x, x, x, 64.0)
    assert "argument 2 is list" in said(x, x, [0.0], 64)
    assert "grid is 0" in said(x, x, x, 64, grid=0) and "grid is (1, 70000)" in said(x, x, x, 64, grid=(1, 70000))
    assert "1088 threads" in said(x, x, x, 64, block=(64, 17)) and "block is 1025" in said(x, x, x, 64, block=1025)
    assert "shared_mem is 300000" in said(x, x, x, 64, shared_mem=300_000)
    assert "on meta" in said(x.to("meta"), x, x, 64)
    matrix = torch.arange(64.0).reshape(8, 8)
    report = add(1, 64, (matrix.t(), x, out := torch.zeros(8, 8), 64))
    assert "not contiguous" in report.notes[0] and torch.equal(out, matrix + 1)  # the memory, not its transpose


@needs_compiler
def test_a_gpu_gets_numbers_of_the_kernel_s_types(monkeypatch):
    passed = []
    made = lambda *_, **_dirs: lambda **launch: passed.append(launch)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "_compile_kernel", made, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    source = "__global__ void k(float* x, float f, double d, long long n, int i, bool b) { x[0] = f; }"
    kernel, x, report = kernelcheck.compile_cuda(source), torch.zeros(1), kernelcheck.Report("k", (1, 1, 1), (1, 1, 1))
    args = (x, 1.5, 2.5, 2**40, -3, True)
    kernel._run_on_gpu(report, args, kernel._arguments(args, report)[1], 0, torch.device("cuda"))
    (launch,) = passed
    tensor, f, d, n, i, b = launch["args"]  # torch passes an int as 4 bytes and a float as 8
    assert tensor is x and struct.pack("<i", f) == struct.pack("<f", 1.5) and d == 2.5
    assert struct.pack("<d", n) == struct.pack("<q", 2**40) and i == -3 and b == 1
    assert report.ran_on == "a GPU" and launch["grid"] == (1, 1, 1)


@needs_compiler
def test_what_is_printed_is_kept():
    source = '__global__ void k(float* x) { if (threadIdx.x < 2) printf("%d: \\"%.1f\\"\\n", threadIdx.x, x[0]); }'
    assert kernelcheck.compile_cuda(source)(1, 32, (torch.ones(1),)).printed == '0: "1.0"\n1: "1.0"\n'


@needs_compiler
def test_a_compiler_s_words_stand_at_the_reader_s_line():
    with pytest.raises(kernelcheck.CompileError) as caught:
        kernelcheck.compile_cuda(ADD.replace("+ y[i]", "+ z[i]"))
    assert caught.value.line == 4 and '"z" is undefined' in caught.value.reason
    line, caret, _ = str(caught.value).splitlines()
    assert line[caret.index("^")] == "z"
    with pytest.raises(kernelcheck.CompileError, match="several kernels, say which: add, add2"):
        kernelcheck.compile_cuda(ADD + ADD.replace("add", "add2"))
    with pytest.raises(kernelcheck.CompileError, match="is a template"):
        kernelcheck.compile_cuda("template <class T> __global__ void k(T* x) { *x = 1; }", "k")


@needs_compiler
@pytest.mark.parametrize(("declared", "said"), [
    ("__shared__ float tile[32]\n    int at = threadIdx.x;", 'expected a ";"'),
    ("__shared__ float tile[32]\n    tile[0] = 3;", 'expected a ";"'),
    ("__shared__ float total\n    int at = threadIdx.x;", 'expected a ";"'),
    ("__shared__ float tile[32],\n    int at = threadIdx.x;", "expected unqualified-id"),
    ("int at = threadIdx.x\n    at = 3;", 'expected a ";"'),
    ("out[1] = 2\n    __syncthreads();", "expected a \";\" before '__syncthreads'"),
    ("out[1] = 2\n    __syncwarp();", "expected a \";\" before '__syncwarp'"),
    ("if (out[0] > 0 out[1] = 2;", r'expected a "\)"'),
    ('printf("%d, 3);', "missing terminating"),
])  # fmt: skip
def test_what_is_missing_is_told_as_such(declared, said):
    with pytest.raises(kernelcheck.CompileError, match=said) as caught:
        kernelcheck.compile_cuda(f"__global__ void k(float* out) {{\n    {declared}\n    out[0] = 1;\n}}", "k")
    assert caught.value.line in (2, 3) and "given a value" not in caught.value.reason


@pytest.mark.parametrize("declared", ["float a = 3;", "float a[2] = {1, 2};", "int a, b = 3;", "int a[2], b = 3;"])
def test_shared_memory_that_is_given_a_value_is_told_as_such(declared):
    with pytest.raises(kernelcheck.CompileError, match="cannot be given a value"):
        kernelcheck.compile_cuda(f"__global__ void k(float* out) {{ __shared__ {declared} out[0] = 1; }}", "k")


def test_without_a_compiler_one_sentence_says_so(monkeypatch):
    toolchain.compiler.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
    try:
        assert kernelcheck.compiler() is None
        with pytest.raises(kernelcheck.Unavailable, match=r"^CUDA C\+\+ .* needs a C\+\+ compiler|64-bit Linux alone"):
            kernelcheck.compile_cuda(ADD)
        monkeypatch.setattr(toolchain.sys, "platform", "win32")
        assert "under 64-bit Linux alone" in kernelcheck.why_not()
    finally:
        toolchain.compiler.cache_clear()
