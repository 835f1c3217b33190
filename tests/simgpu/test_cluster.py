import functools
import json
import os
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional_collectives

import simgpu
from simgpu.device import communication, dispatcher
from tests.simgpu import strategies

ranklaunch = pytest.importorskip("ranklaunch", reason="a cluster starts its ranks by it")
RankError, launch, rank_device = ranklaunch.RankError, ranklaunch.launch, ranklaunch.rank_device
H100 = simgpu.Cluster("H100 SXM", per_machine=2)
SLOW = pytest.mark.slow
SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"]


def assert_equal(found: list[dict], expected: dict) -> None:
    """Each rank has parameters and gradients of all, or of its own stages; together they are those of one process."""
    together = {name: value for of_rank in found for name, value in of_rank.items()}
    assert together.keys() == expected.keys()
    for of_rank in found:
        for name, value in of_rank.items():
            assert (value is None) == (expected[name] is None), name
            if value is not None:
                torch.testing.assert_close(
                    value, expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
                )


WAYS = ["ddp", "fsdp", "tensor", "both"]


CASES = [("ddp", H100), ("tensor", H100)]
CASES += [pytest.param(way, None, marks=SLOW) for way in WAYS]  # by PyTorch on the CPU: what is compared with
CASES += [pytest.param(way, H100, marks=SLOW) for way in ("fsdp", "both")]


def test_sharded_ranks_train_as_one_process_and_their_timeline_is_the_same_on_every_run():
    first, second = (simgpu.launch(strategies.trained, "fsdp", cluster=H100) for _ in range(2))
    assert_equal(first, strategies.one_process())
    assert [one.records for one in first.timeline.ranks] == [one.records for one in second.timeline.ranks]
    assert first.timeline.total_ns > 10**5


@pytest.mark.parametrize(("way", "cluster"), CASES)
def test_every_way_to_share_the_work_trains_as_one_process(way, cluster):
    on_ranks = functools.partial(simgpu.launch, cluster=cluster) if cluster else launch
    found = on_ranks(strategies.trained, way, nprocs=2 if way in ("ddp", "tensor") else 4)
    assert_equal(found, strategies.one_process())


@pytest.mark.parametrize("name", ["1F1B", *(pytest.param(one, marks=SLOW) for one in SCHEDULES if one != "1F1B")])
def test_schedules_of_pytorch_train_as_one_process(name):
    layers = 2 if name in SCHEDULES[:2] else 4
    assert_equal(simgpu.launch(strategies.pipeline, name, cluster=H100), strategies.pipeline_alone(layers))


# ---- time ------------------------------------------------------------------------------------------------------------


