"""Is the virtual clock what its formulas say? Closed forms for small programs, each to the last nanosecond."""

import math

import pytest
import torch
from torch import nn

import simgpu
from simgpu import gpus
from simgpu.device import enabling

C = simgpu.Costs()
LIGHT_NS, LIBRARY_NS, COPY_NS, READ_NS = map(
    simgpu.hosts.DEFAULT.price_ns, ("bare light", "bare library", "copy", "read")
)
T4 = gpus.get("T4")


def ns(function):
    """Return what the host's clock shows after `function` and a synchronisation of both GPUs."""
    simgpu.reset()
    function()
    torch.sim.synchronize(0)
    torch.sim.synchronize(1)
    return round(simgpu.clock_ms() * 1e6)


def moving(nbytes, spec=T4):
    return math.ceil(nbytes / min(spec.bandwidth_gbps * C.bandwidth_share, spec.best_copy_gbps or math.inf))


def elementwise(nbytes, spec=T4):
    return C.kernel_ns + moving(nbytes, spec)


def test_launch_bound_and_bandwidth_bound():
    small, large = torch.ones(1, device="sim"), torch.ones(2**20, device="sim")
    # kernels shorter than the host's time for them: it is the bottleneck, and the last kernel stands alone at the end
    assert ns(lambda: [small + 1 for _ in range(100)]) == 100 * LIGHT_NS + elementwise(8)
    assert (length := elementwise(2 * large.nbytes)) > LIGHT_NS
    assert ns(lambda: [large + 1 for _ in range(10)]) == LIGHT_NS + 10 * length


def test_arrays_of_bare_operators_that_fit_into_a_cache_are_faster_than_memory():
    """Published of an A100: it reads and writes 3,900 GB/s in its cache of 40 MB, until 28 MB."""

    class Adds(nn.Module):
        def forward(self, x):
            return x.add_(1)

    def gbps(spec, mib, add=lambda x: x.add_(1)):
        simgpu.reset()
        simgpu.configure(spec=spec)
        x = torch.ones(2**18 * mib, device="sim")
        with simgpu.timeline() as seen:
            add(x)
        (kernel,) = (one for one in seen.records if one.kind == "kernel")
        return 2 * x.nbytes / (kernel.duration_ns - C.kernel_ns)

    fits, half, beyond = (gbps("A100 80GB", mib) for mib in (12, 18, 64))
    assert fits == pytest.approx(3_900, rel=0.01) and fits > half > beyond == pytest.approx(1_610, rel=0.01)
    assert gbps("A100 80GB", 12, Adds()) == pytest.approx(beyond, rel=0.01)  # a model's other arrays push them out
    assert gbps("B200", 12) < 7_700  # of whose cache nobody has said so


def test_a_result_that_has_its_place_already_is_written_and_not_read():
    x, y = torch.ones(2, 2**20, device="sim")
    once = LIGHT_NS + elementwise(2 * x.nbytes)
    for function in (lambda: x + 1, lambda: x.add_(1), lambda: torch.add(x, 1, out=y)):
        assert ns(function) == once


def test_a_call_that_was_there_before_costs_what_it_did_until_something_is_set_otherwise():
    x, whole = torch.ones(2**20, device="sim"), torch.arange(2**20, device="sim")
    for call in (lambda: x + 1, lambda: x.add_(1), lambda: x.view(2, -1), lambda: x.sum()):
        assert len({ns(call) for _ in range(3)}) == 1
    for dtype in (torch.float64, torch.float32, torch.float64):  # of a quotient of whole numbers
        torch.set_default_dtype(dtype)
        try:
            assert (whole / 2).dtype is dtype
            assert ns(lambda: whole / 2) == LIGHT_NS + elementwise(whole.nbytes + whole.numel() * dtype.itemsize)
        finally:
            torch.set_default_dtype(torch.float32)
    for spec in ("RTX 4090", "T4", "RTX 4090"):
        simgpu.reset()
        simgpu.configure(spec=spec)
        x + 1
        x.add_(1)
        torch.sim.synchronize()
        length = elementwise(2 * x.nbytes, gpus.get(spec))
        assert round(simgpu.clock_ms() * 1e6) == max(2 * LIGHT_NS, LIGHT_NS + length) + length


def test_a_tensor_whose_shape_changed_is_not_taken_for_what_it_was():
    x, y = torch.ones(2, 8, device="sim"), torch.ones(8, 2, device="sim")
    for _ in range(2):
        x + x
        y.add_(y)
    x.resize_(8, 2)
    assert (x + y).shape == (8, 2)
    y.transpose_(0, 1)
    assert (y * 2).shape == (2, 8)
    x.data = y
    assert (x + y).shape == (2, 8)
    assert torch.equal((x + y).cpu(), x.cpu() + y.cpu())


