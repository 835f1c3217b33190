"""Does `simgpu.compiled` say the kernels that PyTorch's compiler writes?"""

import os
import re
import sys
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()


@pytest.fixture
def recursion():
    """Let Inductor set the limit of recursion, as it does where it writes C++."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


def chain(x):
    return torch.relu(x * 2 + 1)


def normalised(x):
    return F.layer_norm(F.gelu(x), x.shape[-1:]) + x


def product(x):
    return (x @ x).sin() * 2


def test_a_chain_is_one_kernel_that_reads_and_writes_once():
    found = simgpu.compiled(chain, torch.ones(1000))
    (kernel,) = found.kernels
    assert kernel.operators == ("add", "mul", "relu") and kernel.nbytes == found.nbytes == 8000
    assert not kernel.library and not kernel.backward and found.breaks == ()
    assert "1 graph, 1 kernel" in str(found) and "<td>add, mul, relu</td>" in found._repr_html_()


def test_long_rows_are_read_again_by_each_loop_and_what_is_picked_alone_is_read():
    for rows, columns, passes in ((512, 50_000, 3), (8192, 2_000, 2)):
        found = simgpu.compiled(lambda x: x.softmax(1), torch.empty(rows, columns))
        assert found.nbytes == pytest.approx(passes * 4 * rows * columns, rel=0.01)
    table, index = torch.empty(50_000, 64), torch.zeros(10, dtype=torch.int64)
    assert simgpu.compiled(lambda x, at: x[at] + 1, table, index).nbytes == 2 * 4 * 64 * 10 + 8 * 10
    halved = simgpu.compiled(partial(nn.functional.interpolate, size=8, mode="bilinear"), torch.empty(2, 3, 16, 16))
    assert halved.nbytes == 4 * 2 * 3 * (16 * 16 + 8 * 8)


@pytest.mark.parametrize(("window", "rate"), [(4, "window"), (6, "pooling")])  # 16 numbers are read without a loop
def test_pooling_costs_each_number_of_windows_that_overlap(window, rate):
    x, pool = torch.empty(1, 8, 36, 36), partial(F.max_pool2d, kernel_size=window)
    (apart,), (kernel,) = (simgpu.compiled(partial(pool, stride=step), x).kernels for step in (window, 1))
    assert apart.flops <= x.numel() and apart.cost.rate == "fp32"
    assert kernel.flops == window**2 * 8 * (37 - window) ** 2 and kernel.cost.rate == rate


def test_products_are_calls_of_a_library_with_their_operations():
    called, written = simgpu.compiled(product, torch.ones(64, 64)).kernels
    assert called.library and called.flops == 2 * 64**3 and called.nbytes == 3 * 64 * 64 * 4
    assert not written.library and written.operators == ("mul", "sin")
    assert called.lines == written.lines == (f"test_compiled.py:{product.__code__.co_firstlineno + 1}",)


@pytest.mark.parametrize("function", [chain, normalised, product])
@pytest.mark.usefixtures("recursion")
def test_as_many_kernels_are_written_as_inductor_writes_on_the_cpu(function, monkeypatch):
    from torch._inductor import config, graph

    codes = []

    def kept(code):
        codes.append(code)
        raise NotImplementedError("what is written is enough: to compile it takes 10 seconds")

    monkeypatch.setattr(graph.GraphLowering, "save_output_code", staticmethod(kept))
    # no look at which instructions the C++ compiler knows; the environment names Inductor's cache afterwards
    scalar = config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False})
    with mock.patch.dict(os.environ), scalar, pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="is enough"):
        torch.compile(function)(torch.rand(64, 64))
    (code,) = codes
    written = re.findall(r"^cpp_fused_\w+ = async_compile", code, re.MULTILINE)
    torch._dynamo.reset()
    found = simgpu.compiled(function, torch.rand(64, 64)).kernels
    assert len(written) == sum(not kernel.library for kernel in found) > 0


def test_breaks_are_told_with_their_lines():
    def f(x):
        y = x.sin()
        print(end="")
        return y.cos()

    found = simgpu.compiled(f, torch.ones(4))
    assert len(found.graphs) == 2 and [kernel.operators for kernel in found.kernels] == [("sin",), ("cos",)]
    (one,) = found.breaks
    assert one.line == f"test_compiled.py:{f.__code__.co_firstlineno + 2}"
    assert f"graph break at {one.line}" in str(found)


def test_training_has_the_kernels_of_the_backward_pass_and_recomputes():
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    found = simgpu.compiled(model, torch.ones(32, 64))
    backward = [kernel for kernel in found.kernels if kernel.backward]
    assert sum(kernel.library for kernel in backward) == 3  # two gradients of weights, one of the hidden layer
    assert any({"gelu", "gelu_backward"} <= set(kernel.operators) for kernel in backward)
    with torch.no_grad():
        assert not any(kernel.backward for kernel in simgpu.compiled(model, torch.ones(32, 64)).kernels)


@pytest.mark.parametrize("end", [F.relu6, lambda h: torch.where(h > 0, h, 0.0), lambda h: F.nll_loss(h, h.argmax(1))])
def test_operators_that_are_made_of_others_have_their_backward_pass(end):
    found = simgpu.compiled(lambda x, w: end(x @ w), torch.ones(4, 8), torch.ones(8, 4, requires_grad=True))
    assert [kernel.library for kernel in found.kernels if kernel.backward].count(True) == 1


def test_convolutions_run_with_the_channels_last():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = simgpu.compiled(model, torch.ones(8, 16, 32, 32))
    convolutions = [kernel for kernel in found.kernels if kernel.library]
    assert [kernel.operators for kernel in convolutions] == [("convolution",)] * 2
    assert all(kernel.cost.rate == "bf16" and kernel.cost.extra_bytes == 0 for kernel in convolutions)


@pytest.mark.parametrize(("dtype", "width", "name"), [
    (torch.float16, 16, "flash"), (torch.float16, 12, "flash"), (torch.float32, 16, "efficient"),
    (torch.float32, 12, "efficient"), (torch.float32, 6, ""), (torch.float64, 16, ""),
])  # fmt: skip
def test_attention_is_the_one_kernel_that_cuda_chooses(dtype, width, name):
    q = torch.ones(2, 4, 32, width, dtype=dtype)
    called = simgpu.compiled(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q).kernels
    fused = [kernel.operators for kernel in called if kernel.library and "attention" in kernel.name]
    assert fused == ([(f"_scaled_dot_product_{name}_attention",)] if name else [])
    assert name or sum(kernel.name == "bmm" for kernel in called) == 2
    if name and width == 16:  # others are padded
        assert [kernel.flops for kernel in called] == [4 * 2 * 4 * 32 * 32 * 16]


def test_numbers_that_a_program_puts_on_its_device_are_in_the_kernel():
    found = simgpu.compiled(lambda x: x * torch.tensor(2.0, device=x.device) + x[[0, 2]].sum(), torch.ones(3, 3))
    assert found.error == "" and len(found.graphs) == 1 and not any(kernel.library for kernel in found.kernels)


def test_devices_and_the_face_make_no_difference(_fresh):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.ones(4, 8)
    on_cpu = simgpu.compiled(model, x)
    on_sim = simgpu.compiled(model.to("sim"), x.to("sim"))
    with simgpu.cuda(memory="1 GiB"):
        on_cuda = simgpu.compiled(model, x.to("cuda"))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            cast = simgpu.compiled(model, x.to("cuda"))
    assert [one.kernels for one in on_cpu.graphs] == [one.kernels for one in on_sim.graphs]
    assert on_sim.kernels == on_cuda.kernels and "bf16" in {one.cost.rate for one in cast.kernels if one.library}


def test_where_triton_is_installed_no_padded_product_is_tried_on_the_gpu(monkeypatch):
    """As in a PyTorch for CUDA without a driver, of whose Triton the face has let PyTorch take notice."""
    from torch._inductor.fx_passes import pad_mm

    odd, x = nn.Linear(65, 33), torch.ones(4, 65)
    without = simgpu.compiled(odd, x)
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)
    found = simgpu.compiled(odd, x)
    assert found.error == "" and found.kernels == without.kernels != ()


def test_what_the_compiler_cannot_lower_is_an_error_of_its_graph(monkeypatch):
    from simgpu.ground import inductor

    monkeypatch.setattr(inductor, "_read", lambda lowering: 1 / 0)
    found = simgpu.compiled(chain, torch.ones(4))
    assert found.kernels == () and "division" in found.graphs[0].error and "not known" in str(found)


def make_model():
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.GELU())


def make_batch():
    return torch.zeros(64, 256), torch.zeros(64, 256)


def kernels(forecast: simgpu.TimeForecast) -> list[str]:
    return [record.name for record in forecast.records if record.kind == "kernel"]


def test_a_forecast_compiled_has_the_kernels_in_the_place_of_the_operators():
    ahead = simgpu.forecast(make_model, make_batch, torch.optim.SGD)
    compiled, captured = ahead.compiled(), ahead.compiled("reduce-overhead")
    assert compiled.eager is ahead and compiled.memory.peak_bytes == ahead.memory.peak_bytes
    eager, found = kernels(ahead.on("T4")), kernels(compiled.on("T4"))
    written = [kernel.name for kernel in compiled.found.kernels]
    assert [name for name in found if name in written] == written
    losses, kept = ([name for name in of if "loss" in name or "_foreach" in name] for of in (eager, found))
    assert losses == kept
    times = [one.on("T4").total_s for one in (ahead, compiled, captured)]
    assert times[0] > times[1] > times[2]
    launches = [record for record in captured.on("T4").records if record.kind == "launch"]
    assert len(launches) == len(found) - len(written) + 2  # one for each pass
    assert compiled.on("T4").evidence.regime == "host assumed, compiled"


def test_a_forecast_compiled_casts_as_its_step_does():
    def step(model, batch, optimizer):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch[0]).float().mean()
        loss.backward()

    compiled = simgpu.forecast(make_model, make_batch, torch.optim.SGD, step=step).compiled()
    rates = {kernel.cost.rate for kernel in compiled.found.kernels if kernel.library}
    assert rates == {"bf16"} and compiled.on("T4").formats == ("bf16",)


class Casting(nn.Module):
    """Casts inside of its forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.layer(x).relu()