def stragglers(nbytes: int):
    """Rank r runs r long kernels before an all-reduce, and one beside it."""
    x = torch.ones(nbytes // 4, device=rank_device())
    dist.barrier()
    with simgpu.timeline() as timeline:
        for _ in range(3 * dist.get_rank()):
            x = x * 1.0
        work = dist.all_reduce(x, async_op=True)
        torch.ones(1000, device="sim")
        work.wait()
        torch.ones(1000, device="sim")
    return timeline


@pytest.fixture(scope="module")
def late():
    return simgpu.ClusterTimeline(simgpu.launch(stragglers, 12_000_000, nprocs=3, cluster=H100))


def test_a_collective_begins_with_the_last_rank_and_ends_on_all_at_once(late):
    messages = [one.select("message")[0] for one in late.ranks]
    assert len({one.begin_ns for one in late.ranks}) == 1  # the barrier
    kernel, launch = late.ranks[2].select("kernel")[5], late.ranks[2].select("launch")[6]
    ready_ns = max(kernel.end_ns, launch.end_ns)
    length, way = H100.cost("all_reduce", 12_000_000, range(3))
    assert {(m.start_ns, m.end_ns) for m in messages} == {(ready_ns, ready_ns + length)}
    assert {m.bound for m in messages} == {way} and messages[0].nbytes == 12_000_000
    waits = [sum(r.duration_ns for r in one.select("waits")) for one in late.ranks]
    assert waits[0] > waits[1] > waits[2] == 0
    for one in late.ranks:  # the kernel before wait() runs beside the message, the one after it does not
        *_, beside, after = one.select("kernel")
        assert beside.start_ns < messages[0].end_ns <= after.start_ns


def test_a_trace_has_all_ranks_and_their_messages(late, tmp_path):
    late.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {f"rank {rank}: host (simulated)" for rank in range(3)} <= names and len(names) == 6
    assert sum(e["name"] == "all_reduce of 3" for e in events) == 3
    ends = [e["ts"] + e["dur"] for e in events if e["name"] == "all_reduce of 3"]
    assert max(ends) - min(ends) < 1e-6


def test_each_rank_has_a_file_of_its_own_in_which_messages_are_kernels_that_wait(late, tmp_path):
    paths = late.export_rank_traces(tmp_path / "ranks")
    files = [json.loads(path.read_text()) for path in paths]
    assert [path.name for path in paths] == ["rank-0.json", "rank-1.json", "rank-2.json"]
    for rank, file in enumerate(files):
        about = file["distributedInfo"]
        assert (about["backend"], about["rank"], about["world_size"]) == ("nccl", rank, 3)
        assert about["pg_config"][0]["ranks"] == [0, 1, 2] and "simulated" in file["note"]
        (message,) = (e for e in file["traceEvents"] if e["name"].startswith("nccl"))
        record = late.ranks[rank].select("message")[0]
        waited = sum(r.duration_ns for r in late.ranks[rank].select("waits"))
        assert (message["cat"], message["name"]) == ("kernel", "ncclDevKernel_AllReduce of 3")
        assert round(message["dur"] * 1000) == record.duration_ns + waited
        begins = [e["ts"] for e in file["traceEvents"] if e["ph"] in "sf" and e["id"] == record.number]
        assert begins[-1] == message["ts"] and not any("wait for others" in e["name"] for e in file["traceEvents"])


def test_hta_finds_in_the_files_what_the_timelines_say(late, tmp_path, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    analysis = pytest.importorskip("hta.trace_analysis", reason="pip install HolisticTraceAnalysis pandas==2.*")
    late.export_rank_traces(tmp_path)
    opened = analysis.TraceAnalysis(trace_dir=str(tmp_path), include_last_profiler_step=True)
    found = opened.get_temporal_breakdown(visualize=False)
    assert list(found["rank"]) == [0, 1, 2]
    assert list(found["compute_time(us)"]) == pytest.approx([1000 * one.busy_ms() for one in late.ranks], abs=0.01)
    idle = opened.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    assert set(idle["stream"]) == {0, 2000} and not opened.get_comm_comp_overlap(visualize=False).empty


PHASES = ("backward", "optimizer step")


def buckets():
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))).to(rank_device())
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        with simgpu.timeline() as timeline:
            model(torch.ones(8, 256, device=rank_device())).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return timeline


def test_ddp_reduces_buckets_beside_the_backward_pass_and_the_optimizer_waits_for_the_last():
    timeline = simgpu.launch(buckets, cluster=simgpu.Cluster("H100 SXM", per_machine=1, between="Ethernet"))[0]
    messages = timeline.select("message")
    begins = {phase: [r.start_ns for r in timeline.select("kernel") if r.phase == phase] for phase in PHASES}
    assert len(messages) == 3 and sum(m.nbytes for m in messages) == 6 * (256 * 256 + 256) * 4
    assert any(messages[0].start_ns < begin < messages[0].end_ns for begin in begins["backward"])
    assert min(begins["optimizer step"]) >= messages[-1].end_ns
    needed = [gap for gap in timeline.gaps() if "all_reduce of 2" in gap.cause]
    assert needed and max(gap.duration_ns for gap in needed) > 20_000


def meet():
    """Rank 0 sends at once, rank 1 receives after a long kernel."""
    x = torch.zeros(1_000_000, device=rank_device())
    dist.barrier()
    with simgpu.timeline() as timeline:
        if dist.get_rank() == 0:
            dist.send(x + 1, 1)
        else:
            x.repeat(20) * 2
            dist.recv(x, 0)
            x + 1
    return timeline


