"""The exercise “Gradients that get lost”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    title="Gradients that get lost",
    minutes=10,
    difficulty=2,
    hints=(
        "First multiply by the scale, in the format that the gradients have. Then store the result with .to(dtype).",
        "Three masks: what was not 0 before, what is 0 now, and what isinf() finds.",
        "A gradient is lost where the first mask is True, and also the second or the third. Write this with &, | and "
        "brackets. Divide the sum of this mask by the sum of the first.",
    ),
)
def lost_share(gradients: torch.Tensor, dtype: torch.dtype, scale: float) -> float:
    """Return the share of non-zero gradients that become 0 or infinite in `dtype`."""
    stored = (gradients * scale).to(dtype)  # scaled while they still have their range
    nonzero = gradients != 0
    lost = nonzero & ((stored == 0) | stored.isinf())
    return (lost.sum() / nonzero.sum()).item()


lost_share.exempt("there is at least one gradient, and all are numbers", "empty not_finite")
lost_share.exempt("gradients are stored as floating-point numbers", "whole bool complex double")
lost_share.exempt("a scale is no number below 0, and it meets no limit", "number_negative limit")
lost_share.exempt("nothing is made, so no default is asked", "default_type")


@lost_share.checks
def _(case: Case) -> None:
    wide = torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 10.0 ** torch.linspace(-12, 2, 2000)
    wide[::7] = 0
    square = torch.tensor([[2.0, 1e-8, 1e-9], [0.0, 7e4, -7e4], [1.0, 0.0, -1e-9]])
    for gradients, dtype, scale in (
        (torch.tensor([1e-3, 1e-8]), torch.float16, 1.0),
        (torch.tensor([1e-3, 0.0, 1e-8, 0.0]), torch.float16, 1.0),
        (torch.tensor([-2.0, 1e-3]), torch.float16, 2.0**16),
        (torch.tensor([4e-8, 1e-6, 65510.0, 1.0]), torch.float16, 1.0),
        (torch.tensor([-1e-3, -1e-8, 0.0, 1e-8]), torch.float16, 2.0**16),
        (torch.tensor([2.0, -1e-8, 1e-13, 0.0]), torch.float16, 2.0**16),
        (torch.tensor([2.0, 1e-8, 1e-13, 0.0]), torch.bfloat16, 2.0**16),
        (wide, torch.float16, 2.0**10),
        (wide, torch.bfloat16, 4.0),
        (torch.tensor([[2.0, 1e-8, 1e-9], [0.0, 1.0, 3.0]]), torch.float16, 1.0),
        (torch.tensor([3.4e38, 1.0]), torch.bfloat16, 1.0),  # bfloat16 has numbers of its own that it loses
        (torch.tensor(1e-9), torch.float16, 1.0),
        (torch.tensor([[-1e-9]]), torch.float16, 1e3),
        (edges.permuted(square), torch.float16, 1.0),
        (edges.sliced(square), torch.float16, 2.0),
        (square, torch.float16, 0.0),  # scaled by 0, all are lost
        (square, torch.float16, 2.0**32),
        (square, torch.float32, 1e38),
        (square, torch.float16, 1),
        (square.to(elsewhere(case.device)), torch.float16, 1.0),
        (square, torch.bfloat16, 1.0),
    ):
        device = gradients.device if gradients.device.type != "cpu" else case.device
        got = case.call(edges.on(gradients, device), dtype, scale)
        stored = [torch.tensor(value * scale).to(dtype).item() for value in gradients.flatten().tolist() if value]
        expected = sum(kept == 0 or math.isinf(kept) for kept in stored) / len(stored)
        close = isinstance(got, float) and 1e-4 * expected < abs(got - expected) < 0.006
        case.fail_if(close, "rounds the share", "return it as it is; compute in float32", expected=expected, got=got)
        case.equal(got, expected, rtol=1e-4, atol=1e-9)
    case.equal(case.call(torch.tensor([1e-9, 1.0]), torch.float16, 1.0), 0.5, why="the caller chooses the device")


@lost_share.alternative("easier to read, but a mask as an index makes the host wait for the number of elements")
def _(gradients, dtype, scale):
    stored = (gradients[gradients != 0] * scale).to(dtype)
    return ((stored == 0) | stored.isinf()).float().mean().item()
