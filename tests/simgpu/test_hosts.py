"""Does the host take what its row says for each class of operators, and do program, log and forecast agree?"""

import functools
import gzip
import json

import pytest
import torch
from torch import nn

import simgpu
from simgpu.device import state
from simgpu.ground.units import seconds_text
from simgpu.machine import hosts, profiles
from simgpu.reports import against

US = 100.0
HOST = simgpu.Host(US)


def price(of):
    """Return the µs of a class on HOST."""
    return US * hosts.get("server").ratios[of]


def launches(work):
    """Return name and µs of all that the host launches for `work`."""
    torch.sim.synchronize()
    with simgpu.timeline() as seen:
        work()
    return [(record.name, record.duration_ns / 1000) for record in seen.select("launch")]


@pytest.fixture
def host():
    simgpu.configure(host=HOST)
    yield
    simgpu.configure(host=hosts.DEFAULT)


class Layer(nn.Module):
    def forward(self, do):
        return do()


@pytest.mark.parametrize("inside", [True, False])
def test_each_operator_has_the_price_of_its_class_and_of_what_is_around_it(host, inside):
    around, bare = (Layer(), "") if inside else (lambda do: do(), "bare ")
    x, w = torch.ones(4, 4, device="sim"), torch.ones(4, 4, device="sim", requires_grad=True)
    light, library = price(f"{bare}light"), price(f"{bare}library")
    assert launches(lambda: around(lambda: x @ x)) == [("mm", library)]
    assert launches(lambda: around(lambda: x + x)) == [("add", light)]
    assert launches(lambda: around(lambda: x.half())) == [("copy_", light if bare else price("cast"))]
    assert launches(lambda: around(lambda: x.t() + 1)) == [("add", light + price("view"))]
    assert launches(lambda: torch.ones(4).to("sim")) == [("copy H2D", price("copy"))]
    y = around(lambda: x @ w)
    found = launches(lambda: y.sum().backward())  # the sum behind a layer is a part of the model, too
    before = price("backward pass") + 2 * price("node") + 2 * price("view")
    assert found[0] == ("sum", light)
    assert dict(found)["mm"] == pytest.approx(before + (library if bare else price("library backward")))


def test_autograd_counts_its_nodes_and_the_gradients_that_it_adds(host):
    leaves = [torch.ones(4, device="sim", requires_grad=True) for _ in range(5)]
    for kind, count in (("accumulate", 5), ("node", 6)):  # nodes that run an operator: sum, 5 products
        loss = sum(leaf * 2 for leaf in leaves).sum()
        simgpu.configure(host=simgpu.Host(US, ratios={kind: 1.0}))
        before = simgpu.clock_ms()
        loss.backward()
        assert (simgpu.clock_ms() - before) * 1000 == pytest.approx(count * US)


