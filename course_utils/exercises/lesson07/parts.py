"""Which models ask for four parts of memory, and which known mistake gives this number for one of them?"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["cases", "mistake_in"]

_STATES = {"SGD": 0, "momentum": 1, "Adam": 2}


class _Tied(nn.Module):
    """An embedding whose weight the output layer uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def cases() -> list[tuple[nn.Module, str, list[torch.Tensor]]]:
    """Return (model, optimizer, saved tensors), small ones first; all on the meta device, which keeps shapes alone."""
    with torch.device("meta"):
        linear, half = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
        frozen = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        frozen[0].requires_grad_(False)
        x = [torch.empty(5, 3), torch.empty(5, 2, dtype=torch.bfloat16)]
        mixed = nn.Sequential(nn.Linear(4, 4).to(torch.float16), nn.BatchNorm1d(4))
        large = nn.Sequential(*[nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(4)])
        return [
            (linear, "SGD", []), (linear, "SGD", x), (linear, "momentum", x), (linear, "Adam", x), (half, "Adam", x),
            (half, "SGD", x), (frozen, "Adam", x), (_Tied(), "Adam", x), (mixed, "Adam", x),
            (large, "Adam", [torch.empty(64, 4096) for _ in range(8)]),
        ]  # fmt: skip


def mistake_in(
    part: str, got: object, expected: int, model: nn.Module, optimizer: str, saved: list[torch.Tensor]
) -> tuple[str, str]:
    """Return the name of the mistake that gives `got` for `part` and why it matters; empty where none is known."""
    if not isinstance(got, int | float) or got == expected:
        return "", ""
    every = list(model.parameters())
    trained = [parameter for parameter in every if parameter.requires_grad]
    known = {
        "parameters": _of_weights(model, trained), "gradients": _of_gradients(every, trained),
        "optimizer": _of_states(every, trained, _STATES[optimizer]), "activations": _of_saved(saved),
    }[part]  # fmt: skip
    bits = (8 * expected, f"{part}: takes bits for bytes", "a byte has 8 bits, and memory is counted in bytes")
    return next(((name, why) for value, name, why in (*known, bits) if got == value), ("", ""))


def _of_weights(model: nn.Module, trained: list) -> tuple:
    both = sum(parameter.nbytes for _, parameter in model.named_parameters(remove_duplicate=False))
    model_bytes = sum(parameter.nbytes for parameter in model.parameters())
    return (
        (sum(parameter.numel() for parameter in model.parameters()), "parameters: counts numbers, not bytes",
         "float32 takes 4 bytes, bfloat16 takes 2"),
        (sum(one.nbytes for one in (*model.parameters(), *model.buffers())), "parameters: counts buffers",
         "what BatchNorm counts along is in memory too, and no parameter: no gradient, no state"),
        (both, "parameters: counts a shared weight twice", "two layers use one tensor, which is in memory once"),
        (sum(parameter.nbytes for parameter in trained), "parameters: leaves out the frozen ones",
         "they are not trained, and in memory nevertheless"),
        (model_bytes + sum(4 * one.numel() for one in trained if one.itemsize < 4),
         "parameters: counts the master copy", "the float32 copy of 16-bit weights is the optimizer's"),
        (sum(4 * parameter.numel() for parameter in model.parameters()), "parameters: takes 4 bytes for every format",
         "bfloat16 takes 2"),
    )  # fmt: skip


def _of_gradients(every: list, trained: list) -> tuple:
    return (
        (sum(parameter.nbytes for parameter in every), "gradients: counts frozen parameters",
         "no gradient is made where requires_grad is False"),
        (sum(4 * parameter.numel() for parameter in trained), "gradients: takes 4 bytes for every format",
         "a gradient has the format of its parameter"),
        (0, "gradients: forgets them", "every trained parameter has one, as large as itself"),
    )  # fmt: skip


def _of_states(every: list, trained: list, states: int) -> tuple:
    master = lambda p: 4 if p.itemsize < 4 else 0  # noqa: E731
    total = lambda size, over=trained: sum(p.numel() * size(p) for p in over)  # noqa: E731
    return (
        (total(lambda p: 4 * states), "optimizer: forgets the float32 master copy",
         "16-bit weights cannot hold small updates: the optimizer keeps them in float32 too"),
        (total(lambda p: 4 * (states - 1) + master(p)), "optimizer: counts one state too few",
         "Adam keeps two numbers for each weight, the means of gradient and squared gradient; momentum keeps one"),
        (total(lambda p: 4 * (states + 1) + master(p)), "optimizer: counts one state too many",
         "SGD keeps none, with momentum one, Adam two"),
        (total(lambda p: p.itemsize * states + master(p)), "optimizer: takes the weights' format for the states",
         "states are float32 here, whatever the weights are"),
        (total(lambda p: p.itemsize * states), "optimizer: takes the weights' format for the states",
         "states are float32 here, and 16-bit weights have a float32 copy besides"),
        (total(lambda p: 4 * states + 4), "optimizer: adds a copy to float32 weights", "they are float32 already"),
        (total(lambda p: 4 * states + master(p), every), "optimizer: counts frozen parameters",
         "the optimizer keeps nothing for what it does not train"),
        (total(lambda p: 2 * states + master(p)), "optimizer: takes 2 bytes for a state", "states are float32 here"),
    )  # fmt: skip


def _of_saved(saved: list[torch.Tensor]) -> tuple:
    numbers = sum(tensor.numel() for tensor in saved)
    return (
        (numbers, "activations: counts numbers, not bytes", "tensor.nbytes knows the format"),
        (4 * numbers, "activations: takes 4 bytes for every format", "bfloat16 takes 2"),
        (0, "activations: forgets them", "what the forward pass keeps for backward is often the largest part"),
    )
