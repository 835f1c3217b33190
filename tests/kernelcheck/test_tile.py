"""Does a cuTile kernel compute here what NumPy computes, and is what is wrong with one named?"""

import linecache
import tomllib
from pathlib import Path

import pytest
import torch

import kernelcheck
from kernelcheck import tile
from kernelcheck.tile import front_end
from kernelcheck.triton import memory

KERNELS = tomllib.loads(Path(__file__).with_name("tile_kernels.toml").read_text(encoding="utf-8"))
needs_front_end = pytest.mark.skipif(bool(tile.why_not()), reason=tile.why_not())


def kernel(name, old="", new=""):
    """Return a kernel of the table, after a change of its text."""
    text = KERNELS[name]["text"]
    assert old in text
    text, file = text.replace(old, new) if old else text, f"tile_{name}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    import cuda.tile as ct

    exec(compile(text, file, "exec"), space := {"ct": ct, "__name__": "tile_kernels"})
    return space["kernel"]


def launch(name):
    """Return the grid, the arguments and the expected results of a kernel."""
    torch.manual_seed(0)
    x, y = torch.randn(100), torch.randn(100)
    wide, a, b = torch.randn(5, 13), torch.randn(20, 40).half(), torch.randn(40, 30).half()
    part = torch.arange(96.0).view(16, 6)[:9, :5]  # rows lie 6 apart
    rows, places = torch.randn(4, 16), torch.randperm(100).int()
    numbers = torch.randint(0, 5, (60,), dtype=torch.int32)
    counts = torch.bincount(numbers, minlength=5).int() + torch.tensor([4, 0, 0, 0, 0]).int()
    empty, zeros = torch.full((100,), torch.nan), torch.zeros(5, dtype=torch.int32)
    whole = [torch.randint(-3, 4, shape).float() for shape in ((37, 20), (20, 40))]  # which TF32 and fp8 leave alone
    batch, q, k, v = torch.randn(2, 20, 20), *torch.randn(3, 2, 19, 16)
    owner, tokens = torch.tensor([0, 2, 2, 1], dtype=torch.int32), torch.full((64,), 30, dtype=torch.int32)
    for expert, start in enumerate((0, 48, 16)):  # tokens of an expert lie together, and 30 fills their last tile
        tokens[start : start + len(range(expert, 30, 3))] = torch.arange(expert, 30, 3, dtype=torch.int32)
    known, scale = torch.randn(30, 24), torch.tensor([1, 2, 0.5, 4]).to(torch.float8_e8m0fnu).expand(40, 4).contiguous()
    heavy, grouped = torch.randn(3, 24, 20), torch.randint(-3, 4, (40, 128)).float()
    scaled, signal = grouped * scale.float().repeat_interleave(32, 1), torch.randn(3, 8, dtype=torch.complex64)
    turns = torch.fft.fft(torch.eye(8, dtype=torch.complex64))
    return {
        "add": ((7,), (x, y, empty, 16), {"out": x + y}),
        "softmax": ((5,), (wide, torch.empty(5, 13), 16), {"out": wide.softmax(1)}),
        "product": ((2, 2), (a, b, torch.zeros(20, 30), 16, 16, 16), {"out": a.float() @ b.float()}),
        "turned": ((3, 2), (part, torch.zeros(5, 9), 4), {"out": part.T}),
        "picked": ((7,), (x, places, empty, 16), {"out": 2 * x[places.long()]}),
        "counted": ((4,), (numbers, zeros, 16), {"out": counts}),
        "smoothed": ((6,), (x[:96], zeros[:1], torch.zeros(16), 16), {"out": x[:96].view(6, 16).sum(0)}),
        "persistent": ((3,), (*whole, torch.zeros(37, 40), 16, 16, 8), {"out": whole[0] @ whole[1]}),
        "batched": ((2, 2, 2), (batch, batch, torch.zeros(2, 20, 20), 16), {"out": batch @ batch}),
        "normed": ((5,), (wide, wide[0], torch.zeros(5, 13), 8),
                   {"out": torch.nn.functional.layer_norm(wide, (13,)) * wide[0]}),
        "shared": ((5,), (wide, zeros[:2], torch.zeros(2, 13), torch.zeros(5, 13), 8),
                   {"out": 2 * wide, "sums": torch.stack([wide[::2].sum(0), wide[1::2].sum(0)])}),
        "attention": ((2, 2), (q, k, v, torch.zeros(2, 19, 16), 0.25, 16, 16),
                      {"out": torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)}),
        "experts": ((4, 2), (known, heavy, tokens, owner, torch.zeros(30, 20), 16),
                    {"out": torch.stack([known[n] @ heavy[n % 3] for n in range(30)])}),
        "scaled": ((2, 2), (fp8 := grouped.to(torch.float8_e4m3fn), scale, fp8.T, scale.T, torch.zeros(40, 40), 32, 64),
                   {"out": scaled @ scaled.T}),
        "transform": ((3,), (*map(torch.view_as_real, (signal, turns)), torch.zeros(3, 8, 2), 8),
                      {"out": torch.view_as_real(torch.fft.fft(signal))}),
        "best": ((4,), (rows, torch.zeros(4).int(), torch.zeros(4, 16), 16),
                 {"out": rows.argmax(1).int(), "sums": rows.cumsum(1)}),
    }[name]  # fmt: skip


