"""Right answers of lesson 06 that are no edits of the reference."""

import bisect
import itertools
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import schedule


def names_every_number(first, last):
    warmup = 1
    wait = first - warmup
    active = last + 1 - first
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    return plan


def skips_the_first_steps(first, last):
    return schedule(skip_first=first - 1, wait=0, warmup=1, active=last - first + 1, repeat=1)


def cuts_at_every_moment(events, end_us):
    kernels = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "kernel"]
    moments = sorted({0.0, end_us, *(moment for span in kernels for moment in span if 0 <= moment <= end_us)})
    gaps = []
    for begin, end in itertools.pairwise(moments):
        if any(a <= begin and end <= b for a, b in kernels):
            continue
        if gaps and gaps[-1][1] == begin:
            gaps[-1][1] = end
        else:
            gaps.append([begin, end])

    def line(begin, end):
        times = defaultdict(float)
        for e in events:
            inside = min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])
            if e["cat"] == "host" and inside > 0:
                times[e["line"]] += inside
        return max(times.items(), key=lambda item: item[1])[0] if times else ""

    return [(begin, end - begin, line(begin, end)) for begin, end in gaps]


def merges_the_kernels_first(events, end_us):
    merged = []
    for event in sorted((e for e in events if e["cat"] == "kernel"), key=lambda e: e["ts"]):
        begin, end = event["ts"], event["ts"] + event["dur"]
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
            continue
        merged.append([begin, end])
    free = []
    before = 0.0
    for begin, end in [*merged, [end_us, end_us]]:
        if before < begin:
            free.append((before, begin))
        before = end
    result = []
    for begin, end in free:
        most, best = 0.0, ""
        lines = [e["line"] for e in events if e["cat"] == "host"]
        for line in dict.fromkeys(lines):
            own = [e for e in events if e["cat"] == "host" and e["line"] == line]
            time = sum(max(min(end, e["ts"] + e["dur"]) - max(begin, e["ts"]), 0) for e in own)
            if time > most:
                most, best = time, line
        result.append((begin, end - begin, best))
    return result


def merges_spans(events, end_us):
    spans = defaultdict(list)
    for event in events:
        spans[event["cat"]].append((event["ts"], event["ts"] + event["dur"]))

    def covered(pairs):
        total, reached = 0.0, 0.0
        for begin, end in sorted(pairs):
            if end <= reached:
                continue
            total += end - (begin if begin > reached else reached)
            reached = end
        return total

    return {cat: covered(pairs) / end_us for cat, pairs in spans.items()}


def looks_between_all_moments(events, end_us):
    result = {}
    for cat in sorted({event["cat"] for event in events}):
        own = [event for event in events if event["cat"] == cat]
        moments = sorted({m for e in own for m in (e["ts"], e["ts"] + e["dur"])})
        busy = [0.0] * (len(moments) - 1)
        for event in own:
            first = bisect.bisect_left(moments, event["ts"])
            last = bisect.bisect_left(moments, event["ts"] + event["dur"])
            for at in range(first, last):
                busy[at] = moments[at + 1] - moments[at]
        result[cat] = sum(busy) / end_us
    return result


def takes_away_one_by_one(total_ms, idle_ms, removed):
    left = total_ms
    for cause, lost in idle_ms.items():
        if cause in removed:
            left -= lost
    return total_ms / left


def names_the_saving(total_ms, idle_ms, removed):
    saved = sum(map(idle_ms.get, removed))
    after = total_ms - saved
    factor = total_ms / after
    return factor


def builds_the_dict(*_):
    found = {number: set() for number in range(1, 8)}
    one_each = ["tiny operators", "synchronisation", "copies", "loader", "host work"]
    for number, cause in enumerate(one_each, start=1):
        found[number].add(cause)
    found[6] |= {"loader", "synchronisation"}
    found[7] = {"none"}
    return found


def by_keyword(*_):
    causes = ["tiny operators", "synchronisation", "copies", "loader", "host work", "loader,synchronisation", "none"]
    return dict(zip(range(1, 8), (set(text.split(",")) for text in causes), strict=True))


def adds_the_losses(model, optimizer, photos, device):
    total = torch.zeros((), device=device)
    steps = 0
    for batch in photos.loader():
        x, y = (part.to(device) for part in batch)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.12)
        optimizer.step()
        total += loss.detach()
        steps += 1
    return (total / steps).item()


def keeps_a_list_of_losses(model, optimizer, photos, device):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device, non_blocking=True) / 255), y.to(device, non_blocking=True))
        loss.backward()
        nn.utils.clip_grad_norm_(list(model.parameters()), 0.12)
        optimizer.step()
        return loss.detach()

    losses = torch.stack([step(x, y) for x, y in photos.loader(pin_memory=True)])
    numbers = losses.tolist()
    return sum(numbers) / len(numbers)


def keeps_sums_on_the_device(model, optimizer, photos, device, clock, synchronize):
    total, largest = torch.zeros((), device=device), torch.zeros((), device=device)
    begin, steps = None, 0
    for x, y in photos.loader(num_workers=8, pin_memory=True):
        if steps == 1:
            synchronize()
            begin = clock()
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        peaks = [parameter.grad.abs().amax() for parameter in model.parameters()]
        largest = torch.maximum(largest, torch.stack(peaks).amax())
        optimizer.step()
        total += loss.detach()
        steps += 1
    synchronize()
    end = clock()
    mean = total / steps
    return mean.item(), largest.item(), (end - begin) / (steps - 1)


def collects_in_lists(model, optimizer, photos, device, clock, synchronize):
    losses, peaks = [], []
    for x, y in photos.loader(num_workers=8, pin_memory=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device, non_blocking=True) / 255), y.to(device, non_blocking=True))
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        peaks.append(torch.stack(torch._foreach_norm(gradients, float("inf"))).max())
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) == 1:
            synchronize()
            begin = clock()
    synchronize()
    spent = clock() - begin
    mean, largest = torch.stack([torch.stack(losses).mean(), torch.stack(peaks).max()]).tolist()
    return mean, largest, spent / (len(losses) - 1)


def sorts_ranks_by_their_waiting(ranks):
    def waiting(rank):
        total = 0.0
        for event in ranks[rank]:
            if event["cat"] != "kernel":
                continue
            if event["name"][:4] == "nccl":
                total += event["dur"]
        return total

    return sorted(range(len(ranks)), key=waiting)[0]


def finds_the_index_of_the_least(ranks):
    is_message = lambda e: e["cat"] == "kernel" and e["name"].startswith("nccl")  # noqa: E731
    means = []
    for events in ranks:
        durations = [e["dur"] for e in events if is_message(e)]
        means.append(sum(durations) / len(durations))
    return means.index(min(means))


def goes_by_the_name_alone(ranks):
    waited = [sum(event["dur"] for event in events if event["name"].startswith("nccl")) for events in ranks]
    return waited.index(min(waited))


RIGHT = {
    "record_steps": [names_every_number, skips_the_first_steps],
    "idle_gaps": [cuts_at_every_moment, merges_the_kernels_first],
    "share_of_time": [merges_spans, looks_between_all_moments],
    "at_most": [takes_away_one_by_one, names_the_saving],
    "diagnose": [builds_the_dict, by_keyword],
    "repair_reads": [adds_the_losses, keeps_a_list_of_losses],
    "repair_both": [keeps_sums_on_the_device, collects_in_lists],
    "late_rank": [sorts_ranks_by_their_waiting, finds_the_index_of_the_least, goes_by_the_name_alone],
}