@pytest.mark.parametrize("dtype, peak", [(torch.float32, "fp32"), (torch.float16, "fp16"), (torch.float64, "fp64")])
def test_compute_bound(dtype, peak):
    a = torch.ones(768, 768, dtype=dtype, device="sim")
    peak_tflops = T4.peak_tflops.get(peak, T4.peak_tflops["fp32"])
    of_watts = T4.power_w * 0.32 / {"fp16": 1, "fp32": 5, "fp64": 5}[peak]  # TFLOP/s; fp64 is priced as fp32
    arithmetic = math.ceil(2 * 768**3 / (min(peak_tflops * C.matrix_share, of_watts) * 1_000))
    traffic = moving(3 * a.nbytes)
    assert ns(lambda: a @ a) == LIBRARY_NS + C.kernel_ns + max(arithmetic, traffic)


@pytest.mark.parametrize("hidden, step_ns", [(8, C.kernel_ns), (256, C.recurrent_ns + 256 * C.state_ns)])
def test_the_steps_of_an_lstm_follow_each_other(hidden, step_ns):
    """Its flops could run at once, but each of its steps needs the one before; a wide one reads its weight again."""
    lstm = torch.nn.LSTM(4, hidden, device="sim")
    times = {}
    for steps in (1, 1001):
        x = torch.ones(steps, 1, 4, device="sim")
        with torch.no_grad():
            lstm(x)
            times[steps] = ns(lambda x=x: lstm(x))
    weight, one_step = 4 * hidden * hidden * 4, 4 * (4 + hidden)  # bytes: recurrent weight; x and output of a step
    expected = 1000 * step_ns + moving(1000 * (weight * (hidden > 8) + one_step))
    assert times[1001] - times[1] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("pinned", [False, True])
def test_copy_bound(pinned):
    x = torch.ones(2**20)
    x = x.pin_memory() if pinned else x
    rate_gbps = T4.bus_gbps * (C.bus_share if pinned else C.pageable_share)
    expected = COPY_NS + C.copy_ns + math.ceil(2**22 / rate_gbps)
    assert ns(lambda: x.to("sim")) == expected
    y = x.to("sim")
    there = COPY_NS + C.copy_ns + math.ceil(2**22 / (T4.bus_gbps * C.pageable_share))
    assert ns(y.cpu) == there


def test_only_pinned_and_non_blocking_copies_let_the_host_go_on():
    for pinned, non_blocking in ((False, False), (False, True), (True, False), (True, True)):
        x = torch.ones(2**20).pin_memory() if pinned else torch.ones(2**20)
        simgpu.reset()
        x.to("sim", non_blocking=non_blocking)
        waits = simgpu.clock_ms() * 1e6 > COPY_NS
        assert waits == (not (pinned and non_blocking))


def test_only_a_mask_makes_the_host_wait_for_the_size_of_what_it_picks():
    x, index = torch.ones(4, 4, device="sim"), torch.tensor([0, 2], device="sim")
    for pick, waits in ((index, False), (index == 0, True)):
        rows = x[:2] if waits else x
        with simgpu.timeline() as timeline:
            rows[pick]
        assert bool(timeline.select("wait")) == waits


def test_reading_a_number_waits_for_the_device():
    x, y = torch.ones(2**20, device="sim"), torch.ones((), device="sim")
    kernel = elementwise(2 * 2**22)
    assert ns(lambda: (x + 1, y.item())) == LIGHT_NS + max(READ_NS, kernel) + C.read_ns
    assert ns(y.item) == READ_NS + C.read_ns == 15_000  # published: 11, and 5 to 20 µs


def test_two_devices_work_at_the_same_time():
    a, b = torch.ones(2**21, device="sim:0"), torch.ones(2**21, device="sim:1")
    length = elementwise(2 * 2**23)
    one = ns(lambda: [a + 1 for _ in range(8)])
    two = ns(lambda: [(a + 1, b + 1) for _ in range(8)])
    assert one == LIGHT_NS + 8 * length
    assert two == 2 * LIGHT_NS + 8 * length  # the second GPU starts one operator later


def test_streams_overlap_copy_and_compute():
    host, x = torch.ones(2**21).pin_memory(), torch.ones(2**22, device="sim")
    copy = C.copy_ns + math.ceil(2**23 / (T4.bus_gbps * C.bus_share))
    kernel = elementwise(2 * 2**24)

    def one_queue():
        host.to("sim", non_blocking=True)
        x + 1

    def two_queues():
        with torch.sim.stream(torch.sim.Stream()):
            host.to("sim", non_blocking=True)
        x + 1

    assert ns(one_queue) == COPY_NS + copy + kernel
    assert ns(two_queues) == COPY_NS + max(copy, LIGHT_NS + kernel)


