"""Does `torch.use_deterministic_algorithms(True)` do on a simulated GPU what it does on CUDA?

The cases and PyTorch's names of them are those of its docstring and of `test_nondeterministic_alert_…` in PyTorch's
test/test_torch.py; antialiased interpolation and index_reduce are from its code.
"""

import inspect

import pytest
import torch
from torch.nn import functional

import simgpu
from tests.simgpu.simulated import CALLS, read_calls


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
    return functional.interpolate(numbers(1, 2, *shape), size=tuple(3 * n for n in shape), mode=mode, **options)


BACKWARD = read_calls("random_order_backward", globals())
if "upsample_bicubic2d_vec" in inspect.getsource(functional.interpolate):  # takes a deterministic way since 2.15
    del BACKWARD["upsample_bicubic2d_backward_out_cuda"]
FORWARD = read_calls("random_order", globals())
DETERMINISTIC = read_calls("deterministic", globals())


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
    assert len(told) == 1 and told[0].filename in (__file__, str(CALLS))
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
    with pytest.raises(RuntimeError, match="_bincount_cuda does not have"):
        torch.bincount(torch.arange(3, device="sim"), torch.rand(3, device="sim"))
    picture = torch.rand(1, 1, 4, 4, device="sim", requires_grad=True)
    functional.interpolate(picture, size=8, mode="bilinear").sum().backward()
