"""Do graphs and compiled programs run on CUDA's face, and is refused what cannot be?"""

import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils.explain import explain

FACE = {"memory": "1 GiB"}


def test_a_graph_computes_again_on_the_same_memory_by_one_launch():
    x, w = torch.zeros(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    total = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    first, last = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    with torch.cuda.graph(graph):
        first.record()
        y = (x @ w).relu()
        last.record()
        total += y.sum(0)
    assert total.sum().item() == 0  # a capture computes nothing
    expected = torch.zeros(8)
    for value in (1.0, -2.0):
        x.fill_(value)
        with simgpu.timeline() as seen:
            graph.replay()
        assert len(seen.select("launch")) == 1 and len(seen.select("kernel", "sim:0")) == 4
        torch.cuda.synchronize()
        product, relu, *_ = seen.select("kernel", "sim:0")
        assert first.elapsed_time(last) == pytest.approx((product.duration_ns + relu.duration_ns) / 1e6)
        expected += (x.cpu() @ w.cpu()).relu().sum(0)
        assert torch.equal(y.cpu(), (x.cpu() @ w.cpu()).relu()) and torch.equal(total.cpu(), expected)


def test_a_whole_step_of_training_in_a_graph_equals_eager():
    def trained(graphed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
        x, y = torch.zeros(16, 4, device="cuda"), torch.zeros(16, 2, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(model(x), y).backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if graphed:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        for seed in range(4):
            torch.manual_seed(seed)
            x.copy_(torch.randn(16, 4))
            y.copy_(torch.randn(16, 2))
            step()
        return [p.detach().cpu() for p in model.parameters()]

    for mine, its in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0)


@pytest.mark.parametrize(
    "wait", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x.nonzero(), torch.cuda.synchronize]
)
def test_what_waits_is_refused_in_a_graph(wait):
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"), torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        wait(*[x] if wait is not torch.cuda.synchronize else [])
    assert not torch.cuda.is_current_stream_capturing() and x.sum().item() == 2
    with pytest.raises(RuntimeError, match="Called CUDAGraph::replay without"):
        graph.replay()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_another_thread_may_wait_in_a_mode_of_threads(mode):
    x, graph = torch.ones(2, device="cuda"), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode)
    with suppress(RuntimeError), ThreadPoolExecutor(1) as pool, graph:
        x += 1
        waited = pool.submit(lambda: x.sum().item() and not torch.cuda.is_current_stream_capturing())
        assert (waited.exception() is None and waited.result()) == (mode != "global")


@pytest.mark.filterwarnings("error:The simulated GPU")  # what autograd frees is in the graphs' own memory
def test_graphed_callables():
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).cuda()
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    expected = layer(x).sum()
    expected.backward()
    expected, want = expected.detach(), layer[0].weight.grad.clone()  # a graph of the default stream must not be kept
    layer.zero_grad()
    graphed = torch.cuda.make_graphed_callables(layer, (torch.randn(3, 4, device="cuda", requires_grad=True),))
    found = graphed(x).sum()
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer[0].weight.grad, want)


def test_programs_that_are_told_to_compile_nothing_run_uncompiled(monkeypatch):
    layer, x = nn.Linear(1, 2).cuda(), torch.ones(1, 1, device="cuda")
    compiled = torch.compile(layer, mode="max-autotune")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert torch.equal(compiled(x), layer(x))
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    with torch._dynamo.config.patch(disable=True):
        assert torch.equal(compiled(x), layer(x))
    assert torch.equal(compiled(x), layer(x))


def event_from_outside(graph, x, side):
    event = side.record_event()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.cuda.current_stream().wait_event(event)


def fork(graph, x, side, join=False):
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        if join:
            torch.cuda.current_stream().wait_stream(side)
            y = y + 1
    return y


def default_stream_waits(graph, x, side):
    with torch.cuda.graph(graph):
        torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())


