"""Is what the timing helper says what the clock said, on the CPU and exactly so on the simulated GPU?"""

import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils import benchmark

import simgpu
from course_utils import gpus, precision, timing
from course_utils.timing import rates
from course_utils.timing.rates import best_tflops, formats, product

CPU = torch.device("cpu")
needs_simulator = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))


def made(times_s, number=1):
    return timing.Timing(tuple(times_s), number, "cpu", "live")


def test_median_and_spread_are_those_of_the_runs():
    t = made([1e-3, 2e-3, 3e-3, 4e-3, 100e-3])
    assert (t.median_s, t.repeats) == (3e-3, 5)
    assert t.iqr_s == pytest.approx(2e-3)  # the quartiles are 2 and 4 ms: one slow run does not matter
    assert str(t) == "median 3.00 ms, spread (IQR) 2.00 ms, 5 runs, live on cpu"
    assert str(t) in t._repr_html_()
    theirs = measured(0.5, 0.1, 0.9, 0.3, 0.7, 0.2)
    assert (made(theirs.times).median_s, made(theirs.times).iqr_s) == pytest.approx((theirs.median, theirs.iqr))
    assert made([2e-6]).iqr_s == 0.0 and "1 run," in str(made([2e-6]))
    assert "2 runs of 1,000 calls" in str(made([1.0, 1.0], 1000))


@pytest.fixture
def passes(monkeypatch):
    """A function that lets time pass on the clock of the helper, which goes on in no other way."""
    now_s = [0.0]
    monkeypatch.setattr("timeit.default_timer", lambda: now_s[0])

    def passes(seconds):
        now_s[0] += seconds

    return passes


@pytest.mark.parametrize("min_time_s", [0.02, 1e-6])  # five runs even where one takes longer than all should
def test_a_call_takes_as_long_as_it_takes_on_the_clock(passes, min_time_s):
    t = timing.measure(lambda: passes(0.004), device=CPU, min_time_s=min_time_s)
    assert t.median_s == pytest.approx(0.004) and t.repeats >= 5
    assert (t.label, t.device) == ("live", "cpu")


def test_the_clock_is_that_of_the_machine():
    assert timing.measure(lambda: time.sleep(0.004), device=CPU, min_time_s=0.02).median_s >= 0.004


def measured(*times_s):
    return benchmark.Measurement(1, list(times_s), benchmark.TaskSpec("fn()", "pass"))


def test_short_calls_are_timed_many_at_once_and_no_more_runs_than_asked_for_with_errors_of_the_caller(passes):
    t = timing.measure(lambda: passes(1e-6), device=CPU, min_time_s=0.02)
    assert t.number >= 10 and t.median_s == pytest.approx(1e-6)
    calls = []
    t = timing.measure(lambda: calls.append(passes(0.002)), device="cpu", min_time_s=0.012, repeats=3)
    assert (t.repeats, t.number) == (3, 2)
    assert len(calls) == 2 + 3 * t.number
    with pytest.raises(ZeroDivisionError):
        timing.measure(lambda: 1 / 0, device=CPU)


