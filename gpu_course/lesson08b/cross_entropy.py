"""The exercise “Cross entropy of long rows”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=15,
    difficulty=3,
    where="the CPU, with every access checked",
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


cross_entropy.exempt(KERNEL, "scalar empty permuted tiny")
cross_entropy.exempt(KERNEL, "half bfloat16 double bool complex default_type numbers second_call unchanged")


@cross_entropy.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in ((1, 5, 0, 8, 0.0), (5, 20, 3, 8, 0.0), (5, 20, 0, 8, 2000.0)):
        logits = (3 * torch.randn(rows, columns + gap) - shift)[:, :columns]
        targets = torch.tensor([columns - 1, 2, -100, 9, 0][:rows])  # 0 is a target as any other
        logits[0, columns - 1] = 3.0  # the largest comes late
        out = torch.full((rows,), math.nan)
        got, report = launch(case, (rows,), logits, targets, out, columns, columns + gap, block, out=2)
        expected = F.cross_entropy(logits.double(), targets, reduction="none").float()
        why = f"logits near {0 - shift:g}; a target of -100 does not count"
        case.equal(got, expected, rtol=1e-4, atol=1e-3, why=why)
        why = "each logit once, then the target and its logit"
        case.budget("bytes loaded", report.loaded_bytes, 4 * logits.numel() + 12 * rows, why)
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
    case.equal(got, expected, rtol=2e-6, atol=1e-5, why="two rows of 40,000 logits with the targets 128 and 39,999")
    for rows, columns in ((1, 2499), (130, 3)):  # a sum that 16 bits do not hold; more rows than 8 bits count
        logits, targets = torch.zeros(rows, columns), torch.full((rows,), columns - 1)
        got, _ = launch(case, (rows,), logits, targets, torch.full((rows,), math.nan), columns, columns, 4096, out=2)
        expected = torch.full((rows,), math.log(columns))
        case.equal(got, expected, rtol=1e-5, atol=1e-5, why=f"{rows} rows of {columns:,} equal logits")
    apart = 1_500_000_000  # "Rows begin `row_stride` apart: count in 64 bits."
    logits = kernelcheck.Addresses((3, 5), (apart, 1))  # no machine here has room for it
    arguments = logits, torch.tensor([1, 4, 2]), torch.zeros(3), 5, apart, 8
    _, report = launch(case, (3,), *arguments, out=2)
    read = sorted({int(element) for element in report.touched["logits"][2, 0, 0]})
    case.equal(read, [2 * apart + element for element in range(5)], why="elements of the logits that program 2 reads")
