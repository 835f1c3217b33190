"""What does CUDA refuse that a CPU does? Each fault beside its sound twin, which must run."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu
from tests.simgpu.simulated import read_calls

FACE = {"gpu": "T4"}


def on_gpu(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.rand(*shape, device="cuda", **kwargs)


class Doubled(torch.autograd.Function):
    """Its backward pass makes a gradient on `device`."""

    device = "cpu"

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @classmethod
    def backward(cls, ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.full(gradient.shape, 2.0, device=cls.device)


class DoubledOnGpu(Doubled):
    device = "cuda"


def doubled(function: type[torch.autograd.Function]) -> None:
    function.apply(on_gpu(3, requires_grad=True)).sum().backward()


def recurrent(layer: Callable[..., nn.Module], training: bool, cudnn: bool = True, packed: bool = False) -> None:
    with torch.backends.cudnn.flags(enabled=cudnn):
        x = on_gpu(2, 1, 4)
        result = layer(4, 4).cuda().train(training)(nn.utils.rnn.pack_sequence([x[:, 0]]) if packed else x)[0]
    (result.data if packed else result).sum().backward()


def captured_step(capturable: bool) -> None:
    layer = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), capturable=capturable)
    layer(on_gpu(1, 2)).sum().backward()
    optimizer.step()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


def attention(kernel: SDPBackend, dtype: torch.dtype) -> None:
    x = on_gpu(1, 1, 4, 8).to(dtype)
    with sdpa_kernel(kernel):
        F.scaled_dot_product_attention(x, x, x)


def sparse_batches(dtype: torch.dtype) -> None:
    batches = torch.rand(2, 3, 3, dtype=dtype, device="cuda")
    torch.bmm(batches.to_sparse(), batches)


def noise(generator: torch.Generator) -> None:
    torch.ops.aten.rrelu_with_noise(on_gpu(3), on_gpu(3), 0.1, 0.3, True, generator)


def second_gradient(layer: Callable[..., nn.Module], cudnn: bool) -> None:
    """As a penalty on gradients does."""
    with torch.backends.cudnn.flags(enabled=cudnn):
        made, x = layer(4, 4).cuda(), on_gpu(2, 1, 4, requires_grad=True)
        result = made(x)[0]
    gradient = torch.autograd.grad(result.sum(), x, create_graph=True)[0]
    gradient.square().sum().backward()


def sparse_product(dtype: torch.dtype, coo: bool = True, autocast: bool = False) -> torch.Tensor:
    dense = torch.eye(3, device="cuda").to(dtype)
    with torch.autocast("cuda", enabled=autocast):
        return torch.sparse.mm(dense.to_sparse() if coo else dense.to_sparse_csr(), dense)


def dynamic(place: str) -> None:
    layer = nn.Sequential(nn.Linear(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch advises torchao in its place
        quantized = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    quantized(torch.rand(2, 4, device=place))


def gathered(dtype: torch.dtype) -> None:
    torch.gather(on_gpu(3), 0, torch.zeros(2, device="cuda", dtype=dtype))


ROWS, SOLVED = torch.rand(4, 2), torch.rand(4, 1)
IMAGE, MASK = torch.rand(1, 1, 2, 2), torch.tensor([True, False, True])
SECOND = (
    "^the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported for CuDNN RNNs"
)
CASES = read_calls("refusals", globals())


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_refused_in_pytorchs_words_and_its_twin_runs(name):
    words, fault, sound = CASES[name]
    with pytest.raises(RuntimeError, match=words):
        fault()
    sound()


def test_singular_values_by_a_way_that_only_cuda_has():
    matrix = on_gpu(3, 2)
    assert torch.equal(torch.linalg.svdvals(matrix, driver="gesvd"), torch.linalg.svdvals(matrix))
    with pytest.raises(RuntimeError, match="driver"):
        torch.linalg.svdvals(matrix.cpu(), driver="gesvd")


def test_flash_attention_runs_on_a_gpu_that_has_it():
    with simgpu.cuda("A100 80GB"):
        attention(SDPBackend.FLASH_ATTENTION, torch.bfloat16)


def test_an_edge_of_the_graph_is_no_output_of_another_device():
    """Schedules of pipelines go back from `GradientEdge`."""
    x = on_gpu(3).requires_grad_()
    edge = torch.autograd.graph.get_gradient_edge(2 * x)
    torch.autograd.backward([edge], [on_gpu(3)])
    assert x.grad.device.type == "cuda" and x.grad.shape == (3,)


def test_a_product_of_16_bits_keeps_the_bits_of_its_sum_where_a_program_asks():
    """`out_dtype` is CUDA's alone."""
    rows, column = on_gpu(2, 8).half(), on_gpu(8, 1).half()
    wide = rows.float() @ column.float()
    assert (wide.half() - wide).abs().max() > 1e-5  # what 16 bits would lose
    for product in (
        torch.mm(rows, column, out_dtype=torch.float32),
        torch.bmm(rows[None], column[None], out_dtype=torch.float32)[0],
        torch.addmm(wide, rows, column, out_dtype=torch.float32) - wide,
    ):  # fmt: skip
        torch.testing.assert_close(product, wide, rtol=0, atol=1e-6)
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        torch.mm(rows.cpu(), column.cpu(), out_dtype=torch.float32)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (2, 3, 4), (0, 3), (2, 0, 0)])
def test_factors_without_pivots_are_cudas_alone(shape):
    matrix = (torch.rand(shape) + 2 * torch.eye(*shape[-2:])).cuda()
    factors, rows, info = torch.linalg.lu_factor_ex(matrix, pivot=False)
    order, lower, upper = torch.linalg.lu(matrix, pivot=False)
    number = min(shape[-2:])
    assert torch.equal(rows, torch.arange(1, number + 1).expand(*shape[:-2], number).int().cuda())
    assert info.shape == shape[:-2] and not info.any() and order.shape == (0,)
    torch.testing.assert_close(lower @ upper, matrix)
    for mine, other in zip(torch.lu_unpack(factors, rows)[1:], (lower, upper), strict=True):
        torch.testing.assert_close(mine, other)
    with pytest.raises(RuntimeError, match="LU without pivoting is not implemented on the CPU"):
        torch.linalg.lu(torch.eye(2), pivot=False)


