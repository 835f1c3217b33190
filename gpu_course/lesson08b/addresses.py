"""Far rows, views with strides, and an optimizer's step: is each address the right one?"""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.launching import in_blocks, launch
from gpu_course.common.left_out import KERNEL

triton, tl = kernelcheck.triton()
exercise = lesson("08b")
WHERE = "the CPU, with every access checked"


@exercise(
    title="Rows far apart",
    minutes=8,
    difficulty=2,
    where=WHERE,
    hints=(
        "tl.program_id(0) and x_stride are numbers of 32 bits, and so is their product. Where does it end?",
        "A product of 32-bit numbers is rounded to 32 bits before anything else happens to it: convert a factor, not "
        "the product.",
        "row = tl.program_id(0).to(tl.int64) makes every offset that follows one of 64 bits.",
    ),
)
def far_sums(x, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store the sum of each row of x to `out`; rows begin `x_stride` apart."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + column, mask=column < columns, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0))


far_sums.alternative(
    "a pointer moved to the row once: shorter addresses below",
    edit("""
        -    values = tl.load(x + row * x_stride + column, mask=column < columns, other=0.0)
        +    x += row * x_stride
        +    values = tl.load(x + column, mask=column < columns, other=0.0)
    """),
)


far_sums.leaves_out(KERNEL, "scalar empty permuted huge tiny formats default_type numbers second_call unchanged")


@far_sums.checks
def _(case: Case) -> None:
    for rows, columns, gap, block in ((1, 4, 0, 8), (3, 5, 2, 8), (130, 1, 1, 1)):  # more rows than 8 bits count
        x, out = torch.randn(rows, columns + gap)[:, :columns], torch.full((rows,), math.nan)
        got, report = launch(case, (rows,), x, out, columns, columns + gap, block, out=1)
        case.equal(got, x.double().sum(1).float(), rtol=1e-4, atol=1e-5, why="the sum of each row")
        if columns > 1:
            in_blocks(case, report, x.numel() + rows)
    for rows, apart in ((2, 2**31 - 8), (3, 1_500_000_000), (4, 1_500_000_000)):
        x = kernelcheck.Addresses((rows, 5), (apart, 1))  # no machine here has room for it
        _, report = launch(case, (rows,), x, torch.zeros(rows), 5, apart, 8, out=1)
        read = torch.from_numpy(report.touched["x"][rows - 1, 0, 0])
        case.equal(read, (rows - 1) * apart + torch.arange(5), why=f"elements of x that program {rows - 1} reads")


@exercise(
    title="A view made contiguous",
    minutes=12,
    difficulty=2,
    where=WHERE,
    hints=(
        "`out` lies side by side, so each of its elements has three indices: the last one changes fastest.",
        "k = element % size2, j = element // size2 % size1, i = element // (size1 * size2).",
        "Load from x + i * stride0 + j * stride1 + k * stride2, store to out + element, both with element < n.",
    ),
)
def contiguous(x, out, n, size1, size2, stride0, stride1, stride2, BLOCK: tl.constexpr):
    """Copy the view x, of three dimensions and any strides, to `out`, side by side."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < n
    i = element // (size1 * size2)
    j = element // size2 % size1
    k = element % size2
    values = tl.load(x + i * stride0 + j * stride1 + k * stride2, mask=inside)
    tl.store(out + element, values, mask=inside)


contiguous.alternative(
    "one division less: the rest of the first gives the second index",
    edit("""
        -    i = element // (size1 * size2)
        -    j = element // size2 % size1
        +    rest = element // size2
        +    i = rest // size1
        +    j = rest % size1
    """),
)


contiguous.leaves_out(
    KERNEL,
    "scalar empty single huge tiny zero formats default_type number_negative number_large limit second_call unchanged",
)


@contiguous.checks
def _(case: Case) -> None:
    whole = torch.randn(3, 4, 7)
    repeated = whole[:1].expand(2, 4, 7), whole[..., :1].expand(3, 4, 5)  # with a stride of 0: first, last
    far = torch.randn(80_000).as_strided((2, 3, 5), (70_000, 1, 13))  # 16 bits do not hold its offsets
    many = torch.randn(3, 1, 1100).expand(3, 10, 1100)  # nor the number of its elements
    for x in (
        whole[..., :2], whole[:, :2, :5], whole.permute(2, 0, 1), whole.transpose(0, 1)[1:3], *repeated, far, many
    ):  # fmt: skip
        out, n, block = torch.full(x.shape, math.nan), x.numel(), 1024 if x is many else 16
        got, report = launch(case, (-(-n // block),), x, out, n, *x.shape[1:], *x.stride(), block, out=1)
        case.equal(got, x.contiguous(), why=f"a view of the shape {tuple(x.shape)} with the strides {x.stride()}")
        case.budget(
            "32-byte sectors stored",
            report.by_array["out"].sectors,
            -(-n // 8),
            "neighbours of `out` belong to neighbours of the block",
        )


@exercise(
    title="One step of AdamW in one kernel",
    minutes=15,
    difficulty=2,
    where=WHERE,
    hints=(
        "Four loads, three stores. Everything between them happens in registers.",
        "m = beta1 * m + (1 - beta1) * g, and v the same with beta2 and g * g. Both are stored as they are; what "
        "divides the step is corrected: m / correction1, v / correction2.",
        "Weight decay does not go through the gradient: w * (1 - lr * decay) - lr * m' / (sqrt(v') + eps).",
    ),
)
def adamw(weights, grad, mean, square, n, lr, beta1, beta2, eps, decay, correction1, correction2, BLOCK: tl.constexpr):
    """Do one step of AdamW in place: on `weights`, `mean` and `square`."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < n
    w, g = tl.load(weights + element, mask=inside), tl.load(grad + element, mask=inside)
    m = beta1 * tl.load(mean + element, mask=inside) + (1 - beta1) * g
    v = beta2 * tl.load(square + element, mask=inside) + (1 - beta2) * g * g
    step = m / correction1 / (tl.sqrt(v / correction2) + eps)
    tl.store(weights + element, w * (1 - lr * decay) - lr * step, mask=inside)
    tl.store(mean + element, m, mask=inside)
    tl.store(square + element, v, mask=inside)


adamw.alternative(
    "the order in which PyTorch computes: one root of a number, and not one more of a block",
    edit("""
        -    step = m / correction1 / (tl.sqrt(v / correction2) + eps)
        +    step = m / correction1 / (tl.sqrt(v) / tl.sqrt(correction2) + eps)
    """),
)


adamw.leaves_out(
    KERNEL, "scalar empty single permuted sliced huge not_finite formats default_type numbers second_call unchanged"
)


@adamw.checks
def _(case: Case) -> None:
    betas, options = (0.8, 0.9), {"lr": 0.1, "eps": 0.05, "weight_decay": 0.3}
    for n, block, step in ((5, 8, 1), (37, 16, 3)):
        weights = torch.randn(n).double().requires_grad_()
        optimizer = torch.optim.AdamW([weights], betas=betas, **options)
        after = _state(optimizer, weights)
        for _ in range(step):
            before, weights.grad = after, torch.randn(n).double()
            optimizer.step()
            after = _state(optimizer, weights)
        corrections = [1 - beta**step for beta in betas]
        arguments = before[0], weights.grad.float(), *before[1:], n, 0.1, *betas, 0.05, 0.3, *corrections, block
        got, report = launch(case, (-(-n // block),), *arguments, out=(0, 2, 3))
        case.equal(got, after, rtol=1e-4, atol=1e-5, why=f"weights, mean and square after step {step}")
        case.budget("bytes loaded", report.loaded_bytes, 16 * n, "weights, gradient, mean and square: once")
        case.budget("bytes stored", report.stored_bytes, 12 * n, "weights, mean and square: once")
        in_blocks(case, report, 7 * n)


def _state(optimizer: torch.optim.Optimizer, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a copy of weights, mean and square in float32; before the first step the latter are 0."""
    state = optimizer.state[weights]
    moments = [state.get(key, torch.zeros(len(weights))) for key in ("exp_avg", "exp_avg_sq")]
    return tuple(tensor.detach().float().clone() for tensor in (weights, *moments))
