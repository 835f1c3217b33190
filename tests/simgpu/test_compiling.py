"""Does `torch.compile` find on a simulated GPU what it finds on any device, and are the values those of eager?"""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from simgpu.ground import inductor


@pytest.fixture(params=["sim", "cuda"])
def device(request, _fresh):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if request.param == "sim":
        yield "sim"
        return
    with simgpu.cuda(memory="1 GiB"):
        yield "cuda"


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def breaks() -> int:
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16), nn.LayerNorm(16), nn.GELU(),
        nn.Dropout(0.5), nn.Linear(16, 4),
    )  # fmt: skip


@pytest.mark.filterwarnings("error:a compiled graph is charged as if")
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"backend": "eager"}, {"backend": "aot_eager"}])
def test_a_compiled_step_of_training_has_the_values_of_eager(device, options):
    batch, target = torch.randn(5, 3, 6, 6, device=device), torch.arange(5, device=device) % 4
    losses = []
    for compiled in (False, True):
        model = make_model()
        model(torch.zeros(2, 3, 6, 6))
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model, **options) if compiled else model
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(run(batch), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert run(batch).device == batch.device
    assert losses[:2] == losses[2:] and graphs() == 1


def test_a_graph_may_make_move_and_index_tensors(device):
    def f(x):
        made = torch.zeros(3, device=device) + torch.tensor([1.0, 2.0, 3.0], device=device)
        moved = torch.arange(3).to(device) + torch.full((3,), 2.0, device=x.device)
        y = x[[0, 2]] + made + moved
        y[:, 0].mul_(2)
        return y, x.cpu() + 1, x.device, y.is_cuda

    x = torch.randn(3, 3, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a compiled graph is charged as if it were not compiled")
        found, expected = torch.compile(f, fullgraph=True)(x), f(x)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1]) and found[2:] == expected[2:]
    assert found[3] == (device == "cuda")


def test_a_graph_without_inputs_is_on_the_device(device):
    found = torch.compile(lambda: torch.ones(3, device=device) + 1)()
    assert found.device == torch.device(device, 0) and found.tolist() == [2.0] * 3


@pytest.mark.filterwarnings("error:a compiled graph is charged as if")
def test_a_float_that_changes_is_priced_in_its_graph(device):
    x, scaled = torch.ones(8, device=device), torch.compile(lambda x, scale: (x * scale).sin())
    with simgpu.timeline() as timeline:
        for scale in (0.5, 1.5, 2.5):
            assert torch.equal(scaled(x, scale), (x * scale).sin())
    assert any("mul_sin" in record.name for record in timeline.select("kernel"))


@pytest.mark.filterwarnings("error:a compiled graph is charged as if")
def test_autocast_inside_and_around(device):
    layer, x = nn.Linear(8, 4).to(device), torch.randn(3, 8, device=device)

    def inside(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return layer(x)

    expected = inside(x)
    assert torch.equal(torch.compile(inside, fullgraph=True)(x), expected) and expected.dtype is torch.bfloat16
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(torch.compile(layer)(x), expected)


def test_breaks_are_found_and_explained(device):
    def f(x):
        y = x.sin()
        print(end="")
        if y.sum() > 0:
            y = y + 1
        return y.cos()

    torch.compile(f, backend="eager")(torch.ones(4))
    on_cpu = graphs(), breaks()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.ones(4, device=device)
    assert torch.equal(torch.compile(f)(x), f(x)) and (graphs(), breaks()) == on_cpu and breaks() > 0
    told = torch._dynamo.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (3, 2)
    assert [reason.user_stack[-1].lineno - f.__code__.co_firstlineno for reason in told.break_reasons] == [2, 3]


def test_fullgraph_and_error_on_graph_break_raise(device):
    def f(x):
        print(end="")
        return x + 1

    def g(x):
        with torch._dynamo.error_on_graph_break(True):
            return f(x)

    x = torch.ones(2, device=device)
    for strict in (torch.compile(f, fullgraph=True), torch.compile(g)):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            strict(x)


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"dynamic": True}, 1), ({"dynamic": False}, 5)])
def test_sizes_recompile_as_dynamic_says(device, options, count):
    f = torch.compile(lambda x: x * x.shape[0], **options)
    for n in range(2, 7):
        assert f(torch.ones(n, device=device)).tolist() == [n] * n
    assert graphs() == count


def test_a_size_that_is_marked_never_recompiles(device):
    f = torch.compile(lambda x: x * 2)
    for n in range(2, 7):
        x = torch.ones(n, device=device)
        torch._dynamo.mark_dynamic(x, 0)
        f(x)
    assert graphs() == 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu()


def test_layers_that_are_compiled_one_by_one_share_graphs(device):
    found = []
    for place in ("cpu", device):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = nn.Sequential(*(Layer() for _ in range(4))).to(place)
        for layer in model:
            layer.compile(backend="eager")
        model(torch.ones(2, 8, device=place))
        found.append(graphs())
    assert found[0] == found[1] < 4


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_runs_compiled_and_not(device):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 128, 16, device=device, requires_grad=True) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (wanted,) = torch.autograd.grad(expected.sum(), q)
    mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 128, 128, device=device)
    plain = flex_attention(q, k, v, block_mask=mask)
    scored = flex_attention(q, k, v, score_mod=lambda score, batch, head, i, j: torch.where(i >= j, score, -math.inf))
    for found in (plain, scored, torch.compile(flex_attention)(q, k, v, block_mask=mask)):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), q)[0], wanted)


