"""Right answers of lesson 12 that are no edits of the reference."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def stacks_slices(text, starts, context, device):
    windows = [text[int(start) : int(start) + context + 1] for start in starts.flatten()]
    joined = torch.stack(windows).view(*starts.shape, context + 1)
    return joined.to(device).to(torch.int64)


def names_the_places(text, starts, context, device):
    offsets = torch.arange(0, context + 1)
    places = starts.unsqueeze(-1) + offsets
    flat = text.index_select(0, places.reshape(-1))
    moved = flat.reshape(places.shape).to(device)
    return moved.type(torch.long)


def splits_the_weights(x, qkv, heads):
    batch, time, width = x.shape
    size = width // heads

    def of(weight):
        made = F.linear(x, weight)
        return made.reshape(batch, time, heads, size).permute(0, 2, 1, 3)

    q, k, v = map(of, qkv.weight.split(width))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    result = mixed.permute(0, 2, 1, 3)
    return result.flatten(start_dim=2)


def multiplies_by_letters(x, qkv, heads):
    q, k, v = qkv(x).unflatten(2, (3, heads, -1)).unbind(dim=2)
    scores = torch.einsum("bqhs,bkhs->bhqk", q, k) * q.shape[-1] ** -0.5
    time = torch.arange(x.shape[1], device=x.device)
    scores = torch.where(time[None, :] <= time[:, None], scores, float("-inf"))
    return torch.einsum("bhqk,bkhs->bqhs", torch.softmax(scores, -1), v).flatten(2)


def keeps_a_list(model, optimizer, windows):
    losses = []
    for at in range(windows.shape[0]):
        inputs = windows[at, :, :-1]
        targets = windows[at, :, 1:]
        optimizer.zero_grad(set_to_none=True)
        scores = model(inputs)
        loss = F.cross_entropy(scores.transpose(1, 2), targets)
        loss.backward()
        optimizer.step()
        losses += [loss.detach()]
    together = torch.stack(losses)
    numbers = together.tolist()
    return numbers


def steps_in_a_helper(model, optimizer, windows):
    def step(window):
        model.zero_grad()
        optimizer.zero_grad()
        logits = model(window[:, :-1])
        loss = F.nll_loss(logits.log_softmax(-1).flatten(0, -2), window[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return torch.stack([step(window) for window in windows.unbind()]).tolist()


def writes_through_a_buffer(model):
    parameters = list(model.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    buffer = parameters[0].grad.new_empty(total)
    at = 0
    for parameter in parameters:
        buffer[at : at + parameter.numel()] = parameter.grad.reshape(-1)
        at += parameter.numel()
    dist.all_reduce(buffer, op=dist.ReduceOp.AVG)
    at = 0
    for parameter in parameters:
        parameter.grad.copy_(buffer[at : at + parameter.numel()].reshape(parameter.shape))
        at += parameter.numel()


@torch.no_grad()
def divides_before_it_sends(model):
    grads = [p.grad for p in model.parameters()]
    message = torch.cat([g.reshape(-1) for g in grads]) / dist.get_world_size()
    dist.all_reduce(message, op=dist.ReduceOp.SUM)
    for grad, mean in zip(grads, torch.split(message, [g.numel() for g in grads]), strict=True):
        grad[...] = mean.reshape(grad.shape)


def counts_for_each_token(width, layers, context, rows):
    tokens = rows * context
    linear = width * 3 * width + width * width + width * 4 * width + 4 * width * width
    products = 2 * linear
    attention = 2 * context * width + 2 * context * width
    last = 2 * width * 256
    forward = tokens * (layers * (products + attention) + last)
    backward = 2 * forward
    return forward + backward


def adds_in_a_loop(width, layers, context, rows):
    def product(n, k, m):
        return 2 * n * k * m

    total = 0
    for _ in range(layers):
        for inputs, outputs in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
            total += product(rows * context, inputs, outputs)
        total += 2 * product(rows * context, width, context)
    total += product(rows * context, width, 256)
    return 3 * total


RIGHT = {
    "cut": [stacks_slices, names_the_places],
    "attend": [splits_the_weights, multiplies_by_letters],
    "train_steps": [keeps_a_list, steps_in_a_helper],
    "average": [writes_through_a_buffer, divides_before_it_sends],
    "model_flops": [counts_for_each_token, adds_in_a_loop],
}
