"""Do kernels run where the installed Triton does not work, and on tensors of a Mac's or Intel's GPU?"""

import importlib
import sys
import types

import pytest
import torch

import kernelcheck
import simgpu
from kernelcheck.cuda import kernel as cuda_kernel
from kernelcheck.triton import language
from tests.kernelcheck.cuda_samples import BASES
from tests.kernelcheck.triton_samples import SAMPLES

needs_compiler = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")


class _Jit:
    def __init__(self, fails):
        self.fails = fails

    def __call__(self, function):
        return {(1,): self._launch}

    def _launch(self, out, count):
        if self.fails:
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nMore of it")
        out.fill_(1.0)


@pytest.mark.parametrize("fails", [True, False])
def test_the_installed_triton_is_taken_after_a_first_kernel_has_run(monkeypatch, capsys, fails):
    installed = types.ModuleType("triton")
    installed.jit, installed.language = _Jit(fails), types.ModuleType("triton.language")
    installed.language.constexpr = int
    monkeypatch.setitem(sys.modules, "triton", installed)
    monkeypatch.setitem(sys.modules, "triton.language", installed.language)
    monkeypatch.delitem(sys.modules, "kernelcheck.triton.first", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(language, "is_real", lambda device: True)
    monkeypatch.setenv("KERNELCHECK_DEVICE", "cuda")
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    language._installed_works.cache_clear()
    try:
        pairs = [kernelcheck.triton() for _ in range(2)]
    finally:
        language._installed_works.cache_clear()
        sys.modules.pop("kernelcheck.triton.first", None)
    assert [pair[0] is installed for pair in pairs] == [not fails] * 2
    said = capsys.readouterr().out
    assert said.count("\n") == fails and ("RuntimeError: Failed to find C compiler" in said) == fails


@needs_compiler
def test_a_kernel_in_cuda_writes_to_memory_that_the_host_cannot_read(monkeypatch):
    base = BASES["add"]
    here, there = base.made(), base.made()
    kernel = kernelcheck.compile_cuda(base.source, "add")
    kernel(base.grid, base.block, here)
    monkeypatch.setattr(cuda_kernel, "on_host", lambda device: False)
    kernel(base.grid, base.block, there)
    tensors = [pair for pair in zip(here, there, strict=True) if isinstance(pair[0], torch.Tensor)]
    assert tensors and all(torch.equal(*pair) for pair in tensors)
    with pytest.raises(kernelcheck.CudaFault, match=r"is on meta: give one on the CPU or a GPU, such as that of .cpu"):
        kernel(base.grid, base.block, [a.to("meta") if isinstance(a, torch.Tensor) else a for a in there])


@needs_compiler
@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_kernels_take_tensors_of_a_mac_and_of_intel(kind):
    base, sample = BASES["add"], SAMPLES["softmax"]
    triton, tl = kernelcheck.triton()
    with getattr(simgpu, kind)():
        made = [one.to(kind) if isinstance(one, torch.Tensor) else one for one in base.made()]
        kernelcheck.compile_cuda(base.source, "add")(base.grid, base.block, made)
        assert made[2].device.type == kind and base.right([one.cpu() for one in made[:3]])
        grid, args, options, want = sample.call()
        moved = [one.to(kind) if isinstance(one, torch.Tensor) else one for one in args]
        sample.kernel(triton, tl)[grid](*moved, **options)
        assert any(isinstance(one, torch.Tensor) and torch.allclose(one.cpu(), want, atol=1e-4) for one in moved)
