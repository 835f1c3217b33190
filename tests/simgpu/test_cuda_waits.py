"""Does the host wait where it waits on CUDA, and nowhere else? What the sync debug mode tells, and what a report has.

The cases of indexing, one_hot and repeat_interleave are those of `test_sync_warning` in PyTorch's test/test_torch.py.
"""

import warnings

import pytest
import torch
from torch.nn.functional import one_hot

import simgpu

linalg = torch.linalg


@pytest.fixture(autouse=True)
def _face(_fresh):
    with simgpu.cuda(gpus=2, memory="1 GiB"):
        yield


class Given:
    """What the lines below compute with: on the GPU, unless `cpu` is in the name."""

    def __init__(self):
        self.x = torch.ones(4, device="cuda")
        self.matrix = torch.eye(4, device="cuda")
        self.number = torch.ones((), device="cuda")
        self.cpu_number = torch.ones(())
        self.mask = torch.ones(4, dtype=torch.bool, device="cuda")
        self.rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        self.cpu_mask, self.cpu_rows = self.mask.cpu(), self.rows.cpu()
        self.repeats = torch.full((1,), 2, device="cuda")

    def put(self, index, value):
        self.x[index] = value

    def put_row(self, value):
        self.matrix[0] = value


WAIT = {
    "item": lambda a: a.x.sum().item(),
    "bool": lambda a: bool(a.x.any()),
    "cpu": lambda a: a.x.cpu(),
    "tolist": lambda a: a.x.tolist(),
    "print": lambda a: str(a.x),
    "to the GPU": lambda a: torch.ones(3).to("cuda"),
    "nonzero": lambda a: a.x.nonzero(),
    "unique": lambda a: torch.unique(a.x),
    "bincount": lambda a: torch.bincount(a.rows),
    "x[mask]": lambda a: a.x[a.mask],
    "x[cpu_rows]": lambda a: a.x[a.cpu_rows],
    "x[mask] = number": lambda a: a.put(a.mask, a.number),
    "x[cpu_rows] = number": lambda a: a.put(a.cpu_rows, a.number),
    "x[rows] = 1.0": lambda a: a.put(a.rows, 1.0),
    "x[0] = 1.0": lambda a: a.put(0, 1.0),
    "x[0] = cpu_number": lambda a: a.put(0, a.cpu_number),
    "copy_(cpu_number)": lambda a: a.number.copy_(a.cpu_number),
    "one_hot": lambda a: one_hot(a.rows),
    "repeat_interleave": lambda a: torch.repeat_interleave(a.x, a.repeats),
    "torch.tensor(number)": lambda a: torch.tensor(3.0, device="cuda"),
    "torch.tensor(list)": lambda a: torch.tensor([3.0], device="cuda"),
    "as_tensor": lambda a: torch.as_tensor([3.0], device="cuda"),
    "new_tensor": lambda a: a.x.new_tensor(3),
    "equal": lambda a: torch.equal(a.x, a.x),
    "allclose": lambda a: torch.allclose(a.x, a.x),
    "histc without limits": lambda a: torch.histc(a.x),
    "normal with deviations there": lambda a: torch.normal(0.0, a.x),
    "linspace between tensors": lambda a: torch.linspace(a.number, a.number, 3, device="cuda"),
    "segment_reduce": lambda a: torch.segment_reduce(a.x, "sum", lengths=torch.tensor([4]).cuda()),
    "cholesky": lambda a: linalg.cholesky(a.matrix),
    "cond": lambda a: linalg.cond(a.matrix),
    "eig": lambda a: linalg.eig(a.matrix),
    "eigh": lambda a: linalg.eigh(a.matrix),
    "eigvals": lambda a: linalg.eigvals(a.matrix),
    "eigvalsh": lambda a: linalg.eigvalsh(a.matrix),
    "inv": lambda a: linalg.inv(a.matrix),
    "inv_ex that checks": lambda a: linalg.inv_ex(a.matrix, check_errors=True),
    "ldl_factor": lambda a: linalg.ldl_factor(a.matrix),
    "lu_factor": lambda a: linalg.lu_factor(a.matrix),
    "matrix_rank": lambda a: linalg.matrix_rank(a.matrix),
    "pinv": lambda a: linalg.pinv(a.matrix),
    "solve": lambda a: linalg.solve(a.matrix, a.x),
    "svd": lambda a: linalg.svd(a.matrix),
    "svdvals": lambda a: linalg.svdvals(a.matrix),
    "lstsq": lambda a: linalg.lstsq(a.matrix, a.matrix),
    "matrix_exp": lambda a: linalg.matrix_exp(a.matrix),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(a.matrix),
}
LEAVE = {
    "synchronize": lambda a: torch.cuda.synchronize(),
    "an event": lambda a: torch.cuda.current_stream().record_event().synchronize(),
    "arithmetic": lambda a: (a.matrix @ a.matrix).relu(),
    "to the GPU, pinned": lambda a: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "to the GPU, as CUDA says": lambda a: torch.ones(3).to("cuda", non_blocking=True),
    "to the CPU": lambda a: a.x.to("cpu", non_blocking=True),
    "to another GPU": lambda a: a.x.to("cuda:1"),
    "any": lambda a: torch.any(a.number),
    "x[rows]": lambda a: a.x[a.rows],
    "x[cpu_mask]": lambda a: a.x[a.cpu_mask],
    "x[mask] = 1.0": lambda a: a.put(a.mask, 1.0),
    "x[rows] = number": lambda a: a.put(a.rows, a.number),
    "x[cpu_mask] = number": lambda a: a.put(a.cpu_mask, a.number),
    "x[1:] = 1.0": lambda a: a.put(slice(1, None), 1.0),
    "matrix[0] = 1.0": lambda a: a.put_row(1.0),
    "matrix[0] = cpu_number": lambda a: a.put_row(a.cpu_number),
    "fill_(cpu_number)": lambda a: a.x.fill_(a.cpu_number),
    "x + cpu_number": lambda a: a.x + a.cpu_number,
    "where": lambda a: torch.where(a.mask, a.x, 0.0),
    "one_hot of known classes": lambda a: one_hot(a.rows, num_classes=4),
    "repeat_interleave by a number": lambda a: torch.repeat_interleave(a.x, 2, output_size=8),
    "repeat_interleave of known size": lambda a: torch.repeat_interleave(a.x, a.repeats, output_size=8),
    "randperm": lambda a: torch.randperm(20000, device="cuda"),
    "full": lambda a: torch.full((2,), 3.0, device="cuda"),
    "histc between limits": lambda a: torch.histc(a.x, 10, 0, 1),
    "normal": lambda a: torch.normal(a.x, 1.0),
    # `_assert_async` since Distributions.cpp asserts on the device
    "multinomial": lambda a: torch.multinomial(a.x, 2),
    "cholesky_ex": lambda a: linalg.cholesky_ex(a.matrix),
    "inv_ex": lambda a: linalg.inv_ex(a.matrix),
    "ldl_factor_ex": lambda a: linalg.ldl_factor_ex(a.matrix),
    "lu_factor_ex": lambda a: linalg.lu_factor_ex(a.matrix),
    "solve_ex": lambda a: linalg.solve_ex(a.matrix, a.x),
    "det": lambda a: linalg.det(a.matrix),
    "qr": lambda a: linalg.qr(a.matrix),
}


