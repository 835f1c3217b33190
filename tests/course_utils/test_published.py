"""How far are forecasts from what others measured, and does the course say so wherever it shows one?"""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import devices, plots, timing
from course_utils.timing import published

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))


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
    e = simgpu.forecast(resnet50, batch, optimizer, step=step if row.training else infer).on(row.gpu)
    assert row.batch / e.total_s == pytest.approx(row.predicted, rel=0.03)
    assert e.total_s == pytest.approx(row.batch / row.measured, rel=0.25)


def test_the_label_says_what_the_stored_predictions_show():
    bar = published.error_bar()
    inference = bar.where(lambda run: not run.training)
    assert f"{inference.median_error:.0%}".removesuffix("%") in simgpu.ERROR_BAR.split()
    simgpu.enable()
    forecast = simgpu.forecast(lambda: nn.Linear(4, 4), lambda: torch.zeros(2, 4)).on("T4")
    assert simgpu.ERROR_BAR in str(devices.describe("sim:0")) and simgpu.ERROR_BAR in str(forecast)
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
