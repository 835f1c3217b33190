"""Are number formats, other libraries, lazy layers and TorchScript treated on CUDA's face as on CUDA?"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.simgpu.simulated import read_calls

FACE = {"gpus": 2, "memory": "1 GiB"}


# ---- number formats: those that CUDA's kernels have, and the CPU's lack ---------------------------------------------
ONLY_WIDE_ON_THE_CPU = read_calls("only_wide_on_the_cpu", globals(), "x")


def seeded(function, *args, **kwargs):
    torch.manual_seed(3)
    return function(*args, **kwargs)


@pytest.mark.parametrize("name", ONLY_WIDE_ON_THE_CPU)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_wide_and_rounded_once(name, dtype):
    values = torch.linspace(0.5, 1, 64).to(dtype)
    narrow = values.to("cuda").requires_grad_()
    wide = values.float().to("cuda")
    result = ONLY_WIDE_ON_THE_CPU[name](narrow)
    expected = ONLY_WIDE_ON_THE_CPU[name](wide)
    assert result.dtype is dtype
    assert torch.equal(result.cpu(), expected.to(dtype).cpu())
    result.sum().backward()
    assert narrow.grad.dtype is dtype


FOURIER = read_calls("fourier", globals(), "x")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", FOURIER)
def test_fourier_transforms_of_16_bits(name):
    narrow, wide = (FOURIER[name](torch.linspace(0, 1, 64, device="cuda").to(dtype)) for dtype in (torch.half, None))
    assert narrow.dtype is (torch.complex32 if wide.is_complex() else torch.float16)
    assert narrow.device.type == "cuda" and narrow.shape == wide.shape
    torch.testing.assert_close(narrow.cpu().to(wide.dtype), wide.cpu(), rtol=0.01, atol=0.01)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_fourier_transforms_of_16_bits_that_cuda_refuses():
    x = torch.ones(6, 8, device="cuda", dtype=torch.half)
    halves = torch.ones(4, device="cuda", dtype=torch.complex32)
    for transform in (lambda: torch.fft.fft2(x), lambda: torch.fft.irfft(halves, 6)):
        with pytest.raises(RuntimeError, match=r"powers of two when computing in half .* signal size of\[6"):
            transform()
    assert torch.fft.rfft(x).shape == (6, 5)
    if hasattr(torch, "bcomplex32"):  # since PyTorch 2.15 CUDA has them
        assert torch.fft.fft(x.bfloat16()).dtype is torch.complex64
        return
    with pytest.raises(RuntimeError, match="BFloat16"):
        torch.fft.fft(x.bfloat16())


# ---- number formats: refused by the host, at the line ---------------------------------------------------------------
def half():
    return torch.zeros(4, device="cuda", dtype=torch.half)


def rows():
    return torch.tensor([0, 1], device="cuda")


OTHER_FORMATS = read_calls("other_formats", globals())


@pytest.mark.parametrize("words", OTHER_FORMATS)
@pytest.mark.parametrize("autocast", [False, True])
def test_another_number_format_is_no_failure_of_a_kernel(words, autocast):
    with torch.autocast("cuda", enabled=autocast), pytest.raises(RuntimeError, match=words):
        OTHER_FORMATS[words]()
    torch.cuda.synchronize()  # nothing is left of it


# ---- other libraries ------------------------------------------------------------------------------------------------
def test_pytorch_hands_a_tensor_to_itself_by_dlpack():
    x = torch.arange(4.0, device="cuda:1")
    for other in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))):
        assert other.device == x.device and other.data_ptr() == x.data_ptr()
        other += 1
    assert x.tolist() == [2, 3, 4, 5]
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.from_dlpack(x, device="cpu").tolist() == [2, 3, 4, 5]
    assert torch.from_dlpack(np.ones(3)).sum() == 3 and torch.utils.dlpack.to_dlpack(torch.ones(1)) is not None
    capsule = torch.utils.dlpack.to_dlpack(x)
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="can be consumed only once"):
        torch.from_dlpack(capsule)
    with pytest.raises(BufferError, match="Can't export tensors that require gradient, use tensor"):
        torch.from_dlpack(x.requires_grad_())


def test_another_library_is_refused_in_words_about_cuda():
    with pytest.raises(BufferError, match="a tensor on cuda:0 cannot be given to another library: use tensor"):
        np.from_dlpack(torch.ones(2, device="cuda"))


# ---- layers that are not made yet -----------------------------------------------------------------------------------
class Lazy(nn.Module):
    """A layer whose weight is made by its first call, beside a bias that is there, as in torch_geometric."""

    def __init__(self):
        super().__init__()
        self.weight = nn.parameter.UninitializedParameter()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        if isinstance(self.weight, nn.parameter.UninitializedParameter):
            self.weight.materialize((3, x.size(-1)))
            nn.init.ones_(self.weight)
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_lazy_layer_is_copied_and_moved_again(copied):
    layer = Lazy().to("cuda")
    other = copied(layer).to("cuda")
    assert list(other._parameters) == ["weight", "bias"]
    assert other(torch.ones(2, 4, device="cuda")).tolist() == [[4.0] * 3] * 2
    assert other.weight.device == other.bias.device == torch.device("cuda:0")


# ---- two devices -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("table", [torch.zeros(3), torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)])
def test_a_table_on_the_cpu_takes_no_index_of_the_gpu(table):
    with pytest.raises(RuntimeError, match=r"indices should be either on cpu or on the same .* tensor \(cpu\)"):
        table[rows()]
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        table[rows()] = table[:2]
    assert table[torch.tensor([0, 1])].tolist() == table[:2].tolist()


def test_an_index_of_another_gpu_is_refused():
    with pytest.raises(RuntimeError, match=r"on the same device as the indexed tensor \(cuda:1\)"):
        torch.zeros(3, device="cuda:1")[rows()]


@pytest.mark.parametrize("together", [
    lambda number, gpu: torch.stack([gpu[0], number]),
    lambda number, gpu: torch.stack([number, gpu[0]]),
    lambda number, gpu: gpu.clamp(min=number),
    lambda number, gpu: torch.logaddexp(gpu, number),
    lambda number, gpu: nn.functional.embedding(number.long(), gpu[:, None]),
], ids=["stack", "stack, the number first", "clamp", "logaddexp", "embedding"])  # fmt: skip
def test_few_operators_take_no_number_of_the_cpu(together):
    gpu = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        together(torch.tensor(0.0), gpu)
    together(torch.tensor(0.0, device="cuda"), gpu)
    assert torch.maximum(gpu, torch.tensor(2.0)).tolist() == (gpu + torch.tensor(1.0)).tolist() == [2] * 3


# ---- TorchScript and compilers --------------------------------------------------------------------------------------
class Block(nn.Module):
    """Attention, whose code asks whether autocast is on, and a tensor that is made in the block."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0] + torch.tensor(1.0, device=x.device)


