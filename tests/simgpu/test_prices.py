"""Is a price a value that nobody is charged for, and does what a program asks of a GPU stay with its recorder?"""

import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import flop_registry

import simgpu
from simgpu.clock.events import Hold, Kernel, Mark, Message
from simgpu.clock.player import play
from simgpu.device import communication
from simgpu.device.operators import Plan
from simgpu.forecasts import fake_device
from simgpu.forecasts.recorder import Recorder
from simgpu.machine.prices import Cost, price
from tests.simgpu import strategies


def test_a_price_is_a_value_by_sizes_alone():
    a, b = torch.empty(4, 16, device="meta"), torch.empty(16, 8, device="meta")
    found = price(Plan.of(torch.ops.aten.mm.default), [a, b], [a @ b], (a, b), {}, a @ b)
    sizes = {"flops": 2 * 4 * 16 * 8, "nbytes": 4 * (4 * 16 + 16 * 8 + 4 * 8)}
    assert found == Cost(**sizes, by_formula=True, host="library")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.flops = 0
    half = price(Plan.of(torch.ops.aten.mm.default), [a.half(), b.half()], [], (a.half(), b.half()), {}, a @ b)
    assert half.rate == "fp16" and half.nbytes == 2 * (4 * 16 + 16 * 8)
    turned = a.cdouble(), b.cdouble()
    waves = price(Plan.of(torch.ops.aten.mm.default), turned, [], turned, {}, a @ b)
    assert waves.rate == "fp64" and waves.flops == 4 * found.flops


@pytest.mark.parametrize(("name", "shapes"), [
    ("mm", [(2, 3), (3, 5)]), ("bmm", [(4, 2, 3), (4, 3, 5)]),
    ("addmm", [(2, 5), (2, 3), (3, 5)]), ("baddbmm", [(4, 2, 5), (4, 2, 3), (4, 3, 5)]),
])  # fmt: skip
def test_a_product_has_the_flops_of_pytorchs_formula_also_in_place(name, shapes):
    op, tensors = getattr(torch.ops.aten, name), [torch.empty(shape) for shape in shapes]
    expected = flop_registry[op](*tensors)
    for one in (op, getattr(torch.ops.aten, f"{name}_", op)):
        assert Plan.of(one.default).flops(*tensors, out_val=one(*tensors)) == expected


