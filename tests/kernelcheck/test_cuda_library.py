"""Do CUDA's own groups, 16-bit floats and small functions give what they give on a GPU?"""

import ctypes
import functools
import operator
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import kernelcheck
from tests.kernelcheck.cuda_samples import read

pytestmark = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")

TEXTS = {name: f"\n{text}\n" for name, text in read("library.cu")}
LIBRARY = tomllib.loads(Path(__file__).with_name("library.toml").read_text(encoding="utf-8"))
GROUPS = TEXTS["groups"]
SUM = TEXTS["sum"]
TILES = TEXTS["tiles"]


def launched(source, *, name=None, grid=1, block=32, args=()):
    """Return the report of a launch."""
    return kernelcheck.compile_cuda(source, name).check(grid=grid, block=block, args=args)


def test_a_sum_with_cooperative_groups_is_the_sum():
    x, out = torch.arange(1000.0), torch.zeros(1)
    report = launched(GROUPS + SUM, grid=4, block=256, args=(x, out, 1000))
    assert report.fault is None and out.item() == x.sum().item() and report.barriers == 4


def test_tiles_give_their_threads_what_they_give_on_a_gpu():
    out = torch.zeros(64, 18, dtype=torch.int32)
    assert launched(GROUPS + TILES, block=64, args=(out,)).fault is None
    for t, row in enumerate(out.tolist()):
        four, sixteen = range(t // 4 * 4, t // 4 * 4 + 4), range(t // 16 * 16, t // 16 * 16 + 16)
        rank = t % 4
        assert row == [
            4, rank, t % 16 // 4, 4,
            four[2], four[max(rank - 1, 0)], four[min(rank + 1, 3)], four[rank ^ 3],
            0b1010, 5 in four, t < 8, 0b11 << rank // 2 * 2,
            sum(range(sixteen[0], t + 1)), sum(range(sixteen[0], t)), four[3],
            t % 8, t, 0xFFFF,
        ]  # fmt: skip


def test_threads_that_are_together_by_chance_are_a_group():
    count, first = torch.zeros(8, dtype=torch.int32), torch.full((64,), -1, dtype=torch.int32)
    assert launched(GROUPS + TEXTS["odd"], block=64, args=(count, first)).fault is None
    lanes = [[t for t in range(w, w + 32) if t % 3 == 1] for w in (0, 32)]
    assert count.tolist() == [len(lanes[0]), len(lanes[1]), 0, 0, 0, 0, 0, len(lanes[0]) + len(lanes[1])]
    assert first.tolist() == [lanes[t // 32][2] if t % 3 == 1 else -1 for t in range(64)]


@pytest.mark.parametrize(("old", "new", "kind", "line"), LIBRARY["group_faults"])
def test_a_fault_with_groups_is_named_at_its_line(old, new, kind, line):
    source = (GROUPS + SUM).replace(old, new)
    report = launched(source, grid=4, block=256, args=(torch.ones(1000), torch.zeros(1), 1000))
    assert report.fault is not None and report.fault.kind == kind
    assert line in source.splitlines()[report.fault.line - 1]


@pytest.mark.parametrize(("old", "new", "said", "line"), LIBRARY["group_refusals"])
def test_what_groups_cannot_do_is_said_at_its_line(old, new, said, line):
    with pytest.raises(kernelcheck.CompileError, match=said) as refused:
        kernelcheck.compile_cuda((GROUPS + SUM).replace(old, new))
    assert line in str(refused.value)


def test_numbers_become_16_bit_floats_in_each_direction():
    torch.manual_seed(0)
    edges = [0.0, -0.0, 65504, 65519.9, 65520, 1e9, -1e9, 2**-25, 1.5 * 2**-24, 1 + 2**-11, 1 + 3 * 2**-11, -(2**-26)]
    x = torch.cat([torch.randn(500) * 10 ** torch.empty(500).uniform_(-9, 6), torch.tensor(edges)])
    near, zero, down, up = (torch.zeros(len(x), dtype=torch.float16) for _ in range(4))
    brain = torch.zeros(len(x), dtype=torch.bfloat16)
    assert launched(TEXTS["round_all"], grid=5, block=128, args=(x, near, zero, down, up, brain, len(x))).fault is None
    assert near.equal(x.half()) and brain.equal(x.bfloat16())
    with np.errstate(over="ignore"):
        above = torch.from_numpy(np.nextafter(down.numpy(), np.float16(np.inf)))
    assert bool(((down.float() <= x) & (x <= up.float()) & ((down == up) | (above == up))).all())
    assert zero.equal(torch.where(x < 0, up, down))


def test_pairs_of_16_bit_floats_compute_as_two_numbers():
    x, out = torch.tensor([1.5, -2, 0.25, 4]).half(), torch.zeros(8).half()
    assert launched(TEXTS["pairs"], block=1, args=(x, out)).fault is None
    assert out.equal(torch.tensor([1.5, 4, 1.25, -6, torch.tensor(0.25).exp(), 0.25, 0, 1]).half())


def test_functions_of_whole_numbers_and_roundings_are_cuda_s():
    x = torch.linspace(-9, 9, 32)
    out, bits = torch.zeros(32, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    assert launched(TEXTS["whole"], args=(x, out, bits)).fault is None
    assert out.tolist() == (x.round() + 7 * x.floor() + 49 * x.ceil()).int().tolist()
    product = 5 + 4 * 3 + 3 * -2 + 2 * 2 + 1 * -1
    assert bits.tolist() == [0x05010400, product, 24, 7, 3, functools.reduce(operator.xor, range(0, 96, 3))]


def test_copies_that_run_beside_their_thread_arrive_at_the_wait():
    x, out = torch.randn(4, 64), torch.zeros(64)
    report = launched(TEXTS["stages"], block=64, args=(x, out, 4))
    assert report.fault is None and report.loaded_bytes == 4 * x.numel()
    torch.testing.assert_close(out, x.flip(1).sum(0))
    primitives = launched(TEXTS["stages"].replace("pipeline.h", "pipeline_primitives.h"), block=64, args=(x, out, 4))
    assert primitives.fault is None


@pytest.mark.parametrize(("old", "new", "phrase", "line"), LIBRARY["copies"])
def test_a_copy_that_is_used_before_the_wait_is_a_race_and_a_wrong_call_is_told(old, new, phrase, line):
    assert old in TEXTS["stages"]
    text = TEXTS["stages"].replace(old, new)
    if "points into" in phrase:
        text = text.replace("const float* x", "float* x")
    with pytest.raises((kernelcheck.CudaFault, kernelcheck.CompileError), match=re.escape(phrase)) as caught:
        kernelcheck.compile_cuda(text)(grid=1, block=64, args=(torch.zeros(4, 64), torch.zeros(64), 4))
    assert line.strip("()") in str(caught.value)


@pytest.mark.parametrize("copy", [
    "__pipeline_memcpy_async(&part[8 * t], &x[8 * t], 16);",
    "((float4*)part)[t] = ((const float4*)x)[t];",
    "for (int i = 0; i < 4; i++) ((int*)part)[4 * t + i] = ((const int*)x)[4 * t + i];",
])  # fmt: skip
def test_halves_of_shared_memory_that_came_by_fours_are_not_uninitialised(copy):
    x, out = torch.randn(64).half(), torch.zeros(64).half()
    assert launched(TEXTS["halves"].replace("copy;", copy), block=64, args=(x, out)).fault is None
    assert torch.equal(out, x.flip(0))


@pytest.mark.parametrize(("count", "wait", "kind"), [(4, True, None), (3, True, "uninitialised"), (4, False, "race")])
def test_what_was_written_byte_by_byte_is_looked_at_where_it_is_read_by_fours(count, wait, kind):
    source = TEXTS["bytes"].replace("i < 4", f"i < {count}").replace("__syncthreads();", "__syncthreads();" * wait)
    x, out = torch.arange(256, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32)
    fault = launched(source, block=64, args=(x, out)).fault
    assert fault is None if kind is None else kind in fault.kind
    assert kind or torch.equal(out, x.view(torch.int32).flip(0))


def test_a_name_that_no_kernel_has_is_told_beside_those_that_are_there():
    with pytest.raises(kernelcheck.CompileError, match="there is no kernel k; there is kk"):
        kernelcheck.compile_cuda("__global__ void kk(float* x){ }", "k")


def test_a_function_that_ends_without_its_return_is_told_at_its_line():
    x = torch.arange(32.0)
    fault = launched(TEXTS["no_return"], name="all", args=(x, torch.zeros(32))).fault
    assert fault.kind == "undefined" and fault.line == 2 and "there is no `return`" in str(fault)
    fault = launched(TEXTS["no_return"], name="each", args=(x, torch.zeros(32))).fault
    assert fault.kind == "undefined" and (fault.line, fault.thread) == (5, (0, 0, 0))
    assert launched(TEXTS["no_return"], name="each", args=(x + 1, torch.zeros(32))).fault is None


def test_a_template_may_ask_for_the_kind_of_its_types():
    for dtype, name, want in ((torch.float32, "float", 5), (torch.float64, "double", 10)):
        out = torch.zeros(32, dtype=dtype)
        assert launched(TEXTS["traits"], name=f"traits<{name}>", args=(out,)).fault is None and out.eq(want).all()


@pytest.mark.parametrize("arguments", ["float, float", "int, 4"])
def test_a_template_with_other_arguments_is_told_by_its_name(arguments):
    with pytest.raises(kernelcheck.CompileError, match=f"no kernel is traits<{arguments}>: its template takes other"):
        launched(TEXTS["traits"], name=f"traits<{arguments}>", args=(torch.zeros(32),))


def test_the_parts_of_a_word_are_computed_with_by_themselves():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 2**32, (2, 32), dtype=np.uint32)
    x[:4], y[:4] = 0x7F80FF00, (0x80017FFF, 0x7F80FF00, 0, 0xFFFFFFFF)
    out = torch.zeros(32, 14, dtype=torch.uint32)
    report = launched(TEXTS["parts"], args=(torch.from_numpy(x), torch.from_numpy(y), out))
    assert report.fault is None

    def words(parts, kind):
        return np.asarray(parts).astype(kind).view(np.uint32)

    (s, t), (u, v) = ([one.view(kind).astype(int) for one in (x, y)] for kind in (np.int8, np.uint8))
    (p, q), (g, h) = ([one.view(kind).astype(int) for one in (x, y)] for kind in (np.int16, np.uint16))
    want = [
        words(u + v, "u1"), words(u - v, "u1"), words(np.clip(s - t, -128, 127), "i1"),
        words(np.clip(u + v, 0, 255), "u1"), words(np.maximum(s, t), "i1"), words(np.minimum(u, v), "u1"),
        words(-(u != v).astype(int), "i1"), words(u > v, "u1"), words(abs(u - v), "u1"), words(g + h, "u2"),
        words(np.clip(p - q, -32768, 32767), "i2"), words(-(p >= q).astype(int), "i2"), words(-g, "u2"),
        (x & 255) * (y & 255),
    ]  # fmt: skip
    assert np.array_equal(out.numpy(), np.stack(want, 1))


def test_shared_memory_may_say_its_alignment_behind_its_word():
    out = torch.zeros(64)
    assert launched(TEXTS["pairs 2"], args=(out,)).fault is None
    assert out.tolist() == [*range(32), *[1] * 32]


@pytest.mark.parametrize(("text", "said"), LIBRARY["libraries"])
def test_a_library_that_is_not_here_is_refused_by_name(text, said):
    with pytest.raises(kernelcheck.CompileError, match=said):
        kernelcheck.compile_cuda(text + "\n__global__ void k(float* x) { x[0] = 1; }", "k")


def test_a_fault_on_shared_halves_counts_halves_however_wide_the_access():
    x, out = torch.randn(128).half(), torch.zeros(128).half()
    fault = kernelcheck.compile_cuda(TEXTS["turned"]).check(1, 128, (x, out)).fault
    assert (fault.kind, fault.array) == ("race", "part") and fault.element == 114  # thread 14 writes 112 to 119


def test_an_endless_loop_without_accesses_is_named_by_its_own_line():
    fault = kernelcheck.compile_cuda(TEXTS["waits"]).check(1, 32, (torch.zeros(32),), limit=0.3).fault
    assert fault.kind == "endless" and fault.line in (6, 7)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_structure_that_a_function_returns_is_seen_where_it_is_stored(size):
    x, out = torch.arange(32.0 * size), torch.zeros(32 * size)
    kernel = kernelcheck.compile_cuda(TEXTS["four"], f"turned<{size}>")
    report = kernel.check(1, 32, (x, out), 32 * size * 4)
    assert report.fault is None and out.view(32, size).equal(x.view(32, size).flip(0))
    assert report.stored_bytes == 32 * size * 4
    fault = kernel.check(1, 32, (x, out[:-1]), 32 * size * 4).fault
    assert (fault.kind, fault.line, fault.array) == ("out of bounds", 11, "out")
    race = kernelcheck.compile_cuda(TEXTS["four"].replace("__syncthreads();", ""), f"turned<{size}>")
    assert race.check(1, 32, (x, out), 32 * size * 4).fault.kind in ("race", "uninitialised shared")


def test_functions_that_few_kernels_call_are_cuda_s():
    values = LIBRARY["values"]
    lines = "".join(f"  out[{n} * 32 + i] = double({one});\n" for n, one in enumerate(values))
    head = "__global__ void all(double* out, int* counts) {\n  int i = threadIdx.x, same; __shared__ int part[1];\n"
    out, counts = torch.full((2000,), 9.0).double(), torch.zeros(2, dtype=torch.int32)
    report = launched(f"{head}{lines}}}", args=(out, counts))
    assert report.fault is None and counts.tolist() == [5, 31]
    got = out[: 32 * len(values)].view(-1, 32)[:, 5].tolist()
    pairs = zip(values.items(), got, strict=True)
    assert not [one for (one, want), value in pairs if not np.isclose(value, want, 1e-6, 0)]


def test_a_structure_is_passed_by_its_bytes_and_one_of_two_kernels_of_a_name_by_its_types():
    class Settings(ctypes.Structure):
        _fields_ = [("scale", ctypes.c_float), ("n", ctypes.c_int), ("more", ctypes.c_double * 3)]

    out = torch.zeros(4)
    kernel, wide = TEXTS["settings"], np.float32([1, 2, 3, 4])
    name = "settings(Settings, float4, float*)"
    assert launched(kernel, name=name, args=(Settings(1.5, 2, (1, 2, 3)), wide, out)).fault is None
    assert out.tolist() == [1.5, 2, 3, 4]
    fault = launched(kernel, name=name, args=(b"1234", wide, out)).fault
    assert "`Settings p` is a structure of 32 bytes" in str(fault) and "this has 4" in str(fault)
    assert launched(kernel, name="settings(int*)", args=(counts := torch.zeros(32, dtype=torch.int32),)).fault is None
    assert counts.eq(1).all()
    said = re.escape("2 kernels settings: name one with its types, settings(S")
    with pytest.raises(kernelcheck.CompileError, match=said):
        kernelcheck.compile_cuda(kernel, "settings")


@pytest.mark.parametrize("row", LIBRARY["refusals"], ids=lambda row: row["text"])
def test_what_is_refused_is_refused_for_its_own_reason(row):
    text, said = row.values()
    try:
        kernelcheck.compile_cuda(text)
        refused = ""
    except kernelcheck.CompileError as error:
        refused = str(error)
    assert said in refused and bool(said) == bool(refused)


def test_a_race_between_two_turns_of_a_loop_is_said_to_be_one():
    x, out = torch.rand(128), torch.zeros(64)
    text = TEXTS["turns"]
    fault = launched(text, block=64, args=(x, out, 128)).fault
    assert fault.kind == "race" and "line 6 runs again in the next turn of the loop, with no __sync" in str(fault)
    right = text.replace("63 - threadIdx.x];", "63 - threadIdx.x]; __syncthreads();")
    assert launched(right, block=64, args=(x, out, 128)).fault is None
    plain = launched(text.replace("    __syncthreads();\n", ""), block=64, args=(x, out, 128)).fault
    assert plain.kind == "race" and "turn" not in str(plain)
