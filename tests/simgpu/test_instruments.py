"""Do the doors of the simulated GPU say and set what they name: memory, settings, queues, values?"""

import dataclasses
from contextlib import ExitStack

import pytest
import torch

import simgpu
from simgpu.device import enabling

MIB = 2**20


def test_memory_is_that_of_one_gpu_and_of_the_current_one_by_default():
    kept, peak = torch.zeros(MIB, dtype=torch.uint8, device="sim:1"), torch.sim.max_memory_allocated()
    second = simgpu.memory("sim:1")
    assert second.allocated_bytes == torch.sim.memory_allocated(1) == second.peak_bytes >= kept.nbytes
    assert second.capacity_bytes == 2**30 and simgpu.memory().peak_bytes == simgpu.memory(0).peak_bytes == peak
    with torch.sim.device(1):
        assert simgpu.memory().allocated_bytes == second.allocated_bytes
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        simgpu.memory("sim:7")


def test_budgets_may_end_in_any_order_and_leave_nothing():
    before, memory = simgpu.settings(), simgpu.memory("sim:0")
    outer, inner = ExitStack(), ExitStack()
    outer.enter_context(memory.budget(2 * MIB))
    inner.enter_context(memory.budget(MIB))
    assert len(simgpu.settings().budgets[0]) == 2
    outer.close()
    with pytest.raises(torch.OutOfMemoryError, match=r"total capacity of 1\.00 MiB"):
        torch.zeros(MIB + 1, dtype=torch.uint8, device="sim")
    inner.close()
    assert torch.zeros(MIB + 1, dtype=torch.uint8, device="sim").nbytes > MIB and simgpu.settings() == before


def test_a_fresh_peak_ends_as_the_peak_would_have_been():
    memory = simgpu.memory("sim:0")
    big = torch.zeros(4 * MIB, dtype=torch.uint8, device="sim")
    before_bytes = memory.peak_bytes
    del big
    with memory.fresh_peak() as rise:
        assert rise() == 0
        torch.zeros(MIB, dtype=torch.uint8, device="sim")
        assert rise() == MIB
    assert memory.peak_bytes == before_bytes


def test_settings_are_restored_whatever_was_changed():
    before = simgpu.settings()
    budget = simgpu.memory("sim:1").budget(MIB)
    budget.__enter__()
    torch.sim.set_stream(torch.sim.Stream())
    simgpu.configure(
        spec="L4", capacity="2 GiB", host=simgpu.Host.of_launches(1), costs=simgpu.Costs(kernel_ns=1),
        allocator="caching", errors="blocking",
    )  # fmt: skip
    changed, names = simgpu.settings(), [field.name for field in dataclasses.fields(simgpu.Settings)]
    names.remove("context_bytes")  # a capacity that is given has none taken off
    assert all(getattr(before, name) != getattr(changed, name) for name in names)
    simgpu.restore(before)
    assert simgpu.settings() == before
    assert torch.zeros(2 * MIB, dtype=torch.uint8, device="sim:1").nbytes == 2 * MIB  # the budget's limit is gone
    budget.__exit__(None, None, None)
    assert simgpu.settings() == before


def test_queues_are_idle_once_the_host_has_waited():
    assert simgpu.idle()
    x = torch.zeros(4, device="sim:1") + 1
    assert not simgpu.idle()
    x.sum().item()
    assert simgpu.idle()


def test_an_asynchronous_error_can_be_forgotten():
    simgpu.configure(errors="asynchronous")
    x = torch.zeros(4, device="sim")
    x[torch.tensor([9], device="sim")]
    with pytest.raises(torch.AcceleratorError):
        torch.sim.synchronize()
    simgpu.forgive()
    assert (x + 1).tolist() == [1.0] * 4


def test_values_are_those_of_the_tensor_and_cost_no_time():
    x = torch.arange(6.0, device="sim").view(2, 3).t()
    before_ms, values = simgpu.clock_ms(), simgpu.values_of(x)
    assert values.device.type == "cpu" and values.tolist() == [[0, 3], [1, 4], [2, 5]] and values.stride() == (1, 3)
    assert simgpu.clock_ms() == before_ms and simgpu.values_of(values) is values
    x.add_(1)
    assert values[0, 0] == 1


def test_the_self_test_notices_wrong_numbers_and_errors(monkeypatch):
    assert simgpu.ready() == (torch.device("sim", 0), "")
    with monkeypatch.context() as patched:
        patched.setattr(torch, "equal", lambda *gradients: False)
        device, reason = simgpu.ready()
        assert device is None and reason.endswith("failed: a gradient differs from that of the CPU")
    monkeypatch.setattr(enabling, "unavailable", lambda: (_ for _ in ()).throw(AttributeError("no such thing")))
    assert simgpu.ready() == (None, "AttributeError: no such thing")
