"""Are conjugate and negative views of complex numbers on the simulated GPU what they are on the CPU?"""

import copy
import io

import pytest
import torch

from course_utils import simulator
from tests.simulated import _fresh, consistent  # noqa: F401

pytestmark = pytest.mark.skipif(simulator.unavailable() is not None, reason=str(simulator.unavailable()))

FUNCTIONS = {
    "pinv": torch.linalg.pinv,
    "lstsq": lambda a: torch.linalg.lstsq(a, torch.ones_like(a)).solution,
    "solve": lambda a: torch.linalg.solve(a.mH @ a, torch.ones_like(a)),
    "svd": lambda a: torch.linalg.svd(a).S,
    "vecdot": lambda a: torch.linalg.vecdot(a, a.sin()),
    "ifft": lambda a: torch.fft.irfft2(torch.fft.fft2(a).conj()),
}
VIEWS = {"plain": lambda z: z, "conj": torch.conj, "negative": lambda z: z.conj().imag, "adjoint": lambda z: z.mH}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_made_of_others_sees_what_is_conjugate(name, view, inference):
    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.complex128)
    results = []
    for device in ("cpu", "sim:0"):
        x = VIEWS[view](a.to(device, copy=True)).detach().requires_grad_()
        with torch.inference_mode(inference):
            y = FUNCTIONS[name](x)
        if not inference:
            (y * torch.arange(1, y.numel() + 1, device=device).view(y.shape)).sum().abs().backward()
        results.append((y.detach().cpu().resolve_conj(), torch.empty(0) if inference else x.grad.cpu().resolve_conj()))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def _saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_copies_and_files_keep_the_values_of_a_view():
    on_cpu = torch.tensor([1 + 2j, 3 - 1j])
    for device in ("cpu", "sim"):
        z = on_cpu.to(device)
        for view, values in ((z.conj(), [1 - 2j, 3 + 1j]), (z.conj().imag, [-2.0, 1.0]), (z.imag, [2.0, -1.0])):
            assert copy.deepcopy(view).tolist() == view.tolist() == values
            for moved in (_saved(view), _saved(view, map_location="sim:1"), _saved(view, map_location="cpu")):
                assert moved.tolist() == values and moved.is_conj() == view.is_conj()
                assert (moved + 0).tolist() == values
