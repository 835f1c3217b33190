"""Does a program that says `cuda` find what it expects on a simulated GPU, and nothing afterwards?"""

import copy
import io
import os
import re
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import simgpu
from simgpu.ground import autocast
from tests.simgpu.simulated import consistent, outcome, read_calls
from tests.waiting import calls

FACE = {"gpus": 2, "memory": "1 GiB"}

MADE = read_calls("made", globals(), "d")


@pytest.mark.parametrize("place", ["cuda", "cuda:1", torch.device("cuda"), torch.device("cuda", 1)])
@pytest.mark.parametrize("name", MADE)
def test_what_a_program_makes_is_on_cuda(name, place):
    torch.manual_seed(1)
    made = consistent(MADE[name](place))
    assert made.device == torch.device("cuda", torch.device(place).index or 0)
    assert made.is_cuda and not made.is_cpu and made.get_device() == made.device.index
    torch.manual_seed(1)
    assert torch.equal(made.cpu(), MADE[name]("cpu"))


def test_the_method_cuda_and_whole_numbers_mean_cuda():
    for moved in (torch.ones(2).cuda(1), torch.ones(2).cuda("cuda:1"), torch.ones(2).to(1), torch.ones(2, device=1)):
        assert moved.device == torch.device("cuda:1")
    x = torch.ones(2).cuda()
    assert x.cuda() is x and x.cuda(0) is x and x.cpu().device.type == "cpu"
    layer = nn.Linear(2, 2).cuda()
    assert {p.device for p in layer.parameters()} == {x.device} and layer(x).device == x.device
    assert repr(x) == "tensor([1., 1.], device='cuda:0')"
    assert x.type() == "torch.cuda.FloatTensor" == torch.ones(2).type("torch.cuda.FloatTensor").type()
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x.half(), torch.cuda.FloatTensor)


def test_constructors_of_old_make_tensors_and_are_no_longer_recommended():
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match=r"torch.cuda.\*DtypeTensor constructors are no longer recommended"):
            assert torch.cuda.LongTensor([3]).tolist() == [3]
    finally:
        torch.set_warn_always(False)
    with warnings.catch_warnings(record=True) as said:  # at most once a process
        assert [torch.cuda.HalfTensor(2, 3).shape for _ in range(2)] == [(2, 3), (2, 3)]
    assert len(said) <= 1


def test_cuda_as_a_context_and_as_the_default():
    with torch.device("cuda:1"):
        assert torch.ones(2).device == nn.Linear(2, 2).weight.device == torch.tensor([1]).device
        assert torch.ones(2).device == torch.device("cuda:1")
    torch.set_default_device("cuda")
    assert torch.ones(2).device == torch.tensor([1.0]).device == torch.device("cuda:0")
    with torch.cuda.device(1):
        assert torch.ones(2).device == torch.tensor([1.0]).device == torch.device("cuda:1")
        assert torch.cuda.current_device() == 1
    assert torch.get_default_device().type == "cuda"
    torch.set_default_device(None)
    torch.cuda.set_device("cuda:1")
    assert torch.ones(2, device="cuda").device == torch.ones(2).cuda().device == torch.device("cuda:1")
    torch.cuda.set_device(0)


def test_torch_cuda_answers():
    cuda = torch.cuda
    assert cuda.is_available() and cuda.device_count() == 2 and cuda.current_device() == 0
    assert cuda.get_device_name() == "Simulated T4" and cuda.get_device_capability(1) == (7, 5)
    properties = cuda.get_device_properties("cuda:1")
    assert (properties.total_memory, properties.multi_processor_count, properties.warp_size) == (2**30, 40, 32)
    with pytest.raises(AttributeError, match="no property 'clock_rate'"):
        _ = properties.clock_rate
    assert cuda.is_bf16_supported() and not cuda.is_bf16_supported(including_emulation=False)
    assert cuda.get_arch_list() == ["sm_75"] and torch.version.cuda and torch.backends.cuda.is_built()
    assert torch.accelerator.current_accelerator() == torch.device("cuda") and torch.get_device_module() is cuda
    assert torch.accelerator.device_count() == 2 and cuda.can_device_access_peer(0, 1)
    assert cuda.nccl.version()[0] == 2
    cuda.synchronize()
    cuda.empty_cache()
    with cuda.nvtx.range("forward"):
        cuda.profiler.start()
    with pytest.raises(AssertionError, match="Invalid device id"):
        cuda.get_device_properties(7)