def test_an_optimizer_takes_the_host_by_operator_and_by_tensor(host):
    def stepped(**how):
        model = nn.Sequential(*(nn.Linear(4, 4, device="sim") for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **how)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        return launches(optimizer.step)

    loop, lists = stepped(foreach=False), stepped(foreach=True)
    assert {name for name, _ in loop} == {"add_"} and len(loop) == 8
    assert all(us == pytest.approx(price("optimizer")) for _, us in loop)
    assert lists == [("_foreach_add_", pytest.approx(price("optimizer") + 8 * price("tensor of a list")))]


def test_a_graph_is_one_launch_without_operators_around_it(host):
    with simgpu.cuda(host=HOST):
        x = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                x.mul_(2).view(2, 2)
        assert launches(graph.replay) == [("graph", pytest.approx(price("launch") + 10 * price("graph node")))]


def test_what_the_host_was_called_for_before_it_waits_is_no_launch(host):
    x = torch.ones(4, device="sim")
    torch.sim.synchronize()
    before = simgpu.clock_ms()
    for _ in range(10):
        x.view(2, 2)
    torch.sim.synchronize()
    assert (simgpu.clock_ms() - before) * 1000 == pytest.approx(10 * price("view"))


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def batch():
    return torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize("name", ["kernel launch", "server"])
def test_a_forecast_takes_the_host_what_the_simulated_gpu_does(name):
    simgpu.configure(host=name)
    model, (x, y) = make().to("sim"), (part.to("sim") for part in batch())
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    torch.sim.synchronize()
    with simgpu.timeline() as seen:
        step()
    ahead = simgpu.forecast(make, batch, torch.optim.AdamW).on("T4", host=name)
    assert ahead.host_s * 1e3 == pytest.approx(seen.busy_ms("host"), rel=0.01)
    assert ahead.total_s * 1e3 == pytest.approx(seen.total_ms, rel=0.01)


def test_the_default_host_is_the_first_row_and_hosts_are_found_by_name_number_and_value():
    assert hosts.DEFAULT is hosts.ALL[0] is hosts.get("Server") and hosts.DEFAULT.operator_us == 60
    assert hosts.get("45") == simgpu.Host(45.0) and hosts.get(HOST) is HOST
    assert hosts.get("launch call") is hosts.get("kernel launch")  # its old name
    assert simgpu.Host.of_launches(5).only_launches and not HOST.only_launches
    assert all(host.source and set(host.ratios) == set(hosts.CLASSES) for host in hosts.ALL)
    with pytest.raises(ValueError, match="'a desk', which is not in the table"):
        hosts.get("a desk")
    with pytest.raises(ValueError, match="ratios has 'loop', it may have: library"):
        simgpu.Host(1, ratios={"loop": 1.0})
    with pytest.raises(ValueError, match="operator_us must be a number of microseconds from 0, not -1"):
        simgpu.Host(-1)


@functools.cache
def small_step():
    return simgpu.forecast(make, batch, torch.optim.AdamW)


@pytest.mark.parametrize("us", [12.0, 60.0, 300.0])
def test_one_measured_step_tells_the_host(us):
    seconds = small_step().on("RTX 4090", host=simgpu.Host(us)).total_s
    found = simgpu.Host.from_step(seconds, small_step(), "RTX 4090")
    assert found.operator_us == pytest.approx(us, rel=0.01) and "by a step" in found.source
    assert simgpu.Host.from_step(seconds, lambda host: small_step().on("RTX 4090", host=host).total_s) == found


def test_a_step_that_waits_for_its_gpu_tells_no_host():
    with pytest.raises(ValueError, match="measure a smaller batch"):
        simgpu.Host.from_step(1e-5, small_step())
    with pytest.raises(ValueError, match=r"seconds is 31, and on the slowest host the step takes .*: it must be"):
        simgpu.Host.from_step(31, small_step())  # milliseconds
    with pytest.raises(TypeError, match=r"program must be a simgpu\.forecast"):
        simgpu.Host.from_step(1, "train.py")
    with pytest.raises(TypeError, match=r"program must be a simgpu\.forecast"):
        simgpu.Host.from_step(1, nn.Linear(2, 2))


def event(name, start, length, kind="cpu_op", thread=1, **args):
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length, "tid": thread, "pid": 1, "args": args}


def operator(name, start, length, number, kernel="k", thread=1):
    """Return the events of an operator that starts a kernel in its last 5 µs."""
    call = event("cudaLaunchKernel", start + length - 5, 5, "cuda_runtime", thread, correlation=number)
    ran = event(kernel, start + length, 3, "kernel", 7, correlation=number)
    return [event(name, start, length, thread=thread), call, ran]


def trace(path, *groups, **more):
    path.write_text(json.dumps({"traceEvents": [one for group in groups for one in group], **more}), encoding="utf-8")
    return path


def test_a_trace_gives_each_operator_its_own_time_and_waits_to_nobody(tmp_path):
    wait = event("cudaStreamSynchronize", 200, 500, "cuda_runtime", correlation=9)
    engine = event("autograd::engine::evaluate_function: MmBackward0", 800, 60, thread=2)
    found = profiles.Profile(trace(
        tmp_path / "t.json", operator("aten::mm", 0, 60, 1), [event("aten::view", 62, 4)],
        operator("aten::add", 66, 20, 2), [wait, engine], operator("aten::mm", 810, 40, 3, thread=2),
        [event("aten::empty", 900, 3)],
    ))  # fmt: skip
    assert {name: times for name, times in found.by_class.items() if name != profiles.OTHER} == {
        "library": [60], "view": [6], "light": [20], "node": [pytest.approx(20 + 100)], "library backward": [40],
    }  # fmt: skip
    assert found.odd == ""


def test_a_traces_host_is_scaled_to_a_step_without_the_profiler_and_an_odd_build_is_named(tmp_path):
    step = [event("ProfilerStep#1", 0, 1000, "user_annotation")]
    plain = trace(tmp_path / "plain.json", step, many())
    assert simgpu.Host.from_trace(plain).operator_us == 60
    assert simgpu.Host.from_trace(plain, step_s=800e-6).operator_us == 48
    slow = [event("aten::empty", 1000 + 40 * k, 30) for k in range(8)]
    packed = tmp_path / "odd.json.gz"
    packed.write_bytes(gzip.compress(trace(tmp_path / "odd.json", step, many(2000), slow).read_bytes()))
    with pytest.warns(UserWarning, match=r"odd.json.gz is of an odd build: an allocation takes 30 µs"):
        assert "odd build" in simgpu.Host.from_trace(packed).source


