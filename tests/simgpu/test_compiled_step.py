"""Does a report say what a step would take with its models compiled, without changing what the program does?"""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import simgpu
from simgpu.ground.units import seconds_text
from simgpu.reports.compiled_step import CompiledStep
from simgpu.reports.words import compiled_sentences
from tests import children
from tests.simgpu.simulated import read_programs


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 512), nn.LayerNorm(512), nn.Linear(512, 8)
        self.seen = []

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        self.seen.append(hidden)
        del self.seen[:-1]
        return self.last(hidden)


class Broken(Net):
    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        if hidden.mean().item() > 100:
            hidden = hidden * 2
        return self.last(hidden)


def train(model, x, steps=4):
    """Train for some steps, and return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def reported(make, *, compiled=True, steps=4, host="server"):
    with simgpu.cuda("T4", host=host, record=True, compiled=compiled) as session:
        torch.manual_seed(0)
        model, x = make().cuda(), torch.randn(4096, 64, device="cuda")
        values = [loss.item() for loss in train(model, x, steps)]
    return session.report(), values, model


def test_a_step_takes_what_a_forecast_of_the_compiled_program_says():
    report, _, _ = reported(Net, host="kernel launch")  # with the server's time the host would run ahead of a forecast
    ahead = simgpu.forecast(
        Net, lambda: torch.empty(4096, 64), lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        step=lambda model, x, optimizer: (
            model(x).square().mean().backward(), optimizer.step(), optimizer.zero_grad()
        ),
    )  # fmt: skip
    wanted = ahead.compiled().on("T4", host="kernel launch"), ahead.on("T4", host="kernel launch")
    assert report.compiled.step_time == pytest.approx(wanted[0].total_s, rel=0.01)
    assert report.compiled.eager_time == report.step_time == pytest.approx(wanted[1].total_s, rel=0.05)
    assert report.compiled.gain > 1.02 and report.compiled.graphs == 1 and report.compiled.breaks == ()
    assert report.compiled.evidence.regime == "compiled"


def test_the_program_is_what_it_is_without_the_question():
    plain, others = reported(Net, compiled=False)[:2]
    asked, values, model = reported(Net)
    assert values == others and plain.compiled is None and "torch.compile would bring" not in str(plain)
    assert (asked.peak, asked.step_time, asked.simulated) == (plain.peak, plain.step_time, plain.simulated)
    assert [one.code for one in asked.suspects] == [one.code for one in plain.suspects]
    assert [type(one).__name__ for one in model.seen] == ["Tensor"] and model.seen[0].shape == (4096, 512)


def test_a_break_at_which_the_host_waits_parts_the_kernels_and_is_told_with_its_line():
    report, _, _ = reported(Broken)
    line = Broken.forward.__code__.co_firstlineno + 2
    assert [one.line for one in report.compiled.breaks] == [f"test_compiled_step.py:{line}"]
    assert report.compiled.graphs == 2 and report.compiled.step_time > report.step_time  # small, and with gradients
    said = str(report)
    assert f"One graph break: test_compiled_step.py:{line}." in said
    assert f"instead of {seconds_text(report.step_time)}; simulated, off by " in said


def test_what_stays_uncompiled_is_named_and_has_its_price():
    class Disabled(Net):
        def forward(self, x):
            return torch.compiler.disable(torch.tanh)(super().forward(x)).relu()

    report, _, _ = reported(Disabled)
    found = report.compiled
    assert found.graphs == 2 and found.step_time > found.eager_time  # small, and with gradients
    assert found.remarks == (f"1 operator would run uncompiled: tanh; a graph breaks at {found.breaks[0].line}",)
    assert f"{found.remarks[0]}." in str(report)
    assert [one.line.partition(":")[0] for one in found.breaks] == ["test_compiled_step.py"]


def test_models_that_call_one_another_have_their_own_kernels():
    """As in adversarial training, whose loss goes back through the one and then the other."""
    with simgpu.cuda("T4", record=True, compiled=True) as session:
        middle = nn.LayerNorm(64), nn.GELU(), nn.Tanh(), nn.Sigmoid()
        first, last = (nn.Sequential(nn.Linear(64, 64), *middle, nn.Linear(64, 64)).cuda() for _ in range(2))
        x, optimizer = torch.randn(8192, 64, device="cuda"), torch.optim.SGD(first.parameters(), lr=0.1)
        for _ in range(3):
            last(first(x)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        report = session.report()
    found = report.compiled
    assert found.graphs == 2 and found.step_time < 0.9 * found.eager_time


def test_a_program_that_asks_for_its_report_goes_on_as_before():
    with simgpu.cuda("T4", record=True, compiled=True) as session:
        model, x = Net().cuda(), torch.randn(4096, 64, device="cuda")
        train(model, x)
        before = simgpu.clock_ms(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        first = session.report()
        assert (simgpu.clock_ms(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == before
        train(model, x)
        assert session.report().steps == 8 and first.steps == 4
        assert first.compiled.step_time == pytest.approx(session.report().compiled.step_time)


@pytest.mark.parametrize("why", ["copied", "raises", "compiled", "none"])
def test_where_nothing_is_known_one_sentence_says_why_and_the_step_as_it_is(why):
    class Locked(Net):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    class Once(Net):
        def forward(self, x):
            if x.device.type != "cuda" or float(self.last.bias.abs().sum()) == 0:
                raise RuntimeError("no weights were read")
            return super().forward(x)

    with simgpu.cuda("T4", record=True, compiled=True) as session:
        x = torch.randn(256, 64, device="cuda")
        if why == "none":
            weight = nn.Parameter(torch.randn(64, 64, device="cuda"))
            optimizer = torch.optim.SGD([weight])
            (x @ weight).sum().backward()
            optimizer.step()
        else:
            model = {"copied": Locked, "raises": Once}.get(why, Net)().cuda()
            train(torch.compile(model) if why == "compiled" else model, x)
        report = session.report()
    words = {
        "copied": "Locked cannot be copied: cannot pickle", "raises": "no weights were read",
        "compiled": "the program compiles its model already", "none": "no model was called",
    }  # fmt: skip
    assert report.compiled.step_time is report.compiled.gain is None and words[why] in report.compiled.error
    said = "What `torch.compile` would bring is not known: "
    assert said in str(report) and f"As it is, a step takes {seconds_text(report.compiled.eager_time)}." in str(report)


@pytest.mark.parametrize(("regime", "gain", "known"), [
    ("training", 1.05, False), ("training", 0.8, True), ("host assumed", 1.3, False), ("host measured", 0.6, True),
])  # fmt: skip
def test_a_gain_within_the_error_of_the_clock_is_called_no_difference(regime, gain, known):
    step = CompiledStep(1.0, gain)
    said = compiled_sentences(SimpleNamespace(compiled=step, evidence=SimpleNamespace(regime=regime)))
    assert said[0].endswith("That is no difference that this clock can tell.") is not known


PROGRAM = read_programs("compiled_step")["program"]


def test_the_command_says_it_in_all_forms_and_the_program_prints_the_same(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    options = "--compiled", "--json", "out.json", "--report", "out.html"
    asked = children.run("-m", "simgpu", *options, "train.py", cwd=tmp_path)
    plain = children.run("-m", "simgpu", "train.py", cwd=tmp_path)
    assert asked.returncode == plain.returncode == 0 and asked.stdout == plain.stdout
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["compiled"]
    assert found["gain"] == pytest.approx(found["eager_time"] / found["step_time"])
    assert [one["line"] for one in found["breaks"]] == ["train.py:10"]
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    for form in (asked.stderr, page):
        assert "Compiled, a step would take" in form and "One graph break: train.py:10." in form
    assert "Compiled" not in plain.stderr
