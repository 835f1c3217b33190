"""Right answers of lesson 14 that are no edits of the reference."""

import torch
from torch import nn


def adds_to_two_sums(operators, kept, nbytes):
    separate = 0
    fused = sum(map(nbytes.get, kept))
    made, loaded = set(), set()
    for inputs, output in operators:
        separate += sum(nbytes[name] for name in inputs) + nbytes[output]
        made.add(output)
        loaded.update(name for name in inputs if name not in made)
    return separate, fused + sum(nbytes[name] for name in loaded)


def subtracts_what_stays_in_the_kernel(operators, kept, nbytes):
    every = [name for inputs, output in operators for name in (*inputs, output)]
    outputs = [output for _, output in operators]
    once = set(every) - (set(outputs) - set(kept))
    return sum(nbytes[name] for name in every), sum(nbytes[name] for name in once)


def takes_the_smaller_factor(x, limit):
    centred = x - torch.mean(x)
    factor = limit / centred.square().sum().sqrt()
    return centred * torch.clamp(factor, max=1.0)


def uses_cond(x, limit):
    centred = x - x.mean()
    length = torch.linalg.vector_norm(centred)
    return torch.cond(
        length > limit, lambda one, norm: one * (limit / norm), lambda one, norm: one * 1, (centred, length)
    )


def prints_only_in_eager(x, limit):
    centred = x - x.mean()
    length = centred.norm()
    if not torch.compiler.is_compiling():
        print("length:", length)
    return centred / torch.maximum(length / limit, torch.ones(()))


def may_be_dynamic(function, batches, backend):
    results = []
    compiled = torch.compile(function, backend=backend)
    for batch in batches:
        torch._dynamo.maybe_mark_dynamic(batch, 0)
        results += [compiled(batch)]
    return results


def decorates(function, batches, backend):
    @torch.compile(backend=backend, dynamic=True, fullgraph=True)
    def called(batch):
        return function(batch)

    return list(map(called, batches))


def looks_at_the_counters(function, calls):
    made = 0

    def backend(graph, inputs):
        nonlocal made
        made += 1
        return graph

    compiled = torch.compile(function, backend=backend)
    counts = []
    for args in calls:
        compiled(*args)
        counts.append(made)
    return [number for number in range(1, len(counts)) if counts[number] != counts[number - 1]]


def keeps_a_flag(function, calls):
    compiled_now = []
    compiled = torch.compile(function, backend=lambda graph, _: compiled_now.append(1) or graph.forward)
    again = []
    for number, args in enumerate(calls):
        compiled_now.clear()
        compiled(*args)
        if compiled_now and number:
            again += [number]
    return again


def multiplies_by_a_diagonal(linear, norm):
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    result = nn.utils.skip_init(nn.Linear, *linear.weight.T.shape, device=scale.device, dtype=scale.dtype)
    bias = 0 if linear.bias is None else linear.bias
    with torch.no_grad():
        result.weight.copy_(torch.diag(scale) @ linear.weight)
        result.bias.copy_((bias - norm.running_mean) * scale + norm.bias)
    return result


def measures_what_both_do(linear, norm):
    features = linear.weight.shape[1]
    zero = linear.weight.new_zeros(1, features)
    result = nn.Linear(features, len(linear.weight), device=zero.device, dtype=zero.dtype)
    with torch.no_grad():
        bias = norm(linear(zero))[0]
        columns = norm(linear(torch.eye(features, device=zero.device, dtype=zero.dtype))) - bias
    result.weight = nn.Parameter(columns.T.contiguous())
    result.bias = nn.Parameter(bias)
    return result


def sorts_by_gain(programs, card):
    def time_of(kernels):
        busy = 0.0
        for kernel in kernels:
            memory, products = kernel.nbytes / card.gbps / 1e9, kernel.flops / card.tflops / 1e12
            busy += memory if memory > products else products
        return max(busy, card.launch_us * len(kernels) / 1e6)

    gains = [(time_of(program.eager) / time_of(program.compiled), program.name) for program in programs]
    return sorted(gains)[-1][1]


def counts_in_microseconds(programs, card):
    best, least = None, float("inf")
    for program in programs:
        times = []
        for kernels in (program.compiled, program.eager):
            work = sum(max(one.nbytes / card.gbps / 1e3, one.flops / card.tflops / 1e6) for one in kernels)
            times.append(max(work, len(kernels) * card.launch_us))
        if times[0] / times[1] < least:
            best, least = program.name, times[0] / times[1]
    return best


def divides_whole(plans, run_s):
    def steps(plan):
        left = run_s - plan.graphs * plan.compile_s
        return int(left // plan.step_s) if left > 0 else 0

    best = max(plans, key=steps)
    return best.name, steps(best)


def goes_backwards(plans, run_s):
    best = None
    for plan in reversed(plans):
        done = int(max(run_s - plan.graphs * plan.compile_s, 0.0) / plan.step_s)
        if best is None or done >= best[1]:
            best = (plan.name, done)
    return best


RIGHT = {
    "moved": [adds_to_two_sums, subtracts_what_stays_in_the_kernel],
    "clip": [takes_the_smaller_factor, uses_cond, prints_only_in_eager],
    "one_graph": [may_be_dynamic, decorates],
    "recompiled": [looks_at_the_counters, keeps_a_flag],
    "fold": [multiplies_by_a_diagonal, measures_what_both_do],
    "most_gained": [sorts_by_gain, counts_in_microseconds],
    "best_plan": [divides_whole, goes_backwards],
}
