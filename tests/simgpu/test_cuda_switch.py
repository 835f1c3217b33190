"""Is what `simgpu.cuda` switches on switched off without a trace?"""

import pytest
import torch
from torch import nn

import simgpu

MODULES = (
    torch, torch._C, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs,
    torch.cuda.nvtx, torch.amp, torch.amp.autocast_mode, torch.amp.grad_scaler, torch.accelerator, torch.version,
    torch.backends.cuda, torch.backends.cudnn, torch.nested, torch.serialization, torch.utils, torch.utils._device,
    torch.utils.data, torch.optim, torch.nn, torch.distributed, torch.profiler, torch.random, torch.storage,
    torch.Tensor, torch._C.TensorBase, torch.nn.Module, torch.utils._device.DeviceContext, torch.UntypedStorage,
    torch.Generator, torch.autocast, torch.amp.GradScaler,
)  # fmt: skip


def snapshot():
    """Return what PyTorch's modules and classes consist of, but for what Python adds as they are used."""
    of_python = ("__warningregistry__", "__annotations_cache__")
    found = {(owner.__name__, name): value for owner in MODULES for name, value in list(vars(owner).items())}
    return {key: value for key, value in found.items() if key[1] not in of_python}


def use():
    """Use most of what is replaced."""
    torch.set_default_device("cuda")
    model = nn.Linear(4, 4)
    with torch.autocast("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        model(torch.ones(2, 4)).sum().backward()
    torch.cuda.manual_seed_all(1)
    torch.cuda.memory_summary()
    return model


def test_no_function_of_torch_is_another_one_afterwards():
    with simgpu.cuda():
        use()  # what PyTorch imports and remembers at its first use is no trace of ours
    before, state = snapshot(), (simgpu.settings(), torch.get_default_device(), torch.sim.current_device())
    with simgpu.cuda(gpu="A100 80GB", memory="2 GiB"):
        model = use()
        changed = {key for key, value in snapshot().items() if before.get(key) is not value}
    after = snapshot()
    assert len(before) > 4000 and len(changed) > 80
    assert {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)} == set()
    assert (simgpu.settings(), torch.get_default_device(), torch.sim.current_device()) == state
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