def test_a_message_needs_both_ranks():
    first, second = simgpu.launch(meet, cluster=H100)
    sent, received = first.select("message")[0], second.select("message")[0]
    assert (sent.start_ns, sent.end_ns) == (received.start_ns, received.end_ns)
    assert sent.duration_ns == H100.cost("send", 4_000_000, [0, 1])[0]
    assert received.start_ns == second.select("kernel")[1].end_ns > first.select("kernel")[0].end_ns
    assert second.select("kernel")[2].start_ns >= received.end_ns


def left_by_messages():
    """Return the bytes that stay after messages, where gloo lets go what it was lent 20 ms after each has ended."""
    view = communication.Lent.view

    def held(lent, tensor):
        lent_view = view(lent, tensor)
        threading.Timer(0.02, lambda held: None, [lent_view]).start()
        return lent_view

    communication.Lent.view = held
    rank, left = dist.get_rank(), {}

    def note(name, message):
        before_bytes = torch.sim.memory_allocated()
        message(torch.ones(1024, device="sim"))
        left[name] = torch.sim.memory_allocated() - before_bytes

    note("all_reduce", dist.all_reduce)
    note("broadcast", lambda part: dist.broadcast(part, 0))
    note("all_gather", lambda part: dist.all_gather([torch.empty_like(part) for _ in range(2)], part))
    note("functional", lambda part: functional_collectives.all_reduce(part, "sum", dist.group.WORLD).sum().item())
    note("message", lambda part: dist.send(part, 1) if rank == 0 else dist.recv(part, 0))
    return left


def test_memory_of_a_message_is_free_as_soon_as_it_has_ended_however_late_gloo_lets_it_go():
    for left in simgpu.launch(left_by_messages, cluster=H100):
        assert left == dict.fromkeys(left, 0)
        assert len(left) == 5


def pipeline_of_equal_stages(micro: int):
    """GPipe by hand of equal stages: every kernel takes 8 ms, whatever its size."""
    rank, last, device = dist.get_rank(), dist.get_world_size() - 1, rank_device()
    stage = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(20))).to(device)
    parts = [torch.ones(2, 2, device=device, requires_grad=True) for _ in range(micro)]
    gradient = torch.ones(2, 2, device=device)
    dist.barrier()
    simgpu.configure(host=simgpu.Host.of_launches(0.1), costs=simgpu.Costs(kernel_ns=8_000_000))
    dist.barrier()
    with simgpu.timeline() as timeline:
        outputs = []
        for x in parts:
            if rank:
                dist.recv(x.data, rank - 1)
            outputs.append(stage(x))
            if rank < last:
                dist.send(outputs[-1].detach(), rank + 1)
        for x, y in zip(parts, outputs, strict=True):
            if rank < last:
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if rank:
                dist.send(x.grad, rank - 1)
    return timeline


@pytest.mark.parametrize(("p", "m"), [(4, 4), *(pytest.param(*case, marks=SLOW) for case in ((2, 4), (4, 16)))])
def test_the_bubble_of_a_pipeline_is_that_of_the_formula(p, m):
    timeline = simgpu.ClusterTimeline(simgpu.launch(pipeline_of_equal_stages, m, nprocs=p, cluster=simgpu.Cluster()))
    assert timeline.idle == pytest.approx((p - 1) / (m + p - 1), rel=0.01)


# ---- links -----------------------------------------------------------------------------------------------------------


