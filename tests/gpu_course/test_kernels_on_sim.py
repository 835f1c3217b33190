"""Do kernels of `kernelcheck` take tensors of the simulated GPU, and write to them?"""

import pytest
import torch

import kernelcheck
import simgpu
from tests.kernelcheck import test_tile
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


@test_tile.needs_front_end
@pytest.mark.parametrize("name", ["add", "persistent", "shared", "scaled"])
def test_a_launch_in_cutile_writes_simulated_tensors(name, sim):
    grid, args, want = test_tile.launch(name)
    args = _moved(args, sim)
    kernelcheck.tile.launch(test_tile.kernel(name), grid, *args)
    left = [one.cpu() for one in args if isinstance(one, torch.Tensor) and one.shape == want["out"].shape]
    assert any(torch.allclose(one, want["out"], rtol=1e-3, atol=1e-4) for one in left)


@test_tile.needs_front_end
def test_operators_around_kernels_in_two_languages_cost_the_same(sim):
    add, tiles = SAMPLES["vector add"].kernel(triton, tl), test_tile.kernel("add")
    launches = {
        "in_triton": lambda x, y, out: add[(4,)](x, y, out, 1000, BLOCK=256),
        "in_cutile": lambda x, y, out: kernelcheck.tile.launch(tiles, (4,), x, y, out, 256),
    }
    costs, x = [], torch.randn(1000, device=sim)
    for name, launch in launches.items():
        body = lambda x, y, launch=launch: [out := torch.empty_like(x), launch(x, y, out)][0]  # noqa: E731
        schema = "(Tensor x, Tensor y) -> Tensor"
        op = torch.library.custom_op(f"course_kernels::{name}", body, mutates_args=(), schema=schema)
        with simgpu.timeline() as timeline:
            assert torch.equal(op(x, x).cpu(), 2 * x.cpu())
        costs += [(one.nbytes, one.flops) for one in timeline.select("kernel") if name in one.name]
    assert costs == [(12_000, 1000)] * 2
