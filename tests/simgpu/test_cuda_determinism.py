"""Does `torch.use_deterministic_algorithms(True)` do on a simulated GPU what it does on CUDA?

The cases and PyTorch's names of them are those of its docstring and of `test_nondeterministic_alert_…` in PyTorch's
test/test_torch.py; antialiased interpolation and index_reduce are from its code.
"""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional

import simgpu


@pytest.fixture(autouse=True)
def _face(_fresh):
    with simgpu.cuda(gpus=2, memory="1 GiB"):
        yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape):
    return torch.rand(*shape, device="cuda", requires_grad=True)


def whole(*shape, below=3):
    return torch.randint(below, shape, device="cuda")


def resized(mode, *shape, **options):
    return lambda: functional.interpolate(numbers(1, 2, *shape), size=tuple(3 * n for n in shape), mode=mode, **options)


BACKWARD = {
    "avg_pool3d_backward_cuda": lambda: functional.avg_pool3d(numbers(2, 3, 3, 3), 3),
    "adaptive_avg_pool2d_backward_cuda": lambda: functional.adaptive_avg_pool2d(numbers(2, 3, 3), 3),
    "adaptive_avg_pool3d_backward_cuda": lambda: functional.adaptive_avg_pool3d(numbers(2, 3, 3, 3), 3),
    "adaptive_max_pool2d_backward_cuda": lambda: functional.adaptive_max_pool2d(numbers(2, 3, 3), 3),
    "fractional_max_pool2d_backward_cuda": lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5)(numbers(2, 3, 4, 4)),
    "fractional_max_pool3d_backward_cuda": lambda: nn.FractionalMaxPool3d(2, output_ratio=0.5)(numbers(2, 3, 4, 4, 4)),
    "upsample_linear1d_backward_out_cuda": resized("linear", 4),
    "upsample_bicubic2d_backward_out_cuda": resized("bicubic", 4, 4),
    "upsample_bilinear2d_aa_backward_out_cuda": resized("bilinear", 4, 4, antialias=True),
    "reflection_pad1d_backward_out_cuda": lambda: functional.pad(numbers(2, 3, 8), (1, 2), mode="reflect"),
    "reflection_pad2d_backward_cuda": lambda: functional.pad(numbers(2, 3, 8, 8), (1, 2, 3, 4), mode="reflect"),
    "reflection_pad3d_backward_out_cuda": lambda: functional.pad(numbers(1, 2, 4, 4, 4), (1,) * 6, mode="reflect"),
    "ctc_loss_backward_gpu": lambda: functional.ctc_loss(
        numbers(9, 1, 5).log_softmax(2), whole(1, 3) + 1, torch.tensor([9]), torch.tensor([3])
    ),
    "embedding_bag_backward_cuda_max": lambda: functional.embedding_bag(whole(4, 3), numbers(4, 3), mode="max"),
    "grid_sampler_2d_backward_cuda": lambda: functional.grid_sample(
        numbers(1, 1, 2, 2), torch.zeros(1, 1, 1, 2, device="cuda"), align_corners=False
    ),
    "grid_sampler_3d_backward_cuda": lambda: functional.grid_sample(
        numbers(1, 1, 2, 2, 2), torch.zeros(1, 1, 1, 2, 3, device="cuda"), align_corners=False
    ),
}
if "upsample_bicubic2d_vec" in inspect.getsource(functional.interpolate):  # takes a deterministic way since 2.15
    del BACKWARD["upsample_bicubic2d_backward_out_cuda"]
