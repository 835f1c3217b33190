"""Do kernels of `kernelcheck` take tensors of the simulated GPU, and write to them?"""

import pytest
import torch

import kernelcheck
import simgpu
from tests.kernelcheck.cuda_samples import BASES
from tests.kernelcheck.triton_samples import SAMPLES

triton, tl = kernelcheck.triton(interpreter=True)


def _moved(args, device):
    return [one.to(device) if isinstance(one, torch.Tensor) else one for one in args]


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.call()[-1] is not None])
def test_a_launch_in_triton_s_language_writes_simulated_tensors(name, sim):
    grid, args, options, want = SAMPLES[name].call()
    args = _moved(args, sim)
    SAMPLES[name].kernel(triton, tl)[grid](*args, **options)
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.shape == want.shape]
    assert any(torch.allclose(one.cpu(), want, rtol=1e-3, atol=1e-4) for one in tensors)


@pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")
def test_a_launch_in_cuda_writes_simulated_tensors(sim):
    x, out = torch.arange(64.0, device=sim), torch.zeros(64, device=sim)
    add = kernelcheck.compile_cuda(BASES["add"].source)
    add(1, 64, (x, x, out, 64))
    assert torch.equal(out.cpu(), 2 * torch.arange(64.0))
    assert "one device" in str(add.check(1, 64, (x, x, torch.zeros(64), 64)).fault)
    with simgpu.cuda():  # no GPU of CUDA is behind the name
        assert x.device.type == "cuda" and kernelcheck.triton()[0] is triton
        report = add(1, 64, (x, x, out.zero_(), 64))
        assert torch.equal(out.cpu(), 2 * torch.arange(64.0)) and report.ran_on == "CPU"


def test_a_custom_operator_around_a_kernel_has_a_gradient(sim):
    @triton.jit
    def double(x, out):
        at = tl.program_id(0) * 4 + tl.arange(0, 4)
        tl.store(out + at, tl.load(x + at) * 2)

    @torch.library.custom_op("course_kernels::double", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(x.numel() // 4,)](x, out)
        return out

    op.register_autograd(lambda ctx, gradient: op(gradient))
    x = torch.ones(8, dtype=torch.float64, device=sim, requires_grad=True)
    assert op(x).tolist() == [2.0] * 8 and torch.autograd.gradcheck(op, (x,))
