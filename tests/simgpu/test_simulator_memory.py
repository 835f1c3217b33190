"""Is the simulated memory exact? Peaks against the sum of storages, freeing, capacity and accounting after errors."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import simgpu
from tests import interrupts
from tests.simgpu.simulated import read_programs

KIB = 1024


def kib(n, **options):
    """Return a tensor of `n` KiB."""
    return torch.ones(n * KIB // 4, device="sim", **options)


def chain():
    x = kib(1) + 1  # two tensors alive while the second is made
    x = x + 1
    return x


def step(optimizer, **options):
    p = nn.Parameter(kib(4))
    p.grad = torch.ones_like(p)
    optimizer([p], lr=0.1, **options).step()


PROGRAMS = {
    "one tensor": (lambda: kib(3), 3 * KIB),
    "two tensors": (lambda: (kib(3), kib(2)), 5 * KIB),
    "views are free": (lambda: (lambda x: (x.view(2, -1), x[10:], x.t()))(kib(3)), 3 * KIB),
    "a temporary": (lambda: kib(2) + 1, 4 * KIB),
    "a chain": (chain, 2 * KIB),
    "in place": (lambda: kib(2).add_(1).mul_(3), 2 * KIB),
    "half precision": (lambda: kib(2).half(), 3 * KIB),
    "a product": (
        lambda: torch.ones(64, 32, device="sim") @ torch.ones(32, 16, device="sim"),
        4 * (64 * 32 + 32 * 16 + 64 * 16),
    ),
    # x, sin, cos, and the sum of 4 bytes
    "saved for backward": (lambda: kib(1, requires_grad=True).sin().cos().sum(), 3 * KIB + 4),
    # x, exp (saved), sum and its gradient, and the gradient of x: the expanded one is a view
    "backward": (lambda: kib(1, requires_grad=True).exp().sum().backward(), 3 * KIB + 4 + 4),
    "a step of SGD": (lambda: step(torch.optim.SGD, foreach=False), 8 * KIB),
    "a step of fused Adam": (lambda: step(torch.optim.Adam, fused=True), 16 * KIB + 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_the_sum_of_storages(name):
    program, expected = PROGRAMS[name]
    program()
    assert torch.sim.max_memory_allocated() == expected
    gc.collect()
    assert torch.sim.memory_allocated() == 0


def test_what_is_freed_and_when():
    x = kib(1)
    view = x[5:]
    del x
    assert torch.sim.memory_allocated() == KIB  # the view holds the storage
    del view
    assert torch.sim.memory_allocated() == 0
    w = kib(1, requires_grad=True)
    y = w.sin().cos()
    assert torch.sim.memory_allocated() == 3 * KIB
    loss = y.sum()
    del y
    assert torch.sim.memory_allocated() == 2 * KIB + 4  # sin is saved, cos is not
    loss.backward()
    assert torch.sim.memory_allocated() == 2 * KIB + 4  # sin gone, the gradient come
    with torch.no_grad():
        w.sin().cos()
    assert torch.sim.memory_allocated() == 2 * KIB + 4


def test_peaks_can_be_reset_and_storages_grow_and_shrink():
    kib(8)
    torch.sim.reset_peak_memory_stats()
    x = kib(1)
    assert torch.sim.max_memory_allocated() == KIB
    x.resize_(4 * KIB)
    assert torch.sim.memory_allocated() == 16 * KIB
    x.untyped_storage().resize_(0)
    x.data = torch.empty(0, device="sim")
    assert torch.sim.memory_allocated() == 0


def test_each_device_has_its_capacity():
    simgpu.configure(capacity="1 MiB")
    zero, one = torch.ones(2**17, device="sim:0"), torch.ones(2**18, device="sim:1")
    assert torch.sim.mem_get_info(0) == (2**19, 2**20) and torch.sim.mem_get_info(1) == (0, 2**20)
    moved = zero.to("cpu")
    with pytest.raises(torch.OutOfMemoryError):
        moved.to("sim:1")
    del one
    assert moved.to("sim:1").nbytes == torch.sim.max_memory_allocated(1) // 2


def test_out_of_memory_has_cudas_words_and_changes_nothing():
    simgpu.configure(capacity="1 MiB")
    x = torch.ones(2**17, device="sim")
    for attempt in (lambda: torch.empty(2**18, device="sim"), lambda: torch.cat([x, x]), lambda: x.double()):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            attempt()
        assert str(caught.value).startswith("sim out of memory. Tried to allocate 1.00 MiB. GPU 0 has a total capacity")
        said = "of 1.00 MiB of which 512.00 KiB is free. Including non-PyTorch memory, this process has"
        assert said in str(caught.value)
        del caught
        gc.collect()
        assert torch.sim.memory_allocated() == 2**19
    assert x.sum().item() == 2**17


def test_out_of_memory_in_backward_leaves_the_accounting_intact():
    simgpu.configure(capacity="24 KiB")
    w = kib(4, requires_grad=True)
    for _ in range(3):
        loss = w.sin().cos().sin().cos().sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        w.grad = loss = None
        gc.collect()
        assert torch.sim.memory_allocated() == 4 * KIB
    w.sin().sum().backward()
    assert torch.sim.memory_allocated() == 8 * KIB


class Faulty(torch.autograd.Function):
    """Raises in its backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("mine")


def test_a_readers_errors_in_backward_passes_come_through_in_every_thread_and_leave_the_accounting_intact():
    def attempt(_):
        x, hooked = (torch.ones(2, device="sim", requires_grad=True) for _ in range(2))
        hooked.register_hook(lambda gradient: 1 / 0)
        for loss, error in ((Faulty.apply(x).sum(), ValueError), ((hooked * 2).sum(), ZeroDivisionError)):
            with pytest.raises(error):
                loss.backward()

    attempt(0)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(attempt, range(4)))) == 4
    gc.collect()
    assert torch.sim.memory_allocated() == 0


def test_thousands_of_tensors_and_threads():
    tensors = [torch.ones(2, device="sim") for _ in range(5_000)]
    assert torch.sim.memory_allocated() == 8 * 5_000
    tensors.clear()
    assert torch.sim.memory_allocated() == 0

    def work(device):
        mine = [torch.ones(16, device=device) * i for i in range(200)]
        x = torch.ones(16, device=device, requires_grad=True)
        (x * x).sum().backward()
        return sum(m.sum().item() for m in mine[-2:])

    with ThreadPoolExecutor(4) as threads:
        kept = list(threads.map(work, ("sim:0", "sim:1") * 2))
    gc.collect()
    assert kept == [16.0 * (198 + 199)] * 4
    assert torch.sim.memory_allocated(0) == torch.sim.memory_allocated(1) == 0


_SIMULATED = read_programs("simulator_memory")["simulated"]


def test_no_interrupt_is_lost_and_the_bytes_are_right_after_each():
    """An exception in what a weak reference calls is printed and lost: there the loop would never end."""
    bytes_and_live = "torch.sim.memory_allocated() - kept.nbytes, len(simgpu.device.enabling.world().memory.live)"
    assert interrupts.survived(_SIMULATED, bytes_and_live) == (["300", "0", "0", "1"], "")
