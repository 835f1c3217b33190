"""What is in memory, and does it fit? Items on owners, timelines, leaks, levers, messages and the allocator."""

import itertools
import random
import re

import torch

import simgpu
from gpu_course.exam import running
from gpu_course.exam.items import Clash, Item, but, generator, number, several

_STATES = {"SGD": 0, "momentum": 1, "Adam": 2}


def _parts(layers: list[tuple[int, int]], dtype: torch.dtype, optimizer: str, frozen: int = 0) -> dict[str, int]:
    """Return the bytes of a model of linear layers without biases, of which the first `frozen` are not trained."""
    from gpu_course import lesson07

    made = [torch.nn.Linear(*shape, bias=False, device="meta", dtype=dtype) for shape in layers]
    for layer in made[:frozen]:
        layer.requires_grad_(False)
    return lesson07.four_parts(torch.nn.Sequential(*made), optimizer, [])


@generator("memory", "only-weights", short=True)
def states_of_training(draw: random.Random) -> Item:
    """How many MB do weights, gradients and states take in float32?"""
    layers, width = draw.choice([4, 8, 10, 12]), draw.choice([500, 1000, 2000])
    optimizer = draw.choice(["SGD", "momentum", "Adam"])
    parameters_m = layers * width * width / 1e6
    states = _STATES[optimizer]

    def measured() -> float:
        return sum(_parts([(width, width)] * layers, torch.float32, optimizer).values()) / 1e6

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
        return sum(_parts([(width, width)] * layers, torch.bfloat16, optimizer).values()) / 1e6

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


@generator("memory", "frozen-costs-the-same", "only-weights")
def frozen_layers(draw: random.Random) -> Item:
    """How many MB does a training take whose first layers are frozen?"""
    layers, width = draw.choice([5, 8, 10, 12]), draw.choice([500, 1000, 2000])
    frozen = draw.randint(2, layers - 2)
    each_mb = 4 * width * width / 1e6

    def measured() -> float:
        return sum(_parts([(width, width)] * layers, torch.float32, "Adam", frozen).values()) / 1e6

    trained = layers - frozen
    wrong = {
        4 * layers * each_mb: "frozen-costs-the-same",
        4 * trained * each_mb: "frozen-costs-the-same",
        (2 * layers + 2 * trained) * each_mb: "frozen-costs-the-same",
        (layers + trained) * each_mb: "only-weights",
    }
    steps = (
        f"All {layers} layers have weights, {each_mb:g} MB each.",
        f"The {trained} that are trained have a gradient and two states besides: {layers + 3 * trained} times "
        f"{each_mb:g} MB = {(layers + 3 * trained) * each_mb:g} MB.",
    )
    text = (
        f"A model of {layers} linear layers, {width} × {width} and without biases, is trained in float32 with Adam. "
        f"Its first {frozen} layers are frozen. How many MB do weights, gradients and states take?"
    )
    return number(text, (layers + 3 * trained) * each_mb, wrong, steps, measured, unit="MB")


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
    steps = (
        f"Alive after each line, in MiB: {', '.join(map(str, moments))}.",
        f"The largest is {max(moments)} MiB.",
    )
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


