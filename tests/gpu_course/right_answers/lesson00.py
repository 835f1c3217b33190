"""Right answers of lesson 00 that are no edits of the reference."""

import torch


def adds_it_to_itself(x, device):
    moved = x.to(device)
    return moved + moved


def copies_and_doubles_in_place(x, device):
    result = x.detach().to(device, copy=True)
    result *= 2
    return result


def asks_where_it_is(x, device):
    if x.device != device:
        x = x.to(device)
    return torch.mul(x, 2)


RIGHT = {"double": [adds_it_to_itself, copies_and_doubles_in_place, asks_where_it_is]}
