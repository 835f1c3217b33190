"""Items on several devices: collectives, data parallel, tensor parallel and pipelines."""

import math
import random

import simgpu
from gpu_course.exam import running
from gpu_course.exam.items import Item, but, generator, number


@generator("parallel", "messages-follow-memory", short=True)
def ring_bytes(draw: random.Random) -> Item:
    """How much does a rank send in a ring all-reduce?"""
    ranks, size_mb = draw.choice([4, 5, 8, 10, 16, 20]), draw.choice([40, 80, 120, 160, 200, 240, 320, 400])

    def by_messages() -> float:
        from gpu_course.lesson09.explorers.exchange import exchange

        return exchange("all_reduce", ranks).sent_pieces(0) * size_mb / ranks

    answer = 2 * (ranks - 1) / ranks * size_mb
    wrong = {
        float(size_mb): "messages-follow-memory",
        2.0 * (ranks - 1) * size_mb: "messages-follow-memory",
        answer / 2: "messages-follow-memory",
        size_mb / ranks: "messages-follow-memory",
        2.0 * size_mb: "off-by-one",
    }
    steps = (
        f"The ring has 2 × ({ranks} - 1) = {2 * (ranks - 1)} steps, and in each a rank sends a {ranks}th of the "
        "tensor.",
        f"{2 * (ranks - 1)} × {size_mb} / {ranks} = {answer:g} MB.",
    )
    text = f"{ranks} ranks all-reduce a tensor of {size_mb} MB in a ring. How many MB does each rank send?"
    return number(text, answer, wrong, steps, by_messages, unit="MB")


@generator("parallel", "mean-of-means", "somebody-divides", short=True)
def mean_over_ranks(draw: random.Random) -> Item:
    """What is the mean of values that lie on ranks?"""
    counts = draw.sample([1, 2, 3, 4, 6], 3)
    values = [[float(draw.randint(1, 12)) for _ in range(count)] for count in counts]

    def over_all() -> float:
        return sum(map(sum, values)) / sum(counts)

    means = [sum(own) / len(own) for own in values]
    wrong = {
        sum(means) / 3: "mean-of-means",
        sum(map(sum, values)) / 3: "mean-of-means",
        means[0]: "one-rank-knows-all",
        sum(map(sum, values)): "somebody-divides",
    }
    shown = "\n".join(f"rank {rank}: {', '.join(f'{value:g}' for value in own)}" for rank, own in enumerate(values))
    steps = (f"Add up sums and counts: {sum(map(sum, values)):g} and {sum(counts)}.", f"Divide once: {over_all():.3g}.")
    return number("What is the mean of all values?", over_all(), wrong, steps, over_all, shown=shown)


_ON_RANKS = "`group.sum_over_ranks(x)` returns on every rank the sum of what the ranks hand in."


@generator("parallel", "somebody-divides", "one-rank-knows-all", short=True)
def value_after_collective(draw: random.Random) -> Item:
    """What does a rank hold after some collectives?"""
    count, factor, root = draw.choice([2, 3, 4]), draw.randint(2, 6), draw.choice([0, 1])
    asked = draw.choice([0, 1])
    lines = [
        f"x = {factor} * (rank + 1)",
        "y = group.sum_over_ranks(x)",
        f"x = group.broadcast(x, root={root})",
        draw.choice(["z = y - x", "z = y + x"]),
    ]
    program = "\n".join(lines)

    def value() -> int:
        return running.ranks(program, count).names[asked]["z"]

    sign = -1 if "-" in lines[3] else 1
    own, total, sent = factor * (asked + 1), factor * count * (count + 1) // 2, factor * (root + 1)
    wrong = {
        total + sign * own: "one-rank-knows-all",
        own + sign * sent: "one-rank-knows-all",
        total // count + sign * sent: "somebody-divides",
        own + sign * own: "ranks-share-memory",
    }
    steps = (
        f"The sum over {count} ranks is {total}, on every rank.",
        f"Rank {root} gives its x to all: {sent}.",
        f"z is {total} {'-' if sign < 0 else '+'} {sent} = {value()}.",
    )
    text = (
        f"{count} ranks run this program. {_ON_RANKS} `group.broadcast(x, root)` returns the x of the rank `root`. "
        f"What is z on rank {asked}?"
    )
    return number(text, value(), wrong, steps, value, shown=running.numbered(lines))


