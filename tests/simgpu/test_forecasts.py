"""Is a forecast what the simulated GPU then shows, and is it alone?"""

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import simgpu
from simgpu import gpus
from simgpu.device import enabling
from simgpu.forecasts import fake_device
from simgpu.forecasts.fake_device import usual_step
from tests.simgpu import strategies


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
    layer = nn.TransformerEncoderLayer(32, 2, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(256, 32), encoder, nn.LayerNorm(32), nn.Linear(32, 256))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def on_the_simulated_gpu(make_model, make_batch, make_optimizer, step, spec):
    """Return the seconds of a second step on `sim`, the batch there already."""
    simgpu.configure(spec=spec)
    model, batch = make_model().to("sim"), [tensor.to("sim") for tensor in make_batch()]
    optimizer = make_optimizer(model.parameters()) if make_optimizer else None
    for _ in range(2):
        torch.sim.synchronize()
        enabling.world().restart()
        step(model, batch, optimizer)
    torch.sim.synchronize()
    return simgpu.clock_ms() / 1e3


def half_precision(model, batch, optimizer):
    optimizer.zero_grad()
    with torch.autocast("sim", torch.float16):
        loss = F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())
    loss.backward()
    optimizer.step()


# Of the sixteen together: every three of the four choices occur in each of their eight ways, with one GPU or the other.
CHOSEN = [
    (*model, optimizer, step, ("T4", "H100 SXM")[(a + b + c) % 2])
    for a, model in enumerate([(convolutions, images), (transformer, text)])
    for b, optimizer in enumerate([torch.optim.AdamW, sgd])
    for c, step in enumerate([usual_step, half_precision])
]


@pytest.mark.parametrize(("make_model", "make_batch", "make_optimizer", "step", "spec"), CHOSEN)
def test_a_forecast_is_what_the_simulated_clock_shows(make_model, make_batch, make_optimizer, step, spec):
    shown_s = on_the_simulated_gpu(make_model, make_batch, make_optimizer, step, spec)
    found = simgpu.forecast(make_model, make_batch, make_optimizer, step=step).on(spec)
    assert found.total_s == pytest.approx(shown_s, abs=3e-9)
    assert ("fp16" in found.formats) == (step is half_precision)


def forward(model, batch, optimizer):
    return model(batch[0])


def test_inference_in_a_step_and_under_the_callers_modes():
    def infer(model, batch, optimizer, kind="sim"):
        with torch.inference_mode(), torch.autocast(kind, torch.float16):
            return model(batch[0])

    def make_model():
        return convolutions().eval()

    expected_s = on_the_simulated_gpu(make_model, images, None, infer, "T4")
    for kind in ("cuda", "sim", "cpu"):
        found = simgpu.forecast(make_model, images, step=functools.partial(infer, kind=kind)).on("T4")
        assert found.total_s == pytest.approx(expected_s, abs=3e-9) and "fp16" in found.formats
    for mode in (torch.inference_mode, torch.no_grad):

        def half(model, batch, optimizer):
            with torch.autocast("cuda", torch.float16):
                return model(batch[0])

        with mode():
            total_s = simgpu.forecast(make_model, images, step=half).on("T4").total_s
            assert total_s == pytest.approx(expected_s, abs=3e-9)
            assert simgpu.forecast(make_model, images, step=forward).on("T4").formats[0] != "fp16"


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(("kind", "enabled"), [("cuda", True), ("sim", True), ("cpu", True), ("cpu", False)])
def test_autocast_around_the_call_is_refused(kind, enabled):
    """That of "cuda" is switched off by PyTorch where there is no CUDA, and nobody can see that it was meant."""
    refused = pytest.raises(RuntimeError, match=r"autocast around a forecast .* put it into `step`")
    with torch.autocast(kind, torch.bfloat16, enabled=enabled), refused:
        simgpu.forecast(convolutions, images, step=forward)
    assert simgpu.forecast(convolutions, images, step=forward).memory.peak_bytes > 0


