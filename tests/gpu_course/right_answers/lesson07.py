"""Right answers of lesson 07 that are no edits of the reference."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def names_the_logits(model, x, y, rows):
    tokens = int((y != -100).sum())
    total = 0.0
    for begin in range(0, len(x), rows):
        logits = model(x[begin : begin + rows])
        scores = logits.reshape(-1, logits.shape[-1])
        target = y[begin : begin + rows].reshape(-1)
        loss = F.cross_entropy(scores, target, ignore_index=-100, reduction="sum") / tokens
        loss.backward()
        total = total + loss.detach()
    return total


def adds_in_a_helper(model, x, y, rows):
    count = y.ne(-100).sum()

    def part(inputs, targets):
        logits = model(inputs)
        loss = F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum").div(count)
        loss.backward()
        return loss.detach()

    return sum(part(*both) for both in zip(torch.split(x, rows), torch.split(y, rows), strict=True))


def puts_the_lever_back_in_any_case(model, optimizer, x, y):
    before = model.checkpointing
    optimizer.zero_grad(set_to_none=True)
    losses = []
    try:
        model.checkpointing = True
        for inputs, targets in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / 2
            loss.backward()
            losses.append(loss.detach())
            del loss
    finally:
        model.checkpointing = before
    optimizer.step()
    return torch.stack(losses).sum()


def loops_over_two_halves(model, optimizer, x, y):
    was = model.checkpointing
    model.checkpointing = True
    optimizer.zero_grad()
    half = len(x) // 2
    total = None
    for rows in (slice(None, half), slice(half, None)):
        loss = F.cross_entropy(model(x[rows]).transpose(1, 2), y[rows], reduction="sum") / y.numel()
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    optimizer.step()
    model.checkpointing = was
    return total


def adds_for_each_parameter(model, optimizer, saved):
    parameters = gradients = states = activations = 0
    for parameter in model.parameters():
        size = parameter.numel() * parameter.element_size()
        parameters += size
        if not parameter.requires_grad:
            continue
        gradients += size
        if optimizer == "momentum":
            states += 4 * parameter.numel()
        elif optimizer == "Adam":
            states += 8 * parameter.numel()
        if parameter.element_size() == 2:
            states += 4 * parameter.numel()
    for tensor in saved:
        activations += tensor.numel() * tensor.element_size()
    return {"parameters": parameters, "gradients": gradients, "optimizer": states, "activations": activations}


def asks_for_types(model, optimizer, saved):
    own = list(model.parameters())
    trained = list(filter(lambda parameter: parameter.requires_grad, own))
    short = [parameter for parameter in trained if parameter.dtype in (torch.float16, torch.bfloat16)]
    numbers = sum(map(torch.numel, trained)) * dict(SGD=0, momentum=1, Adam=2)[optimizer]
    return dict(
        parameters=sum(one.nbytes for one in own),
        gradients=sum(one.nbytes for one in trained),
        optimizer=4 * (numbers + sum(map(torch.numel, short))),
        activations=sum(one.nbytes for one in saved),
    )


def sorts_pairs(blocks, x, kept_bytes, limit_bytes):
    by_size = sorted(enumerate(kept_bytes), key=lambda pair: pair[1], reverse=True)
    kept = {at: size for at, size in by_size}
    again = []
    for at, _ in by_size:
        if sum(kept.values()) <= limit_bytes:
            break
        kept[at] = x.nbytes
        again.append(at)
    result = x
    for at, block in enumerate(blocks):
        if at not in again:
            result = block(result)
            continue
        result = checkpoint(block, result, use_reentrant=False)
    return result


def takes_the_largest_each_time(blocks, x, kept_bytes, limit_bytes):
    input_bytes = x.numel() * x.element_size()
    left = dict(enumerate(kept_bytes))
    needed = sum(kept_bytes)
    while needed > limit_bytes:
        largest = max(left, key=left.__getitem__)
        needed += input_bytes - left.pop(largest)
    for number in range(len(blocks)):
        x = blocks[number](x) if number in left else checkpoint(blocks[number], x, use_reentrant=False)
    return x


class LowRank(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        for parameter in self.linear.parameters():
            parameter.requires_grad = False
        where = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank, **where))
        self.down = nn.Parameter(torch.empty(rank, linear.in_features, **where))
        nn.init.normal_(self.down, std=0.02)

    def forward(self, x):
        frozen = self.linear(x)
        small = F.linear(x, self.down)
        return frozen + F.linear(small, self.up)


OfInit = LowRank


class LowRank(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        weight = linear.weight.detach()
        self.down = nn.Parameter(0.02 * torch.randn_like(weight[:1]).new_empty(rank, weight.shape[1]).normal_())
        self.up = nn.Parameter(weight.new_zeros((weight.shape[0], rank)))
        self.linear = linear.requires_grad_(False)

    def forward(self, x):
        return self.linear(x).add((x @ self.down.mT) @ self.up.mT)


def reads_each_loss(model, batches, device):
    losses = []
    problems = []
    for batch in batches:
        with torch.no_grad():
            try:
                x, y = [part.to(device) for part in batch]
                value = F.cross_entropy(model(x), y).item()
            except RuntimeError as error:
                problems += [f"{error}"]
                continue
        losses += [value]
    return losses, problems


@torch.inference_mode()
def evaluates_in_a_helper(model, batches, device):
    def tried(x, y):
        try:
            return float(F.cross_entropy(model(x.to(device)), y.to(device)))
        except RuntimeError as error:
            return str(error)

    found = [tried(x, y) for x, y in batches]
    losses = [one for one in found if isinstance(one, float)]
    return losses, [one for one in found if isinstance(one, str)]


def reads_the_losses_at_the_end(model, batches, device):
    kept, problems = [], []
    for x, y in batches:
        try:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            kept.append(loss.detach())
            del loss
        except RuntimeError as error:
            problems.append(error.args[0])
    return [loss.item() for loss in kept], problems


def halves_the_range(step, limit):
    low, high = 1, limit
    best = 0
    while low <= high:
        middle = low + (high - low) // 2
        fits = True
        try:
            step(middle)
        except torch.OutOfMemoryError:
            fits = False
        if fits:
            best = middle
            low = middle + 1
        else:
            high = middle - 1
    return best


def tries_the_limit_first(step, limit):
    def fits(size):
        try:
            step(size)
        except torch.OutOfMemoryError:
            return False
        else:
            return True

    if fits(limit):
        return limit
    good, bad = 0, limit
    while good + 1 < bad:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def counts_page_by_page(lengths, layers, kv_heads, head_size, dtype, page):
    of_a_page = page * layers * kv_heads * head_size * dtype.itemsize
    keys = values = 0
    for tokens in lengths:
        while tokens > 0:
            keys += of_a_page
            values += of_a_page
            tokens -= page
    return keys + values


def rounds_each_length_up(lengths, layers, kv_heads, head_size, dtype, page):
    def rounded(tokens):
        left = tokens % page
        return tokens if left == 0 else tokens + page - left

    places = sum(map(rounded, lengths))
    heads = layers * kv_heads
    return 2 * places * heads * head_size * dtype.itemsize


def goes_through_quarters_and_names_the_logits(model, optimizer, x, y):
    before = model.checkpointing
    model.checkpointing = True
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in zip(x.chunk(4), y.chunk(4), strict=True):
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * len(inputs) / len(x)
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    model.checkpointing = before
    return total


RIGHT = {
    "kv_cache_bytes": [counts_page_by_page, rounds_each_length_up],
    "accumulate": [names_the_logits, adds_in_a_helper],
    "quarter_step": [
        puts_the_lever_back_in_any_case,
        loops_over_two_halves,
        goes_through_quarters_and_names_the_logits,
    ],
    "four_parts": [adds_for_each_parameter, asks_for_types],
    "run_blocks": [sorts_pairs, takes_the_largest_each_time],
    "LowRank": [OfInit, LowRank],
    "evaluate_batches": [reads_the_losses_at_the_end, reads_each_loss, evaluates_in_a_helper],
    "largest_batch": [halves_the_range, tries_the_limit_first],
}