def test_torchscript_takes_what_the_face_has_replaced():
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 3, 8)
    expected = block(x)
    torch.testing.assert_close(torch.jit.script(block.cuda())(x.cuda()).cpu(), expected)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="not in PyTorch 2.11")
def test_eager_may_be_the_default_backend():
    torch.compiler.set_default_backend("eager")
    try:
        assert torch.compile(lambda x: 2 * x)(torch.ones(2, device="cuda")).tolist() == [2, 2]
    finally:
        torch.compiler.set_default_backend("inductor")


# ---- torch.func -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, lambda f: torch.vmap(torch.func.grad(f))])
def test_inside_torch_func_a_tensor_knows_its_device(transform):
    seen = []

    def total(x):
        seen.append((x.device, x.is_cuda, torch.zeros(2, device=x.device).device))
        with torch.autocast(x.device.type):
            return (x.to(x.device) * 2).sum()

    result = transform(total)(torch.ones(3, 2, device="cuda:1"))
    place = torch.device("cuda", 1)
    assert seen == [(place, True, place)]
    assert result.device == place


def test_on_the_cpu_it_does_too():
    seen = []
    torch.vmap(lambda x: seen.append((x.device, x.is_cuda)) or x)(torch.ones(3))
    assert seen == [(torch.device("cpu"), False)]


AROUND = read_calls("torch_func", globals(), "loss")


@pytest.mark.parametrize("transform", AROUND)
def test_inside_torch_func_autocast_casts_what_is_wrapped(transform):
    formats = set()

    def loss(w, x):
        with torch.autocast("cuda", torch.bfloat16):
            scores = torch.nn.functional.linear(x[None], w)
            entropy = torch.nn.functional.cross_entropy(scores, scores.new_zeros(1, dtype=torch.int64))
        formats.add((scores.dtype, entropy.dtype))
        return entropy

    w, x = torch.arange(6.0).reshape(2, 3) / 6, torch.arange(12.0).reshape(4, 3) / 12
    x = x if "vmap" in transform else x[0]
    result = AROUND[transform](loss)(w.cuda(), x.cuda())
    assert formats == {(torch.bfloat16, torch.float32)}
    assert result.dtype is torch.float32
    exact = AROUND[transform](lambda w, x: torch.nn.functional.cross_entropy(x[None] @ w.t(), torch.tensor([0])))(w, x)
    torch.testing.assert_close(result.cpu(), exact, rtol=0.02, atol=0.02)


def test_autocast_of_cuda_leaves_tensors_of_the_cpu_alone():
    x = torch.ones(2, 2)
    with torch.autocast("cuda"):
        assert (x @ x).dtype is torch.nn.functional.binary_cross_entropy(x, x).dtype is torch.float32
        assert torch.func.grad(lambda x: (x @ x).sum())(x).dtype is torch.float32
