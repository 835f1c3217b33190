"""The exercise “All heads at once”."""

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import TRAINING


@exercise(
    minutes=12,
    difficulty=2,
    hints=(
        "One call of qkv gives q, k and v of all heads, side by side. Which dimensions is the last one made of?",
        "In the order of the weight's rows: 3, heads, size. Attention wants (batch, heads, time, size) for each.",
        "view to (batch, time, 3, heads, size), permute so that 3 comes first, unpack. is_causal=True is the mask. "
        "Then bring time and heads back with transpose(1, 2), and reshape.",
    ),
)
def attend(x: torch.Tensor, qkv: nn.Linear, heads: int) -> torch.Tensor:
    """Return what causal attention makes of `x` (batch, time, width), same shape."""
    batch, time, width = x.shape
    split = batch, time, 3, heads, width // heads
    q, k, v = qkv(x).view(split).permute(2, 0, 3, 1, 4)  # each (batch, heads, time, size)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # no mask in memory, no scores
    return mixed.transpose(1, 2).reshape(batch, time, width)


attend.exempt(TRAINING, "scalar empty sliced huge tiny not_finite zero tied")
attend.exempt(TRAINING, "formats places default_type models numbers second_call")


@attend.checks
def _(case: Case) -> None:
    operators = {}
    for shape, heads, scale, permuted in (
        ((1, 1, 4), 4, 1, False),  # one place, and heads of one number
        ((1, 2, 4), 1, 1, False),
        ((2, 3, 4), 2, 1, False),
        ((2, 5, 12), 3, 1, True),  # x need not be contiguous
        ((3, 7, 6), 3, 9, False),  # scores of some hundreds, whose exp is no number of float32
        ((2, 3, 16), 8, 1, False),
    ):
        x = torch.randn(shape)
        qkv = nn.Linear(shape[2], 3 * shape[2], bias=False)
        nn.init.normal_(qkv.weight, std=scale)
        slow = x.clone().requires_grad_(), qkv.weight.detach().clone().requires_grad_()
        x = x.to(case.device)
        x = (x.transpose(0, 1).contiguous().transpose(0, 1) if permuted else x).requires_grad_()
        got = case.call(x, qkv.to(case.device), heads)
        counts = case.counts
        expected = _slowly(*slow, heads)
        case.equal(got, expected.detach().to(case.device), rtol=1e-4, atol=1e-4 * scale)
        case.fail_if(counts.copies_h2d, "copies something to the device", "a mask, say: is_causal=True needs none")
        operators[heads] = counts.operators
        if scale == 1:  # gradients of sharp maxima are too small to compare
            case.backward(got)
            expected.sum().backward()
            _gradients(case, (x.grad, qkv.weight.grad), [one.grad for one in slow])
    more = max(operators[8] - operators[2], 0)  # for 6 heads more: a loop launches at least one kernel for each
    case.budget("operators more for 8 heads than for 2", more, 5, "a loop over the heads launches kernels for each")


def _gradients(case: Case, got: tuple[torch.Tensor | None, ...], wanted: list[torch.Tensor]) -> None:
    """Fail unless the gradients of x and of the weight are the right ones: also those of q, k and v, each for itself.

    Of one place alone nothing depends on q and k: their right gradients may be 0.
    """
    for name, value in zip(("the weight", "x"), got[::-1], strict=True):
        case.fail_if(value is None, f"cuts the graph: no gradient reaches {name}", "what is before it never trains")
    for name, part, right in zip("qkv", got[1].chunk(3), wanted[1].chunk(3), strict=True):
        why = f"the rows of the weight that make {name} would never train: no detach() on the way"
        case.fail_if(right.abs().max() > 1e-5 and not part.any(), f"cuts the graph: no gradient reaches {name}", why)
    for name, value, right in zip(("x", "the weight"), got, wanted, strict=True):
        case.equal(value, right.to(case.device), rtol=1e-3, atol=1e-4, what=f"the gradient of {name}")


def _slowly(x: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return causal attention, place by place."""
    mixed, size = torch.zeros(x.shape), x.shape[2] // heads
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (x @ part[rows].T for part in weight.chunk(3))
        for position in range(x.shape[1]):
            scores = (q[:, position, None] * k[:, : position + 1]).sum(-1) / size**0.5
            mixed[:, position, rows] = (scores.softmax(-1)[..., None] * v[:, : position + 1]).sum(1)
    return mixed
