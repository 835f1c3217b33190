"""The exercise “Fold a norm into a layer”."""

import copy

import torch
from torch import nn

from gpu_course.checks import Case, difference, edges, exercise
from gpu_course.common.probes import state_of, unchanged


@exercise(
    title="Fold a norm into a layer",
    minutes=10,
    difficulty=3,
    draws=True,  # a new layer begins with random numbers
    hints=(
        "In evaluation the norm subtracts running_mean, divides by the square root of running_var + eps, multiplies by "
        "its weight and adds its bias. All of these are fixed numbers, one for each output of the layer.",
        "factor = weight / sqrt(running_var + eps), one for each output, so it scales the rows of linear.weight. The "
        "new bias is (old bias - running_mean) * factor + norm.bias.",
        "Make a new nn.Linear with a bias, of the same device and dtype, and copy both into it under torch.no_grad(). "
        "A layer without a bias has a bias of 0.",
    ),
)
def fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> nn.Linear:
    """Return one layer that computes `norm(linear(x))` in evaluation."""
    factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    bias = -norm.running_mean if linear.bias is None else linear.bias - norm.running_mean
    weight = linear.weight
    outputs, inputs = weight.shape
    folded = nn.Linear(inputs, outputs, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        folded.weight.copy_(weight * factor[:, None])  # a factor for each output: a row
        folded.bias.copy_(bias * factor + norm.bias)
    return folded.eval()


fold.exempt("the answer gets modules; the numbers that they compute are made by the check", "scalar", "empty")
fold.exempt("where and which the numbers are is up to the check", "permuted", "sliced", "tied", "zero")
fold.exempt("no number of a trained layer is that large, small, or no number", "huge", "tiny", "not_finite")
fold.exempt("both modules have the same real format", "half", "bfloat16", "whole", "bool", "complex")
fold.exempt("no step is taken, and no gradient is looked at", "old_gradients", "two_groups", "shared")
fold.exempt("no parameter of a layer or norm is a scalar", "scalar_parameter")
fold.exempt("both modules are on the device of the check", "elsewhere", "cpu")
fold.exempt("a new layer begins with random numbers", "random_state")
fold.exempt("the answer keeps nothing that a second call could meet", "second_call")


def _layers(inputs: int, outputs: int, bias: bool = True) -> tuple[nn.Linear, nn.BatchNorm1d]:
    """Return a layer and a norm that has seen batches: none of its numbers is 0 or 1, and a weight is negative."""
    linear, norm = nn.Linear(inputs, outputs, bias=bias), nn.BatchNorm1d(outputs, eps=0.25)
    with torch.no_grad():
        for numbers in (*norm.parameters(), norm.running_mean, norm.running_var):
            numbers.uniform_(0.1, 2.5)
        norm.weight[-1] *= -1
    return linear.eval(), norm.eval()


@fold.checks
def _(case: Case) -> None:
    for inputs, outputs, bias in ((3, 3, True), (5, 2, True), (4, 7, False), (1, 1, True)):
        _folds(case, *_layers(inputs, outputs, bias), torch.float32)
    linear, norm = _layers(3, 2)
    _folds(case, linear, norm, torch.float64)
    _folds(case, edges.frozen(linear), edges.frozen(norm, "weight"), torch.float32)
    _folds(case, edges.frozen(linear), edges.frozen(norm), torch.float32)
    with edges.default_type():
        _folds(case, linear, norm, torch.float32)


def _folds(case: Case, linear: nn.Linear, norm: nn.BatchNorm1d, dtype: torch.dtype) -> None:
    """Fail unless the answer makes of both one layer that does the same, and leaves both as they were."""
    device = edges.supporting(case.device, dtype)
    linear, norm = (copy.deepcopy(layer).to(device, dtype) for layer in (linear, norm))
    x = torch.randn(9, linear.in_features, dtype=dtype).to(device)
    before = [copy.deepcopy(dict(layer.state_dict())) for layer in (linear, norm)]
    states = [state_of(layer) for layer in (linear, norm)]
    with torch.no_grad():
        expected = norm(linear(x))
    folded = case.call(linear, norm, modifies=True)
    why = "both modules stay as they are: their owner may go on with training"
    for name, layer, numbers, state in zip(("linear", "norm"), (linear, norm), before, states, strict=True):
        changed = difference(dict(layer.state_dict()), numbers)
        case.fail_if(changed, f"changes the numbers of {name}", why)
        unchanged(case, state, layer, why)
    edges.note("unchanged")
    kind = type(folded).__name__
    case.fail_if(not isinstance(folded, nn.Linear), f"returns a {kind}, expected one nn.Linear")
    with torch.no_grad():
        got, operators = case.use(folded, x), case.counts.operators
        case.equal(got, expected, rtol=1e-4, atol=1e-5, why="norm(linear(x)), both in evaluation")
        case.use(linear, x)
    case.budget("operators", operators, case.counts.operators, "one layer needs no more: the norm is in its numbers")


@fold.alternative("PyTorch has it: fuse_linear_bn_eval does the same for a layer and a norm in evaluation")
def _(linear, norm):
    from torch.nn.utils.fusion import fuse_linear_bn_eval

    return fuse_linear_bn_eval(linear, norm)