@generator("parallel", "stages-are-all-busy", short=True)
def bubble(draw: random.Random) -> Item:
    """How large is the bubble of a pipeline?"""
    ranks, micro = draw.choice([2, 3, 4, 6, 8]), draw.randint(4, 16)

    def by_schedule() -> float:
        from gpu_course.lesson10 import pipelines

        return 100 * pipelines.Schedule(pipelines.one_f_one_b(ranks, micro)).bubble

    answer = 100 * (ranks - 1) / (micro + ranks - 1)
    wrong = {
        0.0: "stages-are-all-busy",
        100 * (ranks - 1) / micro: "stages-are-all-busy",
        100.0 / ranks: "stages-are-all-busy",
        100.0 * ranks / (micro + ranks): "off-by-one",
        100 - answer: "turned-round",
    }
    steps = (
        f"A rank works for {micro} slots and waits for {ranks} - 1 of them.",
        f"{ranks - 1} / ({micro} + {ranks - 1}) = {answer:.3g} %.",
    )
    text = (
        f"A pipeline of {ranks} equal stages on {ranks} ranks runs {micro} micro-batches by 1F1B; messages take no "
        "time. For what share of the time do ranks wait?"
    )
    return number(text, answer, wrong, steps, by_schedule, unit="%")


@generator("parallel", "n-gpus-n-times", short=True)
def steps_of_an_epoch(draw: random.Random) -> Item:
    """How many steps has an epoch on several ranks?"""
    samples, ranks, batch = draw.randint(200, 900), draw.choice([2, 4, 8]), draw.choice([8, 16, 32])

    def by_sampler() -> int:
        import torch
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        data = TensorDataset(torch.arange(samples))
        sampler = DistributedSampler(data, num_replicas=ranks, rank=0)
        return len(DataLoader(data, batch_size=batch, sampler=sampler))

    share = math.ceil(samples / ranks)
    wrong = {
        math.ceil(samples / batch): "n-gpus-n-times",
        samples // ranks // batch: "off-by-one",
        math.ceil(share / (batch * ranks)): "n-gpus-n-times",
        share: "another-question",
    }
    steps = (
        f"Each rank gets {samples} / {ranks}, rounded up: {share} samples.",
        f"These are {share} / {batch}, rounded up: {by_sampler()} batches.",
    )
    text = (
        f"{samples} samples are shared out by a `DistributedSampler` among {ranks} ranks. Each rank takes batches of "
        f"{batch}, and the last may be smaller. How many steps has an epoch?"
    )
    return number(text, by_sampler(), wrong, steps, by_sampler, unit="steps")


@generator("parallel", "any-link-will-do")
def tensor_parallel_messages(draw: random.Random) -> Item:
    """How long do the messages of tensor parallelism take?"""
    layers, rows_mb, ranks = draw.choice([12, 24, 32, 48]), draw.choice([16, 32, 64]), draw.choice([2, 4, 8])
    gpu, apart = draw.choice(["H100 SXM", "A100 80GB"]), draw.choice([True, False])
    cluster = simgpu.Cluster(gpu, per_machine=1 if apart else 8, between="InfiniBand")
    gbps = round(cluster.gbps(list(range(ranks))))

    def added_up() -> float:
        each = 2 * (ranks - 1) / ranks * rows_mb / gbps
        return sum(each for _ in range(layers) for _ in range(4))

    answer = 4 * layers * 2 * (ranks - 1) / ranks * rows_mb / gbps
    wrong = {
        answer / 4: "left-out",
        answer / layers: "left-out",
        answer / 2: "messages-follow-memory",
        answer * 8: "units-are-alike",
        answer * ranks: "messages-follow-memory",
    }
    steps = (
        f"A rank sends 2 × ({ranks} - 1) / {ranks} × {rows_mb} MB in each of 4 × {layers} all-reduces.",
        f"Over {gbps} GB/s that takes {answer:.3g} ms.",
    )
    where = "in machines of their own" if apart else "in one machine"
    text = (
        f"Tensor parallelism over {ranks} GPUs ({gpu}), {where}: the link carries {gbps} GB/s for each GPU and "
        f"direction. Each of {layers} layers has four all-reduces of {rows_mb} MB in a step, by rings and with no "
        "latency. How long do all messages of a step take?"
    )
    return number(text, answer, wrong, steps, added_up, unit="ms")


@generator("parallel", "ranks-share-memory", short=True)
def what_ranks_share(draw: random.Random) -> Item:
    """What do ranks see of each other's variables?"""
    count, start = draw.choice([2, 3, 4]), draw.randint(1, 9)
    add = draw.randint(2, 9)
    asked = draw.randrange(count)
    lines = [f"box = [{start}]", f"box.append({add} * rank)", "group.barrier()", "total = sum(box)"]

    def value() -> int:
        return running.ranks("\n".join(lines), count).names[asked]["total"]

    wrong = {
        start + add * sum(range(count)): "ranks-share-memory",
        start + add * (asked + 1): "off-by-one",
        count * start + add * sum(range(count)): "ranks-share-memory",
    }
    wrong |= but(value(), {start: "ranks-share-memory"})
    steps = (
        "Each rank is a process with a list of its own; a barrier sends no data.",
        f"On rank {asked} the list holds {start} and {add * asked}: {value()}.",
    )
    text = f"{count} ranks run this program. What is `total` on rank {asked}?"
    return number(text, value(), wrong, steps, value, shown=running.numbered(lines))
