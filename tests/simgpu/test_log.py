"""Do a run on the simulated GPU, its report and a forecast agree on a training step, kernel by kernel?"""

import threading

import pytest
import torch
from torch import nn

import simgpu
from simgpu.clock.events import GRADIENTS, OPTIMIZER, Kernel, Step
from simgpu.device import enabling


def make_model():
    torch.manual_seed(0)
    convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten())
    return nn.Sequential(convolution, nn.Linear(8 * 10 * 10, 32), nn.LayerNorm(32), nn.Linear(32, 10))


def make_batch():
    return torch.zeros(4, 3, 12, 12), torch.zeros(4, 1, dtype=torch.long)


def step(model, batch, optimizer):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def kernels(records):
    """Return what a GPU computes: operators, the bytes that they read and write, what bounds them, and when."""
    found = [(r.name, r.nbytes, r.bound, r.start_ns, r.end_ns) for r in records if r.kind == "kernel"]
    assert len(found) > 20
    return found


def of_a_run(spec):
    """Return what the clock shows of a second step, the batch there already."""
    simgpu.configure(spec=spec)
    model, batch = make_model().to("sim"), [tensor.to("sim") for tensor in make_batch()]
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, batch, optimizer)
    torch.sim.synchronize()
    enabling.world().restart()
    with simgpu.timeline() as timeline:
        step(model, batch, optimizer)
        torch.sim.synchronize()
    return timeline


@pytest.mark.parametrize("spec", ["T4", "H100 SXM"])
def test_a_forecast_has_the_kernels_of_a_run_at_the_same_times(spec):
    found = simgpu.forecast(make_model, make_batch, torch.optim.AdamW, step=step).on(spec)
    assert kernels(found.records) == kernels(of_a_run(spec).records)


def asked(events):
    """Return what a step asks of a GPU, with the phase and the line of each kernel."""
    found = [(e.name, e.cost.nbytes, e.cost.rate, e.phase, e.line) for e in events if isinstance(e, Kernel)]
    assert {phase for _, _, _, phase, _ in found} == {"forward", "backward", GRADIENTS, OPTIMIZER}
    return found


@pytest.fixture(scope="module")
def session():
    """Return what was recorded of two steps on a T4, the batch there already."""
    simgpu.reset()
    with simgpu.cuda("T4", record=True) as face:
        model, batch = make_model().cuda(), [tensor.cuda() for tensor in make_batch()]
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            step(model, batch, optimizer)
            torch.cuda.synchronize()  # so that the second begins on an idle GPU, as that of a forecast
        return face.session, face.report()


@pytest.fixture(scope="module")
def ahead():
    return simgpu.forecast(make_model, make_batch, torch.optim.AdamW, step=step)


def test_a_report_and_a_forecast_have_the_same_events(session, ahead):
    events = session[0].log.events
    ends = [place for place, event in enumerate(events) if isinstance(event, Step)]
    of_a_run = asked(events[ends[0] + 1 : ends[1]])
    assert asked(ahead.events) == of_a_run
    assert {"loss.backward()", "optimizer.step()"} <= {line.partition(": ")[2] for _, _, _, _, line in of_a_run}


def test_the_optimizer_of_another_thread_says_nothing_of_a_forecasts_phases():
    begun, go_on = threading.Event(), threading.Event()

    def wait(*args):
        begun.set()
        go_on.wait(60)

    def with_a_neighbour(model, batch, optimizer):
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
        other.register_step_pre_hook(wait)
        thread = threading.Thread(target=other.step)
        thread.start()
        assert begun.wait(60)
        model(batch[0])
        go_on.set()
        thread.join()

    ahead = simgpu.forecast(make_model, make_batch, step=with_a_neighbour)
    assert {event.phase for event in ahead.events if isinstance(event, Kernel)} == {"forward"}


@pytest.mark.parametrize("spec", ["T4", "H100 SXM"])
def test_a_report_foretells_other_gpus_as_a_forecast_does(session, ahead, spec):
    of_a_run, made_up = session[1].on(spec), ahead.on(spec)
    assert of_a_run.total_s == pytest.approx(made_up.total_s, abs=1e-12)
    assert [(r.name, r.duration_ns) for r in of_a_run.kernels] == [(r.name, r.duration_ns) for r in made_up.kernels]
    assert (of_a_run.flops, of_a_run.formats) == (made_up.flops, made_up.formats)
    assert [row.parts for row in of_a_run.lines] == [row.parts for row in made_up.lines]
    assert list(of_a_run.phases) == list(made_up.phases) == ["forward", "backward", "optimizer"]
    for part, seconds in of_a_run.phases.items():
        assert seconds == pytest.approx(made_up.phases[part], abs=1e-12)


def test_a_report_foretells_another_host(session, ahead):
    slow = simgpu.Host(300.0)
    of_a_run, made_up = session[1].on("T4", host=slow).total_s, ahead.on("T4", host=slow).total_s
    assert of_a_run == pytest.approx(made_up, abs=1e-12) and of_a_run > 4 * session[1].on("T4").total_s


def test_the_parts_and_the_lines_of_a_forecast_are_the_whole_step(ahead):
    found = ahead.on("T4")
    assert sum(found.phases.values()) == pytest.approx(found.total_s)
    assert sum(row.seconds for row in found.lines) == pytest.approx(found.busy_s)
    assert "optimizer.step()" in {row.source for row in found.lines}
    assert simgpu.forecast(make_model, make_batch).on("T4").phases == {}  # nothing tells parts apart


SETTINGS = [{}, {"amp": True}, {"fused": True}, {"compiled": True}, {"gpus": 8}, {"gpu": "H100 SXM", "amp": True}]


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_if_says_of_a_forecast_what_it_says_of_a_run(session, ahead, setting):
    foretold, of_a_run = ahead.on("T4").what_if(**setting), session[1].what_if(**setting)
    assert foretold.step_time == pytest.approx(of_a_run.step_time, abs=1e-12)
    assert (foretold.name, foretold.gpu, foretold.gpus) == (of_a_run.name, of_a_run.gpu, of_a_run.gpus)
    assert foretold.assumptions == of_a_run.assumptions


def test_what_if_another_gpu_is_what_a_forecast_says_of_it(ahead):
    assert ahead.on("T4").what_if(gpu="H100 SXM").step_time == ahead.on("H100 SXM").total_s
    doubled = simgpu.forecast(make_model, lambda: [x.repeat(2, *[1] * (x.dim() - 1)) for x in make_batch()], step=step,
                              make_optimizer=torch.optim.AdamW)  # fmt: skip
    assert ahead.on("T4").what_if(batch=2).peak == pytest.approx(doubled.memory.peak_bytes, rel=0.02)
    most = ahead.on("T4").what_if(batch="max")
    assert most.fits and not ahead.on("T4").what_if(batch=most.batch * 1.01).fits