FORWARD = {
    "max_unpooling2d_forward_out": lambda: nn.MaxUnpool2d(3, 1)(numbers(1, 1, 7, 7), whole(1, 1, 7, 7)),
    "max_unpooling3d_forward_out": lambda: nn.MaxUnpool3d(3, 1)(numbers(1, 1, 7, 7, 7), whole(1, 1, 7, 7, 7)),
    "nll_loss2d_forward_out_cuda_template": lambda: functional.nll_loss(numbers(2, 3, 5, 5), whole(2, 5, 5)),
    "cumsum_cuda_kernel": lambda: numbers(10).cumsum(0),
    "put_": lambda: numbers(10).put(whole(2), torch.ones(2, device="cuda")),
    "put_ ": lambda: torch.zeros(10, device="cuda").put_(whole(2), torch.ones(2, device="cuda"), accumulate=True),
    "_histc_cuda with floating point input": lambda: torch.histc(torch.rand(9, device="cuda"), 3, 0, 1),
    "_bincount_cuda": lambda: torch.bincount(whole(5), torch.rand(5, device="cuda")),
    "median CUDA with indices output": lambda: numbers(10).median(0),
    "median CUDA with indices output ": lambda: numbers(10).nanmedian(0),
    "scatter_reduce_cuda": lambda: torch.ones(3, device="cuda").scatter_reduce(0, whole(5), numbers(5), "prod"),
    "index_reduce_cuda": lambda: torch.ones(3, device="cuda").index_reduce_(0, whole(3), numbers(3).detach(), "prod"),
}
DETERMINISTIC = {
    "Conv2d": lambda: functional.conv2d(numbers(1, 2, 5, 5), numbers(2, 2, 3, 3)),
    "ConvTranspose2d": lambda: functional.conv_transpose2d(numbers(1, 2, 5, 5), numbers(2, 2, 3, 3)),
    "bilinear": resized("bilinear", 4, 4),
    "trilinear": resized("trilinear", 2, 2, 2),
    "nearest": resized("nearest", 4, 4),
    "MaxPool2d": lambda: functional.max_pool2d(numbers(1, 2, 6, 6), 3),
    "MaxPool3d": lambda: functional.max_pool3d(numbers(2, 3, 3, 3), 3),
    "replication": lambda: functional.pad(numbers(2, 3, 4, 4), (1, 2, 3, 4), mode="replicate"),
    "scatter_add": lambda: numbers(3).scatter_add(0, whole(5), numbers(5)),
    "scatter": lambda: numbers(3).scatter(0, whole(5), numbers(5)),
    "scatter_reduce": lambda: numbers(3).scatter_reduce(0, whole(5), numbers(5), "mean"),
    "gather": lambda: numbers(3).gather(0, whole(5)),
    "index_add": lambda: numbers(3).index_add(0, whole(5), numbers(5)),
    "index_put": lambda: numbers(3).index_put((whole(5),), numbers(5), accumulate=True),
    "repeat_interleave": lambda: numbers(3).repeat_interleave(whole(3)),
    "embedding": lambda: functional.embedding(whole(4), numbers(3, 2)),
    "embedding_bag": lambda: functional.embedding_bag(whole(4, 3), numbers(4, 3), mode="sum"),
    "nll_loss": lambda: functional.cross_entropy(numbers(5, 3), whole(5)),
    "nll_loss2d, none": lambda: functional.nll_loss(numbers(2, 3, 5, 5), whole(2, 5, 5), reduction="none"),
    "cumsum": lambda: whole(5).cumsum(0) * numbers(1),
    "bincount": lambda: torch.bincount(whole(5)) * numbers(1),
    "histc": lambda: torch.histc(whole(9), 3, 0, 2) * numbers(1),
    "median": lambda: numbers(5).median(),
    "kthvalue": lambda: numbers(5).kthvalue(2)[0],
    "grid_sample": lambda: functional.grid_sample(  # cuDNN's
        numbers(1, 1, 2, 2), torch.zeros(1, 1, 1, 2, device="cuda"), align_corners=True
    ),
    "addmm": lambda: functional.linear(numbers(3, 4), numbers(2, 4), numbers(2)),
}


def says(name, call):
    """Say that `call` raises in PyTorch's words, or warns of the line where the program asks for that."""
    words = rf"^{name.strip()} does not have a deterministic implementation, but you set 'torch.use_deterministic_alg"
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match=words) as caught:
        call()
    assert "You can turn off determinism just for this operation" in str(caught.value)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=words) as warned:
        call()
    told = [one for one in warned if "deterministic" in str(one.message)]
    assert len(told) == 1 and told[0].filename == __file__
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    call()


@pytest.mark.parametrize("name", BACKWARD)
def test_a_gradient_without_a_deterministic_way_is_refused(name):
    torch.use_deterministic_algorithms(True)
    result = BACKWARD[name]()
    says(name, lambda: result.backward(torch.ones_like(result), retain_graph=True))


@pytest.mark.parametrize("name", FORWARD)
def test_an_operation_without_a_deterministic_way_is_refused(name):
    says(name, FORWARD[name])


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_what_has_a_deterministic_way_takes_it(name):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    result = DETERMINISTIC[name]()
    result.sum().backward()
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(0)
    torch.testing.assert_close(DETERMINISTIC[name](), result)


def test_an_error_of_determinism_is_no_failure_of_a_kernel():
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        FORWARD["put_"]()
    torch.cuda.synchronize()
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_on_sim_the_same_is_said():
    simgpu.face.switch.last().off()
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="cumsum_cuda_kernel does not have"):
        torch.rand(3, device="sim").cumsum(0)
    picture = torch.rand(1, 1, 4, 4, device="sim", requires_grad=True)
    functional.interpolate(picture, size=8, mode="bilinear").sum().backward()
