"""Items on training: gradients, mixed precision, evaluation, masks, checkpoints and loaders."""

import random

import torch
import torch.nn.functional as F

from gpu_course.exam import running
from gpu_course.exam.items import Item, but, generator, number


@generator("train", "gradients-are-replaced", short=True)
def added_gradients(draw: random.Random) -> Item:
    """What does `.grad` hold after several backward passes?"""
    factors = draw.sample(range(2, 10), 4)
    lines = ["w = torch.tensor(1.0, requires_grad=True)", *[f"(w * {factor}).backward()" for factor in factors]]
    cleared = draw.choice([2, 3])
    lines.insert(cleared, "w.grad = None")
    program = "\n".join(lines)

    def gradient() -> int:
        return int(running.run(program)["w"].grad)

    added = factors[cleared - 1 :]
    wrong = {factors[-1]: "gradients-are-replaced", sum(factors): "gradients-are-replaced"}
    wrong |= {sum(added[1:]): "off-by-one", sum(factors[:cleared]): "turned-round"}
    steps = (
        "Each `backward` adds the factor of its line to `w.grad`; the line with None throws away what was there.",
        f"What is added behind it: {' + '.join(map(str, added))} = {sum(added)}.",
    )
    return number("What is `w.grad` at the end?", gradient(), wrong, steps, gradient, shown=running.numbered(lines))


@generator("train", "scale-is-forgotten")
def clipped_too_early(draw: random.Random) -> Item:
    """Which norm does the optimizer see when scaled gradients were clipped?"""
    scale = 2 ** draw.choice([8, 10, 12])
    true, limit = draw.choice([0.5, 0.6, 0.8, 2.0, 3.0, 4.0]), draw.choice([1.0, 1.28, 2.56, 5.12])
    shown = "\n".join([
        "1  scaler.scale(loss).backward()",
        f"2  clip_grad_norm_(model.parameters(), {limit})",
        "3  scaler.unscale_(optimizer)",
        "4  scaler.step(optimizer)",
    ])  # fmt: skip

    def seen() -> float:
        w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        w.grad = torch.tensor([0.6, 0.8], dtype=torch.float64) * true * scale
        torch.nn.utils.clip_grad_norm_([w], limit)
        return (w.grad / scale).norm().item()

    wrong = {
        min(true, limit): "scale-is-forgotten",
        limit: "scale-is-forgotten",
        true: "scale-is-forgotten",
        true / scale: "scale-is-forgotten",
    }
    steps = (
        f"In line 2 the norm is {scale} × {true} = {scale * true:g}, so the gradients are clipped to {limit}.",
        f"Line 3 divides by the scale: {limit} / {scale} = {limit / scale:.3g}.",
    )
    text = (
        f"The scale is {scale}, and the true gradients, without it, have the norm {true}. Which norm do the gradients "
        "have when line 4 begins?"
    )
    return number(text, limit / scale, wrong, steps, seen, shown=shown)


@generator("train", "eval-switches-everything")
def switches(draw: random.Random) -> Item:
    """What do `eval` and `no_grad` switch?"""
    modes = [draw.choice(["model.train()", "model.eval()"]) for _ in range(2)]
    contexts = [draw.choice(["torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()"]) for _ in range(2)]
    lines = [f"model = nn.Sequential(nn.Linear(8, {draw.randint(20, 90)}), nn.Dropout(0.5))", "x = torch.ones(64, 8)"]
    for number_, (mode, context) in enumerate(zip(modes, contexts, strict=True)):
        lines += [mode, f"with {context}:", f"    y{number_}, z{number_} = model(x), model(x)"]
    lines.append("facts = [y0.requires_grad, bool((y0 == z0).all()), y1.requires_grad, bool((y1 == z1).all())]")
    program = "\n".join(lines)

    def true() -> int:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return sum(running.run(program)["facts"])

    quiet = [context != "torch.enable_grad()" for context in contexts]
    off = [mode == "model.eval()" for mode in modes]
    both = [q or o for q, o in zip(quiet, off, strict=True)]
    wrong = {sum(not b for b in both) + sum(both): "eval-switches-everything"}
    halves = [sum(not b for b in both) + sum(off), sum(not q for q in quiet) + sum(both)]
    halves.append(sum(not q for q in quiet) + sum(quiet))
    wrong |= but(true(), dict.fromkeys(halves, "eval-switches-everything"))
    steps = (
        "`requires_grad` is True where autograd records: not under `no_grad` or `inference_mode`, whatever the mode.",
        "Two calls are equal where dropout is off: after `eval()`, whatever autograd does.",
        f"Of the four facts {true()} are True.",
    )
    text = "How many of the four facts in the last line are True?"
    return number(text, true(), wrong, steps, true, shown=running.numbered(lines))