def test_messages_take_the_rate_of_the_slowest_link_or_their_latency_and_many_ranks_a_tree():
    cluster, size = simgpu.Cluster("H100 SXM"), 10**9
    inside = cluster.gbps(range(8))
    assert inside == pytest.approx(18 * 20.6)  # NCCL's constant for each of the 18 links
    for n, rate in ((8, inside), (2, inside)):
        length, way = cluster.cost("all_reduce", size, range(n))
        assert way == "ring" and length == pytest.approx(2 * (n - 1) / n * size / rate, rel=0.02)
        assert cluster.cost("all_gather", size // n, range(n))[0] == pytest.approx(length / 2, rel=0.02)
    alone = [0, 8]  # one GPU of each of two machines: its own adapter
    assert cluster.cost("send", size, alone)[0] == pytest.approx(size / 48, rel=0.01)
    shared = simgpu.Cluster("H100 SXM", between="Ethernet")
    assert shared.gbps(range(16)) == pytest.approx(12.0) and shared.gbps(alone) == pytest.approx(12 / 8)
    assert simgpu.Cluster("T4", per_machine=4).gbps(range(4)) == pytest.approx(12.0)  # PCIe 3.0
    cluster = simgpu.Cluster("H100 SXM")
    assert cluster.cost("all_reduce", 8, range(8)) == (6600 + 14 * 600 + 1, "ring")
    length, way = cluster.cost("all_reduce", 8, range(1024))
    assert way == "tree" and length < cluster.cost("all_gather", 8, range(1024))[0]
    assert cluster.cost("all_reduce", 8, [5]) == (0, "ring")


GIB = 2**30


@pytest.mark.parametrize("machines", [2, 4, 8])
def test_an_all_to_all_between_machines_has_one_adapter_a_gpu(machines):
    """NCCL's own numbers: N / (N - 1) times an adapter's rate, https://github.com/NVIDIA/nccl-tests/issues/130."""
    cluster, n = simgpu.Cluster("H100 SXM"), 8 * machines
    bound_ns = GIB * (n - 8) / n / 48  # what of a GPU's GiB leaves its machine, by its own adapter
    length_ns, _ = cluster.cost("all_to_all", GIB, range(n))
    assert bound_ns < length_ns < 1.05 * bound_ns
    assert GIB * (n - 1) / n / length_ns == pytest.approx(machines / (machines - 1) * 48, rel=0.1)
    assert cluster.cost("reduce_scatter", GIB, range(n))[0] < length_ns / 2  # a ring uses all adapters at once
    shared = simgpu.Cluster("H100 SXM", between="Ethernet")
    assert shared.cost("all_to_all", GIB, range(n))[0] == pytest.approx(8 * GIB * (n - 8) / n / 12, rel=0.01)
    assert cluster.cost("all_to_all", GIB, range(8))[0] == pytest.approx(GIB * 7 / 8 / (18 * 20.6), rel=0.02)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_the_adapter_of_the_one_who_gathers_or_scatters_carries_all_that_is_not_in_its_machine(kind):
    cluster = simgpu.Cluster("H100 SXM")
    assert cluster.cost(kind, GIB, range(16))[0] == pytest.approx(8 * GIB / 48, rel=0.01)
    assert cluster.cost(kind, GIB, range(12))[0] == pytest.approx(8 * GIB / 48, rel=0.01)  # one of the four
    assert cluster.cost(kind, GIB, range(8))[0] == pytest.approx(7 * GIB / (18 * 20.6), rel=0.01)
    slow = simgpu.Cluster("T4", between=simgpu.Link("fast", 400.0))
    assert slow.cost(kind, GIB, range(16))[0] == pytest.approx(7 * GIB / 12, rel=0.01)  # PCIe is the slower link here


UNEVEN = [
    (lambda r, s: 1000 * (r + 1), 16_000),  # the last rank gives most
    (lambda r, s: 9000 * (s == 0), 36_000),  # all to the first, which gets more than anybody gives
    (lambda r, s: 500, 2_000),
]


def each_uneven():
    """Return the timelines of all of them."""
    return [uneven(gives) for gives, _ in UNEVEN]


def uneven(gives):
    """Return the timeline of an all-to-all in which rank r gives `gives(r, s)` numbers to rank s."""
    rank, n, device = dist.get_rank(), dist.get_world_size(), rank_device()
    sizes, theirs = [gives(rank, s) for s in range(n)], [gives(s, rank) for s in range(n)]
    x, y = torch.full((sum(sizes),), float(rank), device=device), torch.zeros(sum(theirs), device=device)
    dist.barrier()
    with simgpu.timeline() as timeline:
        dist.all_to_all_single(y, x, theirs, sizes)
        torch.sim.synchronize()
    assert y.tolist() == [float(s) for s in range(n) for _ in range(theirs[s])]
    return timeline


@pytest.fixture(scope="module")
def exchanged():
    return simgpu.launch(each_uneven, nprocs=4, cluster=H100)


@pytest.mark.parametrize("case", range(len(UNEVEN)))
def test_an_uneven_all_to_all_ends_on_all_ranks_at_once_and_takes_as_long_as_its_largest_part(exchanged, case):
    (gives, most), ranks = UNEVEN[case], [of_rank[case] for of_rank in exchanged]
    messages = [one.select("message")[0] for one in ranks]
    length_ns, way = H100.cost("all_to_all", 4 * most, range(4))
    pairs = zip(ranks, messages, strict=True)
    assert len({(one.begin_ns + m.start_ns, one.begin_ns + m.end_ns) for one, m in pairs}) == 1
    assert {(m.duration_ns, m.bound) for m in messages} == {(length_ns, way)}
    assert [m.nbytes for m in messages] == [4 * sum(gives(r, s) for s in range(4)) for r in range(4)]


def test_a_forecast_prices_an_all_to_all_as_the_ranks_do():
    """A gigabyte of 16 ranks, and, for what one of many ranks can know, uneven ones: as long as the larger part."""

    def step(model, batch, optimizer):
        x = torch.empty(GIB // 4)
        dist.all_to_all_single(torch.empty_like(x), x)
        y = torch.empty(1600)
        dist.all_to_all_single(torch.empty(16_000), y, [1000] * 16, [100] * 16)

    cluster = simgpu.Cluster("H100 SXM")
    nothing = lambda: torch.nn.Linear(1, 1)  # noqa: E731
    found = simgpu.forecast(nothing, lambda: torch.zeros(1), step=step, ranks=16).on(cluster=cluster)
    messages = [record for record in found.records if record.kind == "message"]
    lengths = [cluster.cost("all_to_all", size, range(16))[0] for size in (GIB, 64_000)]
    assert [m.duration_ns for m in messages] == lengths and 11.2e6 < lengths[0] < 11.3e6
    assert [m.nbytes for m in messages] == [GIB, 6_400]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"gpu": "H1000"}, "gpu"), ({"inside": "USB"}, "inside"), ({"between": "rope"}, "between"),
     ({"gpu": "T4", "inside": "NVLink"}, "NVLink"), ({"per_machine": 0}, "per_machine")],
)  # fmt: skip
def test_a_cluster_names_what_is_wrong(wrong, word):
    with pytest.raises((ValueError, TypeError, KeyError), match=word):
        simgpu.Cluster(**wrong)


