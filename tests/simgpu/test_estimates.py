"""Is the estimated time of a step that of the simulated clock, and how far is it from what others measured?"""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import devices, gpus, models, plots, timing
from course_utils.timing import published
from simgpu import control
from tests.simgpu.simulated import _fresh  # noqa: F401

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))


def images():
    return torch.zeros(4, 1, 12, 12), torch.zeros(4, dtype=torch.long)


def text():
    return torch.zeros(3, 16, dtype=torch.long), torch.zeros(3, 16, dtype=torch.long)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def transformer():
    return models.TransformerLM(width=32, layers=2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def on_the_simulated_gpu(make_model, make_batch, make_optimizer, step, spec):
    """Return the seconds of a second step on `sim`, the batch there already."""
    simgpu.configure(spec=spec)
    model, batch = make_model().to("sim"), [tensor.to("sim") for tensor in make_batch()]
    optimizer = make_optimizer(model.parameters()) if make_optimizer else None
    for _ in range(2):
        torch.sim.synchronize()
        control.world().restart()
        step(model, batch, optimizer)
    torch.sim.synchronize()
    return simgpu.clock_ms() / 1e3


def half_precision(model, batch, optimizer):
    optimizer.zero_grad()
    with torch.autocast("sim", torch.float16):
        loss = F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("spec", ["T4", "H100 SXM"])
@pytest.mark.parametrize("step", [simgpu.usual_step, half_precision])
@pytest.mark.parametrize("make_optimizer", [torch.optim.AdamW, sgd])
@pytest.mark.parametrize(("make_model", "make_batch"), [(convolutions, images), (transformer, text)])
def test_an_estimate_is_what_the_simulated_clock_shows(make_model, make_batch, make_optimizer, step, spec):
    shown_s = on_the_simulated_gpu(make_model, make_batch, make_optimizer, step, spec)
    estimate = timing.estimate(make_model, make_batch, make_optimizer, step, spec=spec)
    assert estimate.total_s == pytest.approx(shown_s, abs=3e-9)
    assert ("fp16" in estimate.formats) == (step is half_precision)


def test_inference_under_the_callers_contexts():
    def infer(model, batch, optimizer):
        with torch.inference_mode(), torch.autocast("sim", torch.float16):
            return model(batch[0])

    def make_model():
        return convolutions().eval()

    expected_s = on_the_simulated_gpu(make_model, images, None, infer, "T4")
    assert timing.estimate(make_model, images, step=infer, spec="T4").total_s == pytest.approx(expected_s, abs=3e-9)
    forward = lambda model, batch, optimizer: model(batch[0])  # noqa: E731
    for mode in (torch.inference_mode, torch.no_grad):
        for kind in ("cuda", "sim", "cpu"):  # "cuda" is switched off by PyTorch, with a warning, where there is none
            with pytest.warns(UserWarning) if kind == "cuda" else mode(), mode():
                autocast = torch.autocast(kind, torch.float16)
            with mode(), autocast:
                half = timing.estimate(make_model, images, step=forward, spec="T4")
            assert half.total_s == pytest.approx(expected_s, abs=3e-9), (mode, kind)
            assert "fp16" in half.formats
        with mode():
            assert timing.estimate(make_model, images, step=forward, spec="T4").formats[0] != "fp16"


def test_what_an_estimate_tells():
    e = timing.estimate(transformer, text, torch.optim.AdamW, spec="RTX 4090")
    assert e.total_s == pytest.approx(sum(r.duration_ns for r in e.records if r.kind == "launch") / 1e9, rel=0.1)
    for shares in (e.by_kernel, e.by_kind):
        assert sum(share.seconds for share in shares) == pytest.approx(e.busy_s)
        assert sum(share.calls for share in shares) == len(e.kernels)
        assert [s.seconds for s in shares] == sorted((s.seconds for s in shares), reverse=True)
    assert sum(e.by_bound.values()) == pytest.approx(e.busy_s) and e.by_bound["latency"] == max(e.by_bound.values())
    assert 0 < e.utilisation == e.busy_s / e.total_s < 1
    assert {"matrix products", "attention", "normalisation", "optimizer"} <= {share.name for share in e.by_kind}
    assert simgpu.ERROR_BAR in str(e) and "RTX 4090" in e._repr_html_() and plots.png(e.plot())


def test_arithmetic_bandwidth_and_the_data_sheets_own_rates():
    def layer():
        return nn.Linear(4096, 4096, bias=False).half()

    def batch():
        return torch.zeros(8192, 4096, dtype=torch.float16)

    flops, costs = 2 * 8192 * 4096**2, simgpu.Costs()
    with torch.no_grad():
        e = timing.estimate(layer, batch, spec="RTX 4090")
        peak = timing.estimate(layer, batch, spec="RTX 4090", costs=simgpu.AT_PEAK)
    assert e.flops == flops and e.formats == ("fp16",) and e.by_kernel[0].bound == "compute"
    least_s = (costs.launch_ns + costs.kernel_ns) / 1e9
    assert e.total_s == pytest.approx(flops / 165.2e12 / costs.matrix_share + least_s)
    assert peak.total_s == pytest.approx(flops / 165.2e12 + least_s)
    with torch.no_grad():
        e = timing.estimate(layer, batch, spec="H100 SXM")
        peak = timing.estimate(layer, batch, spec="H100 SXM", costs=simgpu.AT_PEAK)
    assert e.total_s == pytest.approx(flops / 794.5e12 + least_s)  # the best that was published
    assert peak.total_s == pytest.approx(flops / 989.5e12 + least_s)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_slower_than_products_where_that_was_measured_and_skips_what_a_causal_mask_hides(backward):
    def seconds(spec, causal, costs=None):
        def step(model, qkv, optimizer):
            y = F.scaled_dot_product_attention(*qkv, is_causal=causal)
            return y.backward(qkv[0].detach()) if backward else y

        make = lambda: [torch.zeros(1, 16, 8192, 128, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]  # noqa: E731
        e = timing.estimate(nn.Identity, make, step=step, spec=spec, costs=costs)
        assert e.flops == flops  # as PyTorch counts them
        return sum(share.seconds for share in e.by_kind if share.name == "attention")

    flops = 4 * 16 * 8192**2 * 128 * (3.5 if backward else 1)
    least_s = (1 + backward) * simgpu.Costs().kernel_ns / 1e9
    for spec, rate in (("H100 SXM", 338e12), ("H200", 338e12), ("A100 80GB", 203e12)):
        assert seconds(spec, False) == pytest.approx(flops / rate + least_s)
        assert seconds(spec, True) == pytest.approx(flops / 2 / rate + least_s)
        at_peak = seconds(spec, True, simgpu.AT_PEAK)
        assert at_peak == pytest.approx(flops / gpus.get(spec).peak_tflops["bf16"] / 1e12 + least_s)
    assert seconds("RTX 4090", True) == pytest.approx(flops / 165.2e12 / 0.9 + least_s)


def test_depthwise_and_grouped_convolutions_cost_what_they_compute():
    def flops(groups, backward):
        def step(model, x, optimizer):
            y = model(x)
            if backward:
                y.sum().backward()

        conv = lambda: nn.Conv2d(64, 64, 3, padding=1, groups=groups, bias=False)  # noqa: E731
        make_batch = lambda: torch.zeros(2, 64, 16, 16, requires_grad=True)  # noqa: E731
        return timing.estimate(conv, make_batch, step=step, spec="T4").flops

    for groups in (1, 4, 64):
        forward = 2 * 2 * 64 * 16 * 16 * 9 * 64 // groups
        assert flops(groups, False) == forward and flops(groups, True) == 3 * forward


def test_memory_read_in_another_order_costs_twice():
    x = torch.ones(1024, 1024, device="sim")

    def copied_ns(view):
        with simgpu.timeline() as timeline:
            view.clone(memory_format=torch.contiguous_format)
        return timeline.select("kernel")[0].duration_ns - simgpu.Costs().kernel_ns

    assert copied_ns(x.t()) == pytest.approx(2 * copied_ns(x), abs=2)
    assert copied_ns(x[:1].expand(1024, 1024)) == pytest.approx(copied_ns(x) / 2, rel=0.01)


@pytest.mark.parametrize(("arguments", "error", "phrase"), [
    ({"spec": "T5"}, ValueError, "spec is 'T5'"),
    ({"spec": "Apple M4 Max"}, ValueError, "states no rates"),
    ({"make_model": lambda: 3}, TypeError, "make_model must return a torch.nn.Module, not 3"),
    ({"make_optimizer": lambda parameters: 3}, TypeError, "make_optimizer must return"),
    ({"step": lambda model, batch, optimizer: model(batch[0]).sum().item()}, RuntimeError, "shapes and no values"),
])  # fmt: skip
def test_wrong_arguments_are_named(arguments, error, phrase):
    with pytest.raises(error, match=phrase):
        timing.estimate(**{"make_model": convolutions, "make_batch": images, "spec": "T4", **arguments})


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385), with the stride in the middle."""

    def __init__(self, wide, narrow, stride):
        super().__init__()
        sizes = ((wide, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, 4 * narrow, 1, 1))
        layers = [layer for size in sizes for layer in (*norm_conv(*size), nn.ReLU(inplace=True))]
        self.body = nn.Sequential(*layers[:-1])
        self.skip = nn.Sequential(*norm_conv(wide, 4 * narrow, 1, stride)) if wide != 4 * narrow else nn.Identity()

    def forward(self, x):
        return F.relu_(self.body(x).add_(self.skip(x)))


def norm_conv(channels, out, size, stride):
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)


def resnet50():
    blocks, wide = [], 64
    for narrow, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(wide, narrow, stride if number == 0 else 1))
            wide = 4 * narrow
    stem = (*norm_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))


ROWS = [row for row in published.error_bar().runs if row.model == "resnet50"]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.gpu} {'training' if row.training else ''}" for row in ROWS])
def test_resnet50_in_plain_torch_is_priced_as_stored_and_near_to_what_was_measured(row):
    stored = json.loads(published.FILE.read_text(encoding="utf-8"))["training" if row.training else "inference"]
    (size,) = {found[1] for found in stored if found[0] == "resnet50"}

    def step(model, batch, optimizer):
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
            if optimizer:
                loss.backward()
        if optimizer:
            optimizer.step()

    def infer(model, batch, optimizer):
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            model.eval()(batch[0])

    batch = lambda: (torch.empty(row.batch, 3, size, size), torch.empty(row.batch, dtype=torch.long))  # noqa: E731
    optimizer = (lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False)) if row.training else None
    e = timing.estimate(resnet50, batch, optimizer, step if row.training else infer, spec=row.gpu)
    assert row.batch / e.total_s == pytest.approx(row.predicted, rel=0.03)
    assert e.total_s == pytest.approx(row.batch / row.measured, rel=0.25)


def test_the_label_says_what_the_stored_predictions_show():
    bar = published.error_bar()
    inference = bar.where(lambda run: not run.training)
    assert f"{inference.median_error:.0%}".removesuffix("%") in simgpu.ERROR_BAR.split()
    for text_ in (str(devices.describe("sim:0")), str(timing.estimate(convolutions, images, spec="T4"))):
        assert simgpu.ERROR_BAR in text_
    with simgpu.timeline() as timeline:
        torch.ones(1, device="sim") + 1
    assert simgpu.ERROR_BAR in str(timeline)


def test_the_error_bar_holds_what_the_course_promises():
    bar = timing.error_bar()
    inference, training = (bar.where(lambda run, t=t: run.training == t) for t in (False, True))
    assert len({run.model for run in inference.runs}) >= 400 and len({run.gpu for run in inference.runs}) >= 3
    assert len(training.runs) >= 150
    assert inference.median_error <= 0.10 and training.median_error <= 0.20
    for unseen in (lambda run: run.gpu == "RTX 5090", lambda run: run.gpu == "RTX 4090" and not run.fitted):
        assert inference.where(unseen).median_error <= 0.15
    assert inference.rank_correlation >= 0.95
    assert "RTX 5090, inference" in str(bar) and plots.png(plots.errors(bar)) and "<table>" in bar._repr_html_()


def test_the_error_of_made_up_runs_is_what_it_is_by_definition():
    rates = ((1.0, 1.0), (2.0, 4.0), (3.0, 1.5))  # measured, predicted
    runs = [published.Run("a model", "A GPU", False, False, 1, *pair) for pair in rates]
    bar = published.ErrorBar(tuple(runs), "made up")
    assert [run.ratio for run in runs] == [1, 0.5, 2] and bar.median_error == 0.5
    assert bar.rank_correlation == pytest.approx(0.5)  # ranks 1, 2, 3 and 1, 3, 2
