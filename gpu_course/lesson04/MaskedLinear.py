"""The exercise “Make the mask a buffer”."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import detached, elsewhere, is_a_module


@exercise(
    minutes=8,
    difficulty=2,
    draws=True,
    hints=(
        "An nn.Linear inside holds weight and bias. Its weight has the shape of the mask: (outputs, inputs).",
        "register_buffer(name, tensor) makes a tensor part of the module: moved and saved, not trained.",
        "After super().__init__() make both. In forward give F.linear the weight of the linear layer times the buffer, "
        "and its bias.",
    ),
)
class MaskedLinear(nn.Module):
    """A linear layer with bias, whose weights count where the bool `mask` is True."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        outputs, inputs = mask.shape
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("mask", mask)  # moved and saved with the layer, and not trained

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)  # masked anew in every call


MaskedLinear.exempt("a mask is bool and has two dimensions", "scalar whole complex")
MaskedLinear.exempt(
    "weights that float32 holds: times a mask, no type behaves in another way", "half bfloat16 not_finite default_type"
)
MaskedLinear.exempt("its weights begin at random", "second_call random_state")


@MaskedLinear.checks
def _(case: Case) -> None:
    rows = [True, False, False], [True, True, False], [False, True, False], [False, False, False]
    mask = torch.tensor(rows)  # an input and an output that count nowhere
    layer = case.call(mask)
    _is_a_buffer(case, layer, mask)
    for device, mode in ((case.device, True), (elsewhere(case.device), True), (case.device, False)):
        layer.to(device).train(mode)
        weight, bias = _weight_and_bias(case, layer, mask)
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape))  # as an optimizer would
        x = torch.randn(2, 3).to(device).requires_grad_()
        got = case.use(layer, x)
        case.fail_if(case.counts.copies, "copies something in every call", "a buffer is where the layer is: use it")
        _equals_by_hand(case, got, x, weight, bias, mask)
        why = "the optimizer holds the parameter of before: compute with weight * mask, and keep the parameter"
        case.fail_if(_weight_and_bias(case, layer, mask)[0] is not weight, "makes a new parameter in forward", why)
        layer.zero_grad()
        case.backward(got)
        case.fail_if(weight.grad is None or bias.grad is None, "cuts the gradient", "weight and bias are to be trained")
        case.fail_if(x.grad is None, "cuts the gradient of `x`", "the layers before this one are to be trained, too")
        why = "multiply by the mask where gradients see it: no .data, no torch.no_grad"
        case.fail_if(weight.grad.cpu()[~mask].any(), "trains what the mask switches off", why)
    other, x = case.call(~mask), x.detach()
    other.load_state_dict(layer.state_dict())
    _equals_by_hand(case, case.use(other.to(device), x), x, weight, bias, mask)
    large = torch.tensor([[2e4, -3.0, 1e-6], [0.0, 1.0, 1.0]])
    for which, x in (  # "bool, of shape (outputs, inputs)", and F.linear takes any `x` whose last size fits
        (torch.tensor([[True]]), torch.randn(4, 1)),
        (edges.permuted(mask), torch.randn(2, 5, 3)),
        (edges.sliced(mask), torch.randn(3)),
        (mask, torch.ones(0, 3)),
        (mask, edges.permuted(large)),
        (mask, edges.sliced(large).double()),
    ):
        place = edges.supporting(case.device, x)
        layer = case.call(which).to(place, x.dtype)
        x = edges.on(x, place)
        _equals_by_hand(case, case.use(layer, x), x, *_weight_and_bias(case, layer, which), which)


def _is_a_buffer(case: Case, layer: Any, mask: torch.Tensor) -> None:
    """Fail with the name of what the mask is instead of a persistent buffer."""
    is_a_module(case, layer)

    def masks(named: Iterable[tuple[str, Any]]) -> list[str]:
        alike = [m.float() for m in (mask, mask.mT, ~mask, ~mask.mT)]
        flat = [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.dim() == 2]
        return [name for name, value in flat if any(torch.equal(value.detach().cpu().float(), m) for m in alike)]

    why = "a parameter is handed to the optimizer, and the mask is a choice that no gradient may change"
    case.fail_if(masks(layer.named_parameters()), "makes the mask a parameter", why)
    buffers = dict(layer.named_buffers())
    case.fail_if(buffers and not masks(buffers.items()), "has a buffer that is not the mask", got=buffers)
    plain = masks(attribute for module in layer.modules() for attribute in vars(module).items())
    why = ".to(device) and state_dict() look at what is registered alone: register_buffer makes it a part"
    case.fail_if(not buffers, "keeps the mask as a plain attribute" if plain else "has no buffer with the mask", why)
    why = "which weights were switched off cannot be computed again: with persistent=False it is lost"
    case.fail_if(not masks(layer.state_dict().items()), "does not save the mask", why)


def _weight_and_bias(case: Case, layer: nn.Module, mask: torch.Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the two parameters of the layer, found by their shapes."""
    by_shape = {tuple(p.shape): p for p in layer.parameters()}
    why = "the mask is (outputs, inputs), and nn.Linear takes (inputs, outputs)"
    case.fail_if(
        tuple(mask.shape) not in by_shape and tuple(mask.mT.shape) in by_shape, "swaps inputs and outputs", why
    )
    lists = [value for value in vars(layer).values() if isinstance(value, list | tuple)]
    why = "a module knows its attributes, not what is in a Python list"
    case.fail_if(
        any(isinstance(part, nn.Module) for parts in lists for part in parts), "hides the layer in a list", why
    )
    for name, shape in (("weight", tuple(mask.shape)), ("bias", (mask.shape[0],))):
        why = "the layer holds an nn.Linear"
        case.fail_if(shape not in by_shape, f"has no {name}: no parameter of shape {shape}", why)
    return by_shape[tuple(mask.shape)], by_shape[(mask.shape[0],)]


def _equals_by_hand(case: Case, got, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, mask: torch.Tensor):
    """Fail unless `got` is what the layer computes with these parameters, one product after the other."""
    products = x.cpu()[..., None, :] * torch.where(mask, weight.detach().cpu(), 0.0)
    expected = (products.sum(-1) + bias.detach().cpu()).to(weight.device)
    atol = 1e-5 if x.dtype == torch.float32 else 1e-9
    why = "a weight counts where the mask is True, in every call and mode"
    case.equal(detached(got), expected, atol=atol, why=why)