def test_a_pivot_of_zero_is_told():
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]], device="cuda")
    assert torch.linalg.lu_factor_ex(singular, pivot=False).info.item() == 2
    with pytest.raises(RuntimeError, match=r"U\[2,2\] is zero"):
        torch.linalg.lu_factor(singular, pivot=False)


def test_not_a_number_in_complex_numbers_is_left_out_of_a_sum():
    numbers = torch.tensor([[1 + 1j, complex("nan")], [2, 3j]], device="cuda")
    assert torch.equal(numbers.nansum().cpu(), torch.tensor(3 + 4j))
    assert torch.equal(numbers.nansum(0, keepdim=True).cpu(), torch.tensor([[3 + 1j, 3j]]))


def test_an_offset_of_a_generator_moves_as_kernels_that_draw_move_it():
    """`calc_execution_policy` in DistributionTemplates.h; a T4 has 160 blocks of 256 threads, four numbers each."""
    generator = torch.Generator("cuda").manual_seed(7)
    offsets = []
    for numel in (0, 1, 163_840, 163_841):
        torch.rand(numel, device="cuda", generator=generator)
        offsets.append(generator.get_offset())
    assert offsets == [0, 4, 8, 16]
    torch.rand(81_921, device="cuda", generator=generator, dtype=torch.float64)  # two numbers of 64 bits
    assert generator.get_offset() == 24
    on_gpu(5).normal_()
    F.dropout(on_gpu(5))
    own = torch.cuda.default_generators[0]
    moved = own.get_offset()
    assert moved > 0
    on_gpu(5)
    assert own.get_offset() == moved + 4
    torch.manual_seed(3)
    assert own.get_offset() == 0 and torch.cuda.get_rng_state()[8:16].tolist() == [0] * 8
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        torch.Generator().get_offset()


def test_from_an_offset_that_a_generator_had_its_numbers_come_again():
    generator = torch.Generator("cuda").manual_seed(7)

    def drawn():
        return torch.rand(3, device="cuda", generator=generator)

    first, offset, second = drawn(), generator.get_offset(), drawn()
    generator.set_offset(offset)
    assert torch.equal(drawn(), second)
    copied = copy.deepcopy(generator)
    assert copied.get_offset() == generator.get_offset() == 8
    assert torch.equal(torch.rand(3, device="cuda", generator=copied), drawn())
    generator.set_offset(0)
    assert torch.equal(drawn(), first)
    generator.set_offset(400)
    far = drawn()
    assert torch.equal(torch.rand(3, device="cuda", generator=generator.set_state(saved_on_a_gpu(7, 400))), far)
    assert generator.initial_seed() == 7 and not torch.equal(far, first)
    for fault in (lambda: generator.set_offset(3), lambda: generator.set_state(saved_on_a_gpu(7, 3))):
        with pytest.raises(RuntimeError, match=r"^offset must be a multiple of 4$"):
            fault()


def saved_on_a_gpu(seed: int, offset: int) -> torch.Tensor:
    """Return a state as CUDA's generators have it."""
    return torch.tensor([seed, offset]).view(torch.uint8)


def test_the_state_of_a_generator_of_a_gpu_begins_with_its_seed():
    """As CUDA's, which is that and a position: one that was saved on a real GPU sets the seed."""
    generator = torch.Generator("cuda").manual_seed(7)
    first = torch.rand(3, device="cuda", generator=generator)
    later = generator.get_state()
    second = torch.rand(3, device="cuda", generator=generator)
    assert torch.equal(torch.rand(3, device="cuda", generator=generator.set_state(later)), second)
    assert later[:16].view(torch.int64).tolist() == [7, 4]
    of_a_gpu = saved_on_a_gpu(7, 0)
    assert torch.equal(torch.rand(3, device="cuda", generator=torch.Generator("cuda").set_state(of_a_gpu)), first)
    torch.cuda.set_rng_state(of_a_gpu)
    assert torch.equal(torch.rand(3, device="cuda"), first) and torch.cuda.initial_seed() == 7
    assert torch.cuda.default_generators[0].device == torch.device("cuda:0")
    for given in (later.cuda(), later.float()):  # of a checkpoint that was loaded with `map_location`, for one
        with pytest.raises(TypeError, match=r"^RNG state must be a torch\.ByteTensor$"):
            torch.cuda.set_rng_state(given)


def test_the_second_gradient_is_looked_for_where_it_is_asked_for_alone():
    layer, x = nn.LSTM(4, 4).cuda(), on_gpu(2, 1, 4, requires_grad=True)
    result = layer(x)[0].sum()
    (gradient,) = torch.autograd.grad(result, x, create_graph=True)  # this one runs
    assert gradient.requires_grad
    for wanted in (x, layer.weight_ih_l0):
        with pytest.raises(NotImplementedError, match=SECOND):
            torch.autograd.grad(gradient.sum(), wanted, retain_graph=True)