class Scored(nn.Module):
    """Attention before, with a bias that is learned and added to the scores of each head."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = x.unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, *2 * x.shape[1:2], device=x.device)
        return flex_attention(q, k, v, lambda score, batch, head, i, j: score + self.bias[head], mask)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_forecast_has_the_kernels_of_flex_attention_that_a_simulated_gpu_has(device):
    ahead = simgpu.forecast(Scored, lambda: torch.empty(1, 512, 96), torch.optim.SGD)
    with simgpu.timeline() as seen:
        model = Scored().to(device)
        model(torch.zeros(1, 512, 96, device=device)).mean().backward()
    found = [
        [(one.name, one.duration_ns) for one in records if one.name.startswith("flex_attention")]
        for records in (seen.select("kernel"), ahead.on("T4").kernels)
    ]
    assert found[0] == found[1] and len(found[0]) == 2 and model.bias.grad is not None
    assert ahead.on("T4").kernels[-1].phase == "optimizer step"  # the bias has a gradient there, too


def names(work) -> list[str]:
    """Return the names of the kernels that `work` starts."""
    with simgpu.timeline() as seen:
        work()
    return [record.name for record in seen.select("kernel")]


def test_the_clock_charges_the_kernels_that_would_be_written(device):
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).to(device)
    x = torch.randn(32, 64, device=device)
    run = torch.compile(model)
    told = simgpu.compiled(model, x)
    forward = [kernel.name for kernel in told.kernels if not kernel.backward]
    backward = [kernel.name for kernel in told.kernels if kernel.backward]
    loss = run(x).sum()
    assert names(lambda: run(x)) == forward
    found = names(loss.backward)
    assert found[:1] == ["ones_like"] and found[-len(backward) :] == backward
    with torch.no_grad():
        assert len(names(lambda: run(x))) < len(names(lambda: model(x)))
    assert names(lambda: model(x)) == ["addmm", "gelu", "native_layer_norm", "addmm"]  # uncompiled as ever


def test_a_captured_graph_is_one_launch_each_way(device):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to(device), torch.randn(4, 8, device=device)
    run = torch.compile(model, mode="reduce-overhead")
    gradient = torch.ones(4, 8, device=device)
    with simgpu.timeline() as seen:
        run(x).backward(gradient)
    assert len(seen.select("launch")) == 2 < len(seen.select("kernel"))


def test_a_backward_pass_that_fails_leaves_the_clock_running(device):
    x = torch.ones(4, device=device, requires_grad=True)
    loss = torch.compile(lambda x: x.sin() * 2)(x).sum()
    loss.grad_fn.next_functions[0][0].register_prehook(lambda gradients: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert names(lambda: x.detach() + 1) == ["add"]


def test_a_graph_whose_kernels_are_not_known_is_charged_as_it_runs(device, monkeypatch):
    monkeypatch.setattr(inductor, "_read", lambda lowering: 1 / 0)
    run = torch.compile(lambda x: x.sin() + 1)
    with pytest.warns(UserWarning, match="kernels are not known: .*division"):
        assert names(lambda: run(torch.ones(3, device=device)))[-2:] == ["sin", "add"]


def test_flex_attention_is_charged_as_one_kernel_each_way(device):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.randn(1, 2, 256, 16, device=device, requires_grad=True)
    mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 256, 256, device=device)
    with simgpu.timeline() as seen:
        torch.compile(flex_attention)(q, q, q, block_mask=mask).sum().backward()
    flops = {one.name: one.flops for one in seen.select("kernel") if one.name.startswith("flex")}
    assert flops["flex_attention"] == 4 * 2 * (3 * 128 * 128) * 16  # three of four blocks of 128 are left
    assert flops["flex_attention_backward"] == 2.5 * flops["flex_attention"]


def test_a_program_of_the_cpu_is_compiled_as_ever(device):
    seen = []
    torch.compile(lambda x: x + 1, backend=lambda graph, inputs: seen.append(inputs) or graph.forward)(torch.ones(2))
    assert type(seen[0][0]) is torch.Tensor


def _chain(additions, broken=False, product=False):
    """Return a function of so many light operators; `broken`: each is a graph of its own."""

    def chain(x):
        x = x @ x if product else x
        for _ in range(additions):
            x = x.add(1)
            if broken:
                torch._dynamo.graph_break()
        return x

    return chain


class _Layer(torch.nn.Module):
    def __init__(self, *how):
        super().__init__()
        self.forward = _chain(*how)


# A bare operator takes 6 µs, one in a model 21, and entering a graph of one input 58 with the launch of its kernel
@pytest.mark.parametrize(("function", "gains"), [
    *((_chain(additions), False) for additions in (1, 2, 4, 6)),
    *((_chain(additions), True) for additions in (10, 12, 16, 24)),
    *((_chain(additions, True), False) for additions in (2, 3, 4, 6)),
    *((_chain(additions, False, True), True) for additions in (10, 12, 16)),
    *((_Layer(additions), True) for additions in (3, 4, 8)),
    *((_Layer(additions, True), False) for additions in (1, 4)),
])  # fmt: skip
def test_entering_a_graph_takes_the_host_so_long_that_short_and_broken_programs_lose(device, function, gains):
    x, compiled = torch.ones(64, 64, device=device), torch.compile(function)
    with torch.no_grad():
        compiled(x)
        times_ns = []
        for one in (function, compiled):
            with simgpu.timeline() as seen:
                one(x)
            times_ns.append(seen.total_ns)
    assert (times_ns[1] < times_ns[0]) is gains
