"""Further wrong answers to lesson 02, each with what the message must say."""

import torch


def _changes_the_input(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for k in batch:
            batch[k] = _changes_the_input(batch[k], device)
    elif isinstance(batch, list):
        for i in range(len(batch)):
            batch[i] = _changes_the_input(batch[i], device)
    elif hasattr(batch, "_fields"):
        return type(batch)(*[_changes_the_input(v, device) for v in batch])
    elif isinstance(batch, tuple):
        return tuple(_changes_the_input(v, device) for v in batch)
    return batch


def _items(x):
    columns = [(c - c.mean().item()) / (c.std().item() or 1.0) for c in x.unbind(1)]
    return torch.stack(columns, dim=1)


WRONG = {
    "move_batch": [
        ("modifies its input", _changes_the_input),
    ],
    "normalise": [
        ("lets the host read a value", _items),
    ],
    "windows": [
        ("copies elements", lambda x, length: torch.stack([x[i : i + length] for i in range(len(x) - length + 1)])),
    ],
    "fetch": [
        (
            "waits more than once",
            lambda tensors, synchronize: [
                (tensor.to("cpu", non_blocking=True), synchronize())[0] for tensor in tensors
            ],
        ),
    ],
}
