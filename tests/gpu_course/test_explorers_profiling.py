"""Are the explorers of lesson 06 right? `pace` is compared with the simulated GPU, `bottleneck` with sums by hand."""

import pytest
import torch

import simgpu
from gpu_course.lesson06.explorers import bottleneck, pace
from tests.gpu_course.explorer_settings import settings
from tests.simgpu.conftest import _available, _fresh  # noqa: F401


@pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
@pytest.mark.parametrize(("launch", "kernel", "every"), [(5, 20, 0), (5, 20, 1), (5, 20, 8), (10, 5, 4), (5, 2, 16)])
def test_the_pace_is_that_of_the_simulated_gpu(launch, kernel, every):
    simgpu.configure(host=simgpu.Host.of_launches(launch), costs=simgpu.Costs(kernel_ns=kernel * 1000))
    x = torch.zeros(1, device="sim")
    torch.sim.synchronize()
    with simgpu.timeline() as timeline:
        for number in range(1, pace.KERNELS + 1):
            x.add_(1)
            if number == pace.KERNELS or (every and number % every == 0):
                x.item()
    predicted = pace.pace(launch_us=float(launch), kernel_us=float(kernel), every=every)
    assert timeline.total_ns / 1e3 == pytest.approx(predicted.total_us, rel=1e-3)
    assert len(timeline.select("wait")) == len(predicted.reads)


def test_no_kernel_begins_before_its_launch_or_beside_another():
    for setting in settings(pace.explore()):
        p = pace.pace(**setting)
        ends = [sum(kernel) for kernel in p.kernels]
        for launch, kernel, end in zip(p.launches, p.kernels, [0.0, *ends], strict=False):
            assert kernel[0] == pytest.approx(max(sum(launch), end))
        assert 0 < p.busy <= 1 and p.total_us > ends[-1]


def step(*repaired, **more):
    given = bottleneck.explore().defaults | more
    return bottleneck.bottleneck(**given | {name: name in repaired for name in bottleneck.REPAIRS})


def test_a_step_is_the_slowest_of_host_gpu_bus_and_workers():
    parts = {"load_ms": 10.0, "copy_ms": 2.0, "launch_ms": 6.0, "compute_ms": 8.0}
    assert step(**parts).step_ms == 10 + 2 + 6 + 2  # the GPU computes while the host launches, then the host waits
    assert step("unread", **parts).step_ms == 18
    assert step("workers", "unread", **parts).step_ms == 8 and step("workers", "unread", **parts).limit == "computing"
    assert step("workers", "smaller", "unread", **parts | {"compute_ms": 0.1}).limit == "launching"
    assert step(*bottleneck.REPAIRS, **parts | {"load_ms": 80.0}).limit == "loading"


def test_a_repair_never_makes_a_step_longer_and_all_together_reach_the_pace_of_one_part():
    for setting in settings(bottleneck.explore()):
        given = {name: value for name, value in setting.items() if name not in bottleneck.REPAIRS}
        on = tuple(name for name in bottleneck.REPAIRS if setting[name])
        for more in bottleneck.REPAIRS:
            assert step(*on, more, **given).step_ms <= step(*on, **given).step_ms + 1e-9
        best = step(*bottleneck.REPAIRS, **given)
        parts = (given["load_ms"] / 8, given["copy_ms"] / 8, given["launch_ms"] / 6, given["compute_ms"])
        assert best.step_ms == pytest.approx(max(parts)) and best.limit in bottleneck.describe(best)
