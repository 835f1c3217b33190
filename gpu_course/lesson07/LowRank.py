"""The exercise “A low-rank layer”."""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_course.checks import Case, exercise
from gpu_course.common.probes import detached, is_a_module


@exercise(
    minutes=12,
    difficulty=2,
    draws=True,
    hints=(
        "Hold three things: `linear`, whose requires_grad_(False) freezes weight and bias, and two nn.Parameters.",
        "linear.weight has the shape (outputs, inputs), a device and a format. new_zeros takes over the last two. "
        "`up` is (outputs, rank), `down` (rank, inputs) and random.",
        "forward adds two terms: what self.linear gives, and x times down.T times up.T, taken from left to right.",
    ),
)
class LowRank(nn.Module):
    """A frozen `linear`, and beside it the trained product of `up` and `down`."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.linear = linear.requires_grad_(False)  # no gradient, no optimizer state
        self.up = nn.Parameter(linear.weight.new_zeros(outputs, rank))  # so it starts as `linear` was
        self.down = nn.Parameter(linear.weight.new_zeros(rank, inputs).normal_(std=0.02))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x @ self.down.T @ self.up.T  # from left to right: never as large as the weight


class _Large(TorchDispatchMode):
    """Notes whether an operator makes a tensor of as many numbers as the weight has."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.made = numbers, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = func(*args, **kwargs or {})
        alone = isinstance(made, torch.Tensor) and not func.is_view
        self.made |= alone and made.numel() == self.numbers
        return made


LowRank.exempt(
    "the layer is handed on to `linear`, which says what its input is",
    "huge tiny not_finite zero tied scalar empty single permuted sliced",
)
LowRank.exempt("in two formats of `linear.weight` is seen that it is looked at", "formats default_type")
LowRank.exempt("of `linear` only the device and the format are asked", "models places")
LowRank.exempt("a rank is a small number above 0", "numbers")
LowRank.exempt("`down` starts at random, and a layer cannot be kept for later", "second_call random_state")


@LowRank.checks
def _(case: Case) -> None:
    for inputs, outputs, rank, bias, dtype, batch in (
        (2, 1, 1, True, torch.float32, (5,)),
        (6, 4, 2, True, torch.float32, (2, 5)),  # "takes the place of a linear layer": so does its input
        (4, 7, 3, False, torch.float32, ()),
        (6, 4, 2, True, torch.float16, (5,)),  # "in the format of `linear.weight`"
    ):
        linear = nn.Linear(inputs, outputs, bias=bias).to(case.device, dtype)
        before = [one.detach().clone() for one in linear.parameters()]
        layer = case.call(linear, rank, modifies="requires_grad")
        _has_its_parts(case, layer, linear, rank)
        if dtype == torch.float16:
            continue
        same = all(torch.equal(one, old) for one, old in zip(linear.parameters(), before, strict=True))
        case.fail_if(not same, "changes the weights of `linear`", "they are what was learned before")
        x = torch.randn(*batch, inputs).to(case.device).requires_grad_()
        got = case.use(layer, x)
        case.equal(got, linear(x).detach(), atol=1e-5, why="`up` is zero at first, so the model starts as it was")
        case.fail_if(layer.up.any(), "`up` does not start at zero", "then the model would start as another one")
        why = "the gradient of each is a product with the other: neither would ever change"
        case.fail_if(not layer.down.any(), "starts both at zero", why)
        why = "its rows would get the same gradients and stay alike: random numbers tell them apart"
        case.fail_if(inputs > 2 and layer.down.unique().numel() == 1, "`down` is the same number everywhere", why)
        another = case.call(copy.deepcopy(linear).requires_grad_(), rank, modifies="requires_grad")
        why = "random numbers are drawn anew: a generator with a seed of its own gives the same again"
        case.fail_if(inputs > 2 and torch.equal(layer.down, another.down), "`down` is the same in each layer", why)
        why = "the first steps of `up` would be large, too: a standard deviation of 0.02 is small"
        case.fail_if(inputs > 2 and layer.down.square().mean().sqrt() > 0.5, "`down` starts with large numbers", why)
        with torch.no_grad():
            for parameter in (layer.up, layer.down):
                parameter.copy_(torch.randn(parameter.shape))  # as an optimizer would
        with _Large(inputs * outputs) as large:
            got = case.use(layer, x)
        _equals_by_hand(case, layer, linear, x, got)
        case.fail_if(not layer.training, "starts in evaluation mode", "a module starts in training mode")
        _equals_by_hand(case, layer, linear, x, case.use(layer.eval(), x))  # what was trained counts there, too
        why = "x @ down.T is thin: multiply from left to right, and nothing large is made or kept"
        case.fail_if(large.made, "computes a matrix as large as the weight", why)
        case.backward(got)
        for name, parameter in (("up", layer.up), ("down", layer.down)):
            case.fail_if(parameter.grad is None, f"gives `{name}` no gradient", "both are to be trained")
        whole = (linear.weight + layer.up @ layer.down).detach().sum(0).expand(x.shape)  # of the sum of all outputs
        same = x.grad is not None and torch.allclose(x.grad, whole, rtol=1e-4, atol=1e-4)
        why = "it flows through both terms, `linear` too: what comes before is trained by it"
        case.fail_if(not same, "gives x another gradient", why, expected=whole, got=x.grad)
        why = "a frozen weight has none: that is what is saved"
        case.fail_if(any(one.grad is not None for one in linear.parameters()), "gives `linear` a gradient", why)


