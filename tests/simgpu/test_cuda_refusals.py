"""What does CUDA refuse that a CPU does? Each fault beside its sound twin, which must run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu
from tests.simgpu.simulated import _fresh  # noqa: F401

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))


@pytest.fixture(autouse=True)
def _face(_fresh):  # noqa: F811
    with simgpu.cuda("T4"):
        yield


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


def noise(generator: torch.Generator) -> None:
    torch.ops.aten.rrelu_with_noise(on_gpu(3), on_gpu(3), 0.1, 0.3, True, generator)


def gathered(dtype: torch.dtype) -> None:
    torch.gather(on_gpu(3), 0, torch.zeros(2, device="cuda", dtype=dtype))


ROWS, SOLVED = torch.rand(4, 2), torch.rand(4, 1)
IMAGE, MASK = torch.rand(1, 1, 2, 2), torch.tensor([True, False, True])
TRAINING = "^cudnn RNN backward can only be called in training mode$"
KERNEL, CAPTURE = "^No available kernel. Aborting execution.$", "^Attempting CUDA graph capture of step.* of Adam but"
DRIVER = "^torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA$"
WEIGHT = r"^Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\) should be the same$"
PICTURE = r"^Input type \(torch.FloatTensor\) and weight type \(torch.cuda.FloatTensor\) should be the same or input "
HIDDEN = "^Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden tensor at cpu$"
LAYER = "^Input and parameter tensors are not at the same device, found input tensor at cuda:0 and parameter "
GRADIENT = "^invalid gradient at index 0 - expected device cuda:0 but got cpu$"
RETURNED = f"^Function DoubledBackward returned an {GRADIENT[1:]}"
FILLED = "^expected self and mask to be on the same device, but got mask on cpu and self on cuda:0$"
TABLE = r"got index is on cpu, different from other tensors on cuda:0 \(.* wrapper_CUDA__index_select\)$"

CASES: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
    "lstm": (TRAINING, lambda: recurrent(nn.LSTM, False), lambda: recurrent(nn.LSTM, True)),
    "gru": (TRAINING, lambda: recurrent(nn.GRU, False), lambda: recurrent(nn.GRU, False, cudnn=False)),
    "rnn": (TRAINING, lambda: recurrent(nn.RNN, False), lambda: recurrent(nn.RNN, True)),
    "packed": (TRAINING, lambda: recurrent(nn.GRU, False, packed=True), lambda: recurrent(nn.GRU, True, packed=True)),
    "hidden": (
        HIDDEN, lambda: nn.LSTM(4, 4).cuda()(on_gpu(2, 1, 4), (torch.zeros(1, 1, 4),) * 2),
        lambda: nn.LSTM(4, 4).cuda()(on_gpu(2, 1, 4), (torch.zeros(1, 1, 4).cuda(),) * 2),
    ),
    "layer": (LAYER, lambda: nn.GRU(4, 4)(on_gpu(2, 1, 4)), lambda: nn.GRU(4, 4)(torch.rand(2, 1, 4))),
    "weight": (WEIGHT, lambda: nn.Conv2d(1, 1, 1)(IMAGE.cuda()), lambda: nn.Conv2d(1, 1, 1).cuda()(IMAGE.cuda())),
    "picture": (PICTURE, lambda: nn.Conv2d(1, 1, 1).cuda()(IMAGE), lambda: nn.Conv2d(1, 1, 1)(IMAGE)),
    "mask": (FILLED, lambda: on_gpu(3).masked_fill(MASK, 0), lambda: on_gpu(3).masked_fill(MASK.cuda(), 0)),
    "table": (
        TABLE, lambda: nn.Embedding(3, 2).cuda()(torch.tensor([1])),
        lambda: nn.Embedding(3, 2).cuda()(torch.tensor([1]).cuda()),
    ),
    "driver": (
        DRIVER, lambda: torch.linalg.lstsq(ROWS.cuda(), SOLVED.cuda(), driver="gelsd"),
        lambda: torch.linalg.lstsq(ROWS.cuda(), SOLVED.cuda(), driver="gels"),
    ),
    "capture": (CAPTURE, lambda: captured_step(False), lambda: captured_step(True)),
    "flash": (
        KERNEL, lambda: attention(SDPBackend.FLASH_ATTENTION, torch.float32),
        lambda: attention(SDPBackend.MATH, torch.float32),
    ),
    "flash of a T4": (
        KERNEL, lambda: attention(SDPBackend.FLASH_ATTENTION, torch.float16),
        lambda: attention(SDPBackend.EFFICIENT_ATTENTION, torch.float16),
    ),
    "gradient": (
        GRADIENT, lambda: on_gpu(3, requires_grad=True).exp().backward(torch.ones(3)),
        lambda: on_gpu(3, requires_grad=True).sum().backward(torch.tensor(1.0)),
    ),
    "returned": (RETURNED, lambda: doubled(Doubled), lambda: doubled(DoubledOnGpu)),
    "generator": (
        "^Expected a 'cuda' device type for generator but found 'cpu'", lambda: noise(torch.Generator()),
        lambda: noise(torch.Generator("cuda")),
    ),
    # since PyTorch 2.8 an index may have 32 bits (`gather` in ATen's TensorAdvancedIndexing.cpp)
    "index": ("Expected dtype int32/int64 for index$", lambda: gathered(torch.uint8), lambda: gathered(torch.int32)),
}  # fmt: skip


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