SOUND = json.dumps({"traceEvents": operator("aten::mm", 0, 60, 1)}).encode()
PACKED = gzip.compress(SOUND, mtime=0)  # which holds no time: names of tests must be the same in each worker
SIMULATED = {"ph": "M", "name": "process_name", "pid": 1000, "tid": 0, "args": {"name": "host (simulated)"}}


@pytest.mark.parametrize(("content", "phrase"), [
    (b"no JSON", "bad.json is no trace, or a part of one: it must be the whole JSON"),
    (b"", "a part of one"), (SOUND[:200], "a part of one"), (b"\xff\xfe\x00", "a part of one"),
    (PACKED[:40], "a part of one"), (PACKED[:-8] + bytes(8), "a part of one"),
    (PACKED[:20] + bytes(40), "a part of one"),
    (b"{}", "it has no list traceEvents"), (b"3", "it has no list traceEvents"),
    (b'{"traceEvents": []}', "has no operators of the host"),
    (b'{"traceEvents": [1, null, {"ph": "X"}, {"ph": "X", "name": "a", "ts": "now", "dur": 1, "tid": 1}]}',
     "has no operators of the host"),
    (json.dumps([event("aten::mm", 0, 60), event("aten::view", 70, 2)]).encode(),
     "has no operator that started anything on a GPU: record with ProfilerActivity.CPU and CUDA"),
    (json.dumps([SIMULATED, *operator("aten::mm", 0, 60, 1)]).encode(), "is of a simulated GPU"),
])  # fmt: skip
def test_a_file_that_is_no_trace_is_refused(tmp_path, content, phrase):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError, match=phrase):
        simgpu.Host.from_trace(tmp_path / "bad.json")


def many(first=0, count=100):
    return [one for number in range(count) for one in operator("aten::mm", first + 60 * number, 60, number)]


def test_what_loads_cuda_is_no_time_of_the_host_and_few_operators_are_told(tmp_path):
    loads = event("cudaFuncGetAttributes", 2, 2e7 - 2, "cuda_runtime")
    loading = [event("aten::to", 0, 2e7 + 100), event("aten::empty", 1, 2e7), loads]
    first = [event("aten::mm", 4e7, 9e5), event("cudaLaunchKernel", 4e7, 8.9e5, "cuda_runtime", correlation=200)]
    path = trace(tmp_path / "warm.json", loading, first, many(5e7))
    assert simgpu.Host.from_trace(path).operator_us == pytest.approx(60, rel=0.02)
    with pytest.warns(UserWarning, match=r"few.json has 99 operators of a GPU, which are few to know a host by"):
        simgpu.Host.from_trace(trace(tmp_path / "few.json", many(count=99)))


@pytest.mark.filterwarnings("ignore:.*few to know a host by")
def test_a_trace_is_read_whatever_it_is_called_and_whatever_else_is_in_it(tmp_path):
    strange = [
        {"ph": "X", "name": "odd"},
        "text",
        {"ph": "X", "name": "a", "ts": 1, "dur": -5, "tid": 1, "cat": "cpu_op"},
    ]
    events = {"traceEvents": [*operator("aten::mm", 0, 60, 1), *strange], "deviceProperties": {}}
    (tmp_path / "packed.json").write_bytes(gzip.compress(json.dumps(events).encode()))
    (tmp_path / "plain.gz").write_text(json.dumps(events), encoding="utf-8")
    assert all(simgpu.Host.from_trace(path).operator_us == 60 for path in tmp_path.iterdir())


@pytest.mark.parametrize(("marked", "step_s", "phrase"), [
    (True, 0.8, "step_s is 0.8, and under the profiler a step took 0.001 s: it must be the seconds of the same step"),
    (True, 8e-6, "must be the seconds of the same step"), (True, -1, "step_s must be"),
    (False, 8e-4, "the trace marks no steps"),
])  # fmt: skip
def test_a_step_that_is_not_the_traces_is_refused(tmp_path, marked, step_s, phrase):
    step = [event("ProfilerStep#1", 0, 1000, "user_annotation")] if marked else []
    with pytest.raises(ValueError, match=phrase):
        simgpu.Host.from_trace(trace(tmp_path / "t.json", step, operator("aten::mm", 0, 60, 1)), step_s=step_s)