@needs_simulator
class TestSimulated:
    @pytest.fixture(autouse=True)
    def _fresh(self):
        simgpu.enable()
        simgpu.reset()
        simgpu.configure(host="kernel launch")  # so that a time is that of a launch and of the GPU alone
        yield
        simgpu.configure(host=simgpu.hosts.DEFAULT)
        simgpu.reset()

    def test_virtual_time_is_exact(self):
        x = torch.ones(1000, 1000, device="sim")
        work_ns = -(-3 * 4_000_000 // 240)  # x + x reads two megabyte arrays, writes one at a T4's best 240 GB/s
        t = timing.measure(lambda: x + x, device="sim:0")
        assert t.times_s == ((5_000 + 2_000 + work_ns) / 1e9,) * 3
        assert t.iqr_s == 0.0 and (t.number, t.label, t.device) == (1, "simulated", "sim:0")
        assert "3 runs, simulated on sim:0 (memory traffic: " in str(t) and t.evidence.regime == "memory traffic"

    def test_queued_work_of_others_is_not_counted(self):
        x = torch.ones(1000, 1000, device="sim")
        alone = timing.measure(lambda: x + x, device="sim").median_s
        for _ in range(50):
            x * x
        assert timing.measure(lambda: x + x, device="sim", repeats=1).times_s == (alone,)

    def test_the_first_call_does_not_count(self):
        x, calls = torch.ones(100, device="sim"), []

        def fn():
            calls.append(1)
            for _ in range(100 if len(calls) == 1 else 1):
                x + x

        assert timing.measure(fn, device="sim", repeats=2).median_s < 20e-6

    def test_the_other_simulated_gpu_is_waited_for(self):
        x = torch.ones(1000, 1000, device="sim:1")
        t = timing.measure(lambda: x + x, device="sim:1")
        assert t.device == "sim:1" and t.median_s > 40e-6

    def test_host_time_of_a_simulated_operator_is_refused_and_so_is_an_idle_device(self):
        x = torch.ones(4, device="sim")
        with pytest.raises(ValueError, match="device is 'cpu', but fn used the simulated GPU"):
            timing.measure(lambda: x + x, device="cpu")
        with pytest.raises(ValueError, match="device is 'sim:0', but fn gave it nothing to do"):
            timing.measure(lambda: 1, device="sim:0")
        with pytest.raises(ValueError, match="device is 'sim:1', but fn gave it nothing to do"):
            timing.measure(lambda: x + x, device="sim:1")  # the host's launch takes time, the GPU has no part in it

    def test_measuring_the_cpu_leaves_the_virtual_clock_alone(self):
        x = torch.ones(100)
        before = simgpu.clock_ms()
        timing.measure(lambda: x + x, device="cpu", min_time_s=0.001)
        assert simgpu.clock_ms() == before

    def test_the_simulated_roofline_is_that_of_the_data_sheet_it_follows(self):
        simgpu.configure(spec="A100 40GB PCIe" if gpus.find("A100 40GB PCIe") else "L4")
        spec = gpus.get(torch.sim.get_device_name(0).removeprefix("Simulated "))
        found = timing.roofline("sim")
        assert found.label == "simulated" and found.bandwidth_gbps == spec.bandwidth_gbps
        assert found.rates_tflops["fp16"] == spec.peak_tflops["fp16"] and "int8" not in found.rates_tflops


# seconds of each product of 128, 256, … rows; the last is the one after which the search ends
SEARCHES = {
    "2 GFLOP/s, so that 512 rows take 0.13 s": ([0.0021, 0.0168], 2 * 128**3 / 0.0021),
    "one disturbed product does not end the search": ([0.016, 0.0002, 0.02, 0.03], 2 * 256**3 / 0.0002),
    "all sizes": ([1e-4, 2e-4, 5e-4, 2e-3, 9e-3], 2 * 2048**3 / 9e-3),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_the_best_rate_is_found_before_a_product_takes_too_long(monkeypatch, case):
    seconds, expected = SEARCHES[case]
    rows, left = [], list(seconds)

    def measured(fn, **_):
        rows.append(len(fn()))
        return made([left.pop(0)])

    monkeypatch.setattr("course_utils.timing.rates.measure", measured)
    assert best_tflops("fp32", CPU) == pytest.approx(expected / 1e12)
    assert not left and rows == [128, 256, 512, 1024, 2048][: len(seconds)]


@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp16"])
def test_a_product_is_computed_in_its_format(fmt):
    assert product(fmt, 16, CPU)().dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[fmt]


def test_the_precision_of_float32_products_comes_back(monkeypatch):
    monkeypatch.setattr("course_utils.timing.rates.SIZES", {"cpu": (16,)})
    before = precision.read()
    torch.set_float32_matmul_precision("medium")
    try:
        assert best_tflops("fp32", CPU) > 0
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        precision.put_back(before)


@pytest.mark.parametrize(("copy_s", "sum_s", "moved"), [(2e-3, 4e-3, 2), (2e-3, 2e-3, 3)])
def test_the_bandwidth_is_bytes_over_the_time_of_the_faster_of_copy_and_sum(monkeypatch, copy_s, sum_s, moved):
    monkeypatch.setattr("course_utils.timing.rates._COPY_BYTES", {"cpu": 4096})
    monkeypatch.setattr("course_utils.timing.rates.formats", lambda device: ())
    seconds = iter([copy_s, sum_s])
    monkeypatch.setattr("course_utils.timing.rates.measure", lambda fn, **_: (fn(), made([next(seconds)]))[1])
    assert timing.roofline(CPU).bandwidth_gbps == pytest.approx(moved * 4096 / 2e-3 / 1e9)


def test_a_device_with_little_memory_gets_small_arrays(monkeypatch):
    sizes = []
    monkeypatch.setattr("course_utils.timing.rates.SIZES", {"cpu": (16, 32)})
    monkeypatch.setattr("course_utils.timing.rates._free_bytes", lambda device: 6 * 1024)
    monkeypatch.setattr("course_utils.timing.rates.formats", lambda device: ("fp32",))
    monkeypatch.setattr("course_utils.timing.rates.measure", lambda fn, **_: (sizes.append(fn().nbytes), made([1]))[1])
    timing.roofline(CPU)
    assert sizes == [4 * 16 * 16, 1024, 1024]  # one product, a copy, a sum


def test_a_device_that_does_not_say_how_much_is_free_has_what_is_not_reserved(monkeypatch):
    """Integrated Intel GPUs raise this error."""

    def mem_get_info(device):
        raise RuntimeError("The device (Intel(R) Graphics) doesn't support querying the available free memory.")

    module = SimpleNamespace(
        empty_cache=lambda: None,
        mem_get_info=mem_get_info,
        get_device_properties=lambda device: SimpleNamespace(total_memory=100),
        memory_reserved=lambda device: 30,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert rates._free_bytes(torch.device("xpu")) == 70


def test_the_roofline_is_the_lower_of_its_two_bounds_and_a_predicted_one_that_of_the_data_sheet():
    r = timing.Roofline(100.0, {"fp32": 2.0, "fp16": 8.0}, "live", "cpu")
    assert r.ridge("fp32") == 20.0 and r.ridge("fp16") == 80.0
    assert r.attainable_tflops(5.0, "fp32") == 0.5 and r.attainable_tflops(1000.0, "fp32") == 2.0
    assert r.attainable_tflops(0.0) == 0.0 and r.attainable_tflops(20.0) == 2.0
    assert [r.bound(i, "fp16") for i in (79.9, 80.0, 81.0)] == ["bandwidth", "compute", "compute"]
    assert "cpu, live: 100 GB/s" in str(r) and "ridge at 80 FLOP/byte" in str(r)
    assert r._repr_html_().count("<tr>") == 3
    r = timing.predicted("T4")
    assert (r.bandwidth_gbps, r.label, r.device) == (320, "predicted", "T4")
    assert r.rates_tflops == {"fp32": 8.1, "fp16": 65.0}


def test_the_live_roofline_has_every_format_of_the_cpu(monkeypatch):
    monkeypatch.setattr("course_utils.timing.rates.SIZES", {"cpu": (16, 32)})
    monkeypatch.setattr("course_utils.timing.rates._COPY_BYTES", {"cpu": 2**20})
    r = timing.roofline("cpu")
    assert r.label == "live" and tuple(r.rates_tflops) == formats(CPU) == ("fp32", "fp16", "bf16")
    assert r.bandwidth_gbps > 0 and all(rate > 0 for rate in r.rates_tflops.values())


@pytest.mark.parametrize(("capability", "expected"), [
    ((7, 5), ("fp32", "fp16")),
    ((8, 0), ("fp32", "tf32", "fp16", "bf16")),
    ((8, 9), ("fp32", "tf32", "fp16", "bf16", "fp8")),
    ((12, 0), ("fp32", "tf32", "fp16", "bf16", "fp8")),
])  # fmt: skip
def test_formats_of_a_cuda_device_follow_its_capability(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("course_utils.timing.rates._works", lambda fmt, _: fmt != "fp16")
    assert formats(torch.device("cuda:0")) == tuple(fmt for fmt in expected if fmt != "fp16")


def test_a_format_without_a_kernel_is_left_out(monkeypatch):
    def no_kernel(fmt, size, device):
        if fmt == "bf16":
            raise NotImplementedError("no such kernel")
        return lambda: None

    monkeypatch.setattr("course_utils.timing.rates.product", no_kernel)
    assert formats(CPU) == ("fp32", "fp16")


def test_the_product_in_fp8_is_that_of_the_rounded_numbers():
    torch.manual_seed(0)
    a, b = (torch.randn(32, 32).to(torch.float8_e4m3fn).float() for _ in range(2))
    torch.manual_seed(0)
    try:
        got = product("fp8", 32, CPU)()
    except NotImplementedError:
        pytest.skip("this torch has no product in fp8 on the CPU")
    assert torch.allclose(got.float(), a @ b.t(), rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: timing.measure(3, device="cpu"), "fn is 3, it must be a function"),
    (lambda: timing.measure(print, device="cuda:99"), "device is 'cuda:99', which this machine does not have"),
    (lambda: timing.measure(print, device="cpu", repeats=0), "repeats must be at least 1, not 0"),
    (lambda: timing.predicted("T5"), "gpu is 'T5'"),
    (lambda: timing.predicted("Apple M4 Max"), "gpu is 'Apple M4 Max', whose maker states no rates"),
    (lambda: timing.predicted("T4").ridge("bf16"), "dtype is 'bf16', T4 has a rate for: fp32, fp16"),
    (lambda: timing.predicted("T4").attainable_tflops(-1), "intensity_flops_per_byte must be at least 0, not -1"),
])  # fmt: skip
def test_wrong_arguments_are_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