@pytest.mark.parametrize("name", WAIT)
def test_a_line_that_waits_is_named(name):
    given = Given()
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match=r"called a synchronizing CUDA operation .*test_cuda_waits.py:") as caught:
        WAIT[name](given)
    assert {one.filename for one in caught} == {__file__}
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAIT[name](given)
    torch.cuda.set_sync_debug_mode("default")
    WAIT[name](given)


@pytest.mark.parametrize("name", WAIT)
def test_the_clock_waits_there_too(name):
    given = Given()
    (torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")).sum()
    with simgpu.timeline() as seen:
        WAIT[name](given)
    assert seen.select("wait")


@pytest.mark.parametrize("name", LEAVE)
def test_a_line_that_does_not_wait_is_not_named(name):
    given = Given()
    torch.cuda.set_sync_debug_mode("error")
    LEAVE[name](given)
    assert torch.cuda.get_sync_debug_mode() == 2


def test_numbers_that_are_assigned_keep_their_values():
    given = Given()
    given.put(0, 3)
    given.put(given.cpu_mask & torch.tensor([False, True, False, False]), 4.5)
    given.put([2], True)
    given.put_row(torch.tensor(2.0))
    assert given.x.tolist() == [3.0, 4.5, 1.0, 1.0] and given.matrix[0].tolist() == [2.0] * 4
    whole = torch.zeros(3, dtype=torch.int64, device="cuda")
    whole[1:] = 2.7
    assert whole.tolist() == [0, 2, 2]
    with pytest.raises(RuntimeError, match="same device"):
        given.rows[given.rows] = given.cpu_rows  # values, unlike indices, are not brought there


def test_sync_debug_mode_ends_with_the_face():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cuda.set_sync_debug_mode(2)
        simgpu.face.switch.last().off()
        assert torch.ones(2, device="sim").sum().item() == 2