@pytest.mark.parametrize(("visible", "seen"), [("-1", 0), ("0", 1), ("1,0", 2), ("0,7", 1), ("", 2)])
def test_a_program_may_hide_gpus_from_itself(visible, seen, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with simgpu.cuda():  # the outer one has looked already
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or os.environ.get("SIMGPU_VISIBLE", ""))
        assert (torch.cuda.device_count(), torch.cuda.is_available()) == (seen, seen > 0)
        torch.cuda.init()
        assert torch.cuda.device_count() == seen
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0" if seen != 1 else "-1")  # too late
        assert torch.cuda.device_count() == seen


@pytest.mark.parametrize("allocator", ["exact", "caching"])
def test_memory_is_counted_and_said_under_cudas_keys(allocator):
    simgpu.configure(allocator=allocator)
    cuda = torch.cuda
    before = cuda.memory_allocated()
    x = torch.zeros(2**20, device="cuda")
    assert cuda.memory_allocated() == before + x.nbytes and cuda.memory_reserved() >= before + x.nbytes
    del x
    assert cuda.memory_allocated() == before and cuda.max_memory_allocated() >= before + 2**22
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated("cuda:0") == before
    stats = cuda.memory_stats()
    named = ("active.all.allocated", "reserved_bytes.all.current", "inactive_split_bytes.small_pool.peak", "num_ooms")
    assert set(named) < set(stats) and len(stats) > 100
    assert stats["allocated_bytes.all.current"] == before <= stats["reserved_bytes.all.current"]
    assert "PyTorch CUDA memory summary, device ID 0" in cuda.memory_summary()
    assert cuda.memory_stats_as_nested_dict()["allocation"]["all"]["allocated"] >= 1
    free, total = cuda.mem_get_info()
    assert total == 2**30 and free <= total - before
    cuda.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocated_bytes.all.allocated"] == 0


def whole(*size):
    return torch.ones(size, dtype=torch.int64, device="cuda")


def _moves_its_gradient(x):
    x.register_hook(lambda gradient: gradient.cpu())
    return x


ERRORS = read_calls("errors", globals())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_cuda_and_never_sim(name):
    words, attempt = ERRORS[name]
    said = outcome(attempt)
    assert re.search(words, said) and "sim:" not in said and "'sim'" not in said


