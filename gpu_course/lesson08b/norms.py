"""Layer norm forwards and backwards, and cross entropy: is each row read once, and are its numbers right?"""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.launching import in_blocks, launch
from gpu_course.common.left_out import KERNEL

triton, tl = kernelcheck.triton()
exercise = lesson("08b")
WHERE = "the CPU, with every access checked"


@exercise(
    title="Layer norm",
    minutes=12,
    difficulty=2,
    where=WHERE,
    hints=(
        "Load the row once. Where the mask is off, 0 is harmless in the sum for the mean, but not after the mean has "
        "been subtracted.",
        "tl.where(inside, values - mean, 0.0) sets those places back to 0, and its squares add up to the variance.",
        "Divide both sums by `columns`. Then multiply by tl.rsqrt(variance + eps) and by the weight, and add the bias.",
    ),
)
def layer_norm(x, weight, bias, out, columns, x_stride, eps, BLOCK: tl.constexpr):
    """Store the layer norm of each row to `out`; rows of x begin `x_stride` apart."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)  # 0 - mean must not count below
    variance = tl.sum(centred * centred, axis=0) / columns
    scale = tl.load(weight + column, mask=inside) * tl.rsqrt(variance + eps)
    tl.store(out + row * columns + column, centred * scale + tl.load(bias + column, mask=inside), mask=inside)


layer_norm.alternative(
    "the root and a division in place of tl.rsqrt: two instructions for one",
    edit("""
        -    scale = tl.load(weight + column, mask=inside) * tl.rsqrt(variance + eps)
        +    scale = tl.load(weight + column, mask=inside) * (1 / tl.sqrt(variance + eps))
    """),
)


layer_norm.leaves_out(KERNEL, "scalar empty permuted huge tiny formats default_type numbers second_call unchanged")


@layer_norm.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in (
        (1, 4, 0, 8, 0.0),
        (3, 5, 2, 8, 0.5),
        (2, 27, 0, 32, 3000.0),
        (1, 300, 0, 512, 0.0),  # 8 bits do not hold these columns
    ):
        x = (torch.randn(rows, columns + gap) + shift)[:, :columns]
        x[0, -1] = x[0, 0] = 0.0 if shift < 1 else shift  # a number of the row as any other
        weight, bias, out = torch.randn(columns), torch.randn(columns), torch.full((rows, columns), math.nan)
        arguments = x, weight, bias, out, columns, columns + gap, 0.1, block
        got, report = launch(case, (rows,), *arguments, out=3)
        expected = F.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 0.1)
        near = 1e-5 + 1e-6 * shift  # float32 holds numbers near 3,000 less exactly
        case.equal(got, expected.float(), rtol=near, atol=near, why=f"numbers near {shift:g}; nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 12 * x.numel(), "x, weight and bias: each number once a row")


@exercise(
    title="Layer norm, backwards",
    minutes=18,
    difficulty=3,
    where=WHERE,
    hints=(
        "Compute mean, rstd = rsqrt(variance + eps) and the normalised row n again: that costs no bytes but those of "
        "x.",
        "With g = grad * weight, each input acts in three ways: by itself, through the mean, and through the variance.",
        "The gradient of x is rstd * (g - mean of g - n * mean of g * n). Both means go over the row.",
    ),
)
def layer_norm_backward(grad, x, weight, out, columns, eps, BLOCK: tl.constexpr):
    """Store the gradient of the layer norm for x; rows lie side by side."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    element = tl.program_id(0) * columns + column
    values = tl.load(x + element, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    n = centred * rstd
    g = tl.load(grad + element, mask=inside, other=0.0) * tl.load(weight + column, mask=inside, other=0.0)
    through_mean = tl.sum(g, axis=0) / columns
    through_variance = n * (tl.sum(g * n, axis=0) / columns)
    tl.store(out + element, rstd * (g - through_mean - through_variance), mask=inside)


layer_norm_backward.alternative(
    "one division a row: shorter, and the three ways are harder to see",
    edit("""
        -    through_mean = tl.sum(g, axis=0) / columns
        -    through_variance = n * (tl.sum(g * n, axis=0) / columns)
        -    tl.store(out + element, rstd * (g - through_mean - through_variance), mask=inside)
        +    through_mean = tl.sum(g, axis=0)
        +    through_variance = n * tl.sum(g * n, axis=0)
        +    tl.store(out + element, rstd / columns * (columns * g - through_mean - through_variance), mask=inside)
    """),
)


layer_norm_backward.leaves_out(
    KERNEL, "scalar empty permuted sliced huge tiny formats default_type numbers second_call unchanged"
)


@layer_norm_backward.checks
def _(case: Case) -> None:
    for rows, columns, block, shift in (
        (1, 4, 8, 1),
        (3, 5, 8, 1),
        (2, 27, 32, 1),
        (2, 27, 32, 3000),
        (1, 300, 512, 1),  # 8 bits do not hold these columns
    ):
        grad, x, weight = torch.randn(rows, columns), 2 * torch.randn(rows, columns) + shift, torch.randn(columns)
        x[0, -1] = x[0, 0] = grad[-1, 0] = 0.0 if shift == 1 else shift  # numbers as any other
        exact, out = x.double().requires_grad_(), torch.full((rows, columns), math.nan)
        F.layer_norm(exact, (columns,), weight.double(), None, 0.1).backward(grad.double())
        got, report = launch(case, (rows,), grad, x, weight, out, columns, 0.1, block, out=3)
        near = 2e-5 + 1e-6 * shift  # float32 holds numbers near 3,000 less exactly
        case.equal(got, exact.grad.float(), rtol=near, atol=near, why="the gradient for x; nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 12 * x.numel(), "grad, x and weight: each number once a row")


@exercise(
    title="Cross entropy of long rows",
    minutes=15,
    difficulty=3,
    where=WHERE,
    hints=(
        "A vocabulary is longer than a block: walk along the row as online softmax does, with a maximum and a sum so "
        "far.",
        "The loss of a row is maximum + log(sum) - logit of the target. The target's logit is one load, logits + "
        "target.",
        "A target of -100 is no address: mask that load with target != -100, and store 0 for such a row by tl.where.",
    ),
)
def cross_entropy(logits, targets, out, columns, row_stride, BLOCK: tl.constexpr):
    """Store the loss of each row to `out`, 0 where its target is -100."""
    logits += tl.program_id(0).to(tl.int64) * row_stride
    target = tl.load(targets + tl.program_id(0))
    top = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(logits + column, mask=column < columns, other=-float("inf"))
        new_top = tl.maximum(top, tl.max(values, axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(values - new_top), axis=0)
        top = new_top
    counts = target != -100
    chosen = tl.load(logits + target, mask=counts, other=0.0)
    tl.store(out + tl.program_id(0), tl.where(counts, top + tl.log(total) - chosen, 0.0))


cross_entropy.alternative(
    "powers of two, which GPUs compute in one instruction: a multiplication by log2(e) more to read",
    edit("""
-        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(values - new_top), axis=0)
+        total = total * tl.exp2((top - new_top) * 1.44269504) + tl.sum(tl.exp2((values - new_top) * 1.44269504), axis=0)
    """),  # noqa: E501,
)


cross_entropy.leaves_out(
    KERNEL,
    "scalar empty permuted tiny half bfloat16 double bool complex default_type numbers second_call unchanged",
)


@cross_entropy.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in ((1, 5, 0, 8, 0.0), (5, 20, 3, 8, 0.0), (5, 20, 0, 8, 2000.0)):
        logits = (3 * torch.randn(rows, columns + gap) - shift)[:, :columns]
        targets = torch.tensor([columns - 1, 2, -100, 9, 0][:rows])  # 0 is a target as any other
        logits[0, columns - 1] = 3.0  # the largest comes late
        out = torch.full((rows,), math.nan)
        got, report = launch(case, (rows,), logits, targets, out, columns, columns + gap, block, out=2)
        expected = F.cross_entropy(logits.double(), targets, reduction="none").float()
        case.equal(
            got, expected, rtol=1e-4, atol=1e-3, why=f"logits near {0 - shift:g}; a target of -100 does not count"
        )
        case.budget(
            "bytes loaded",
            report.loaded_bytes,
            4 * logits.numel() + 12 * rows,
            "each logit once, then the target and its logit",
        )
        if columns > 5:
            in_blocks(case, report, logits.numel() + 3 * rows)
    falling = -3e4 * torch.arange(1.0, 21.0)  # no number stands for -inf, and what comes later may be far smaller
    logits, targets = torch.stack([falling, falling.flip(0), falling]), torch.tensor([0, 19, 7])
    got, _ = launch(case, (3,), logits, targets, torch.full((3,), math.nan), 20, 20, 8, out=2)
    expected = F.cross_entropy(logits.double(), targets, reduction="none").float()
    case.equal(got, expected, rtol=1e-4, atol=1e-3, why="logits from -30,000 to -600,000")
    logits, targets = torch.randn(2, 40_000), torch.tensor([128, 39_999])  # 8 and 16 bits do not hold these targets
    got, _ = launch(case, (2,), logits, targets, torch.full((2,), math.nan), 40_000, 40_000, 4096, out=2)
    expected = F.cross_entropy(logits.double(), targets, reduction="none").float()
    case.equal(got, expected, rtol=1e-4, atol=1e-3, why="two rows of 40,000 logits with the targets 128 and 39,999")
    apart = 1_500_000_000  # "Rows begin `row_stride` apart: count in 64 bits."
    logits = kernelcheck.Addresses((3, 5), (apart, 1))  # no machine here has room for it
    arguments = logits, torch.tensor([1, 4, 2]), torch.zeros(3), 5, apart, 8
    _, report = launch(case, (3,), *arguments, out=2)
    read = sorted({int(element) for element in report.touched["logits"][2, 0, 0]})
    case.equal(read, [2 * apart + element for element in range(5)], why="elements of the logits that program 2 reads")