@generator("memory", "checkpoint-everything")
def fewest_checkpoints(draw: random.Random) -> Item:
    """How many blocks have to be checkpointed at least?"""
    kept = [draw.randint(3, 20) * 10 for _ in range(5)]
    input_mib = 5
    limit = sum(kept) - draw.randint(sum(kept) // 5, sum(kept) // 2)

    def needed(chosen: tuple[int, ...]) -> int:
        return sum(input_mib if at in chosen else mib for at, mib in enumerate(kept))

    def fewest() -> int:
        sizes = range(len(kept) + 1)
        return next(
            size for size in sizes if any(needed(one) <= limit for one in itertools.combinations(range(5), size))
        )

    def taken(order: list[int]) -> int:
        return next(size for size in range(6) if needed(tuple(order[:size])) <= limit)

    largest_first = sorted(range(5), key=lambda at: -kept[at])
    answer = taken(largest_first)
    wrong = {
        answer + 1: "off-by-one",
        answer - 1: "checkpoint-everything",
        5: "checkpoint-everything",
    }
    wrong |= but(answer, {taken(order): "checkpoint-everything" for order in (list(range(5)), largest_first[::-1])})
    steps = (
        f"Without checkpoints the blocks keep {sum(kept)} MiB; a checkpoint saves what its block keeps, less "
        f"{input_mib} MiB.",
        "Those that keep most save most, so take them first.",
        f"With {answer} of them {needed(tuple(largest_first[:answer]))} MiB are left.",
    )
    shown = "block  keeps (MiB)\n" + "\n".join(f"{at:5}  {mib:5}" for at, mib in enumerate(kept))
    text = (
        f"All activations that the blocks keep may take {limit} MiB. A block that is checkpointed keeps its input "
        f"alone, {input_mib} MiB. How many blocks have to be checkpointed at least?"
    )
    return number(text, answer, wrong, steps, fewest, shown=shown)


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


@generator("memory", "empty-cache-helps")
def message_of_the_allocator(draw: random.Random) -> Item:
    """What does an out-of-memory message say of fragmentation?"""
    capacity, allocated = draw.choice([8, 12, 16, 24]) * 1024, draw.randint(30, 60)
    allocated = capacity * allocated // 100
    held = draw.randint(10, 30) * capacity // 100
    free = capacity - allocated - held
    wanted = free + draw.randint(2, held // 2)
    text_of = str(
        simgpu.out_of_memory("CUDA", "GPU 0", wanted * 2**20, capacity * 2**20, (allocated + held) * 2**20, True)
    )

    def mib(nbytes: int) -> str:
        return f"{nbytes / 1024:.2f} GiB" if nbytes >= 1024 else f"{nbytes:.2f} MiB"

    shown = re.sub(
        r"Of the allocated memory .*? but unallocated\.",
        f"Of the allocated memory {mib(allocated)} is allocated by PyTorch, and {mib(held)} is reserved by PyTorch but "
        "unallocated.",
        text_of,
    ).split(" If reserved")[0]

    def read() -> float:
        sizes = re.findall(r"([\d.]+) (GiB|MiB)", shown)
        values = [float(value) * (1 if unit == "GiB" else 1 / 1024) for value, unit in sizes]
        return round(values[2] + values[-1], 2)

    answer = round(float(mib(free).split()[0]) / (1 if "GiB" in mib(free) else 1024) + round(held / 1024, 2), 2)
    if min(free, held) < 1024:
        raise Clash("all sizes are in GiB")
    wrong = {
        round(free / 1024, 2): "empty-cache-helps",
        round(held / 1024, 2): "empty-cache-helps",
        round((capacity - allocated) / 1024 + held / 1024, 2): "empty-cache-helps",
        round(wanted / 1024, 2): "another-question",
    }
    steps = (
        f"The driver has {mib(free)} free, and PyTorch holds {mib(held)} that no tensor uses.",
        f"Were all of that in one piece, {answer} GiB more could be allocated; the request failed since it lies in "
        "holes.",
    )
    text = "How many GiB could be given to new tensors if no memory were lost in holes?"
    return number(text, answer, wrong, steps, read, unit="GiB", shown="\n".join(_wrapped(shown)))


def _wrapped(text: str, width: int = 88) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)


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


@generator("memory", "only-weights", "elements-are-bytes")
def cache_of_keys(draw: random.Random) -> Item:
    """How large is the cache of keys and values?"""
    layers, width = draw.choice([12, 24, 32, 48]), draw.choice([1024, 2048, 4096])
    tokens, rows = draw.choice([1024, 2048, 4096]), draw.choice([1, 2, 4])

    def measured() -> float:
        each = [torch.empty(2, rows, tokens, width, dtype=torch.bfloat16, device="meta") for _ in range(layers)]
        return sum(tensor.nbytes for tensor in each) / 2**20

    answer = 2 * layers * rows * tokens * width * 2 / 2**20
    wrong = {
        answer / 2: "left-out",
        answer * 2: "elements-are-bytes",
        answer / layers: "left-out",
        answer / rows / 2: "left-out",
        answer * 4: "units-are-alike",
    }
    steps = (
        f"A token has a key and a value in each layer: 2 × {width} numbers of 2 bytes.",
        f"{layers} layers, {rows} × {tokens} tokens: {answer:g} MiB.",
    )
    text = (
        f"A Transformer of {layers} layers and width {width} writes {several(rows, 'text')} at once, each {tokens} "
        "tokens long by now. Each layer caches a key and a value for each token, both of that width, in bfloat16. How "
        "many MiB do they take?"
    )
    return number(text, answer, wrong, steps, measured, unit="MiB")