def test_a_convolution_says_which_kernels_come_with_it():
    x, weight, bias = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3), torch.empty(4)
    for given, steps, extra_bytes in ((None, 1, 0), (bias, 2, 2 * 2 * 4 * 6 * 6 * 4)):
        args = (x, weight, given, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        y = torch.ops.aten.convolution.default(*args)
        found = price(Plan.of(torch.ops.aten.convolution.default), [x, weight], [y], args, {}, y)
        assert (found.steps, found.extra_bytes) == (steps, extra_bytes) and found.flops == 2 * y.numel() * 27


def test_events_play_as_streams_do():
    machine = simgpu.Machine.of("T4", simgpu.Host.of_launches(0.001), simgpu.Costs(kernel_ns=1000))

    def kernel(number, stream=0):
        return Kernel(number, (0, stream), "k", Cost(0, 0), "forward", "train.py:1: k()")

    alone = play([kernel(0), kernel(1)], machine)
    assert alone.total_ns == 2001 and [record.kind for record in alone.records] == ["launch", "kernel"] * 2
    two = [kernel(0), Mark(1, (0, 0)), Hold((0, 5), 1), kernel(2, stream=5)]
    unknown = [kernel(0), Hold((0, 5), -1), kernel(1, stream=5)]
    assert play(two, machine).total_ns == play(unknown, machine).total_ns == 2001  # one engine
    cluster = simgpu.Cluster("H100 SXM")
    linked = dataclasses.replace(machine, link=cluster)
    words = "c10d::allreduce_", "all_reduce of 8", "all_reduce"
    message = Message(7, (0, 0), ("0",), *words, 1000, 0, tuple(range(8)), "train.py:2: reduce()")
    length_ns = cluster.cost("all_reduce", 1000, range(8))[0]
    assert play([message, kernel(8)], linked).total_ns == length_ns + 1
    beside = [message, Mark(8, (0, 5)), Hold((0, 0), 7), Mark(9, (0, 0)), Hold((0, 5), 9), kernel(10, 5)]
    waiting = play(beside, linked)
    assert waiting.total_ns == length_ns + 1 + 1000  # also who waits for a stream that waits for the message
    assert {(record.phase, record.line) for record in waiting.records if record.kind in ("launch", "kernel")} == {
        ("", "train.py:2: reduce()"), ("forward", "train.py:1: k()"),
    }  # fmt: skip


def recorded(ranks, way="ddp"):
    """Return the recorder of a step of rank 0 of so many."""
    recorder = Recorder()
    make = (lambda: strategies.shared(way, torch.device("cuda"))) if ranks else (lambda: nn.Linear(8, 8))
    batch = (lambda: strategies.batch(0)) if ranks else (lambda: torch.zeros(4, 8))
    with fake_device.fake_program(None, make, batch, None, recorder, ranks) as (model, x, _), recorder:
        model(x).mean().backward()
    return recorder


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_nothing_is_left_of_a_rank_that_was_made_up(way):
    assert communication._handles == {}
    events = recorded(4, way).log.events
    assert {type(event) for event in events} >= {Kernel, Message, Hold}
    assert communication._handles == {} and not dist.is_initialized()
    assert recorded(4, way).log.events == events  # numbers begin anew: nothing is shared


def test_odd_rows_in_16_bits_cost_what_was_published_on_the_gpus_of_which_it_was():
    """A step of nanoGPT got 26 ms shorter with 50,304 tokens: three products of 12,288 rows (an A100 of 80 GB)."""

    class Head(nn.Module):
        def forward(self, pair):
            return pair[0] @ pair[1].T

    def time_ms(words: int, gpu: str = "A100 80GB", dtype: torch.dtype = torch.bfloat16):
        pair = torch.empty(12_288, 768, dtype=dtype), torch.empty(words, 768, dtype=dtype)
        with torch.no_grad():
            found = simgpu.forecast(Head, lambda: pair, step=lambda model, x, _: model(x)).on(gpu)
        return found.busy_s * 1e3, found.kernels[0].bound, found.caption()

    odd, even = time_ms(50_257), time_ms(50_304)
    assert 3 * (odd[0] - even[0]) == pytest.approx(26, rel=0.05)
    assert (odd[1], even[1]) == ("odd rows", "power") or (odd[1], even[1]) == ("odd rows", "compute")
    assert "no multiple of 16 bytes slow products down: test_prices.py:" in odd[2] and "16 bytes" not in even[2]
    for others in ({"gpu": "RTX 3090"}, {"dtype": torch.float32}):
        assert time_ms(50_257, **others)[0] == pytest.approx(time_ms(50_304, **others)[0], rel=0.01)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def conv3d(x):
    return F.conv3d(x, x.new_empty(64, 3, 3, 3, 3))


@pytest.mark.parametrize(("function", "shape", "ms"), [
    (lambda x: x.softmax(1), (4096, 393_216), 8.52), (lambda x: x.log_softmax(1), (4096, 393_216), 8.48),
    (lambda x: F.layer_norm(x, x.shape[1:]), (16, 64, 256, 256), 8.12), (conv3d, (16, 3, 64, 64, 64), 1.87),
    (lambda x: F.max_pool2d(x, 4, 1, 1), (32, 64, 512, 512), 10.8),
    (lambda x: F.max_pool3d(x, 3, 2, 1, 3), (16, 32, 128, 128, 128), 3.93),
    (lambda x: F.huber_loss(x, x), (32_768, 32_768), 5.66),
])  # fmt: skip
def test_kernels_that_pass_over_large_arrays_several_times_take_about_what_was_published(function, shape, ms):
    """Of KernelBench, commit 1f8d20f, on an H100: results/timing/H100_Modal/baseline_time_torch.json."""
    ahead = simgpu.forecast(lambda: Calls(function), lambda: torch.empty(shape), step=lambda model, x, _: model(x))
    assert ahead.on("H100 SXM").total_s == pytest.approx(ms / 1000, rel=0.35)


@pytest.mark.parametrize(
    ("gpu", "words", "passes"), [("L4", 50_257, 2), ("A100 80GB", 50_257, 4), ("T4", 8_192, 2), ("T4", 16_384, 4)]
)
def test_softmax_reads_its_rows_again_where_the_cards_own_cache_does_not_hold_them(gpu, words, passes):
    given = {"make_batch": lambda: torch.empty(8_192, words), "step": lambda model, x, _: model(x)}
    found, copied = (simgpu.forecast(lambda f=f: Calls(f), **given) for f in (lambda x: x.softmax(1), torch.clone))
    ratio = found.on(gpu, host="kernel launch").busy_s / copied.on(gpu, host="kernel launch").busy_s
    assert ratio == pytest.approx(passes / 2, rel=0.01)
