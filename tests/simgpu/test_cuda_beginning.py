"""Does CUDA begin on its face when a program first uses it, and can a child be forked before that, and not after?"""

import os

import pytest
import torch

import simgpu
from tests import children
from tests.simgpu.simulated import read_calls, read_programs

LEAVE = read_calls("before_cuda", globals())
BEGIN = read_calls("begins_cuda", globals())


@pytest.mark.parametrize("name", LEAVE)
def test_cuda_has_not_begun(name):
    with simgpu.cuda(gpus=2):
        LEAVE[name]()
        assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("name", BEGIN)
def test_cuda_begins(name):
    before = dict(os.environ)
    with simgpu.cuda(gpus=2):
        BEGIN[name]()
        assert torch.cuda.is_initialized() and torch.cuda._initialized
    assert not torch.cuda.is_initialized() and dict(os.environ) == before


def test_what_was_seeded_before_is_not_seeded_again():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with simgpu.cuda(gpus=2):
        torch.manual_seed(3)
        first = torch.rand(2)
        rest = torch.rand(2, device="cuda")
        assert torch.equal(torch.cat([first, rest.cpu()]), expected)


FORK = read_programs("cuda_beginning")["fork"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("before", "works"),
    [
        ("", True),
        ("torch.manual_seed(1); torch.cuda.manual_seed_all(1)", True),
        ("torch.cuda.is_available()", False),
        ("torch.empty(1, device='cuda')", False),
        ("torch.cuda.synchronize()", False),
    ],
)
def test_a_fork_works_before_cuda_has_begun_and_not_after(before, works):
    done = children.run("-c", FORK.format(before=before))
    assert done.returncode == 0, done.stderr
    refused = (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"
    )
    assert done.stdout.startswith("4.0 1.0" if works else refused), done.stdout


HIDDEN = read_programs("cuda_beginning")["hidden"]


def test_real_gpus_that_are_hidden_make_room_for_simulated_ones():
    done = children.run("-c", HIDDEN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False 0", "True 2 cuda:0", "False 0"]
