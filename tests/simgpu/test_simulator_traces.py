"""Does a timeline say what kept the GPU waiting, and does its trace say the same in the form of a Chrome trace?"""

import itertools
import json
import threading
from decimal import Decimal

import pytest
import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

import simgpu


def training(steps=2):
    """Train a few steps, with work of the host's and a value read in each; return the timeline."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to("sim:0")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 64)
    simgpu.reset()
    with simgpu.timeline() as timeline:
        for _ in range(steps):
            simgpu.host_work("read files", 0.25)
            with record_function("move"):
                x = batch.to("sim:0")
            with record_function("step"):
                with record_function("forward pass"):
                    loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            loss.item()
    return timeline


def two_gpus():
    """Use two GPUs, a second stream and copies in all directions; return the timeline."""
    side = torch.sim.Stream()
    with simgpu.timeline() as timeline:
        x = torch.ones(512, 512).to("sim:0")
        with torch.sim.stream(side):
            y = torch.ones(2**18).pin_memory().to("sim:0", non_blocking=True)
        z = (x @ x).to("sim:1") @ x.to("sim:1")
        torch.sim.current_stream().wait_stream(side)
        (y * 2).cpu()
        z.sum().item()
    return timeline


def read(timeline, path):
    timeline.export_chrome_trace(path)
    return json.loads(path.read_bytes(), parse_float=Decimal)


@pytest.mark.parametrize("program", [training, two_gpus])
def test_a_traces_events_are_whole_nanoseconds_sorted_nested_and_linked(program, tmp_path):
    timeline = program()
    events = read(timeline, tmp_path / "trace.json")["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    spans = [event for event in timed if event["ph"] == "X"]
    open_until: dict = {}
    for event in spans:
        assert event["dur"] >= 0 and event["ts"] >= 0
        assert all(value * 1000 == int(value * 1000) for value in (event["ts"], event["dur"]))
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1]
        ends.append(event["ts"] + event["dur"])
    on_gpus = [event for event in spans if event["cat"] in ("kernel", "gpu_memcpy")]
    assert len(on_gpus) == len(timeline.select("kernel")) + len(timeline.select("copy")) > 5
    calls = {e["args"]["correlation"]: e for e in spans if e["name"] in ("cudaLaunchKernel", "cudaMemcpyAsync")}
    arrows = {(event["ph"], event["id"]): event for event in timed if event["ph"] in "sf"}
    assert len(arrows) == 2 * len(on_gpus) == 2 * len(calls)
    for event in on_gpus:
        number = event["args"]["correlation"]
        tail, head = arrows["s", number], arrows["f", number]
        assert tail["ts"] == calls[number]["ts"] < head["ts"] == event["ts"]
        assert (head["pid"], head["tid"]) == (event["pid"], event["tid"])
    waiting = [event["args"]["waiting"] for event in timed if event["ph"] == "C"]
    assert min(waiting) == 0 and waiting[-1] == 0 and (program is training or max(waiting) > 0)


def test_a_trace_names_its_tracks_and_calls_itself_simulated(tmp_path):
    trace = read(two_gpus(), tmp_path / "trace.json")
    events = trace["traceEvents"]
    names = {(e["name"], e["pid"], e["args"]["name"]) for e in events if e["name"] in ("process_name", "thread_name")}
    tracks = {(pid, name) for kind, pid, name in names if kind == "thread_name"}
    assert {(0, "stream 0"), (0, "copies H2D"), (0, "copies D2H"), (1, "stream 0"), (1000, "Python")} <= tracks
    assert {name for kind, _, name in names if kind == "process_name"} == {
        "host (simulated)", "sim:0 (simulated T4)", "sim:1 (simulated T4)"}  # fmt: skip
    assert "simulated" in trace["note"] and "input" in trace["note"]
    lines = [event["args"]["line"] for event in events if event.get("cat") == "kernel"]
    assert all(line.startswith("test_simulator_traces.py:") for line in lines)


def test_a_trace_has_the_readers_ranges_and_the_parts_of_the_step(tmp_path):
    timeline = training()
    events = read(timeline, tmp_path / "trace.json")["traceEvents"]
    ranges = [e for e in events if e.get("cat") == "user_annotation"]
    assert [e["name"] for e in ranges if not e["name"].startswith("Optimizer")] == [
        "read files", "move", "step", "forward pass"] * 2  # fmt: skip
    assert {e["args"]["note"] for e in ranges if e["name"] == "read files"} == {"host work: an input"}
    move = next(e for e in ranges if e["name"] == "move")
    assert move["dur"] * 1000 == timeline.select("range")[0].duration_ns > 10_000
    parts = [e["name"] for e in events if e.get("cat") == "gpu_user_annotation"]
    assert parts == [name for name, *_ in timeline.phases()] == ["forward", "backward", "optimizer step"] * 2


def test_the_same_program_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        training().export_chrome_trace(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_ranges_of_several_threads_that_do_not_nest_get_tracks_of_their_own(tmp_path):
    first, second = record_function("first"), record_function("second")
    with simgpu.timeline() as timeline:
        first.__enter__()
        simgpu.host_work("work", 1)
        thread = threading.Thread(target=second.__enter__)
        thread.start()
        thread.join()
        simgpu.host_work("work", 1)
        first.__exit__(None, None, None)
        simgpu.host_work("work", 1)
        second.__exit__(None, None, None)
    events = read(timeline, tmp_path / "trace.json")["traceEvents"]
    where = {e["name"]: (e["tid"], e["ts"], e["dur"]) for e in events if e.get("cat") == "user_annotation"}
    assert where["first"] == (1, 0, 2000) and where["second"] == (2, 1000, 2000)


def test_ranges_are_looked_at_only_while_a_timeline_is_open():
    before = record_function.__enter__, record_function.__exit__
    with simgpu.timeline() as outer:
        with simgpu.timeline() as inner, record_function("a"):
            simgpu.host_work("b", 1)
        with record_function("c"):
            pass
    assert (record_function.__enter__, record_function.__exit__) == before
    assert [r.name for r in outer.select("range")] == ["a", "c"] and [r.name for r in inner.select("range")] == ["a"]


def blamed(timeline, row="sim:0"):
    """Return the line (its text alone) and the cause behind each gap."""
    return [(gap.line.partition(": ")[2], gap.cause) for gap in timeline.gaps(row)]


def test_gaps_and_kernels_add_up_to_the_whole_time():
    for timeline in (training(), two_gpus()):
        for row in ("sim:0", "sim:1"):
            gaps = timeline.gaps(row)
            idle = sum(gap.duration_ns for gap in gaps)
            assert not gaps or idle + round(timeline.busy_ms(row) * 1e6) == timeline.total_ns
            assert all(a.start_ns + a.duration_ns < b.start_ns for a, b in itertools.pairwise(gaps))


def test_a_gap_is_blamed_on_the_line_that_made_the_host_late():
    x = torch.ones(512, 512, device="sim")
    torch.sim.synchronize()
    with simgpu.timeline() as timeline:
        y = x @ x
        y.sum().item()
        y.mul_(2)
        torch.sim.synchronize()
        y.mul_(2)
        simgpu.host_work("read", 3)
        y.mul_(2)
        torch.sim.synchronize()
    assert blamed(timeline) == [
        ("y = x @ x", "launches"),
        ("y.sum().item()", "wait for copy D2H"),
        ("torch.sim.synchronize()", "synchronize"),
        ('simgpu.host_work("read", 3)', "read"),
    ]
    assert timeline.gaps()[-1].duration_ns > 2_900_000


def test_a_gap_is_blamed_on_what_a_kernel_needed_though_it_was_launched_in_time():
    large, side = torch.ones(2**22).pin_memory(), torch.sim.Stream()
    x = torch.ones(64, 64, device="sim:0")
    other = torch.ones(1024, 1024, device="sim:1")
    torch.sim.synchronize(1)
    with simgpu.timeline() as timeline:
        x.add_(1)
        moved = large.to("sim:0", non_blocking=True)
        moved.add_(1)
        torch.sim.synchronize()
        y = (other @ other).to("sim:0")
        y.add_(1)
        torch.sim.synchronize()
    needed = [gap for gap in timeline.gaps() if gap.cause.startswith("needs")]
    assert [gap.cause for gap in needed] == ["needs copy H2D on sim:0", "needs copy D2D on sim:0"]
    assert needed[0].line.endswith('moved = large.to("sim:0", non_blocking=True)')
    del side


def test_phases_are_of_training_alone():
    with simgpu.timeline() as timeline, torch.no_grad():
        nn.Linear(8, 8, device="sim")(torch.ones(2, 8, device="sim"))
    assert timeline.phases() == timeline.phases("host") == [] and timeline.gaps("sim:1") == []
    host = training().phases("host")
    assert [name for name, *_ in host[:3]] == ["forward", "backward", "optimizer step"]
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(host))


def test_a_gradient_that_keeps_its_graph_is_part_of_the_backward_pass():
    x = torch.ones(8, device="sim", requires_grad=True)
    with simgpu.timeline() as timeline:
        (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        (gradient * checkpoint(lambda t: t.exp().exp(), x, use_reentrant=False)).sum().backward()
    phases = ["forward", "backward", "forward", "backward", "recomputation", "backward"]
    assert [name for name, *_ in timeline.phases()] == phases


def test_host_work_is_time_in_which_the_gpu_goes_on_and_copies_arrive():
    x = torch.ones(1024, 1024, device="sim")
    with simgpu.timeline() as timeline:
        x @ x
        before = simgpu.clock_ms()
        simgpu.host_work("make a batch", 5)
        assert simgpu.clock_ms() == before + 5
        torch.sim.synchronize()
    (work,) = timeline.select("work")
    assert (work.name, work.duration_ns, timeline.waited_ms) == ("make a batch", 5_000_000, 0)
    there = x.to("cpu", non_blocking=True)
    simgpu.host_work("something else", 100)
    assert there.sum() == x.numel()
