"""Recurrent layers: one call of cuDNN with the CPU's values, fused cells without it, the same in a forecast."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import simgpu
from tests import children
from tests.simgpu.simulated import read_calls, read_programs

LAYERS = read_calls("recurrent", globals())


@pytest.fixture(autouse=True)
def _enabled() -> None:
    simgpu.enable()


def trained(layer: str, place: str, packed: bool = False, cudnn: bool = True) -> list[torch.Tensor]:
    """Return all outputs of a layer, and the gradients of its input and weights."""
    torch.manual_seed(0)
    model, x = LAYERS[layer]().to(place), torch.randn(5, 5, 6).to(place).requires_grad_()
    cell = isinstance(model, nn.RNNCellBase | nn.RMSNorm)
    batch = x[0] if cell else pack_padded_sequence(x, torch.tensor([5, 4, 4, 2, 1])) if packed else x
    with torch.backends.cudnn.flags(enabled=cudnn):
        outputs = [one for one in tree_leaves(model(batch)) if one is not None and one.is_floating_point()]
        sum(one.square().sum() for one in outputs).backward()
    return [one.detach().cpu() for one in (*outputs, x.grad, *(p.grad for p in model.parameters()))]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of the CPU's own
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cudnn", [True, False])
def test_values_and_gradients_are_those_of_the_cpu(layer, packed, cudnn):
    for ours, theirs in zip(trained(layer, "sim", packed, cudnn), trained(layer, "cpu", packed), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
        assert torch.equal(ours, theirs) or not cudnn or "Cell" in layer or "RMSNorm" in layer


def seen(layer: nn.Module, x: torch.Tensor, autocast: bool = False, packed: bool = False) -> simgpu.Timeline:
    batch = pack_padded_sequence(x, torch.full((x.size(1),), x.size(0))) if packed else x
    with simgpu.timeline() as timeline, torch.autocast("sim", torch.float16, enabled=autocast):
        layer(batch)[1][0].sum().backward()
    return timeline


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("how", [{}, {"packed": True}, {"autocast": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_is_one_kernel_forward_and_one_backward_and_none_takes_much_longer_than_an_lstm(kind, how):
    x = torch.zeros(50, 8, 32, device="sim")
    timeline = seen(kind(32, 512, device="sim"), x, **how)
    names = [record.name for record in timeline.select("kernel")]
    assert names.count("_cudnn_rnn") == names.count("_cudnn_rnn_backward") == 1 and len(names) < 30
    assert timeline.total_ns < 1.5 * seen(nn.LSTM(32, 512, device="sim"), x).total_ns


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_without_cudnn_a_step_is_two_products_and_a_cell(kind):
    x, layer = torch.zeros(10, 8, 32, device="sim"), kind(32, 64, device="sim")
    with torch.backends.cudnn.flags(enabled=False), torch.no_grad(), simgpu.timeline() as timeline:
        layer(x)
    names = [record.name for record in timeline.select("kernel")]
    assert sum("_thnn_fused" in name for name in names) == 10 and sum("mm" in name for name in names) == 20


@pytest.mark.parametrize("gpu, calls", [("T4", 0), ("A100 40GB", 1)])
def test_cudnn_takes_bfloat16_from_compute_capability_8_on(gpu, calls):
    simgpu.enable(spec=gpu)
    with torch.no_grad(), simgpu.timeline() as timeline:
        nn.GRU(4, 8, device="sim", dtype=torch.bfloat16)(torch.zeros(3, 2, 4, device="sim", dtype=torch.bfloat16))
    assert [record.name for record in timeline.select("kernel")].count("_cudnn_rnn") == calls
    simgpu.enable()


def test_the_reserve_is_freed_with_the_graph_and_a_second_backward_pass_is_refused():
    layer, x = nn.LSTM(8, 16, device="sim"), torch.zeros(20, 4, 8, device="sim")
    before = torch.sim.memory_allocated()
    result = layer(x)[0].sum()
    assert torch.sim.memory_allocated() - before > 5 * 20 * 4 * 16 * 4  # five numbers for each output
    result.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


def test_a_forecast_knows_recurrent_layers_where_no_simulated_gpu_was_ever_on():
    done = children.run("-c", read_programs("forecasts")["recurrent"])
    assert done.returncode == 0 and done.stdout.count("backward") == 6, done.stderr


def test_rms_norm_is_one_kernel_and_so_is_its_backward_pass():
    with simgpu.timeline() as timeline:
        nn.RMSNorm(6, device="sim")(torch.rand(3, 6, device="sim")).sum().backward()
    ahead = simgpu.forecast(lambda: nn.RMSNorm(6), lambda: torch.rand(3, 6), torch.optim.SGD).on("T4")
    for kernels in (timeline.select("kernel"), ahead.kernels):
        names = [one.name for one in kernels if "norm" in one.name]
        assert names == ["_fused_rms_norm", "_fused_rms_norm_backward"]


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("x", [torch.rand(3, 6).half(), torch.rand(2, 8, 4, 6).to(memory_format=torch.channels_last)])
def test_rms_norm_that_cudas_kernel_refuses_goes_by_the_formula(x):
    with simgpu.timeline() as timeline:
        found = nn.RMSNorm(6, device="sim")(x.to("sim"))
    ahead = simgpu.forecast(lambda: nn.RMSNorm(6), lambda: x, step=lambda model, batch, _: model(batch)).on("T4")
    names, foretold = ([one.name for one in kernels] for kernels in (timeline.select("kernel"), ahead.kernels))
    assert torch.allclose(found.cpu(), nn.RMSNorm(6)(x)) and "rsqrt" in names and names[-len(foretold) :] == foretold
