"""Does the host wait where it waits on CUDA, and nowhere else? What the sync debug mode tells, and what a report has.

The cases of indexing, one_hot and repeat_interleave are those of `test_sync_warning` in PyTorch's test/test_torch.py.
"""

import warnings

import pytest
import torch

import simgpu
from tests.simgpu.simulated import CALLS, read_calls

FACE = {"gpus": 2, "memory": "1 GiB"}

linalg = torch.linalg


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


WAIT = read_calls("waits", globals(), "a")
LEAVE = read_calls("waits_not", globals(), "a")


@pytest.mark.parametrize("name", WAIT)
def test_a_line_that_waits_is_named(name):
    given = Given()
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match=r"called a synchronizing CUDA operation .*(waits.py|calls.toml):") as caught:
        WAIT[name](given)
    assert {one.filename for one in caught} <= {__file__, str(CALLS)}
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