def test_launch_says_what_does_not_fit_names_failures_and_ranks_know_their_machine():
    with pytest.raises(TypeError, match=r"must be a simgpu\.Cluster, not 'H100'"):
        simgpu.launch(stragglers, 4, cluster="H100")
    with pytest.raises(TypeError, match="leave devices out: the ranks of a cluster compute on simulated GPUs"):
        simgpu.launch(stragglers, 4, cluster=H100, devices=["cpu", "cpu"])
    with pytest.raises(RankError, match=r"out of memory.*64\.00 MiB") as caught:
        simgpu.launch(torch.ones, 2**30, device="sim", cluster=simgpu.Cluster(capacity="64 MiB"))
    assert caught.value.rank == 0 and caught.value.error == "OutOfMemoryError"
    with pytest.raises(RankError, match="ranks 0 and 1 returned a generator, which cannot be sent"):
        simgpu.launch(lambda: (i for i in range(3)), cluster=H100)
    with pytest.raises(RankError, match="from whom"):
        simgpu.launch(lambda: dist.recv(torch.ones(1, device="sim")), cluster=H100)
    where = simgpu.launch(
        lambda: (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], str(rank_device())), nprocs=3, cluster=H100
    )
    assert where == [("0", "2", "sim:0"), ("1", "2", "sim:0"), ("0", "1", "sim:0")]


def test_forked_ranks_find_the_rules_of_autocast_and_ranks_without_a_simulated_gpu_have_no_device_sim():
    def registered():
        with torch.autocast("sim"):
            product = torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")
        known = dispatcher.register_autocast.cache_info()
        return product.dtype, known.misses, known.hits

    hits = int(sys.platform == "linux")  # elsewhere a rank is a fresh process
    assert simgpu.launch(registered, cluster=H100) == [(torch.float16, 1, hits)] * 2
    assert launch(lambda: hasattr(torch, "sim"), devices=["cpu", "cpu"]) == [False, False]


