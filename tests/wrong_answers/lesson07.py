"""Answers to lesson 07 that people give, each with what the message must say."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

STATES = {"SGD": 0, "momentum": 1, "Adam": 2}


# ---- four_parts
def _parts(model, optimizer, saved, /, **changed):
    trained = [p for p in model.parameters() if p.requires_grad]
    states = STATES[optimizer]
    right = {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.nbytes for p in trained),
        "optimizer": sum(p.numel() * (4 * states + (4 if p.itemsize < 4 else 0)) for p in trained),
        "activations": sum(t.nbytes for t in saved),
    }
    return {**right, **changed}


def _one_state(model, optimizer, saved):
    states = min(STATES[optimizer], 1)
    wrong = sum(p.numel() * (4 * states + (4 if p.itemsize < 4 else 0)) for p in model.parameters() if p.requires_grad)
    return _parts(model, optimizer, saved, optimizer=wrong)


def _no_master(model, optimizer, saved):
    wrong = sum(4 * p.numel() * STATES[optimizer] for p in model.parameters() if p.requires_grad)
    return _parts(model, optimizer, saved, optimizer=wrong)


def _always_a_master(model, optimizer, saved):
    wrong = sum(4 * p.numel() * (STATES[optimizer] + 1) for p in model.parameters() if p.requires_grad)
    return _parts(model, optimizer, saved, optimizer=wrong)


def _states_like_weights(model, optimizer, saved):
    wrong = sum(p.nbytes * STATES[optimizer] for p in model.parameters() if p.requires_grad)
    return _parts(model, optimizer, saved, optimizer=wrong)


def _numbers(model, optimizer, saved):
    return _parts(model, optimizer, saved, parameters=sum(p.numel() for p in model.parameters()))


def _always_four_bytes(model, optimizer, saved):
    return _parts(model, optimizer, saved, parameters=sum(4 * p.numel() for p in model.parameters()))


def _tied_twice(model, optimizer, saved):
    wrong = sum(m.weight.nbytes for m in model.modules() if hasattr(m, "weight"))
    wrong += sum(m.bias.nbytes for m in model.modules() if getattr(m, "bias", None) is not None)
    return _parts(model, optimizer, saved, parameters=wrong)


def _frozen_gradients(model, optimizer, saved):
    return _parts(model, optimizer, saved, gradients=sum(p.nbytes for p in model.parameters()))


def _frozen_states(model, optimizer, saved):
    wrong = sum(p.numel() * (4 * STATES[optimizer] + (4 if p.itemsize < 4 else 0)) for p in model.parameters())
    return _parts(model, optimizer, saved, optimizer=wrong)


def _only_trained(model, optimizer, saved):
    return _parts(model, optimizer, saved, parameters=sum(p.nbytes for p in model.parameters() if p.requires_grad))


def _float32_gradients(model, optimizer, saved):
    wrong = sum(4 * p.numel() for p in model.parameters() if p.requires_grad)
    return _parts(model, optimizer, saved, gradients=wrong)


def _float32_activations(model, optimizer, saved):
    return _parts(model, optimizer, saved, activations=sum(4 * t.numel() for t in saved))


def _bits(model, optimizer, saved):
    return {name: 8 * size for name, size in _parts(model, optimizer, saved).items()}


def _no_activations(model, optimizer, saved):
    return _parts(model, optimizer, saved, activations=0)


def _hard_coded(model, optimizer, saved):
    return {"parameters": 32, "gradients": 32, "optimizer": 0, "activations": 0}


def _a_tuple(model, optimizer, saved):
    return tuple(_parts(model, optimizer, saved).values())


def _buffers(model, optimizer, saved):
    both = (*model.parameters(), *model.buffers())
    return _parts(model, optimizer, saved, parameters=sum(one.nbytes for one in both))


def _bfloat16_alone(model, optimizer, saved):
    trained = [p for p in model.parameters() if p.requires_grad]
    copies = sum(4 * p.numel() for p in trained if p.dtype == torch.bfloat16)
    return _parts(model, optimizer, saved, optimizer=copies + sum(4 * p.numel() for p in trained) * STATES[optimizer])


def _freezes(model, optimizer, saved):
    found = _parts(model, optimizer, saved)
    model.requires_grad_(False)
    return found


def _master_is_a_parameter(model, optimizer, saved):
    found = _parts(model, optimizer, saved)
    copies = sum(4 * p.numel() for p in model.parameters() if p.requires_grad and p.itemsize < 4)
    return _parts(
        model, optimizer, saved, parameters=found["parameters"] + copies, optimizer=found["optimizer"] - copies
    )


def _kibibytes(model, optimizer, saved):
    return {name: size // 1024 for name, size in _parts(model, optimizer, saved).items()}


# ---- half_step and quarter_step
def _leaves_eval(model, optimizer, x, y):
    model.eval()
    return _in_parts(model, optimizer, x, y, 4)


def _overwrites_x(model, optimizer, x, y):
    loss = _in_parts(model, optimizer, x, y, 4)
    x.zero_()
    return loss


def _loss(model, x, y, reduction="mean"):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)


def _in_parts(model, optimizer, x, y, parts, *, divide=None, step_each=False, clear=True):
    if clear:
        optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = _loss(model, part, target, "sum") / (y.numel() if divide is None else divide(target))
        loss.backward()
        total += loss.detach()
        if step_each:
            optimizer.step()
            optimizer.zero_grad()
    if not step_each:
        optimizer.step()
    return total


def _naive(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = _loss(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _two_parts(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 2)


def _four_parts_alone(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 4)


def _row_by_row(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 16)


def _not_divided(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 4, divide=lambda target: target.numel())


def _divided_twice(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 4, divide=lambda target: 4 * y.numel())


def _steps_each_time(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 4, step_each=True)


def _never_clears(model, optimizer, x, y):
    return _in_parts(model, optimizer, x, y, 4, clear=False)


def _one_backward(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = sum(_loss(model, a, b, "sum") for a, b in zip(x.split(4), y.split(4), strict=True)) / y.numel()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _clears_before_the_step(model, optimizer, x, y):
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
        loss = _loss(model, part, target) / 4
        loss.backward()
        total += loss.detach()
    optimizer.zero_grad()
    optimizer.step()
    return total


def _forgets_the_momentum(model, optimizer, x, y):
    optimizer.state.clear()
    return _in_parts(model, optimizer, x, y, 4)


def _half_of_the_rows(model, optimizer, x, y):
    return _naive(model, optimizer, x[:4], y[:4])


def _bfloat16(model, optimizer, x, y):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = _loss(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _another_optimizer(model, optimizer, x, y):
    return _in_parts(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y, 4)


def _clears_between_the_parts(model, optimizer, x, y):
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
        optimizer.zero_grad()
        loss = _loss(model, part, target) / 4
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def _without_places(model, optimizer, x, y):
    optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
        hidden = model.embed(part)
        for block in model.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        logits = model.head(model.norm(hidden)).flatten(0, 1)
        loss = F.cross_entropy(logits, target.flatten(), reduction="sum") / y.numel()
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def _leaves_checkpointing(model, optimizer, x, y):
    model.checkpointing = True
    return _in_parts(model, optimizer, x, y, 4)


def _leaves_the_switch_on(model, optimizer, x, y):
    model.checkpointing = True
    return _in_parts(model, optimizer, x, y, 2)


def _leaves_hooks(model, optimizer, x, y):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient)
    return _in_parts(model, optimizer, x, y, 4)


def _offloads_in_parts(model, optimizer, x, y):
    with torch.autograd.graph.save_on_cpu():
        return _in_parts(model, optimizer, x, y, 2)


def _empty_cache(model, optimizer, x, y):
    torch.get_device_module(x.device).empty_cache()
    return _naive(model, optimizer, x, y)


def _checkpoints_the_whole(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = checkpoint(lambda a, b: _loss(model, a, b), x, y, use_reentrant=False)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _with_graph(model, optimizer, x, y):
    optimizer.zero_grad()
    losses = []
    for part, target in zip(x.split(4), y.split(4), strict=True):
        losses.append(_loss(model, part, target, "sum") / y.numel())
        losses[-1].backward()
    optimizer.step()
    return sum(losses)


def _last_loss(model, optimizer, x, y):
    optimizer.zero_grad()
    for part, target in zip(x.split(4), y.split(4), strict=True):
        loss = _loss(model, part, target, "sum") / y.numel()
        loss.backward()
    optimizer.step()
    return loss.detach()


def _no_step(model, optimizer, x, y):
    optimizer.zero_grad()
    for part, target in zip(x.split(4), y.split(4), strict=True):
        (_loss(model, part, target, "sum") / y.numel()).backward()
    return torch.zeros((), device=x.device)


def _python_float(model, optimizer, x, y):
    return float(_in_parts(model, optimizer, x, y, 4))


def _on_the_cpu(model, optimizer, x, y):
    device = x.device
    model.cpu()
    loss = _naive(model, optimizer, x.cpu(), y.cpu())
    model.to(device)
    return loss.to(device)


def _checkpoints_alone(model, optimizer, x, y):
    model.checkpointing = True
    return _naive(model, optimizer, x, y)


def _checkpoints_and_rows(model, optimizer, x, y):
    model.checkpointing = True
    return _in_parts(model, optimizer, x, y, 8)


# ---- accumulate
def _accumulated(model, x, y, rows, divide, clear=False):
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        if clear:
            model.zero_grad()
        loss = divide(_loss(model, part, target, "sum"), part, target)
        loss.backward()
        total += loss.detach()
    return total


def _means_not_divided(model, x, y, rows):
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (target != -100).sum())


def _mean_of_means(model, x, y, rows):
    parts = len(x.split(rows))
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (target != -100).sum() / parts)


def _rows_over_rows(model, x, y, rows):
    def divide(loss, part, target):
        return loss / (target != -100).sum() * len(part) / len(x)

    return _accumulated(model, x, y, rows, divide)


def _masked_count(model, x, y, rows):
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / y.numel())


def _sums_not_divided(model, x, y, rows):
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss) / (y != -100).sum()


def _leaves_eval_mode(model, x, y, rows):
    model.eval()
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (y != -100).sum())


def _full_parts(model, x, y, rows):
    parts = len(x) / rows
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (target != -100).sum() / parts)


def _clears_between(model, x, y, rows):
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (y != -100).sum(), clear=True)


def _sums_the_graphs(model, x, y, rows):
    count = (y != -100).sum()
    loss = sum(_loss(model, a, b, "sum") for a, b in zip(x.split(rows), y.split(rows), strict=True)) / count
    loss.backward()
    return loss.detach()


def _plain(model, x, y, rows):
    loss = _loss(model, x, y)
    loss.backward()
    return loss.detach()


def _drops_the_last(model, x, y, rows):
    whole = len(x) // rows * rows
    return _accumulated(model, x[:whole], y[:whole], rows, lambda loss, part, target: loss / (y[:whole] != -100).sum())


def _last_part_returned(model, x, y, rows):
    count = (y != -100).sum()
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        (_loss(model, part, target, "sum") / count).backward()
    return _loss(model, part, target).detach()


def _no_backward(model, x, y, rows):
    return torch.stack([_loss(model, a, b).detach() for a, b in zip(x.split(rows), y.split(rows), strict=True)]).mean()


def _item(model, x, y, rows):
    return _accumulated(model, x, y, rows, lambda loss, part, target: loss / (y != -100).sum()).item()


def _steps(model, x, y, rows):
    loss = _accumulated(model, x, y, rows, lambda loss, part, target: loss / (y != -100).sum())
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def _clamps_y(model, x, y, rows):
    counts, total = (y != -100), torch.zeros((), device=x.device)
    y.clamp_(min=0)
    for part, target, count in zip(x.split(rows), y.split(rows), counts.split(rows), strict=True):
        loss = (_loss(model, part, target, "none") * count.flatten()).sum() / counts.sum()
        loss.backward()
        total += loss.detach()
    return total


def _weighted_means(model, x, y, rows):
    total, count = torch.zeros((), device=x.device), (y != -100).sum()
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        loss = _loss(model, part, target) * (target != -100).sum() / count
        loss.backward()
        total += loss.detach()
    return total


def _one_row_more(model, x, y, rows):
    return _accumulated(model, x, y, rows + 1, lambda loss, part, target: loss / (y != -100).sum())


def _overlapping(model, x, y, rows):
    total, count = torch.zeros((), device=x.device), (y != -100).sum()
    for at in range(0, len(x), max(rows - 1, 1)):
        loss = _loss(model, x[at : at + rows], y[at : at + rows], "sum") / count
        loss.backward()
        total += loss.detach()
    return total


def _sums_on_the_cpu(model, x, y, rows):
    device = x.device
    loss = _accumulated(model.cpu(), x.cpu(), y.cpu(), rows, lambda loss, part, target: loss / (y.cpu() != -100).sum())
    model.to(device)
    return loss.to(device)


def _single_precision(model, x, y, rows):
    return _accumulated(model.float(), x, y, rows, lambda loss, part, target: loss / (y != -100).sum())


def _smooths(model, x, y, rows):
    total, count = torch.zeros((), device=x.device), (y != -100).sum()
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        logits = model(part).flatten(0, 1)
        loss = F.cross_entropy(logits, target.flatten(), reduction="sum", label_smoothing=0.1) / count
        loss.backward()
        total += loss.detach()
    return total


def _one_row(model, x, y, rows):
    return _accumulated(model, x, y, 1, lambda loss, part, target: loss / (y != -100).sum())


# ---- run_blocks
def _run(blocks, x, chosen):
    for place, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if place in chosen else block(x)
    return x


def _checkpoints_none(blocks, x, kept_bytes, limit_bytes):
    return _run(blocks, x, ())


def _checkpoints_all(blocks, x, kept_bytes, limit_bytes):
    return _run(blocks, x, range(len(blocks)))


def _take(order, x, kept_bytes, limit_bytes, left):
    total, chosen = sum(kept_bytes), set()
    for place in order:
        if total > limit_bytes:
            total -= kept_bytes[place] - left
            chosen.add(place)
    return chosen


def _in_order(blocks, x, kept_bytes, limit_bytes):
    return _run(blocks, x, _take(range(len(blocks)), x, kept_bytes, limit_bytes, x.nbytes))


def _smallest_first(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: kept_bytes[i])
    return _run(blocks, x, _take(order, x, kept_bytes, limit_bytes, x.nbytes))


def _forgets_the_inputs(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    return _run(blocks, x, _take(order, x, kept_bytes, limit_bytes, 0))


def _below_the_budget(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    return _run(blocks, x, _take(order, x, kept_bytes, limit_bytes - 1, x.nbytes))


def _reentrant(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    chosen = _take(order, x, kept_bytes, limit_bytes, x.nbytes)
    for place, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=True) if place in chosen else block(x)
    return x


def _one_checkpoint(blocks, x, kept_bytes, limit_bytes):
    if sum(kept_bytes) <= limit_bytes:
        return _run(blocks, x, ())
    return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)


def _no_grad(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    chosen = _take(order, x, kept_bytes, limit_bytes, x.nbytes)
    for place, block in enumerate(blocks):
        with torch.set_grad_enabled(place not in chosen):
            x = block(x)
    return x


def _offloads(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.save_on_cpu():
        return _run(blocks, x, ())


def _skips(blocks, x, kept_bytes, limit_bytes):
    for block in blocks[:-1]:
        x = block(x)
    return x


def _edits_the_list(blocks, x, kept_bytes, limit_bytes):
    chosen = set()
    while sum(kept_bytes) > limit_bytes:
        place = max(range(len(kept_bytes)), key=lambda i: kept_bytes[i])
        kept_bytes[place] = x.nbytes
        chosen.add(place)
    return _run(blocks, x, chosen)


def _patches(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    for place in _take(order, x, kept_bytes, limit_bytes, x.nbytes):
        plain = blocks[place].forward
        blocks[place].forward = lambda z, plain=plain: checkpoint(plain, z, use_reentrant=False)
    return _run(blocks, x, ())


def _trains_x(blocks, x, kept_bytes, limit_bytes):
    return _reentrant(blocks, x.requires_grad_(), kept_bytes, limit_bytes)


def _packs_in_half(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.half(), lambda kept: kept.float()):
        return _run(blocks, x, ())


def _goes_back(blocks, x, kept_bytes, limit_bytes):
    order = sorted(range(len(blocks)), key=lambda i: -kept_bytes[i])
    result = _run(blocks, x, _take(order, x, kept_bytes, limit_bytes, x.nbytes))
    result.sum().backward(retain_graph=True)
    return result


def _shifts_x(blocks, x, kept_bytes, limit_bytes):
    with torch.no_grad():
        x += 0.25
    return _run(blocks, x, ())


# ---- evaluate_batches
def _evaluate(model, batches, device, keep_loss, keep_error):
    losses, problems = [], []
    for x, y in batches:
        try:
            losses.append(keep_loss(F.cross_entropy(model(x.to(device)), y.to(device))))
        except RuntimeError as error:
            problems.append(keep_error(error))
    return losses, problems


def _keeps_both(model, batches, device):
    return _evaluate(model, batches, device, lambda loss: loss, lambda error: error)


def _keeps_losses(model, batches, device):
    losses, problems = _evaluate(model, batches, device, lambda loss: loss, str)
    return [loss.item() for loss in losses], problems


def _keeps_errors(model, batches, device):
    losses, problems = _evaluate(model, batches, device, lambda loss: loss.item(), lambda error: error)
    return losses, [str(error) for error in problems]


def _keeps_the_total(model, batches, device):
    losses, problems, total = [], [], 0
    for x, y in batches:
        try:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            total += loss
            losses.append(loss.item())
        except RuntimeError as error:
            problems.append(str(error))
    return losses, problems


def _keeps_the_batches(model, batches, device):
    seen = []

    def loss(x, y):
        seen.append((x, y))
        return F.cross_entropy(model(x), y).item()

    losses, problems = [], []
    with torch.no_grad():
        for x, y in batches:
            try:
                losses.append(loss(x.to(device), y.to(device)))
            except RuntimeError as error:
                problems.append(str(error))
    return losses, problems


def _stops(model, batches, device):
    losses = []
    for x, y in batches:
        losses.append(F.cross_entropy(model(x.to(device)), y.to(device)).item())
    return losses, []


def _forgets_messages(model, batches, device):
    return _evaluate(model, batches, device, lambda loss: loss.item(), lambda error: None)[0], []


def _detached(model, batches, device):
    return _evaluate(model, batches, device, lambda loss: loss.detach(), str)


def _names(model, batches, device):
    return _evaluate(model, batches, device, lambda loss: loss.item(), lambda error: type(error).__name__)


def _losses_alone(model, batches, device):
    return _evaluate(model, batches, device, lambda loss: loss.item(), str)[0]


def _keeps_the_graphs_of_a_list(model, batches, device):
    return _keeps_losses(model, list(batches), device)


def _trains_again(model, batches, device):
    found = _evaluate(model, batches, device, lambda loss: loss.item(), str)
    model.train()
    return found


def _evaluates_from_then_on(model, batches, device):
    return _evaluate(model.eval(), batches, device, lambda loss: loss.item(), str)


def _leaves_batches_on_the_cpu(model, batches, device):
    return _evaluate(model, batches, torch.device("cpu"), lambda loss: loss.item(), str)


def _evaluates_on_the_cpu(model, batches, device):
    found = _evaluate(model.cpu(), batches, torch.device("cpu"), lambda loss: loss.item(), str)
    model.to(device)
    return found


def _goes_backward(model, batches, device):
    def loss(loss):
        loss.backward()
        return loss.item()

    return _evaluate(model, batches, device, loss, str)


# ---- largest_batch
def _search(step, limit, low=1, on=1):
    """Search from `low` by halves, and go `on` from what fits."""
    high, best = limit, 0
    while low <= high:
        size = (low + high) // 2
        try:
            step(size)
        except torch.OutOfMemoryError:
            high = size - 1
        else:
            best, low = size, size + on
    return best


def _bisect(step, fits, fails, kind=torch.OutOfMemoryError):
    """Return the neighbours that fit and fail, where an error of this kind says that a size fails."""
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except kind:
            fails = size
    return fits, fails


def _asks_for_none(step, limit):
    return _search(step, limit, low=0)


def _does_not_recover(step, limit):
    size = 1
    while size <= limit:
        step(size)
        size += 1
    return size - 1


def _returns_the_failing(step, limit):
    size = 1
    try:
        while size < limit:
            step(size)
            size += 1
        step(size)
    except torch.OutOfMemoryError:
        pass
    return size


def _powers_of_two(step, limit):
    size, best = 1, 0
    while size <= limit:
        try:
            step(size)
        except torch.OutOfMemoryError:
            break
        best, size = size, 2 * size
    return best


def _one_by_one(step, limit):
    for size in range(1, limit + 1):
        try:
            step(size)
        except torch.OutOfMemoryError:
            return size - 1
    return limit


def _every_error(step, limit):
    return _bisect(step, 0, limit + 1, RuntimeError)[0]


def _with_memory_in_its_words(step, limit):
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            fails = size
    return fits


def _one_too_many(step, limit):
    return _bisect(step, 0, limit + 1)[1]


def _inside_the_except(step, limit, fits=0):
    while limit > fits:
        size = (fits + limit + 1) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            return _inside_the_except(step, size - 1, fits)
    return fits


_errors = []


def _keeps_the_error(step, limit):
    fits, fails = 0, limit + 1
    while fails - fits > 1:
        size = (fits + fails) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError as error:
            _errors[:] = [error]
            fails = size
    return fits


def _at_least_one(step, limit):
    return _bisect(step, 1, limit + 1)[0]


def _below_the_limit(step, limit):
    return _bisect(step, 0, limit)[0]


def _never_moves(step, limit):
    return _search(step, limit, on=0)


def _fractions(step, limit):
    fits, fails = 0.0, limit + 1.0
    while fails - fits > 1:
        size = (fits + fails) / 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            fails = size
    return int(fits)


def _minus_one(step, limit):
    return _bisect(step, 0, limit + 1)[0] or -1


STEPS = [
    ("times as much as the naive step", _not_divided),
    ("divide each part's loss", _divided_twice),
    ("takes 4 steps", _steps_each_time),
    ("takes no step with the given optimizer", _another_optimizer),
    ("12 of 16 rows do not count", _clears_between_the_parts),
    ("in another way than the naive step", _without_places),
    ("clear the gradients of the step before", _never_clears),
    ("something of the first step is left or lost", _forgets_the_momentum),
    ("takes a step, and no weight changes", _clears_before_the_step),
    ("12 of 16 rows do not count", _half_of_the_rows),
    ("returns the loss with its graph", _with_graph),
    ("the mean loss of all tokens", _last_loss),
    ("takes no step with the given optimizer", _no_step),
    ("of type float", _python_float),
    ("computes on the CPU", _on_the_cpu),
    ("runs out of memory in `_loss`:  return F.cross_entropy", _naive),
    ("the result is right, but", _one_backward),
    ("are alive at the peak", _empty_cache),
    ("and the budget is", _checkpoints_the_whole),
    ("the budget is", _two_parts),
]

WRONG = {
    "four_parts": [
        ("parameters: counts buffers", _buffers),
        ("parameters: counts the master copy", _master_is_a_parameter),
        ("the result['parameters'] is 0, expected 32", _kibibytes),
        ("requires_grad is False, was True", _freezes),
        ("forgets the float32 master copy", _bfloat16_alone),
        ("optimizer: counts one state too few", _one_state),
        ("optimizer: forgets the float32 master copy", _no_master),
        ("optimizer: ", _always_a_master),
        ("optimizer: takes the weights' format for the states", _states_like_weights),
        ("parameters: counts numbers, not bytes", _numbers),
        ("parameters: takes 4 bytes for every format", _always_four_bytes),
        ("parameters: counts a shared weight twice", _tied_twice),
        ("gradients: counts frozen parameters", _frozen_gradients),
        ("optimizer: counts frozen parameters", _frozen_states),
        ("parameters: leaves out the frozen ones", _only_trained),
        ("gradients: takes 4 bytes for every format", _float32_gradients),
        ("activations: takes 4 bytes for every format", _float32_activations),
        ("takes bits for bytes", _bits),
        ("activations: forgets them", _no_activations),
        ("activations", _hard_coded),
        ("of type tuple", _a_tuple),
    ],
    "half_step": [
        *STEPS,
        ("nearly as the naive step", _bfloat16),
        ("training is False, was True", _leaves_eval),
        ("checkpointing is True, was False", _leaves_checkpointing),
        ("hooks is 2, was 0", _leaves_hooks),
        ("modifies x or y", _overwrites_x),
    ],
    "quarter_step": [
        *STEPS,
        ("one lever is not enough", _four_parts_alone),
        ("times the naive time, and 4 are allowed", _row_by_row),
        ("one lever is not enough", _checkpoints_alone),
        ("use fewer, larger parts", _checkpoints_and_rows),
        ("waits for the bus", _offloads_in_parts),
        ("checkpointing is True, was False", _leaves_the_switch_on),
    ],
    "accumulate": [
        ("takes a step", _steps),
        ("takes 3 rows at a time, and `rows` is 2", _one_row_more),
        ("9 rows went through the model, and the batch has 5", _overlapping),
        ("computes on the CPU", _sums_on_the_cpu),
        ("embed.weight.dtype is torch.float32, was torch.float64", _single_precision),
        ("the gradient of embed.weight has other values", _smooths),
        ("modifies x or y", _clamps_y),
        ("is NaN", _weighted_means),
        ("takes 1 row at a time, and `rows` is 2", _one_row),
        ("divides by nothing", _means_not_divided),
        ("takes the mean of the parts' means", _mean_of_means),
        ("counts 1/108.3, 1/120; all should count 1/113", _rows_over_rows),
        ("counts 1/120, 1/120; all should count 1/113", _masked_count),
        ("counts 1/1, 1/1, 1/1; all should count 1/120", _sums_not_divided),
        ("all should count 1/120", _full_parts),
        ("training is False, was True", _leaves_eval_mode),
        ("keeps the gradients of the last part only", _clears_between),
        ("call backward for each part before the next one starts", _sums_the_graphs),
        ("runs out of memory in `_loss`:  return F.cross_entropy", _plain),
        ("1/96, 1/96, 0; all should count 1/120", _drops_the_last),
        ("returns the loss of the last part", _last_part_returned),
        ("leaves parameters without a gradient", _no_backward),
        ("returns a Python number", _item),
    ],
    "run_blocks": [
        ("modifies kept_bytes", _edits_the_list),
        ("makes x require a gradient", _trains_x),
        ("the gradient of x has other values", _packs_in_half),
        ("calls backward()", _goes_back),
        ("modifies x", _shifts_x),
        ("leaves the blocks changed", _patches),
        ("it goes over the budget", _checkpoints_none),
        ("2 blocks are computed again, and 1 would do", _checkpoints_all),
        ("1 block is computed again, and 0 would do", _below_the_budget),
        ("without a graph", _reentrant),
        ("take those that free most", _in_order),
        ("and stop when it fits", _smallest_first),
        ("or x.nbytes if it is checkpointed", _forgets_the_inputs),
        ("blocks are computed again", _one_checkpoint),
        ("without a graph", _no_grad),
        ("copies to the host", _offloads),
        ("not the result", _skips),
    ],
    "evaluate_batches": [
        ("higher with twice as many batches", _keeps_the_graphs_of_a_list),
        ("training is True, was False", _trains_again),
        ("leaves gradients in the model", _goes_backward),
        ("training is False, was True", _evaluates_from_then_on),
        ("notes an error for a good batch: Expected all tensors", _leaves_batches_on_the_cpu),
        ("computes on the CPU", _evaluates_on_the_cpu),
        ("a loss in a list keeps its graph", _keeps_both),
        ("a loss in a list keeps its graph", _keeps_losses),
        ("after each failing batch", _keeps_errors),
        ("leaks: ", _keeps_the_total),
        ("more are alive after each batch", _keeps_the_batches),
        ("raises RuntimeError", _stops),
        ("notes 0 messages for 6 failing batches", _forgets_messages),
        ("returns tensors for losses", _detached),
        ("the messages are not the errors'", _names),
        ("expected two lists", _losses_alone),
    ],
    "largest_batch": [
        ("calls step(0)", _asks_for_none),
        ("calls step(1) again and again", _never_moves),
        ("size must be a whole number", _fractions),
        ("returns -1, and 0 says that no size fits", _minus_one),
        ("raises OutOfMemoryError", _does_not_recover),
        ("a size that fails", _returns_the_failing),
        ("and larger sizes fit", _powers_of_two),
        ("calls of step", _one_by_one),
        ("hides an error", _every_error),
        ("hides an error", _with_memory_in_its_words),
        ("returns 2, and sizes go from 1 to 1", _one_too_many),
        ("inside it the error still holds the tensors", _inside_the_except),
        ("bytes alive", _keeps_the_error),
        ("returns 1, a size that fails", _at_least_one),
        ("go on between", _below_the_limit),
    ],
}
