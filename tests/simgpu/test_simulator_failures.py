"""Does an impossible value in a kernel fail as on CUDA: later, for good, and never with a result that can be read?"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from tests.simgpu.simulated import read_calls


@pytest.fixture(autouse=True)
def _fresh():
    simgpu.enable()
    simgpu.reset()
    simgpu.configure(errors="asynchronous")
    yield
    simgpu.reset()


def sim(*values):
    return torch.tensor(values, device="sim")


def fails():
    return pytest.raises(torch.AcceleratorError, match="device-side assert triggered")


def table():
    return torch.ones(5, 3, device="sim")


KERNELS = read_calls("failing_kernels", globals())


@pytest.mark.parametrize("name", KERNELS)
def test_the_error_comes_with_the_next_wait_and_stays(name):
    result = KERNELS[name]()  # not here
    if isinstance(result, torch.Tensor):
        _ = result.shape, result.view(-1)
        after = result + 1  # nor here
        assert after.shape == result.shape and after.device.type == "sim"
    with fails():
        torch.sim.synchronize()
    for call in (lambda: torch.ones(3, device="sim"), lambda: table().sum(), torch.sim.synchronize):
        with fails():
            call()
    simgpu.reset()
    assert table().sum().item() == 15


@pytest.mark.parametrize("name", KERNELS)
def test_blocking_names_the_line_and_the_default_has_the_words_of_the_cpu(name):
    simgpu.configure(errors="blocking")
    with fails():
        KERNELS[name]()
    with fails():
        torch.sim.synchronize()
    simgpu.reset()
    with pytest.raises((IndexError, RuntimeError)) as caught:
        KERNELS[name]()
    assert not isinstance(caught.value, torch.AcceleratorError)
    torch.sim.synchronize()


def read_elsewhere(x):
    with torch.sim.stream(torch.sim.Stream()):
        x.tolist()


READS = read_calls("reads", globals(), "x")


@pytest.mark.parametrize("name", READS)
def test_a_result_is_never_read(name):
    x = table()[sim(0, 7)]
    with fails():
        READS[name](x)
    with fails():
        READS[name](x)


def test_a_copy_that_does_not_wait_brings_nothing():
    target = torch.full((2, 3), 9.0).pin_memory()
    x = table()[sim(0, 7)]
    target.copy_(x, non_blocking=True)
    with fails():
        torch.sim.synchronize()
    assert target.tolist() == [[9.0] * 3] * 2
    simgpu.reset()
    assert target.tolist() == [[9.0] * 3] * 2


def test_what_came_before_arrives():
    target, source = torch.zeros(3).pin_memory(), torch.ones(3, device="sim")
    event = torch.sim.Event()
    target.copy_(source, non_blocking=True)
    event.record()
    table()[sim(7)]
    event.synchronize()  # a mark before the kernel that fails
    assert target.tolist() == [1] * 3
    with fails():
        torch.sim.synchronize()


def test_after_a_reset_what_was_written_since_is_lost_and_the_rest_is_not():
    kept, counts, written = table(), sim(1, 2), table()
    x = table()[sim(0, 7)]
    guess = x.argmax(1)
    counts += (guess == 0).sum()
    written.copy_(kept)
    with fails():
        counts.tolist()
    simgpu.reset()
    assert kept.tolist() == [[1] * 3] * 5
    assert all(map(math.isnan, x.flatten().tolist() + written.flatten().tolist()))
    assert guess.tolist() == [-1, -1] == counts.tolist()


def test_errors_of_the_host_come_at_their_line():
    simgpu.configure(errors="asynchronous")
    for call, error in (
        (lambda: table()[9], IndexError),
        (lambda: table().gather(1, sim(0)), RuntimeError),
        (lambda: table().gather(1, sim(0.5).view(1, 1)), RuntimeError),
        (lambda: table()[torch.ones(4, dtype=torch.bool, device="sim")], IndexError),
        (lambda: table().index_select(2, sim(0)), IndexError),
        (lambda: F.nll_loss(torch.zeros(2, 3, device="sim"), sim(0)), ValueError),
        (lambda: table().cpu().gather(1, sim(0).view(1, 1)), RuntimeError),
    ):
        with pytest.raises(error) as caught:
            call()
        assert not isinstance(caught.value, torch.AcceleratorError)
    torch.sim.synchronize()


def test_a_training_step_fails_at_the_loss_that_is_read():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3)).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    words, target = sim(1, 10).view(1, 2), sim(2)
    loss = F.cross_entropy(model(words), target)
    loss.backward()
    optimizer.step()
    with fails() as caught:
        loss.item()
    assert "out of range" in str(caught.value) and "simgpu.reset()" in str(caught.value)


def test_wrong_habits_are_refused():
    with pytest.raises(ValueError, match="errors must be one of"):
        simgpu.configure(errors="later")