def test_what_a_forecast_tells_of_time():
    e = simgpu.forecast(transformer, text, torch.optim.AdamW).on("RTX 4090")
    assert e.total_s == pytest.approx(sum(r.duration_ns for r in e.records if r.kind == "launch") / 1e9, rel=0.1)
    for shares in (e.by_kernel, e.by_kind):
        assert sum(share.seconds for share in shares) == pytest.approx(e.busy_s)
        assert sum(share.calls for share in shares) == len(e.kernels)
        assert [s.seconds for s in shares] == sorted((s.seconds for s in shares), reverse=True)
    assert sum(e.by_bound.values()) == pytest.approx(e.busy_s) and e.by_bound["latency"] == max(e.by_bound.values())
    assert 0 < e.utilisation == e.busy_s / e.total_s < 1
    assert {"matrix products", "attention", "normalisation", "optimizer"} <= {share.name for share in e.by_kind}
    assert str(e.evidence) in str(e) and "RTX 4090" in e._repr_html_()


def test_arithmetic_bandwidth_and_the_data_sheets_own_rates():
    def layer():
        return nn.Linear(4096, 4096, bias=False).half()

    def batch():
        return torch.zeros(8192, 4096, dtype=torch.float16)

    flops, costs = 2 * 8192 * 4096**2, simgpu.Costs()
    with torch.no_grad():
        ahead = simgpu.forecast(layer, batch)
    e, peak = ahead.on("RTX 4090"), ahead.on("RTX 4090", costs=simgpu.AT_PEAK)
    assert e.flops == flops and e.formats == ("fp16",) and e.by_kernel[0].bound == "compute"
    least_s = (sum(map(simgpu.hosts.DEFAULT.price_ns, ("view", "library"))) + costs.kernel_ns) / 1e9
    assert e.total_s == pytest.approx(flops / 165.2e12 / costs.matrix_share + least_s)
    assert peak.total_s == pytest.approx(flops / 165.2e12 + least_s)
    e, peak = ahead.on("H100 SXM"), ahead.on("H100 SXM", costs=simgpu.AT_PEAK)
    assert e.total_s == pytest.approx(flops / 794.5e12 + least_s)  # the best that was published
    assert peak.total_s == pytest.approx(flops / 989.5e12 + least_s)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_slower_than_products_where_that_was_measured_and_skips_what_a_causal_mask_hides(backward):
    def made(causal):
        def step(model, qkv, optimizer):
            y = F.scaled_dot_product_attention(*qkv, is_causal=causal)
            return y.backward(qkv[0].detach()) if backward else y

        make = lambda: [torch.zeros(1, 16, 8192, 128, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]  # noqa: E731
        return simgpu.forecast(nn.Identity, make, step=step)

    ahead = {causal: made(causal) for causal in (False, True)}

    def seconds(spec, causal, costs=None):
        e = ahead[causal].on(spec, costs=costs)
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
        return simgpu.forecast(conv, make_batch, step=step).on("T4").flops

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
    ({"make_model": lambda: 3}, TypeError, "make_model must return a torch.nn.Module, not 3"),
    ({"make_optimizer": lambda parameters: 3}, TypeError, "make_optimizer must return"),
    ({"make_optimizer": 3}, TypeError, "make_optimizer must be a function of the list of parameters, not 3"),
    ({"step": lambda model, batch, optimizer: model(batch[0]).sum().item()}, RuntimeError, "shapes and no values"),
    ({"device": "cuda:99"}, ValueError, "device is 'cuda:99', which this process does not have"),
    ({"device": "gpu"}, ValueError, "device is 'gpu', which this process does not have"),
])  # fmt: skip
def test_wrong_arguments_are_named(arguments, error, phrase):
    with pytest.raises(error, match=phrase):
        simgpu.forecast(**{"make_model": convolutions, "make_batch": images, **arguments})


def test_a_gpu_that_is_not_in_the_table_is_named():
    ahead = simgpu.forecast(convolutions, images)
    for spec, phrase in (("T5", "spec is 'T5'"), ("Apple M4 Max", "states no rates")):
        with pytest.raises(ValueError, match=phrase):
            ahead.on(spec)


# ---- one program, several questions ----------------------------------------------------------------------------------


