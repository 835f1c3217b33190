"""Items on time: queues, clocks, rooflines, launches, repairs and graphs."""

import random
import statistics

import torch

from gpu_course.exam import running
from gpu_course.exam.items import Item, generator, number


def _queue_us(launches: list[float], kernels: list[float]) -> tuple[float, float]:
    """Return when the host has launched all kernels and when the device has done them, kernel by kernel."""
    host = device = 0.0
    for launch, kernel in zip(launches, kernels, strict=True):
        host += launch
        device = max(device, host) + kernel
    return host, device


@generator("time", "call-is-done", short=True)
def clock_without_wait(draw: random.Random) -> Item:
    """What does a clock show that does not wait?"""
    launch, kernel, count = draw.choice([4, 5, 6, 8]), draw.choice([50, 100, 200, 300]), draw.randint(5, 20)

    def shown() -> float:
        return _queue_us([launch] * count, [kernel] * count)[0]

    wrong = {count * kernel: "call-is-done", count * kernel + launch: "call-is-done"}
    wrong |= {count * (kernel + launch): "parts-add-up", launch: "launches-are-free", kernel: "call-is-done"}
    steps = (
        "Without a synchronisation the clock sees the host alone.",
        f"The host launches {count} kernels in {count} × {launch} = {count * launch} µs and goes on.",
    )
    text = (
        f"The queue is empty. A program reads the clock, launches {count} kernels and reads the clock again, with no "
        f"synchronisation. A launch takes the host {launch} µs, and each kernel runs for {kernel} µs. How much time "
        "lies between the two readings?"
    )
    return number(text, float(count * launch), wrong, steps, shown, unit="µs")


@generator("time", "arithmetic-is-time", short=True)
def ridge(draw: random.Random) -> Item:
    """Where does the ridge of a GPU lie?"""
    tflops, gbps = draw.choice([8, 16, 19, 24, 60, 65, 80]), draw.choice([160, 200, 320, 400, 500, 800, 1600, 2000])
    answer = 1000 * tflops / gbps

    def searched() -> float:  # the intensity at which both take equally long
        low, high = 0.0, 1e6
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if middle / (tflops * 1e12) < 1 / (gbps * 1e9) else (low, middle)
        return low

    wrong = {tflops / gbps: "arithmetic-is-time", 1000 * gbps / tflops / 1e6: "arithmetic-is-time"}
    wrong |= {gbps / tflops: "arithmetic-is-time", 8 * answer: "units-are-alike", float(tflops): "arithmetic-is-time"}
    steps = (
        "At the ridge arithmetic and memory traffic take equally long.",
        f"{tflops} TFLOP/s over {gbps} GB/s = {tflops * 1000:,} / {gbps} = {answer:.4g} FLOP/byte.",
    )
    text = (
        f"A data sheet says {tflops} TFLOP/s and {gbps} GB/s. From how many FLOP/byte on does arithmetic, and no "
        "longer the bandwidth, limit an operation?"
    )
    return number(text, answer, wrong, steps, searched, unit="FLOP/byte")


@generator("time", "reads-are-free", short=True, simulated=True)
def host_waits(draw: random.Random) -> Item:
    """How often does a loop make the host wait?"""
    steps_count, every = draw.choice([20, 30, 40, 60]), draw.choice([5, 10])
    inside = draw.choice(["total += loss.item()", "total += float(loss)", "total += loss.cpu()"])
    lines = [
        "losses, total = [], 0.0",
        f"for step in range({steps_count}):",
        "    loss = (x * x).mean()",
        "    losses.append(loss.detach())",
        f"    if step % {every} == 0:",
        f"        {inside}",
        draw.choice(["shape = loss.shape", "mean = torch.stack(losses).mean().item()", "size = loss.numel()"]),
    ]
    program = "\n".join(lines)

    def waits() -> int:
        x = torch.ones(8, device=torch.device("sim", 0))
        counts = running.counts(program, x=x)
        return counts.host_reads + counts.copies_d2h

    answer = waits()
    last = int("mean" in lines[-1])
    wrong = {
        steps_count + answer: "reads-are-free",
        steps_count + last: "reads-are-free",
        0: "reads-are-free",
        answer + 1 - 2 * last: "reads-are-free",
    }
    steps = (
        "The host waits where Python needs a value: `.item()`, `float`, `.cpu()`. A shape is known without waiting.",
        f"Inside the loop: {steps_count // every}. Behind it: {last}. In all: {answer}.",
    )
    text = "`x` is on the device. How often does the host wait for the device?"
    return number(text, answer, wrong, steps, waits, shown=running.numbered(lines))