def another_stream_ends_it(graph, x, side):
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        x + 1
    with torch.cuda.stream(side):
        graph.capture_end()


def strange_generator(graph, x, side, known=False):
    generator = torch.Generator("cuda")
    if known:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        y = torch.rand(8, device="cuda", generator=generator)
    return y


def captured_event(ask, graph, x, side):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.graph(graph):
        first.record()
        y = x * 2
        last.record()
    graph.replay()
    ask(first, last)
    return y


def catches(*_):
    with suppress(RuntimeError):
        torch.cuda.synchronize()


def captured(call, graph, x, side):
    event = torch.cuda.Event()
    with torch.cuda.graph(graph):
        call(side, event)


ISOLATION = "CUDA error: dependency created on uncaptured work in another stream", "streams of a capture"
SEED = "set_current_seed can be called during stream capture only if new seed is the same", "generator of a capture"
CAPTURED = "operation not permitted on an event last recorded in a capturing stream", "streams of a capture"


@pytest.mark.parametrize(("program", "words", "name"), [
    (event_from_outside, *ISOLATION),
    (partial(captured, lambda side, _: torch.cuda.current_stream().wait_stream(side)), *ISOLATION),
    (fork, "CUDA error: capturing stream has unjoined work", "streams of a capture"),
    (lambda graph, *_: graph.capture_begin(), "captured on a non-default stream", "default stream in a capture"),
    (default_stream_waits, "make the legacy stream depend on a capturing", "default stream in a capture"),
    (strange_generator, "for a CUDA generator not in capture mode", "generator of a capture"),
    (partial(captured_event, lambda first, last: first.query()), *CAPTURED),
    (partial(captured_event, lambda first, last: last.synchronize()), *CAPTURED),
    (partial(captured_event, lambda first, last: first.elapsed_time(last)), *CAPTURED),
    (partial(captured_event, lambda first, last: last.wait()), *CAPTURED),
    (partial(captured, lambda *_: torch.cuda.current_stream().query()), "stream is capturing", "capture of a graph"),
    (partial(captured, lambda _, event: event.query()), "when stream is capturing", "capture of a graph"),
    (partial(captured, catches), "due to a previous error during capture", "capture of a graph"),
    (another_stream_ends_it, "Capture must end on the same stream it began on.", "streams of a capture"),
    (partial(captured, lambda *_: torch.cuda.empty_cache()), "captures_underway.empty", "memory during a capture"),
    (partial(captured, lambda *_: torch.cuda.manual_seed(3)), *SEED),
    (partial(captured, lambda *_: torch.cuda.set_rng_state(torch.cuda.get_rng_state() + 1)), *SEED),
    (partial(captured, lambda *_: torch.Generator("cuda")), "Cannot construct a new CUDAGen", SEED[1]),
    (partial(captured, lambda *_: torch.cuda.default_generators[0].get_offset()), "Impl::get_offset during", SEED[1]),
    (partial(captured, lambda *_: torch.cuda.default_generators[0].set_offset(3)), "Impl::set_offset during", SEED[1]),
    (partial(captured, lambda *_: torch.cuda.default_generators[0].clone_state()), "Impl::clone_impl during", SEED[1]),
    (partial(captured, lambda *_: torch.cuda.seed()), "Cannot call CUDAGeneratorImpl::seed during CUDA", SEED[1]),
])  # fmt: skip
def test_a_capture_refuses_what_reaches_out_of_it_and_it_is_explained(program, words, name):
    with pytest.raises(RuntimeError, match=words) as caught:
        program(torch.cuda.CUDAGraph(), torch.ones(8, device="cuda"), torch.cuda.Stream())
    assert explain(caught.value).name == name


def test_a_fork_that_is_joined_and_a_generator_that_the_graph_knows_are_captured():
    x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    y = fork(graph, x, torch.cuda.Stream(), join=True)
    x.fill_(3)
    graph.replay()
    assert torch.equal(y.cpu(), torch.full((8,), 7.0))
    graph = torch.cuda.CUDAGraph()
    y = strange_generator(graph, x, None, known=True)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