def test_events_measure_the_queue_and_order_streams():
    x = torch.ones(2**20, device="sim")
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    torch.sim.synchronize()
    simgpu.reset()
    start.record()
    for _ in range(5):
        x + 1
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) == (LIGHT_NS + 5 * elementwise(2 * 2**22)) / 1e6
    side = torch.sim.Stream()
    x + 1
    side.wait_event(torch.sim.current_stream().record_event())
    with simgpu.timeline() as timeline, torch.sim.stream(side):
        x + 1
    assert timeline.select("kernel")[0].duration_ns == elementwise(2 * 2**22)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.sim.Event().elapsed_time(end)


@pytest.mark.parametrize("name", ["L4", "RTX 3090", "B200"])
def test_the_same_program_on_another_gpu(name):
    x, spec = torch.ones(2**22, device="sim"), gpus.get(name)
    simgpu.configure(spec=name)
    before = torch.sim.synchronize() or simgpu.clock_ms()
    torch.sim.synchronize((x + 1).device)
    elapsed = round((simgpu.clock_ms() - before) * 1e6)
    assert elapsed == LIGHT_NS + elementwise(2 * x.nbytes, spec)


def training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(32, 64).to("sim")).square().mean().backward()
        optimizer.step()


def test_the_clock_repeats_to_the_last_digit_and_memory_that_is_only_reserved_costs_no_time():
    assert len({ns(training) for _ in range(3)}) == 1
    assert ns(lambda: torch.empty(2**20, device="sim")) == 0


def test_a_timelines_totals():
    with simgpu.timeline() as timeline:
        training()
        torch.sim.synchronize()
    kernels, launches = timeline.select("kernel"), timeline.select("launch")
    assert len(launches) == len(kernels) + len(timeline.select("copy"))
    assert timeline.busy_ms() == pytest.approx(sum(k.duration_ns for k in kernels) / 1e6)
    assert timeline.waited_ms == sum(w.duration_ns for w in timeline.select("wait")) / 1e6
    assert timeline.utilisation() == pytest.approx(timeline.busy_ms() / timeline.total_ms)
    assert {k.name for k in kernels} >= {"addmm", "mm", "threshold_backward"}
    assert {k.bound for k in kernels} == {"latency"}
    assert sum(k.flops for k in kernels if k.name == "addmm") == 3 * 2 * 32 * (64 * 64 + 64 * 8)
    assert "sim:0" in str(timeline) and "sim:1" not in str(timeline)


@pytest.mark.parametrize("function", [simgpu.enable, simgpu.configure])
@pytest.mark.parametrize(("arguments", "error", "phrase"), [
    ({"spec": "T5"}, ValueError, "spec is 'T5', which is not in the table; it may be one of: T4"),
    ({"spec": 4}, TypeError, "spec is a int, it must be a string"),
    ({"capacity": "lots"}, ValueError, "capacity must be a positive number of bytes or text .* not 'lots'"),
    ({"gpus": "2"}, TypeError, "gpus must be a whole number, not '2'"),
    ({"gpus": 17}, ValueError, "gpus must be at most 16, not 17"),
    ({"gpus": 3}, ValueError, "gpus is 2 already"),
    ({"costs": 3}, TypeError, "costs must be simgpu.Costs, not 3"),
    ({"costs": simgpu.Costs(kernel_ns=-1)}, ValueError, "costs.kernel_ns must be .* not -1"),
    ({"host": "a desk"}, ValueError, "host is 'a desk', which is not in the table; it may be a number"),
    ({"host": 3}, TypeError, "host must be a name or a simgpu.Host, such as simgpu.Host.25., not 3"),
    ({"costs": simgpu.Costs(pageable_share=0)}, ValueError, "costs.pageable_share must be .* not 0"),
])  # fmt: skip
def test_wrong_arguments_are_named_and_change_nothing(function, arguments, error, phrase):
    if set(arguments) & ({"costs"} if function is simgpu.enable else {"gpus"}):
        error, phrase = TypeError, "unexpected keyword argument"
    before = dict(enabling.chosen()), simgpu.settings()
    with pytest.raises(error, match=phrase):
        function(**{"spec": "L4", **arguments} if "gpus" not in arguments else arguments)
    assert before == (enabling.chosen(), simgpu.settings())
    assert set(simgpu.settings().capacity_bytes) == {2**30}


def test_convolutions_in_float32_are_rounded_as_cuda_does_by_default():
    """Products keep float32 unless asked; only a GPU that has TF32 gains."""
    image, kernel = torch.ones(64, 64, 64, 64, device="sim"), torch.ones(64, 64, 3, 3, device="sim")
    flops = 2 * image.numel() * 64 * 9

    def conv_ns(spec, allowed):
        simgpu.configure(spec=spec)
        with torch.backends.cudnn.flags(allow_tf32=allowed), simgpu.timeline() as timeline:
            torch.conv2d(image, kernel, padding=1)
        return timeline.select("kernel")[0].duration_ns

    plain, rounded = conv_ns("A100 80GB", False), conv_ns("A100 80GB", True)
    assert plain > flops / 19.5e3 > rounded and conv_ns("T4", False) == conv_ns("T4", True)
