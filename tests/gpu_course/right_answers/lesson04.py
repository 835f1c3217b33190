"""Right answers of lesson 04 that are no edits of the reference."""

from collections import defaultdict

import torch
from torch import nn


class MaskedLinear(nn.Module):
    def __init__(self, mask):
        nn.Module.__init__(self)
        self.register_buffer("which", mask.clone())
        self.layer = nn.Linear(in_features=mask.shape[1], out_features=mask.shape[0], bias=True)

    def masked(self):
        return self.layer.weight.masked_fill(~self.which, 0)

    def forward(self, x):
        weight = self.masked()
        return torch.nn.functional.linear(x, weight, self.layer.bias)


Named = MaskedLinear


class MaskedLinear(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = nn.Buffer(mask)
        self.inner = nn.Linear(mask.size(1), mask.size(0))

    def forward(self, x):
        kept = self.inner.weight.where(self.mask, self.inner.weight.new_zeros(()))
        return x @ kept.T + self.inner.bias


def walks_with_a_helper(model):
    result = {}

    def note(path, module):
        own = {**module._parameters, **module._buffers}
        own.update((name, value) for name, value in module.__dict__.items() if isinstance(value, torch.Tensor))
        for name, tensor in own.items():
            if tensor is None:
                continue
            result.setdefault(tensor.device, []).append(path + name)
        for name, child in module.named_children():
            note(f"{path}{name}.", child)

    note("", model)
    return result


def groups_by_default(model):
    by_device = defaultdict(list)
    for path, module in model.named_modules():
        prefix = path + "." if path else ""
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in table.items():
                if torch.is_tensor(value):
                    by_device[value.device].append(prefix + name)
    return dict(by_device)


def sums_what_a_mask_leaves(states, lengths):
    time = torch.arange(states.shape[1], device=states.device)
    last = time[None, :] == (lengths - 1)[:, None]
    return torch.where(last[:, :, None], states, 0.0).sum(dim=1)


def picks_from_one_long_row(states, lengths):
    batch, time, hidden = states.shape
    first = torch.arange(batch, device=states.device) * time
    return states.reshape(batch * time, hidden).index_select(0, first + lengths - 1)


def hides_what_comes_later(time, device):
    later = torch.ones(time, time, device=device).triu(diagonal=1)
    return later == 0


def writes_row_by_row(time, device):
    mask = torch.zeros((time, time), dtype=torch.bool, device=device)
    for row in range(time):
        mask[row, : row + 1] = True
    return mask


def names_every_step(model, path, device):
    with open(path, "rb") as file:
        state = torch.load(file, map_location=torch.device("cpu"), weights_only=True)
    answer = model.load_state_dict(state, strict=True)
    if answer.missing_keys or answer.unexpected_keys:
        raise RuntimeError("the file does not fit")
    moved = model.to(device)
    return moved


def reads_in_one_expression(model, path, device):
    model.load_state_dict(torch.load(str(path), map_location=lambda storage, _: storage, weights_only=True))
    model.to(device)
    return model


def adds_states_times_0_or_1(states, lengths):
    places = torch.arange(states.shape[1], device=states.device)
    is_last = (places == (lengths - 1)[:, None]).to(states.dtype)
    return torch.einsum("bt,bth->bh", is_last, states)


def asks_with_a_helper(first, second, x):
    def device_of(module):
        for parameter in module.parameters():
            return parameter.device

    on_first = x.to(device_of(first))
    hidden = first(on_first)
    on_second = hidden.to(device_of(second))
    return second(on_second)


def moves_only_where_needed(first, second, x):
    here, there = (next(half.parameters()).device for half in (first, second))
    if x.device != here:
        x = x.to(here)
    y = first(x)
    if here != there:
        y = y.to(there)
    return second(y)


def collects_the_devices(first, second, x):
    places = [next(iter(half.state_dict().values())).device for half in (first, second)]
    return second(first(x.to(places[0])).to(places[1]))


RIGHT = {
    "MaskedLinear": [Named, MaskedLinear],
    "places": [walks_with_a_helper, groups_by_default],
    "last_states": [sums_what_a_mask_leaves, picks_from_one_long_row, adds_states_times_0_or_1],
    "causal_mask": [hides_what_comes_later, writes_row_by_row],
    "load_checkpoint": [names_every_step, reads_in_one_expression],
    "forward_on_two": [asks_with_a_helper, moves_only_where_needed, collects_the_devices],
}
