"""The exercise “Repair a function that mixes devices”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=6,
    difficulty=1,
    hints=(
        "One of the two must move. Which one is small?",
        "A tensor knows where it is: points.device. No name of a device is needed.",
        "One more line at the top is enough. Give the name `query` to what `.to` returns for the device of `points`.",
    ),
)
def nearest(points: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return the index of the row of `points` nearest to `query`, where `points` is."""
    query = query.to(points.device)  # three numbers travel; all the points stay
    return ((points - query) ** 2).sum(dim=1).argmin()


nearest.exempt("of no points none is nearest", "empty scalar")
nearest.exempt("coordinates are floating-point numbers of full width", "half bfloat16 whole bool complex not_finite")
nearest.exempt("nothing is made, so no default is asked", "default_type")


@nearest.checks
def _(case: Case) -> None:
    far = torch.tensor([[20000.0, -20000.0], [20001.0, -20003.0], [20003.0, -20002.0]])
    small = torch.tensor([[0.0, 0.0], [4.0, 4.0], [1.0, 2.0]])
    here, there = torch.device("cpu"), case.device
    for points, query, device in (
        (small, torch.tensor([3.0, 3.0]), there),
        (torch.rand(5000, 3), torch.rand(3), there),
        (small, torch.tensor([1.0, 1.0]), here),
        (torch.tensor([[3.0, 0.0], [2.0, 2.0]]), torch.zeros(2), there),
        (small, torch.tensor([3.0, 1.5]), elsewhere(there)),
        (torch.rand(64, 3), torch.rand(3), there),
        (torch.rand(1, 1), torch.rand(1), there),
        (far, torch.tensor([20002.0, -20002.0]), there),
        (1e-6 * small, torch.tensor([4e-6, 4e-6]), there),
        (1000 + 1e-5 * small.double(), torch.full((2,), 1000.00004, dtype=torch.float64), there),
        (edges.permuted(small), torch.tensor([3.0, 3.0]), there),
        (edges.sliced(small), torch.tensor([3.0, 3.0]), there),
    ):
        device = edges.supporting(device, points)
        points = edges.on(points, device)
        got = case.call(points, query)
        sent, read = case.counts.bytes_d2h, case.counts.host_reads
        why = f"{sent} bytes travelled for `points`; `query` has {query.nbytes}"
        case.fail_if(sent >= points.nbytes, "moves the large tensor instead of the small one", why)
        why = "to read it, the host waits for the device; the next operation there could use it at once"
        case.fail_if(isinstance(got, int | float), "returns a Python number", why, got=got)
        row = isinstance(got, torch.Tensor) and got.is_floating_point() and got.shape == query.shape
        why = "the index is asked for; to take the row by it, the host reads it and waits"
        case.fail_if(row, "returns the row, not its index", why, got=got)
        why = "the host must then wait for the device; nothing here needs to be read"
        case.fail_if(sent or read, "brings values back to the host", why)
        expected = ((points.cpu() - query) ** 2).sum(dim=1).argmin().to(device)
        case.equal(got, expected, why="the index, on the device of `points`, by the sum of squared differences")
