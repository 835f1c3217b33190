"""Items on memory: owners, timelines, leaks, levers and batch sizes."""

import random

import torch

from gpu_course.exam import running
from gpu_course.exam.items import Clash, Item, generator, number, several

_STATES = {"SGD": 0, "momentum": 1, "Adam": 2}


def _trained_mb(layers: int, width: int, dtype: torch.dtype, optimizer: str) -> float:
    """Return the MB of square linear layers without biases in training, apart from their activations."""
    from gpu_course import lesson07

    made = [torch.nn.Linear(width, width, bias=False, device="meta", dtype=dtype) for _ in range(layers)]
    return sum(lesson07.four_parts(torch.nn.Sequential(*made), optimizer, []).values()) / 1e6


@generator("memory", "only-weights", short=True)
def states_of_training(draw: random.Random) -> Item:
    """How many MB do weights, gradients and states take in float32?"""
    layers, width = draw.choice([4, 8, 10, 12]), draw.choice([500, 1000, 2000])
    optimizer = draw.choice(["SGD", "momentum", "Adam"])
    parameters_m = layers * width * width / 1e6
    states = _STATES[optimizer]

    def measured() -> float:
        return _trained_mb(layers, width, torch.float32, optimizer)

    wrong = {size * parameters_m: "only-weights" for size in (4, 8, 12, 16) if size != 8 + 4 * states}
    wrong[(2 + states) * parameters_m] = "elements-are-bytes"
    kept = {"SGD": "plain SGD keeps nothing", "momentum": "momentum keeps one state", "Adam": "Adam keeps two states"}
    steps = (
        f"There are {parameters_m:g} million parameters of 4 bytes, and as many gradients.",
        f"Besides, {kept[optimizer]}: {8 + 4 * states} bytes a parameter, {(8 + 4 * states) * parameters_m:g} MB.",
    )
    text = (
        f"A model of {layers} linear layers, {width} × {width} and without biases, is trained in float32 with "
        f"{optimizer}. How many MB do weights, gradients and the optimizer's states take together?"
    )
    return number(text, (8 + 4 * states) * parameters_m, wrong, steps, measured, unit="MB")


@generator("memory", "only-weights", "sixteen-bits-add-up")
def sixteen_bit_training(draw: random.Random) -> Item:
    """How many MB does training with 16-bit weights take?"""
    layers, width = draw.choice([4, 8, 10, 12, 20]), draw.choice([500, 1000, 2000])
    optimizer = draw.choice(["SGD", "momentum", "Adam"])
    parameters_m, states = layers * width * width / 1e6, _STATES[optimizer]
    answer = (2 + 2 + 4 + 4 * states) * parameters_m

    def measured() -> float:
        return _trained_mb(layers, width, torch.bfloat16, optimizer)

    wrong = {
        (2 + 2 + 4 * states) * parameters_m: "sixteen-bits-add-up",
        (2 + 2 + 2 + 2 * states) * parameters_m: "elements-are-bytes",
        2 * parameters_m: "only-weights",
        (12 + 4 * states) * parameters_m: "elements-are-bytes",
        (2 + 2 + 2 * states) * parameters_m: "sixteen-bits-add-up",
    }
    steps = (
        f"{parameters_m:g} million weights and gradients take 2 bytes each.",
        f"The optimizer keeps a float32 copy, 4 bytes, and {several(states, 'state')} of 4 bytes.",
        f"{8 + 4 * states} bytes a parameter are {answer:g} MB.",
    )
    text = (
        f"A model of {layers} linear layers, {width} × {width} and without biases, has weights and gradients "
        f"in bfloat16. Its optimizer, {optimizer}, works on a float32 copy of the weights; states that it keeps are "
        "float32 too. How many MB do weights, gradients and all that the optimizer keeps take?"
    )
    return number(text, answer, wrong, steps, measured, unit="MB")


@generator("memory", "peak-at-the-end", short=True, simulated=True)
def peak_of_a_program(draw: random.Random) -> Item:
    """What is the peak of a program?"""
    a, b, c, d = (draw.randint(1, 9) for _ in range(4))
    lines = [
        f"a = torch.empty({a}, 2**20, dtype=torch.uint8, device=device)",
        f"b = torch.empty({b}, 2**20, dtype=torch.uint8, device=device)",
        f"del {draw.choice('ab')}",
        f"c = torch.empty({c}, 2**20, dtype=torch.uint8, device=device)",
        "del c",
        f"d = torch.empty({d}, 2**20, dtype=torch.uint8, device=device)",
    ]
    program = "\n".join(lines)

    def peak() -> int:
        return running.peak_bytes(program) // 2**20

    left = b if lines[2] == "del a" else a
    if left + d >= max(a + b, left + c):
        raise Clash("the peak is at the end")
    wrong = {left + d: "peak-at-the-end", a + b + c + d: "peak-at-the-end", max(a, b, c, d): "only-weights"}
    wrong |= {left + c + d: "left-out"}
    moments = [a, a + b, left, left + c, left, left + d]
    steps = (f"Alive after each line, in MiB: {', '.join(map(str, moments))}.", f"The largest is {max(moments)} MiB.")
    text = "What is the peak of allocated memory, in MiB? A row has 2**20 numbers of one byte, which is 1 MiB."
    return number(text, peak(), wrong, steps, peak, unit="MiB", shown=running.numbered(lines))