def right(report, wanted):
    return all(torch.allclose(report.results[name], want, rtol=1e-3, atol=1e-4) for name, want in wanted.items())


@needs_front_end
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_numpy_computes(name):
    grid, arguments, wanted = launch(name)
    before = [one.clone() for one in arguments if isinstance(one, torch.Tensor)]
    report = tile.checked(kernel(name), grid, *arguments)
    assert report.fault is None, report.fault
    assert right(report, wanted) and not any(report.unwritten.values())
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    assert all(map(torch.equal, *([one.float().nan_to_num() for one in some] for some in (before, tensors))))
    tile.launch(kernel(name), grid, *arguments)
    assert all(any(torch.equal(one, result) for one in tensors) for result in report.results.values())


MUTANTS = [(name, *mutant) for name, one in KERNELS.items() for mutant in one["mutants"]]


@needs_front_end
@pytest.mark.parametrize(("name", "old", "new", "kind", "words"), MUTANTS, ids=lambda one: one)
def test_a_kernel_with_one_thing_wrong_is_told(name, old, new, kind, words, monkeypatch):
    monkeypatch.setattr(memory, "_MOST_TURNS", 500)
    grid, arguments, wanted = launch(name)
    if kind == "refused":
        with pytest.raises(kernelcheck.CompileError, match=words) as refused:
            tile.checked(kernel(name, old, new), grid, *arguments)
        assert new in str(refused.value)
        return
    report = tile.checked(kernel(name, old, new), grid, *arguments)
    if kind == "wrong":
        assert report.fault is None and not right(report, wanted)
    else:
        assert report.fault is not None and report.fault.kind == kind and words in str(report.fault), report.fault
        assert f"tile_{name}.py:" in report.fault.line


@needs_front_end
def test_bytes_and_operations_are_counted_as_for_other_kernels():
    grid, arguments, _ = launch("product")
    report = tile.checked(kernel("product"), grid, *arguments)
    assert report.programs == 4 and report.stored_bytes == 20 * 30 * 4
    assert report.by_array["a"].loaded_bytes == 2 * 20 * 40 * 2  # both columns of blocks read it
    assert report.flops == 4 * 3 * 2 * 16**3


@needs_front_end
def test_what_is_no_launch_is_told():
    add = kernel("add")
    assert "takes 4 arguments (x, y, out, TILE), not 3" in str(tile.checked(add, (1,), *[torch.ones(4)] * 3).fault)
    assert "whole numbers above 0" in str(tile.checked(add, (0,), *[torch.ones(4)] * 3, 4).fault)
    assert "out is a str" in str(tile.checked(add, (1,), *[torch.ones(4)] * 2, "x", 4).fault)
    with pytest.raises(TypeError, match=r"under @ct\.kernel"):
        tile.checked(len, (1,))


@pytest.mark.parametrize(
    ("version", "said"), [(None, "needs NVIDIA's package cuda-tile"), ("9.0.0", "and 9.0.0 is installed")]
)
def test_without_its_front_end_one_sentence_says_so(version, said, monkeypatch):
    def found(name):
        if version is None:
            raise front_end.importlib.metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(front_end.importlib.metadata, "version", found)
    assert said in tile.why_not() and tile.why_not().count(".") <= 4