@generator("train", "model-cannot-peek", short=True)
def places_that_change(draw: random.Random) -> Item:
    """How many outputs change when one token changes, under a causal mask?"""
    length = draw.randint(8, 16)
    token = draw.randint(2, length - 3)
    batch = draw.choice([2, 3, 4])

    def changed() -> int:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(batch, 1, length, 4, generator=made, dtype=torch.float64)
        other = x.clone()
        other[0, 0, token] += 1
        y, z = (F.scaled_dot_product_attention(one, one, one, is_causal=True) for one in (x, other))
        return int((y != z).any(-1).sum())

    wrong = {length: "model-cannot-peek", 1: "model-cannot-peek", length - token - 1: "off-by-one"}
    wrong |= {token: "turned-round", token + 1: "turned-round", batch * (length - token): "left-out"}
    steps = (
        f"With a causal mask place t sees the places 0 to t, so the places {token} to {length - 1} see the token.",
        f"These are {length - token} outputs, of this one text alone.",
    )
    text = (
        f"A batch of {batch} texts of {length} places, numbered from 0, goes through attention with a causal mask. In "
        f"the first text the token at place {token} changes. Attention has an output for each place of each "
        "text. How many of them change?"
    )
    return number(text, changed(), wrong, steps, changed)


@generator("train", "weights-are-the-state", short=True)
def steps_done_twice(draw: random.Random) -> Item:
    """How many steps are done again after a crash?"""
    every, crashed = draw.choice([20, 25, 40, 50]), draw.randint(110, 290)
    done = crashed - 1  # steps that were finished

    def counted() -> int:
        saved, again = 0, 0
        for step in range(1, done + 1):
            again += 1
            if step % every == 0:
                saved, again = step, 0
        return again if saved else done

    wrong = {done: "weights-are-the-state", done % every + 1: "off-by-one", every - done % every: "turned-round"}
    wrong |= {every: "weights-are-the-state", 0: "weights-are-the-state"}
    steps = (
        f"The last checkpoint is that of step {done - done % every}.",
        f"The steps {done - done % every + 1} to {done} were finished and are lost: {done % every}.",
    )
    text = (
        f"A run numbers its steps from 1 and saves a checkpoint after every {every} of them. It is killed in the "
        f"middle of step {crashed}. How many steps that had been finished have to be done again?"
    )
    return number(text, counted(), wrong, steps, counted, unit="steps")


@generator("train", "gpu-is-the-slow-part", "parts-add-up", short=True)
def loader_or_step(draw: random.Random) -> Item:
    """How long does a step take with workers that load?"""
    load, step, workers = draw.choice([40, 60, 90, 120]), draw.choice([8, 10, 16, 25]), draw.choice([2, 3, 4])
    answer = max(load / workers, step)  # a draw in which the step is the slower one clashes with the first wrong answer

    def simulated() -> float:  # time between two steps, when the first batches are forgotten
        free, now, times = [0.0] * workers, 0.0, []
        for batch in range(40 * workers):
            free[batch % workers] += load
            now = max(now, free[batch % workers]) + step
            times.append(now)
        return (times[-1] - times[-1 - 20 * workers]) / (20 * workers)

    wrong = {
        float(step): "gpu-is-the-slow-part",
        load / workers + step: "parts-add-up",
        float(load + step): "parts-add-up",
        float(load): "left-out",
    }
    steps = (
        f"{workers} workers deliver a batch every {load} / {workers} = {load / workers:.3g} ms.",
        f"The device takes {step} ms for a step, and the slower of the two sets the pace: {answer:.3g} ms.",
    )
    text = (
        f"A worker needs {load} ms to load a batch, and the device {step} ms for a training step. {workers} workers "
        "load at the same time, each on a core of its own and well ahead. How long does a step take, in the long run?"
    )
    return number(text, answer, wrong, steps, simulated, unit="ms")