@generator("memory", "keeping-a-loss-is-cheap", short=True, simulated=True)
def kept_by_losses(draw: random.Random) -> Item:
    """How much stays alive for the losses that a loop keeps?"""
    steps_count, size = draw.randint(5, 40), draw.randint(1, 6)
    keep = draw.choice(["kept.append(loss)", "total = total + loss"])
    lines = [
        "w = torch.ones((), device=device, requires_grad=True)",
        "kept, total = [], 0.0",
        f"for step in range({steps_count}):",
        f"    x = torch.ones({size}, 2**10, dtype=torch.uint8, device=device).bool()",
        "    loss = (w * x).sum()",
        f"    {keep}",
    ]
    program = "\n".join(lines)

    def alive() -> int:
        return round(running.alive_bytes(program) / 2**10)

    answer = alive()
    wrong = {
        0: "keeping-a-loss-is-cheap",
        size: "keeping-a-loss-is-cheap",
        4 * size * steps_count: "elements-are-bytes",
    }
    wrong |= {
        steps_count: "elements-are-bytes",
        5 * size * steps_count: "only-weights",
        2 * size * steps_count: "left-out",
    }
    steps = (
        "Each loss keeps its graph, and the graph keeps `x`, which the backward pass of the product needs.",
        f"{steps_count} steps keep {steps_count} × {size} KiB = {steps_count * size} KiB.",
    )
    text = (
        "How many KiB of the device's memory are in use at the end? (`x` has one byte a number; a row of it is 1 KiB. "
        "The product itself is gone, since `sum` does not need it. Leave out tensors of one number.)"
    )
    if answer != steps_count * size:
        raise Clash("another version of PyTorch keeps something else")
    return number(text, answer, wrong, steps, alive, unit="KiB", shown=running.numbered(lines))


@generator("memory", "only-weights", "powers-of-two", short=True)
def largest_batch(draw: random.Random) -> Item:
    """How many rows fit?"""
    capacity, fixed, row = (
        draw.choice([12, 16, 24, 40]) * 1024,
        draw.randint(2, 8) * 1024,
        draw.choice([96, 160, 192, 320]),
    )

    def tried() -> int:
        rows = 0
        while fixed + (rows + 1) * row <= capacity:
            rows += 1
        return rows

    answer = (capacity - fixed) // row
    wrong = {
        capacity // row: "only-weights",
        1 << (answer.bit_length() - 1): "powers-of-two",
        answer + 1: "off-by-one",
        capacity // (row + fixed): "parts-add-up",
    }
    steps = (
        f"{capacity:,} - {fixed:,} = {capacity - fixed:,} MiB are left for rows.",
        f"{capacity - fixed:,} / {row}, rounded down: {answer} rows.",
    )
    text = (
        f"A GPU has {capacity:,} MiB for a training. Weights, gradients and states take {fixed:,} MiB, and each row "
        f"of a batch {row} MiB more. What is the largest batch that fits?"
    )
    return number(text, answer, wrong, steps, tried, unit="rows")


@generator("memory", "mixed-precision-halves-memory")
def autocast_peak(draw: random.Random) -> Item:
    """What does autocast save?"""
    weights, states = draw.randint(2, 9) * 100, 2
    products, rest = draw.randint(10, 30) * 100, draw.randint(2, 12) * 100

    def counted() -> float:
        owners = {"weights": weights, "16-bit copies": weights // 2, "gradients": weights, "states": states * weights}
        owners |= {"outputs of products": products // 2, "all other activations": rest}
        return float(sum(owners.values()))

    before = (2 + states) * weights + products + rest
    answer = before + weights / 2 - products / 2
    wrong = {
        before / 2: "mixed-precision-halves-memory",
        before - (products + rest) / 2: "mixed-precision-halves-memory",
        before - products / 2: "left-out",
        before - weights / 2 - products / 2: "mixed-precision-halves-memory",
    }
    steps = (
        f"In float32 all owners take {before} MiB.",
        f"Outputs of products shrink to {products // 2} MiB, and each weight gets a 16-bit copy: {weights // 2} MiB "
        "more.",
        f"All else stays: {answer:g} MiB.",
    )
    shown = "\n".join([
        f"weights                 {weights:5} MiB",
        f"gradients               {weights:5} MiB",
        f"Adam's two states       {states * weights:5} MiB",
        f"outputs of products     {products:5} MiB",
        f"all other activations   {rest:5} MiB",
    ])  # fmt: skip
    text = (
        "This is the peak of a training step in float32. Under autocast, outputs of products have 16 bits, and "
        "copies of all weights in 16 bits are kept as well. What is the peak then?"
    )
    return number(text, answer, wrong, steps, counted, unit="MiB", shown=shown)
