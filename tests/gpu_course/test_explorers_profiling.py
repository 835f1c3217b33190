"""Is the explorer of lesson 06 right? `bottleneck` is compared with sums by hand."""

import pytest

from gpu_course.lesson06.explorers import bottleneck
from tests.gpu_course.explorer_settings import settings
from tests.simgpu.conftest import _available, _fresh  # noqa: F401


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