class Counted:
    """Functions of a program that count how often they are called."""

    def __init__(self):
        self.calls = Counter()

    def made(self):
        self.calls["model"] += 1
        return transformer()

    def step(self, *program):
        self.calls["step"] += 1
        usual_step(*program)


@functools.cache
def alone():
    """Return the forecast of the program as it is, which nothing changes."""
    return of_transformer()


@pytest.mark.parametrize(("device", "runs"), [(None, 1), ("sim", 1), ("cpu", 2)])
def test_the_program_runs_once_for_memory_and_any_number_of_gpus(device, runs):
    counted = Counted()
    ahead = simgpu.forecast(counted.made, text, torch.optim.AdamW, step=counted.step, device=device)
    assert counted.calls == {"model": 1, "step": 2}
    usual = alone()
    found, again = ([one.on(spec).total_s for spec in ("T4", "H100 SXM", "T4")] for one in (ahead, usual))
    assert counted.calls == {"model": runs, "step": 2 * runs} and found == again
    assert ahead.memory.peak_bytes == usual.memory.peak_bytes


def test_without_an_optimizer_the_forward_pass_is_all():
    ahead = simgpu.forecast(lambda: nn.Linear(100, 50, bias=False), lambda: torch.zeros(8, 100))
    assert len(ahead.on("T4").kernels) == 1
    assert ahead.memory.parts.by_owner() == {
        "parameters": 100 * 50 * 4, "gradients": 0, "optimizer": 0, "activations": 8 * (100 + 50) * 4, "temporaries": 0,
    }  # fmt: skip
    assert "predicted for a GPU" in str(ahead.memory)
    assert "predicted for a GPU, 5,000 parameters" in repr(ahead)


DEEP = functools.partial(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.3)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, DEEP], ids=["LSTM", "GRU", "two layers"])
def test_a_recurrent_layer_is_forecast_with_the_workspace_that_it_has(layer):
    """The workspace of the CPU's LSTM, written forward and read backward, is memory and traffic."""
    make_model, make_batch = functools.partial(layer, 64, 128), lambda: (torch.zeros(12, 32, 64),)

    def step(model, batch, optimizer):
        optimizer.zero_grad()
        model(batch[0])[0].mean().backward()
        optimizer.step()

    shown_s = on_the_simulated_gpu(make_model, make_batch, sgd, step, "T4")
    assert simgpu.forecast(make_model, make_batch, sgd, step=step).on("T4").total_s == pytest.approx(shown_s, abs=3e-9)


# ---- alone -----------------------------------------------------------------------------------------------------------


def told(ahead):
    """Return all that a forecast says, but which line of a test asked for it."""
    return str(ahead.memory), ahead.memory.timeline, recorded(ahead.on("T4")), ahead.on("H100 SXM").total_s


def recorded(found):
    return [dataclasses.replace(record, line="") for record in found.records]


def of_transformer(step=None):
    return simgpu.forecast(transformer, text, torch.optim.AdamW, step=step)


def of_ranks(step=None):
    made = functools.partial(strategies.shared, "fsdp", torch.device("cuda"))
    return simgpu.forecast(made, lambda: strategies.batch(0), torch.optim.AdamW, step=step or on_rank, ranks=4)


def on_rank(model, batch, optimizer):
    optimizer.zero_grad()
    strategies.loss_of(model, batch).backward()
    optimizer.step()


def told_of_ranks(ahead):
    return str(ahead.memory), ahead.memory.timeline, recorded(ahead.on(cluster=simgpu.Cluster()))


def half(model, batch, optimizer):
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())
    loss.backward()


@functools.cache
def told_alone(make, *step):
    """Return what is told of a forecast where there is no other."""
    return (told_of_ranks if make is of_ranks else told)(make(*step))


def test_forecasts_of_two_threads_do_not_meet():
    expected = told_alone(of_transformer), told_alone(of_transformer, half), told_alone(of_ranks)
    before = [warnings.filters[:], torch.autocast.__init__, nn.Module._apply, torch.cpu.Stream]
    with ThreadPoolExecutor(3) as pool:
        begun = pool.submit(of_transformer), pool.submit(of_transformer, half), pool.submit(of_ranks)
        one, in_half, ranks = [future.result() for future in begun]
    assert (told(one), told(in_half), told_of_ranks(ranks)) == expected
    assert before == [warnings.filters[:], torch.autocast.__init__, nn.Module._apply, torch.cpu.Stream]


