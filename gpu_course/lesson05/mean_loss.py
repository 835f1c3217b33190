"""The exercise “The mean loss of uneven batches”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=5,
    difficulty=1,
    hints=(
        "A batch of 2 must count half as much as a batch of 4.",
        "Multiply each mean by the size of its batch, add, and divide by the number of all samples.",
        "zip(losses, sizes) gives what belongs together, sum(…) adds tensors too, and sum(sizes) are all samples.",
    ),
)
def mean_loss(losses: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """Return the mean over samples, on the device of the batches' mean losses."""
    total = sum(loss * size for loss, size in zip(losses, sizes, strict=True))  # back to sums, which may be added
    return total / sum(sizes)


mean_loss.exempt("each loss is a number of shape (), in a tensor of its own", "empty single odd permuted sliced tied")
mean_loss.exempt(
    "of no batch there is no mean, and a batch has samples", "no_entries number_zero number_negative number_large limit"
)
mean_loss.exempt(
    "a loss is a floating-point number, whose sum 16 bits do not hold", "half bfloat16 whole bool complex not_finite"
)
mean_loss.exempt("the losses' own type is meant", "default_type")


@mean_loss.checks
def _(case: Case) -> None:
    for values, sizes in (
        ([3.0, 9.0], [4, 2]),
        ([1.5], [7]),
        ([0.5, 2.0, 4.0], [8, 8, 3]),
        ([2.0, 2.5], [3, 3]),
        ([1.0, 2.5, 4.0], [2, 5, 3]),
        ([4.0, 2.5, 1.0], [3, 5, 2]),
        ([4.0, 2.5, 1.0], [2, 5, 3]),
        ([-2.0, -1.0], [1, 3]),
        ([0.0, -2.0, 2e4, 1e-6, 0.0], [1, 1, 3, 100, 1]),
    ):
        losses = [torch.tensor(value, device=case.device) for value in values]
        got = case.call(losses, sizes)
        counts = case.counts
        right = sum(v * s for v, s in zip(values, sizes, strict=True)) / sum(sizes)
        why = "to read it, the host waits for the device: return the tensor"
        case.fail_if(isinstance(got, int | float), "returns a Python number", why, got=got)
        why = "multiply and add on the device: the host does not need the numbers"
        case.fail_if(counts.host_reads or counts.copies_d2h, "lets the host read values", why)
        case.equal(got, torch.tensor(right, device=case.device))
    for device, dtype in (
        (elsewhere(case.device), torch.float32),
        (torch.device("cpu"), torch.float32),
        (edges.supporting(case.device, torch.float64), torch.float64),
    ):  # "on the device of the losses"
        losses = [torch.tensor(value, dtype=dtype, device=device) for value in (0.1, 0.7)]
        expected = torch.tensor((0.1 + 5 * 0.7) / 6, dtype=dtype, device=device)
        case.equal(case.call(losses, [1, 5]), expected, rtol=1e-12 if dtype == torch.float64 else 1e-5)