def warmed_up(graph, x, side, on_side=False, kept=True, override=False):
    model, warm = nn.Linear(8, 1).cuda(), side if on_side else torch.cuda.current_stream()
    with torch.cuda.stream(warm):
        loss = model(x).sum()
        loss.backward()
    torch.cuda.current_stream().wait_stream(warm)
    loss = loss if kept else None
    model.zero_grad(set_to_none=True)
    torch.autograd.graph.set_override_stale_capture_stream(override)
    with torch.cuda.graph(graph):
        model(x).sum().backward()
    graph.replay()
    return model.weight.grad


@pytest.mark.skipif(not hasattr(torch._C, "_override_stale_capture_stream"), reason="before, CUDA itself refuses")
def test_a_warm_up_on_the_default_stream_whose_loss_is_kept_cannot_be_captured_again():
    try:
        for way in ({"on_side": True}, {"kept": False}, {"override": True}):
            grad = warmed_up(torch.cuda.CUDAGraph(), torch.ones(8, device="cuda"), torch.cuda.Stream(), **way)
            assert grad.tolist() == [[1.0] * 8]
        with pytest.raises(RuntimeError, match="'torch::autograd::AccumulateGrad' has a stale reference") as caught:
            warmed_up(torch.cuda.CUDAGraph(), torch.ones(8, device="cuda"), torch.cuda.Stream())
    finally:
        torch.autograd.graph.set_override_stale_capture_stream(False)
    assert explain(caught.value).name == "default stream in a capture"
    before = torch.ones(8, device="cuda", requires_grad=True).exp()
    with pytest.raises(RuntimeError, match="'ExpBackward0' has a stale"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        before.sum().backward()


@pytest.mark.parametrize("asked", [{}, {"check_input_liveness": True}])
@pytest.mark.parametrize("lose", [
    lambda p, inputs: inputs.clear(),
    lambda p, inputs: setattr(p, "data", torch.zeros(8, device="cuda")),
    lambda p, inputs: setattr(p, "grad", None),
])  # fmt: skip
def test_a_graph_whose_inputs_are_gone_computes_with_the_old_ones_and_says_so(lose, asked):
    if asked and "check_input_liveness" not in inspect.signature(torch.cuda.graph).parameters:
        pytest.skip("PyTorch before 2.13 does not ask")
    ones, graph = partial(torch.ones, 8, device="cuda"), torch.cuda.CUDAGraph()
    p, inputs = nn.Parameter(ones()), [ones()]
    p.grad = torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph, **asked):
        y = inputs[0][2:] * p.detach()[2:]
        p.grad += 1
    inputs[0].fill_(2)
    graph.replay()
    lose(p, inputs)
    words = "1 dead tensor" if asked else "the program has freed since"
    with pytest.raises(RuntimeError, match=words) if asked else pytest.warns(match=words) as seen:
        graph.replay()
    assert y.tolist() == [2.0] * 6
    assert not asked or explain(seen.value).name == "inputs of a captured graph"


