"""Is the mask of this layer a buffer, and does the layer compute with it?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.checks import Case

__all__ = ["is_a_buffer", "learns", "masked", "weight_and_bias"]

# fmt: off


def is_a_buffer(case: Case, layer: Any, mask: torch.Tensor) -> None:
    """Fail with the name of what the mask is instead of a persistent buffer."""
    case.instead(not isinstance(layer, nn.Module), f"makes a {type(layer).__name__}, not a module")
    case.instead("_parameters" not in vars(layer), "does not call super().__init__()",
                 "nn.Module makes its tables of parameters and buffers there: it is the first line of __init__")

    def masks(named: Iterable[tuple[str, Any]]) -> list[str]:
        flat = [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.dim() == 2]
        return [name for name, value in flat if any(_same(value, one) for one in (mask, mask.mT, ~mask, ~mask.mT))]

    case.instead(masks(layer.named_parameters()), "makes the mask a parameter",
                 "a parameter is handed to the optimizer, and the mask is a choice that no gradient may change")
    buffers = dict(layer.named_buffers())
    case.instead(buffers and not masks(buffers.items()), "has a buffer that is not the mask", got=buffers)
    plain = masks(attribute for module in layer.modules() for attribute in vars(module).items())
    case.instead(not buffers, "keeps the mask as a plain attribute" if plain else "has no buffer with the mask",
                 ".to(device) and state_dict() look at what is registered alone: register_buffer makes it a part")
    case.instead(not masks(layer.state_dict().items()), "does not save the mask",
                 "which weights were switched off cannot be computed again: with persistent=False it is lost")


def _same(tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    return tensor.shape == mask.shape and torch.equal(tensor.detach().cpu().float(), mask.float())


def weight_and_bias(case: Case, layer: nn.Module, mask: torch.Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the two parameters of the layer, found by their shapes."""
    found = {tuple(p.shape): p for p in layer.parameters()}
    case.instead(tuple(mask.shape) not in found and tuple(mask.mT.shape) in found, "swaps inputs and outputs",
                 "the mask is (outputs, inputs), and nn.Linear takes (inputs, outputs)")
    lists = [value for value in vars(layer).values() if isinstance(value, list | tuple)]
    case.instead(any(isinstance(part, nn.Module) for part in itertools.chain(*lists)), "hides the layer in a list",
                 "a module knows its attributes, not what is in a Python list")
    for name, shape in (("weight", tuple(mask.shape)), ("bias", (mask.shape[0],))):
        case.instead(shape not in found, f"has no {name}: no parameter of shape {shape}",
                     "the layer holds an nn.Linear")
    return found[tuple(mask.shape)], found[(mask.shape[0],)]


def masked(case: Case, got: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, mask: torch.Tensor):
    """Fail unless `got` is what the layer computes with these parameters."""
    x, w, b = x.cpu(), weight.detach().cpu(), bias.detach().cpu()
    expected = (x[:, None, :] * torch.where(mask, w, 0.0)).sum(-1) + b
    if isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (expected.shape, expected.dtype):
        mine, show = got.detach().cpu(), {"expected": expected.to(weight.device), "got": got.detach()}
        for wrong, name, why in (
            (F.linear(x, w, b), "does not apply the mask", "weights change after the layer was made: mask in forward"),
            (F.linear(x, w * ~mask, b), "takes the mask the wrong way round", "True is what counts"),
            (F.linear(x, w * mask), "forgets the bias", "nn.Linear adds one: give it to F.linear too"),
        ):
            other = not torch.allclose(wrong, expected, atol=1e-5)
            case.instead(other and torch.allclose(mine, wrong, atol=1e-5), name, why, **show)
        case.instead(mine.isinf().any() or mine.isnan().any(), "fills with infinity what the mask switches off",
                     "-inf is for scores before a softmax; a weight that does not count is 0", **show)
    case.equal(got, expected.to(weight.device), atol=1e-5)


def learns(case: Case, layer: nn.Module, got: torch.Tensor, mask: torch.Tensor, weight: nn.Parameter) -> None:
    """Fail unless a backward pass from `got` reaches the bias and those weights that count, and no other."""
    weight_now, bias = weight_and_bias(case, layer, mask)
    case.instead(weight_now is not weight, "makes a new parameter in forward",
                 "the optimizer holds the parameter of before: compute with weight * mask, and keep the parameter")
    layer.zero_grad()
    case.backward(got)
    case.instead(weight.grad is None or bias.grad is None, "cuts the gradient", "weight and bias are to be trained")
    case.instead(weight.grad.cpu()[~mask].any(), "trains what the mask switches off",
                 "multiply by the mask where gradients see it: no .data, no torch.no_grad")