def _has_its_parts(case: Case, layer: Any, linear: nn.Linear, rank: int) -> None:
    """Fail unless `layer` is a module with `linear` frozen and two parameters of the right shape, place and format."""
    is_a_module(case, layer)
    outputs, inputs = linear.weight.shape
    for name, shape in (("up", (outputs, rank)), ("down", (rank, inputs))):
        parameter = getattr(layer, name, None)
        case.fail_if(not isinstance(parameter, torch.Tensor), f"has no tensor `{name}`", "it trains `up` and `down`")
        why = "parameters() does not list it, so no optimizer trains it: nn.Parameter(…)"
        case.fail_if(not isinstance(parameter, nn.Parameter), f"`{name}` is a plain tensor", why)
        case.fail_if(not parameter.requires_grad, f"`{name}` is frozen", "it is to be trained")
        case.fail_if(
            tuple(parameter.shape) != shape, f"`{name}` has another shape", expected=shape, got=tuple(parameter.shape)
        )
        given, wanted = (parameter.device, parameter.dtype), (linear.weight.device, linear.weight.dtype)
        why = "a model on a device in 16 bits needs its new parts there, in 16 bits"
        case.fail_if(
            given != wanted, f"`{name}` is not where, or not as, the weight is", why, expected=wanted, got=given
        )
    held = {id(one) for one in layer.parameters()}
    lacks = any(id(one) not in held for one in linear.parameters())
    why = "a copy takes the memory twice, and what is no module's part is neither moved nor saved"
    case.fail_if(lacks, "does not hold `linear` itself", why)
    trained = [name for name, one in linear.named_parameters() if one.requires_grad]
    why = "gradient and optimizer state are as large as they were: requires_grad_(False)"
    case.fail_if(trained, f"trains the {' and the '.join(trained)} of `linear`", why)
    case.fail_if(len(held) != 2 + len(list(linear.parameters())), "has further parameters", "`up` and `down` alone")


def _equals_by_hand(case: Case, layer: Any, linear: nn.Linear, x: torch.Tensor, got: Any) -> None:
    """Fail unless `got` is W x + up (down x), and the bias, computed one product after the other."""
    weight, up, down, rows = (one.detach().cpu() for one in (linear.weight, layer.up, layer.down, x))
    thin = (rows[..., None, :] * down).sum(-1)
    expected = (rows[..., None, :] * weight).sum(-1) + (thin[..., None, :] * up).sum(-1)
    if linear.bias is not None:
        expected = expected + linear.bias.detach().cpu()
    case.equal(detached(got), expected.to(x.device), rtol=1e-4, atol=1e-4, why="what `linear` gives, and up (down x)")