def test_a_model_that_casts_inside_is_compiled():
    compiled = simgpu.forecast(Casting, lambda: torch.empty(4, 8)).compiled()
    assert compiled.found.error == "" and len(compiled.found.graphs) == 1
    assert {kernel.cost.rate for kernel in compiled.found.kernels if kernel.library} == {"bf16"}


def test_a_forecast_does_not_depend_on_how_many_others_were_compiled():
    class Scaled(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return (x * self.weight).relu()

    for width in range(2, 4 + torch._dynamo.config.recompile_limit):
        ahead = simgpu.forecast(partial(Scaled, width), lambda: torch.empty(3, 1), step=lambda model, x, _: model(x))
        found = ahead.compiled().found
        assert len(found.graphs) == 1 and not found.error


@torch.compiler.disable
def attend(x):
    return (x @ x.T).softmax(-1) @ x


class Disabled(nn.Module):
    """Between two layers calls what PyTorch's compiler does not compile."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(attend(self.first(x).relu())).relu()


def forecast_of(make, batch, training=False):
    """Return the forecast of a forward pass, or of a whole step with a loss, and the same compiled."""
    ahead = simgpu.forecast(make, batch, torch.optim.SGD if training else None)
    return ahead.on("T4"), ahead.compiled()


def test_what_runs_outside_of_the_graphs_is_named_and_priced_where_it_runs():
    with torch.no_grad():
        found = simgpu.compiled(Disabled(), torch.ones(4, 8))
    assert found.outside == ("mm", "_softmax", "mm") and len(found.graphs) == 2
    line = Disabled.forward.__code__.co_firstlineno + 1
    said = f"3 operators would run uncompiled: mm, _softmax; a graph breaks at test_compiled.py:{line}"
    assert found.error == "" and found.remark == said and said in str(found)
    kinds = ["graph" if isinstance(one, simgpu.GraphPass) else one.name for one in found.forward]
    assert kinds == ["graph", "mm", "_softmax", "mm", "graph"] and found.backward == ()

    with torch.no_grad():
        eager, compiled = forecast_of(Disabled, lambda: torch.empty(4, 8))
    names = [kernel.name for kernel in found.graphs[0].kernels], [kernel.name for kernel in found.graphs[1].kernels]
    time = compiled.on("T4")
    assert kernels(time) == [*names[0], "mm", "_softmax", "mm", *names[1]]
    assert compiled.found.remark == said and 0 < time.total_s < eager.total_s


def test_the_backward_pass_of_what_runs_outside_is_priced_between_those_of_the_graphs():
    model, x = Disabled(), torch.ones(4, 8)
    found = simgpu.compiled(model, x)
    kinds = ["graph" if isinstance(one, simgpu.GraphPass) else one.name for one in found.backward]
    assert kinds[0] == kinds[-1] == "graph" and kinds.count("graph") == 2
    assert kinds[1:-1].count("mm") == 4 and "_softmax_backward_data" in kinds
    assert all(parameter.grad is None for parameter in model.parameters())

    eager, compiled = forecast_of(Disabled, lambda: (torch.empty(4, 8), torch.empty(4, 8)), training=True)
    time = compiled.on("T4")
    for name in ("mm", "_softmax", "_softmax_backward_data"):
        uncompiled = sum(getattr(one, "name", "") == name for one in (*found.forward, *found.backward))
        assert kernels(time).count(name) == uncompiled + sum(kernel.name == name for kernel in found.kernels)
    assert time.total_s > eager.total_s  # of four rows: entering two graphs, with gradients, costs more than they save


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 8)

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("training", [False, True])
def test_a_model_of_which_nothing_is_compiled_gains_nothing(training):
    batch = (torch.empty(5, 4, 8), torch.empty(5, 4, 8)) if training else torch.empty(5, 4, 8)
    eager, compiled = forecast_of(Recurrent, lambda: batch, training)
    assert not compiled.found.graphs and "would run uncompiled" in compiled.found.remark
    assert compiled.on("T4").total_s == eager.total_s


def test_a_break_with_nothing_in_it_leaves_nothing_outside():
    class Printing(Disabled):
        def forward(self, x):
            hidden = self.first(x).relu()
            if hidden.sum() > 100:
                hidden = hidden * 2
            print("half way")
            return self.last(hidden)

    found = simgpu.compiled(Printing(), torch.ones(4, 8))
    assert found.breaks and found.outside == () and found.error == found.remark == ""


def test_what_cannot_be_compiled_is_refused():
    ahead = simgpu.forecast(make_model, make_batch)
    with pytest.raises(ValueError, match="mode must be one of"):
        ahead.compiled("fast")


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
def test_a_question_about_an_optimizer_of_pytorch_has_kernels(kind):
    """Its graph changes parameters and state, which it keeps as attributes."""
    weights = [torch.rand(2, 3, requires_grad=True), nn.Parameter(torch.rand(50))]
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    found = simgpu.compiled(getattr(torch.optim, kind)(weights, lr=0.1).step)
    assert found.kernels and not found.error


def test_a_question_does_not_depend_on_those_before():
    """PyTorch compiles a function for eight kinds of arguments, and no more."""
    with torch._dynamo.config.patch(recompile_limit=2):
        assert all(simgpu.compiled(torch.sin, torch.ones((2,) * dims)).kernels for dims in range(1, 5))