def test_a_message_that_no_rank_answers_is_named_with_the_line_that_began_it():
    def answered():
        x = torch.ones(4, device="sim")
        work = (dist.isend if dist.get_rank() else dist.irecv)(x * dist.get_rank(), 1 - dist.get_rank())
        return work is not None  # nobody waits for it, and both ranks go on

    assert simgpu.launch(answered, cluster=H100) == [True, True]

    def unanswered():
        from simgpu.device import communication

        communication._ANSWER_S = 0.5
        if dist.get_rank() == 0:
            dist.irecv(torch.ones(4, device="sim"), 1)

    with pytest.raises(RankError, match=r"no rank has answered this message: receive from 1, .*dist\.irecv") as caught:
        simgpu.launch(unanswered, cluster=H100)
    assert (caught.value.rank, caught.value.kind) == (0, "raised")


def test_simulated_tensors_arrive_on_the_cpu_and_a_simulated_device_is_refused(sim):
    x = torch.ones(3, device=sim)
    layer = torch.nn.Linear(3, 1).to(sim)
    got = launch(lambda: (x.device.type, type(layer.weight) is torch.nn.Parameter, float(layer(x) * 0)))[0]
    assert got == ("cpu", True, 0)
    with pytest.raises(TypeError, match=r"'sim:0' does not exist in the ranks.*use rank_device\(\)"):
        launch(lambda: torch.ones(1, device=sim))


# ---- the other ranks made up -----------------------------------------------------------------------------------------


def one_step(model, batch, optimizer):
    optimizer.zero_grad()
    strategies.loss_of(model, batch).backward()
    optimizer.step()


def third_step(way, blocks):
    """Return what trains a step on this rank's device, after two others."""
    device = rank_device()
    model, batch = strategies.shared(way, device, blocks), strategies.batch(0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=strategies.foreach(way))
    step = functools.partial(one_step, model, batch, optimizer)
    step()
    step()
    return step


def on_ranks(way, blocks=2):
    """Return the timeline of a step, after two others."""
    step = third_step(way, blocks)
    dist.barrier()
    with simgpu.timeline() as timeline:
        step()
    return timeline


def forecast(way, blocks=2, **options):
    adam = functools.partial(torch.optim.AdamW, foreach=strategies.foreach(way))
    model = lambda: strategies.shared(way, torch.device("cuda"), blocks)  # noqa: E731
    return simgpu.forecast(model, lambda: strategies.batch(0), adam, step=one_step, ranks=4, **options)


@pytest.mark.parametrize("way", ["fsdp", *(pytest.param(way, marks=SLOW) for way in WAYS if way != "fsdp")])
def test_a_forecast_for_one_of_many_ranks_is_what_these_ranks_take(way):
    real = simgpu.launch(on_ranks, way, nprocs=4, cluster=H100)[0]
    found = forecast(way).on(cluster=H100)
    kernels = real.select("kernel")
    assert [(r.name, r.duration_ns) for r in found.kernels] == [(r.name, r.duration_ns) for r in kernels]
    assert round(found.total_s * 1e9) == real.total_ns
    messages = [r for r in found.records if r.kind == "message"]
    assert [(r.name, r.nbytes) for r in messages] == [(r.name, r.nbytes) for r in real.select("message")] != []


def test_a_thousand_ranks_cost_no_more_than_their_names():
    cluster = simgpu.Cluster("H100 SXM")
    few, many = (
        simgpu.forecast(lambda: strategies.shared("ddp", torch.device("cuda")), lambda: strategies.batch(0),
                        torch.optim.SGD, step=one_step, ranks=ranks).on(cluster=cluster)
        for ranks in (8, 1024)
    )  # fmt: skip
    assert many.message_s > few.message_s and many.flops == few.flops and "each of 1,024 H100 SXM" in str(many)
    assert not dist.is_initialized()


def test_forecasts_for_ranks_say_what_is_missing():
    alone, shared = (simgpu.forecast(nn.Identity, lambda: torch.zeros(1), ranks=ranks) for ranks in (None, 2))
    for ahead, options in (
        (alone, {}), (shared, {"spec": "T4", "cluster": H100}), (alone, {"cluster": H100}), (shared, {"spec": "T4"}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="spec, or cluster and ranks"):
            ahead.on(**options)
    with pytest.raises(RankError, match="in no process group"):
        launch(lambda: simgpu.forecast(lambda: None, lambda: None, ranks=2))