def test_the_clock_counts_views_and_nodes_only_where_they_matter():
    simgpu.configure(host="kernel launch")
    assert state.world.clock.called_ns == {}
    simgpu.configure(host="server")
    assert set(state.world.clock.called_ns) == {
        "view", "node", "accumulate", "backward pass", "graph", "guard", "recorded graph", "graph tree",
    }  # fmt: skip
    simgpu.configure(host=hosts.DEFAULT)


@pytest.mark.parametrize(("host", "words"), [
    ("server", "where the host decides, which is assumed within a factor of 3"),
    ("server", "mostly too short, on 171 published runs (6 GPUs); 73 % too long on hosts of 2025"),
    (simgpu.Host(45.0), "where the host decides, which one of its programs told"),
    (simgpu.Host.of_launches(7), "costs set by hand"),
])  # fmt: skip
def test_the_label_of_a_time_says_what_is_known_of_the_host(host, words):
    assert words in small_step().on("T4", host=host).evidence.long
    if host == "server":
        assert "within a factor of 3" in str(small_step().on("T4", host=host).evidence)


def test_a_forecast_says_what_the_host_does_and_what_would_take_it_from_it():
    ahead = small_step().on("T4", host=HOST)
    assert sum(ahead.host_by_class.values()) == pytest.approx(ahead.host_s)
    assert {"library", "light", "library backward", "node", "accumulate", "optimizer", "view"} <= {*ahead.host_by_class}
    graph, bare = (ahead.what_if(compiled=how) for how in (True, "launches"))
    assert max(graph.step_time, bare.step_time) < 0.4 * ahead.total_s
    assert ahead.what_if(host="desktop").step_time == pytest.approx(small_step().on("T4", host="desktop").total_s)
    loop = simgpu.forecast(make, batch, functools.partial(torch.optim.AdamW, foreach=False)).on("T4", host=HOST)
    lists = loop.what_if(foreach=True)
    assert lists.step_time < 0.9 * loop.total_s and lists.step_time == pytest.approx(ahead.total_s, rel=0.2)
    assert "nothing changes" in ahead.what_if(foreach=True).assumptions[0]
    with pytest.raises(ValueError, match="compiled is 'all', it may be True, False or 'launches'"):
        ahead.what_if(compiled="all")


@pytest.mark.parametrize("name", ["kernel launch", "server"])
def test_a_report_says_what_the_host_does_where_that_is_more_than_launches(name):
    with simgpu.cuda("T4", host=name, record=True) as face:
        model, (x, y) = make().cuda(), (part.cuda() for part in batch())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        report = face.report()
    assert bool(report.host) == (name == "server") == ("What the host does" in str(report))
    assert ("What the host does" in report._repr_html_()) == (name == "server")
    if report.host:
        assert set(report.host) == {"operators", "optimizer", "autograd", "views"}
        assert 0.9 * report.step_time < sum(report.host.values()) < 1.1 * report.step_time
        assert "With CUDA graphs a step would take" in str(report) or "launched without" in str(report)


def test_a_report_stands_beside_a_trace_of_the_same_program_what_differs_most_first(tmp_path):
    with simgpu.cuda("T4", host=simgpu.Host(60.0), record=True) as face:
        x = torch.ones(64, 64, device="cuda")
        for _ in range(3):
            Layer()(lambda: x @ x)
            simgpu.step()
        report = face.report()
    step = [event("ProfilerStep#1", 0, 200, "user_annotation")]
    path = trace(tmp_path / "real.json", step, operator("aten::mm", 0, 60, 1), operator("aten::add", 60, 90, 2))
    said = against.text(report, path)
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line}
    assert rows["step"] == ["200", "µs", seconds_text(report.step_time).split()[0], "µs"]
    assert rows["mm"][:6] == ["1", "1", "60.0", "µs", "60.0", "µs"] and rows["add"][:5] == ["1", "0", "90.0", "µs", "0"]
    assert said.index("\nadd") < said.index("\nmm") and "host given" in said and "1.15 to 1.5 times" in said
    assert "another program" not in said and "marks no steps" not in said
    other = trace(tmp_path / "other.json", *(operator("aten::bmm", 70 * k, 60, k) for k in range(3)))
    said = against.text(report, other)
    assert "Of the trace's 3 operators a step, 0 are among the simulated ones: it may be of another program" in said
    assert "The trace marks no steps" in said
    with pytest.raises(ValueError, match=r"none.json is no trace"):
        (tmp_path / "none.json").write_text("{}", encoding="utf-8")
        against.text(report, tmp_path / "none.json")