DRAWS = {
    **{name: lambda x, g, name=name: getattr(x, name)(generator=g) for name in (
        "normal_", "uniform_", "random_", "exponential_", "cauchy_", "log_normal_", "bernoulli_", "bernoulli",
    )},
    "geometric_": lambda x, g: x.geometric_(0.5, generator=g),
    "a method that picks": lambda x, g: x.multinomial(1, generator=g),
    "a function that picks": lambda x, g: torch.multinomial(input=x, num_samples=1, generator=g),
    "torch.bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "poisson, by its place": lambda x, g: torch.poisson(x, g),
    "binomial": lambda x, g: torch.binomial(x, x, generator=g),
    "a layer's first values": lambda x, g: nn.init.kaiming_uniform_(x, generator=g),
    "a sampler": lambda x, g: list(torch.utils.data.WeightedRandomSampler(x[0].tolist(), 2, generator=g)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_draws_on_its_own_device(name):
    """`check_generator` of ATen/core/Generator.h compares the types of the devices, on the CPU as on the GPU."""
    draw = DRAWS[name]
    places = ("cpu",) if name == "a sampler" else ("cpu", "cuda")  # which draws on the CPU, wherever its weights are
    for here, there in zip(places, ("cuda", "cpu"), strict=False):
        with pytest.raises(RuntimeError, match=f"Expected a '{here}' device type for generator but found '{there}'"):
            draw(torch.full((2, 2), 0.5, device=here), torch.Generator(there))
        drawn = draw(torch.full((2, 2), 0.5, device=here), torch.Generator(here).manual_seed(3))
        assert name == "a sampler" or drawn.device.type == here


def test_formats_that_cuda_has_are_computed():
    small = whole(2, 2)
    assert (small.float() @ small.float()).sum() == 8 and (small.cpu() @ small.cpu()).sum() == 8
    assert (small[:0] @ small).shape == (0, 2)  # no kernel runs
    assert torch._int_mm(torch.ones(32, 32, dtype=torch.int8, device="cuda"), small.new_ones(32, 8).char())[0, 0] == 32
    with torch.inference_mode(), pytest.raises(NotImplementedError, match="addmm_cuda"):
        torch.mm(small, small)


def test_an_index_out_of_range_is_told_later_as_on_cuda():
    torch.arange(4.0, device="cuda")[torch.tensor([9], device="cuda")]
    with pytest.raises(torch.AcceleratorError, match="CUDA error: device-side assert triggered"):
        torch.cuda.synchronize()
    simgpu.forgive()


def test_streams_and_events():
    a = torch.ones(256, 256, device="cuda")
    side, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != side and side.device == a.device
    start.record()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        a @ a
        end.record()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.current_stream().wait_stream(side)
    a.record_stream(side)
    torch.cuda.synchronize()
    assert side.query() and end.query() and start.elapsed_time(end) > 0
    assert repr(side).startswith("<torch.cuda.Stream device=cuda:0")
    assert torch.cuda.Stream.priority_range() == (0, -3)
    start.record()
    torch.cuda._sleep(3_000_000)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(2.0, rel=0.01)  # milliseconds, at 1500 MHz


def steps(device, *, cast=None, seed=3):
    """Return the losses of three steps of a small model on `device`."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=cast is torch.float16)
    losses = []
    for _ in range(3):
        x, y = torch.randn(32, 8), torch.randint(4, (32,))
        with torch.autocast(torch.device(device).type, dtype=cast, enabled=cast is not None):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def test_training_gives_the_losses_of_the_cpu():
    assert steps("cuda") == pytest.approx(steps("cpu"), rel=1e-6)


def test_clipping_takes_the_gradients_as_a_list_as_on_cuda():
    weights = [nn.Parameter(torch.ones(4, device="cuda")) for _ in range(20)]
    sum(weights).sum().backward()
    with simgpu.timeline() as t:
        nn.utils.clip_grad_norm_(weights, 1.0)
    assert len(t.select("kernel")) < 10 and weights[0].grad[0].item() == pytest.approx(80**-0.5)


def test_pytorch_is_told_whose_the_getters_of_a_tensor_are():
    """Before 2.12 its compiler asks when it is imported, and fails where a getter cannot say."""
    getters = torch.overrides.get_default_nowrap_functions.__wrapped__()
    assert getters and all(getter.__self__.__objclass__ for getter in getters)


def test_autocast_and_its_scaler():
    assert steps("cuda", cast=torch.float16) == pytest.approx(steps("cpu"), rel=0.02)
    w, x = torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda")
    for context in (torch.autocast("cuda"), torch.amp.autocast("cuda", torch.bfloat16)):
        with context:
            kind = torch.get_autocast_dtype("cuda")
            assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled()
            assert (x @ w).dtype is F.linear(x, w).dtype is kind and (x @ w).softmax(-1).dtype is torch.float32
    assert (x @ w).dtype is torch.float32 and torch.amp.GradScaler("cuda").is_enabled()
    with torch.inference_mode(), torch.autocast("cuda"):
        assert nn.Linear(2, 2).cuda()(x).dtype is torch.float16


def test_every_rule_of_cudas_autocast_is_ours_too():
    """C++ would leave a simulated tensor in its format, without a word."""
    ours = {name for names in (autocast._LOWER, autocast._FLOAT32, autocast._PROMOTE) for name in names}
    theirs = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    below = (
        "cudnn_",
        "_cudnn_rnn",
        "_thnn_fused",
        "_convolution.deprecated",
        "_scaled_dot_product_flash",
    )  # no tensor of ours gets to these
    left = {name.removeprefix("aten::") for name in theirs} - ours - {"binary_cross_entropy"}
    left = {name for name in left if "imname" not in name and "names_" not in name}  # of 2.11: refused with names
    assert len(theirs) > 100 and [name for name in left if not name.startswith(below)] == []


def test_batches_come_pinned_from_workers():
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    loader = DataLoader(data, batch_size=2, num_workers=1, pin_memory=True, multiprocessing_context="fork")
    seen = []
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        moved = x.to("cuda", non_blocking=True)
        seen += moved.sum(1).tolist()
    assert seen == [1.0, 5.0, 9.0, 13.0, 17.0, 21.0]
    assert torch.ones(2).pin_memory("cuda").is_pinned()


def test_checkpoints():
    model = nn.Linear(3, 2).cuda(1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "part": model.weight.detach()[1:]}, file)
    places = {"as it was": (None, "cuda:1"), "first": ("cuda:0", "cuda:0"), "cpu": ("cpu", "cpu")}
    places |= {"device": (torch.device("cuda"), "cuda:0"), "rule": (lambda storage, where: storage, "cpu")}
    places |= {"table": ({"cuda:1": "cuda:0"}, "cuda:0")}
    for where, expected in places.values():
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        weight = loaded["model"]["weight"]
        assert loaded["part"].data_ptr() == weight.data_ptr() + 12
        assert str(weight.device) == expected and torch.equal(weight.cpu(), model.weight.cpu())
        storage = weight.untyped_storage()
        assert (storage.device, storage.is_cuda) == (weight.device, expected != "cpu")
    assert copy.copy(model.weight.detach()).device == model.weight.device
    file.seek(0)
    assert b"cuda:1" in file.read()
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"deserialize object on CUDA device 7 but torch.cuda.device_count\(\) is 2"):
        torch.load(file, map_location="cuda:7")


def test_seeds_repeat_numbers():
    torch.cuda.manual_seed_all(5)
    first = torch.rand(3, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.rand(3, device="cuda"), first) and torch.cuda.initial_seed() == 5
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), second)
    with torch.random.fork_rng(devices=["cuda:0"]):
        torch.rand(3, device="cuda")
    assert len(torch.cuda.get_rng_state_all()) == 2


def test_threads_have_their_own_current_gpu_and_see_cuda_too():
    seen, go = {}, threading.Barrier(2)

    def work(index):
        torch.cuda.set_device(index)
        go.wait()
        x = torch.ones(64, device="cuda")
        for _ in range(50):
            x = (x * 1.5).cuda() / 1.5
        go.wait()
        seen[index] = (x.device, x.sum().item(), torch.cuda.current_device(), torch.tensor([1]).cuda().device)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [torch.device("cuda", index) for index in (0, 1)]
    assert seen == {index: (places[index], 64.0, index, places[index]) for index in (0, 1)}
    assert torch.cuda.current_device() == 0


def test_an_addition_calls_few_functions():
    x = torch.ones(4, device="cuda")
    x + x  # what it needs is imported
    assert calls(lambda: x + x) <= 58


@pytest.mark.parametrize("move", [lambda m: m.cuda(), lambda m: m.to("cuda"), lambda m: m.to(torch.device("cuda:0"))])
def test_a_forecast_of_a_program_that_says_cuda(move):
    def ahead(place):
        made = lambda: move(nn.Linear(64, 64)) if place == "cuda" else nn.Linear(64, 64)  # noqa: E731
        return simgpu.forecast(made, lambda: torch.empty(8, 64, device=place), torch.optim.AdamW)

    ours, plain = ahead("cuda"), ahead("cpu")
    assert ours.memory.peak_bytes == plain.memory.peak_bytes > 4 * 64 * 64 * 4
    assert ours.on("T4").total_s == plain.on("T4").total_s
    assert torch.ones(1, device="cuda").is_cuda


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4, 5)])
def test_what_synchronised_batch_norm_calls_gives_the_numbers_of_one_process(shape):
    torch.manual_seed(0)
    x, gradient = torch.randn(shape), torch.randn(shape)
    weight, bias = torch.rand(3) + 0.5, torch.randn(3)
    averages, expected_averages = [[torch.zeros(3), torch.ones(3)] for _ in range(2)]
    leaves = [one.clone().requires_grad_() for one in (x, weight, bias)]
    expected = F.batch_norm(leaves[0], *expected_averages, *leaves[1:], training=True, momentum=0.1)
    expected.backward(gradient)

    x, gradient, weight, bias = (one.cuda() for one in (x, gradient, weight, bias))
    averages = [one.cuda() for one in averages]
    parts, counts = x.split([4, 2]), torch.tensor([4.0, 2.0]).cuda() * x[0, 0].numel()  # of two ranks
    means, invstds = map(torch.stack, zip(*(torch.batch_norm_stats(part, 1e-5) for part in parts), strict=True))
    mean, invstd = torch.batch_norm_gather_stats_with_counts(x, means, invstds, *averages, 0.1, 1e-5, counts)
    found = torch.cat([torch.batch_norm_elemt(part, weight, bias, mean, invstd, 1e-5) for part in parts])
    given = [(g, part, mean, invstd, weight) for g, part in zip(gradient.split([4, 2]), parts, strict=True)]
    reduced = [torch.batch_norm_backward_reduce(*one, True, True, True) for one in given]
    sums = [sum(row) for row in zip(*reduced, strict=True)]
    back = torch.cat([torch.batch_norm_backward_elemt(*one, *sums[:2], counts.int()) for one in given])

    torch.testing.assert_close([found, back, *sums[2:], *averages], [
        one.cuda() for one in (expected.detach(), *(leaf.grad for leaf in leaves), *expected_averages)
    ])  # fmt: skip


def test_one_hot_has_the_numbers_of_the_cpu():
    classes = torch.tensor([[1, 2], [0, 3]])
    for count in (-1, 6):
        assert torch.equal(nn.functional.one_hot(classes.cuda(), count).cpu(), nn.functional.one_hot(classes, count))
    with torch.inference_mode():
        assert nn.functional.one_hot(classes.cuda()).shape == (2, 2, 4)
    assert nn.functional.one_hot(torch.ones(0).long().cuda(), 3).shape == (0, 3)
