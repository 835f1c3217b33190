"""Is what `simgpu.cuda` switches on switched off without a trace?"""

import pytest
import torch
from torch import nn

import simgpu


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_settings_and_places_are_what_they_were(kind):
    """`test_switched_off` looks at each attribute of torch."""
    before = simgpu.settings(), torch.get_default_device(), torch.sim.current_device()
    with getattr(simgpu, kind)(memory="2 GiB"):
        torch.set_default_device(kind)
        model = nn.Linear(4, 4)
    assert (simgpu.settings(), torch.get_default_device(), torch.sim.current_device()) == before
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    assert model.weight.device == torch.device("sim:0") and not model.weight.is_cuda


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a CUDA build says something else")
@pytest.mark.parametrize(
    "attempt",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.ones(2).to("cuda"),
        lambda: torch.ones(2).cuda(),
        lambda: torch.tensor([1], device="cuda"),
        lambda: torch.cuda.current_device(),
        lambda: torch.cuda.synchronize(),
    ],
)
def test_afterwards_there_is_no_cuda(attempt):
    with simgpu.cuda():
        attempt()
    with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA|not linked with support"):
        attempt()


def test_for_good_nested_and_switched_off_twice():
    outer = simgpu.cuda(memory="3 MiB")
    with simgpu.cuda(gpu="H100 SXM"):
        assert torch.cuda.get_device_properties().total_memory > 70 * 2**30
    assert torch.cuda.is_available() and torch.cuda.get_device_properties().total_memory == 3 * 2**20
    outer.off()
    outer.off()
    assert not torch.cuda.is_available() and simgpu.memory().capacity_bytes == 2**30


def test_an_error_inside_leaves_no_trace_either():
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"), simgpu.cuda(memory="1 MiB"):
        torch.empty(2**20, device="cuda")
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"gpu": "H1000"}, ValueError, "H1000"),
        ({"memory": "much"}, ValueError, "capacity must be a positive number of bytes"),
        ({"gpus": 7}, ValueError, "cannot change to 7"),
        ({"allocator": "best"}, ValueError, "allocator must be one of"),
    ],
)
def test_a_wrong_argument_is_named_and_changes_nothing(arguments, kind, words):
    before = simgpu.settings()
    with pytest.raises(kind, match=words):
        simgpu.cuda(**arguments)
    assert simgpu.settings() == before and not torch.cuda.is_available()


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_profile_without_activities_records_those_of_the_kind(kind):
    with getattr(simgpu, kind)(memory="1 GiB"):
        a = torch.ones(8, 8, device=kind)
        with torch.profiler.profile() as profiled:
            (a @ a).relu()
        found = {row.key: row.device_type.name for row in profiled.key_averages() if not row.key.startswith("aten::")}
        shown = {"mm": kind.upper(), "relu": kind.upper()} if kind != "mps" else {}
        assert shown.items() <= found.items() and set(found.values()) <= {"CPU", *shown.values()}