@generator("time", "first-like-others", "one-number-is-typical", short=True)
def honest_time(draw: random.Random) -> Item:
    """Which time does an honest timer report?"""
    usual = draw.randint(4, 12)
    rest = [round(usual * factor, 1) for factor in (0.8, 0.9, 1.0, 1.2, draw.choice([6, 8, 9]))]
    draw.shuffle(rest)
    first = round(usual * draw.randint(20, 50), 1)
    times = [first, *rest]

    def reference() -> float:
        return statistics.median(times[1:])

    wrong = {
        statistics.mean(times): "first-like-others",
        statistics.mean(rest): "one-number-is-typical",
        min(rest): "one-number-is-typical",
        statistics.median(times): "first-like-others",
    }
    steps = (
        "The first call is the warm-up and is left out.",
        f"Of the five others the median is the one in the middle: {sorted(rest)[2]:g} ms.",
    )
    shown = "call   ms\n" + "\n".join(f"{number:4} {ms:6.1f}" for number, ms in enumerate(times, 1))
    text = (
        "Six calls of the same function, each measured with a synchronisation. How many ms does a call take that is "
        "warmed up, in the median?"
    )

    return number(text, sorted(rest)[2], wrong, steps, reference, unit="ms", shown=shown)


@generator("time", "gains-multiply", short=True)
def both_repairs(draw: random.Random) -> Item:
    """What do two repairs bring together?"""
    total = draw.choice([12, 15, 16, 20, 24])
    loader, reads = draw.randint(2, 5), draw.randint(2, 5)
    left = total - loader - reads

    def reference() -> float:
        return 1 / (1 - loader / total - reads / total)

    first_gain, second_gain = total / (total - loader), total / (total - reads)
    wrong = {
        first_gain * second_gain: "gains-multiply",
        first_gain + second_gain: "gains-multiply",
        first_gain + second_gain - 1: "gains-multiply",
    }
    wrong |= {1 + (loader + reads) / total: "gains-multiply", left / total: "turned-round"}
    steps = (
        f"Without both, {total} - {loader} - {reads} = {left} ms are left.",
        f"{total} / {left} = {total / left:.3g} times as fast.",
    )
    text = (
        f"A step takes {total} ms. For {loader} ms of it the GPU waits for the loader. For another {reads} ms it has "
        "nothing to do, since the host waits for values that it reads with `.item()`. Both are repaired. How many "
        "times as fast is a step at most?"
    )
    return number(text, total / left, wrong, steps, reference)


@generator("time", "backward-costs-forward", short=True)
def flops_of_a_step(draw: random.Random) -> Item:
    """How many operations does a step take, if its forward pass is known?"""
    rows, inputs, outputs = (draw.choice([10, 20, 30, 50, 70, 100]) for _ in range(3))
    forward = 2 * rows * inputs * outputs

    def counted() -> int:
        from torch.utils.flop_counter import FlopCounterMode

        layer = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
        x = torch.empty(rows, inputs, device="meta", requires_grad=True)
        with FlopCounterMode(display=False) as flops:
            layer(x).sum().backward()
        return flops.get_total_flops()

    wrong = {2 * forward: "backward-costs-forward", forward: "left-out", 4 * forward: "wrong-factor"}
    steps = (
        "The backward pass has two products of that size: for the gradient of the weight, and for that of the input.",
        f"{forward:,} + 2 · {forward:,} = {3 * forward:,} operations.",
    )
    text = (
        f"The product of a linear layer in the middle of a model takes {forward:,} operations in the forward pass. How "
        "many operations do the products of forward and backward pass take together?"
    )
    return number(text, 3 * forward, wrong, steps, counted)


# No lesson follows the one on the compiler, so its items are asked here alone; `short=True` brings them back in one.


@generator("time", "compiled-once")
def graphs_of_sizes(draw: random.Random) -> Item:
    """How many graphs do calls with several sizes make?"""
    sizes = draw.sample(range(5, 40), draw.randint(4, 7))
    rows = [sizes[0]] * draw.randint(1, 3) + sizes[1:]

    def made() -> int:
        from gpu_course.common.tracing import Alone, keeping

        torch._dynamo.reset()
        graphs: list = []
        compiled = Alone(torch.compile(lambda x: torch.relu(x) * 2, backend=keeping(graphs)), "")
        for count in rows:
            compiled(torch.ones(count, 3))
        return len(graphs)

    wrong = {1: "compiled-once", len(sizes): "another-question", len(rows): "another-question"}
    wrong = {value: name for value, name in wrong.items() if value != 2}
    steps = (
        f"The first graph is for {rows[0]} rows alone, since every size counts as fixed at first.",
        f"The call with {sizes[1]} rows is compiled again, now for any number of rows: 2 graphs.",
    )
    text = (
        "A function without graph breaks is compiled by torch.compile without options, and called with tables of 3 "
        f"columns and {', '.join(map(str, rows))} rows, in this order. How many graphs are compiled?"
    )
    return number(text, 2, wrong, steps, made)
