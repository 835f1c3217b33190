"""Do the explorers of lessons 01 and 02 hold over their whole grids, and do their pictures show their numbers?"""

import pytest

import simgpu
from course_utils import gpus, recorded
from gpu_course.lesson01.explorers import choose_gpu
from gpu_course.lesson02.explorers import transfer
from tests.gpu_course.explorer_settings import settings


def test_a_transfer_is_latency_and_bytes_over_the_rate_in_every_setting():
    for setting in settings(transfer.explore()):
        t = transfer.transfer(**setting)
        rate = gpus.get(setting["gpu"]).bus_gbps * 1e9 * (1 if setting["pinned"] else 0.5)
        assert t.total_s == pytest.approx(setting["pieces"] * 22e-6 + setting["nbytes"] / rate)
        assert 0 < t.reached_gbps < t.rate_gbps
        assert t.total_s >= transfer.transfer(**{**setting, "pieces": 1}).total_s
        assert t.total_s >= transfer.transfer(**{**setting, "pinned": True}).total_s


def test_the_constants_are_those_of_the_simulated_gpu():
    costs = simgpu.Costs()
    assert (simgpu.hosts.DEFAULT.price_ns("copy") + costs.copy_ns) * 1e-9 == pytest.approx(transfer.LATENCY_S)
    assert costs.pageable_share == transfer.PAGEABLE_SHARE


def test_the_picture_of_a_transfer_shows_predicted_live_and_recorded_curves_each_in_its_style():
    xs = [2.0**n for n in range(8, 21)]
    entry = {"x": xs, "curves": {"pinned": [x / 1e6 for x in xs]}, "xlabel": "bytes", "ylabel": "GB/s"}
    made_up = recorded.Run("A GPU", "2026-01-02", dict.fromkeys(("torch", "cuda", "driver", "python"), "1"), {})
    made_up.entries[transfer.KEY] = entry
    t = transfer.transfer(
        nbytes=2**26, pieces=64, pinned=True, gpu="T4", live={2**10: 2e-5, 2**20: 2e-4}, runs=[made_up]
    )
    curves, parts = transfer.draw(t).axes
    lines = {line.get_label(): line for line in curves.lines}
    predicted, live = lines["T4, predicted"], lines["this machine, live"]
    known = next(line for label, line in lines.items() if "recorded on A GPU, 2026-01-02" in label)
    assert [line.get_linestyle() for line in (predicted, live, known)] == [":", "-", "--"]
    for x, y in predicted.get_xydata():
        assert y == pytest.approx(x / (22e-6 + x / 15.75e9) / 1e9)
    assert list(live.get_ydata()) == pytest.approx([2**10 / 2e-5 / 1e9, 2**20 / 2e-4 / 1e9])
    assert list(lines["this transfer"].get_xdata()) == [2**20]
    expected_s = [t.bus_s, t.bus_s, t.latency_s, t.latencies_s]
    assert [bar.get_height() / 1e3 for bar in parts.patches] == pytest.approx(expected_s)


def test_choices_hold_in_every_setting_and_a_power_limit_that_no_gpu_meets_leaves_none():
    for setting in settings(choose_gpu.explore()):
        found = choose_gpu.choose(**setting)
        assert found.candidates
        fitting = [c for c in found.candidates if c.fits and c.step_s is not None]
        assert [c.step_s for c in fitting] == sorted(c.step_s for c in fitting)
        assert all(c.fits == (found.need_gib <= c.memory_gib) for c in found.candidates)
        if setting["watts"] < float("inf"):
            assert all(c.power_w <= setting["watts"] for c in found.candidates)
        assert found.best is None or found.best is fitting[0]
        assert "Predicted" in choose_gpu.describe(found)
    found = choose_gpu.choose(job="training", parameters=1e9, fmt="fp32", tokens=1, watts=1)
    assert found.candidates == () and found.best is None and "no GPU of this table" in choose_gpu.describe(found)
    choose_gpu.draw(found)
    for job, what in (("training", "arithmetic"), ("generating text", "memory traffic")):  # the words of the legend
        found = choose_gpu.choose(job=job, parameters=1e9, fmt="fp32", tokens=4096 if job == "training" else 1)
        named = [text.get_text() for text in choose_gpu.draw(found).axes[1].get_legend().get_texts()]
        assert f"limited by {what}." in choose_gpu.describe(found) and what in named


@pytest.mark.parametrize(("job", "fmt", "bytes_each"), [
    ("training", "fp32", 16), ("training", "bf16", 16), ("generating text", "fp32", 4), ("generating text", "fp16", 2),
])  # fmt: skip
def test_bytes_for_each_parameter(job, fmt, bytes_each):
    assert choose_gpu.choose(job=job, parameters=2**30, fmt=fmt, tokens=1).need_gib == bytes_each


@pytest.mark.parametrize(("wrong", "message"), [
    ({"job": "x"}, "job is 'x', it may be one of: training"), ({"fmt": ["fp32"]}, "fmt is .*, it may be one of: bf16"),
    ({"parameters": 0}, "parameters must be a number above 0"), ({"parameters": "1"}, "parameters must be .* '1'"),
    ({"tokens": 0}, "tokens must be at least 1, not 0"), ({"tokens": "1"}, "tokens must be .* not '1'"),
    ({"watts": -1}, "watts must be .* not -1"), ({"watts": None}, "watts must be .* not None"),
])  # fmt: skip
def test_a_wrong_job_is_named(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        choose_gpu.choose(**{"job": "training", "parameters": 1, "fmt": "fp32", "tokens": 1, **wrong})