@pytest.mark.parametrize("outer", [of_transformer, of_ranks])
def test_a_forecast_in_the_step_of_another_is_not_seen_by_it(outer):
    inner = []
    own_step = on_rank if outer is of_ranks else usual_step

    def step(model, batch, optimizer):
        own_step(model, batch, optimizer)
        inner.append(of_transformer(half))

    tell = told_of_ranks if outer is of_ranks else told
    assert tell(outer(step)) == told_alone(outer)
    assert [told(one) for one in inner] == [told_alone(of_transformer, half)] * 2


def test_a_forecast_leaves_other_threads_their_models():
    """While a program is fake in one thread, another makes, fills and moves a real model."""
    begun, done = threading.Event(), threading.Event()

    def step(model, batch, optimizer):
        begun.set()
        assert done.wait(60)
        half(model, batch, optimizer)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(of_transformer, step)
        assert begun.wait(60)
        model = nn.Linear(100, 100)
        nn.init.trunc_normal_(model.weight)
        model.half().float()
        autocast = torch.autocast("cpu", torch.bfloat16)
        done.set()
        assert told(future.result()) == told(of_transformer(half))
    assert model.weight.std() > 0.5 and autocast.device == "cpu" and type(model.weight) is nn.Parameter


def test_ranks_are_forecast_alike_with_cudas_face_on():
    expected = told_alone(of_ranks)
    with simgpu.cuda(memory="1 GiB"):
        assert told_of_ranks(of_ranks()) == expected
        named = simgpu.forecast(lambda: nn.Linear(8, 4).to(torch.device("cuda", 0)), lambda: torch.empty(2, 8))
    assert named.memory.peak_bytes > 0


def test_a_mesh_reads_its_ranks_at_once_and_not_one_after_the_other(monkeypatch):
    calls = Counter()
    dispatch = fake_device._Fake.__torch_dispatch__

    def counted(mode, func, *rest):
        calls[ranks] += 1
        return dispatch(mode, func, *rest)

    def two_dimensions():
        mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("copies", "shards"))
        return fully_shard(nn.Linear(8, 4), mesh=mesh)

    monkeypatch.setattr(fake_device._Fake, "__torch_dispatch__", counted)
    for ranks in (8, 512):
        simgpu.forecast(two_dimensions, lambda: torch.empty(2, 8), ranks=ranks)
    assert 0 < calls[512] < calls[8] + 512


@pytest.mark.parametrize(("read", "what"), [
    (lambda x: x.numpy(), r"\.numpy\(\)"), (lambda x: x.sum().item(), "aten._local_scalar_dense"),
])  # fmt: skip
def test_a_program_that_reads_values_is_refused_with_its_line(read, what):
    with pytest.raises(RuntimeError, match=rf"needs values for {what}.* \(test_forecasts\.py:\d+: .*leave \.item\(\)"):
        simgpu.forecast(
            lambda: nn.Linear(4, 4), lambda: torch.empty(2, 4), step=lambda model, x, _: read(model(x).detach())
        )


@pytest.mark.parametrize("width, batch", [(64, 32), (1024, 65_536)])
def test_sixteen_bits_spare_the_gpu_and_slow_no_step_down(width, batch):
    def step(model, x, optimizer, amp=False):
        with torch.autocast("cuda", torch.bfloat16) if amp else contextlib.nullcontext():
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    def ahead(amp):
        layers = lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(6)))  # noqa: E731
        how = functools.partial(step, amp=amp)
        return simgpu.forecast(layers, lambda: torch.empty(batch, width), torch.optim.AdamW, step=how).on("B200")

    asked, plain, real = ahead(False).what_if(amp=True), ahead(False).total_s, ahead(True)
    assert asked.step_time <= plain and asked.peak == pytest.approx(real.basis.peak, rel=0.01)
    assert width == 64 or asked.step_time == pytest.approx(real.total_s, rel=0.25)
