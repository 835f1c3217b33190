"""The exercise “One step of AdamW in one kernel”."""

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=15,
    difficulty=2,
    where="the CPU, with every access checked",
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


adamw.exempt(KERNEL, "scalar empty single permuted sliced huge not_finite")
adamw.exempt(KERNEL, "formats default_type numbers second_call unchanged")


@adamw.checks
def _(case: Case) -> None:
    betas, options = (0.8, 0.9), {"lr": 0.1, "eps": 0.05, "weight_decay": 0.3}
    for n, block, step in ((5, 8, 1), (37, 16, 3), (1050, 8, 1)):  # 132 programs: more than 8 bits count
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
        case.equal(got, after, rtol=2e-6, atol=2e-6, why=f"weights, mean and square after step {step}")
        case.budget("bytes loaded", report.loaded_bytes, 16 * n, "weights, gradient, mean and square: once")
        case.budget("bytes stored", report.stored_bytes, 12 * n, "weights, mean and square: once")
        in_blocks(case, report, 7 * n)


def _state(optimizer: torch.optim.Optimizer, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a copy of weights, mean and square in float32; before the first step the latter are 0."""
    state = optimizer.state[weights]
    moments = [state.get(key, torch.zeros(len(weights))) for key in ("exp_avg", "exp_avg_sq")]
    return tuple(tensor.detach().float().clone() for tensor in (weights, *moments))
