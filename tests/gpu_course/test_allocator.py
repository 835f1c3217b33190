"""Do the tools of lessons 07 and 08 say what they measured, and put back what they changed?"""

import pytest
import torch

import simgpu
from course_utils import devices
from gpu_course.lesson07.allocator import limit_memory
from gpu_course.lesson08.compiling import kernels_written

DEVICE = devices.pick()
MIB = 2**20
pytestmark = pytest.mark.skipif(devices.simulated() is None, reason="there is no simulated GPU")


@pytest.mark.parametrize("settings", ["max_split_size_mb:128", "expandable_segments:True"])
def test_a_limit_holds_inside_and_the_settings_are_put_back(settings):
    before = torch._C._accelerator_getAllocatorSettings()
    torch._C._accelerator_setAllocatorSettings(settings)
    simulated = simgpu.settings()

    def program(kind):
        with limit_memory(kind, 80) as gpu:
            kept = torch.empty(60 * MIB, dtype=torch.uint8, device=kind)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(100 * MIB, dtype=torch.uint8, device=kind)
            return gpu.memory_reserved(), kept.nbytes

    try:
        reserved_bytes, kept_bytes = program(DEVICE.type)
        assert reserved_bytes >= kept_bytes
        assert settings in torch._C._accelerator_getAllocatorSettings()
        assert simgpu.settings() == simulated
    finally:
        torch._C._accelerator_setAllocatorSettings(before or "expandable_segments:False")


def test_without_a_compiler_the_number_of_kernels_is_a_prediction(monkeypatch, capsys):
    def compiles_nothing(*args, **options):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", compiles_nothing)
    assert kernels_written(torch.sin, torch.ones(3)) == (1, "predicted")
    assert "needs a compiler that is not here" in capsys.readouterr().out