def test_memory_of_a_graph_is_that_of_its_pool_and_inputs_that_are_freed_count_no_longer():
    def mib():
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20

    gc.collect()  # graphs of other tests, which hold seed and offset
    simgpu.configure(allocator="caching")
    x, graph = torch.ones(2**22, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(20):
            y = y * 2
    assert mib() == (32, 50) and torch.cuda.max_memory_allocated() >> 20 == 48  # 2 MiB: seed and offset
    del x
    assert mib() == (16, 34)
    graph.reset()
    assert mib() == (16, 16) and y.shape == (2**22,)


def test_a_checkpoint_in_a_graph_draws_the_same_numbers_again_and_a_new_seed_is_refused():
    def gradient():
        x = torch.ones(1, device="cuda", requires_grad=True)
        draw = partial(torch.utils.checkpoint.checkpoint, lambda x: x * torch.rand_like(x), use_reentrant=False)
        y, z = draw(x), torch.rand(1, device="cuda")
        return y.detach(), z, *torch.autograd.grad(y + z, x), torch.rand(1, device="cuda")

    graph, capture = torch.cuda.CUDAGraph(), torch.cuda.graph
    with capture(graph):
        captured = gradient()
    for seed in (1, 2):
        torch.manual_seed(seed)
        graph.replay()
        seen = [one.item() for one in captured]
        torch.manual_seed(seed)
        assert seen == [one.item() for one in gradient()] and seen[0] == seen[2] and len(set(seen)) == 3
    with pytest.warns(match="The CUDA Graph is empty"), capture(torch.cuda.CUDAGraph()):
        torch.cuda.manual_seed(2)
    for words, ask in (
        ("already owns", lambda: capture(graph).__enter__()),
        ("user only when keep_graph=true", graph.instantiate),
        ("initialized with keep_graph=true", graph.raw_cuda_graph),
        (r"CUDAGraph::pool\(\) without a preceding", torch.cuda.CUDAGraph().pool),
        ("or `relaxed`, got lax", lambda: capture(torch.cuda.CUDAGraph(), capture_error_mode="lax").__enter__()),
    ):
        with pytest.raises(RuntimeError, match=words):
            ask()


def test_recurrent_layers_and_inference_are_captured_also_by_the_graph_of_any_accelerator():
    layer, x, kept = nn.LSTM(4, 4, 2, device="cuda"), torch.zeros(3, 1, 4, device="cuda"), torch.zeros(1, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.accelerator.Graph() if hasattr(torch.accelerator, "Graph") else None
    with torch.inference_mode(), stream, graph or torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = layer(x)[0]
        kept += y.sum()
        assert torch.cuda.is_current_stream_capturing()
    assert kept.item() == 0
    graph.replay()
    torch.testing.assert_close(y, layer(x)[0])
    torch.testing.assert_close(kept[0], y.sum())


def test_a_replay_asks_a_condition_and_its_result_arrives_on_the_host(tmp_path):
    nodes = pytest.importorskip("torch._higher_order_ops.cudagraph_conditional_nodes")
    x, condition, graph = torch.ones(8, device="cuda"), torch.tensor(True, device="cuda"), torch.cuda.CUDAGraph(True)
    host, file = torch.empty(8).pin_memory(), tmp_path / "graph.dot"
    with torch.cuda.graph(graph):
        host.copy_(nodes.if_else_node(condition, lambda x: x + 1, lambda x: x - 1, [x]), non_blocking=True)
    for is_true in (True, False):
        condition.fill_(is_true)
        graph.replay()
        torch.cuda.synchronize()
        assert host.tolist() == [2.0 * is_true] * 8
    graph.debug_dump(str(file))
    assert ": add, " in file.read_text()
    with pytest.raises(torch.AcceleratorError, match="is capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ops.higher_order.cond(condition, torch.neg, torch.neg, [x])


def test_generators_share_a_state_that_a_graph_draws_from():
    own, graph, eager = torch.cuda.default_generators[0], torch.cuda.CUDAGraph(), torch.Generator("cuda").manual_seed(3)
    first, second = own.graphsafe_get_state(), own.clone_state().manual_seed(3)
    graph.register_generator_state(second)
    torch.manual_seed(0)
    expected = [torch.rand(4, device="cuda", generator=[eager, None][n % 2]) for n in range(4)][2:]
    torch.manual_seed(0)
    with torch.cuda.graph(graph):
        drawn = [torch.rand(4, device="cuda", generator=own.graphsafe_set_state(one)) for one in (second, first)]
    graph.replay()
    graph.replay()
    assert torch.equal(torch.stack(drawn), torch.stack(expected))
    assert first.get_offset() == own.get_offset() == second.get_offset() == eager.get_offset() == 8
