"""The exercise “A step in mixed precision”."""

import re

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere
from gpu_course.lesson05.training import DATA, Training, a_loss, batches, follows, models


@exercise(
    minutes=15,
    difficulty=3,
    hints=(
        "The forward pass and the loss stand under torch.autocast(images.device.type, dtype=dtype), nothing else does.",
        "scaler.scale(loss).backward() gives gradients that are still multiplied by the factor. Unscale them first.",
        "After backward come the four words in italics, in their order: unscale_ and step are the scaler's and take "
        "the optimizer, update is the scaler's and takes nothing, clip_grad_norm_ takes the parameters and max_norm.",
    ),
)
def amp_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    images: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
    max_norm: float,
) -> torch.Tensor:
    """Take a step under autocast, with clipped gradients; return the detached loss."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=dtype):
        loss = F.cross_entropy(model(images).float(), labels)  # of 16 bits it would take the logarithm in 16 bits
    scaler.scale(loss).backward()  # the factor keeps small float16 gradients from becoming 0
    scaler.unscale_(optimizer)  # now their norm means something
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)  # leaves the step out if a gradient is inf or NaN
    scaler.update()  # and then makes the factor smaller
    return loss.detach()


amp_step.exempt(TRAINING, DATA + " sliced double")
amp_step.exempt("autocast leaves double precision alone, which nobody mixes", "double_model")
amp_step.exempt("a norm is a length", "number_zero number_negative number_large limit")


@amp_step.checks
def _(case: Case) -> None:
    here = edges.scaling(case.device)
    for sizes, max_norm, scale, dtype in (
        ((8,), 1e6, 2.0**10, torch.float16),
        *[((1,), 1e6, 2.0**10, torch.float16)] * 4,  # "the loss of `logits.float()`": a mean would hide its digits
        ((8,), 0.05, 2.0**10, torch.float16),
        ((8, 6), 1e6, 1.0, torch.bfloat16),
    ):
        training = Training(here, scale)
        for parameter in training.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)  # somebody left them behind
        for batch in batches(sizes, scale=5.0):
            x, y = (part.to(here) for part in batch)
            # the scaler objects to a wrong order, in words that do not say what is wrong
            with case.diagnose_first(lambda log=training.log: _scaler_in_order(case, log.text)):
                got, waits = training.call(case, training.scaler, x, y, dtype, max_norm)
            _scaler_in_order(case, training.log.text)
            computed, text = training.log.passes[0].dtype if training.log.passes else dtype, training.log.text
            for when, name, why in (
                (computed != dtype, f"computes the forward pass in {computed}",
                 f"{dtype} is asked for: `with torch.autocast(images.device.type, dtype=dtype):` casts"),
                ("U" not in text, "never calls scaler.update()",
                 "it makes the scale smaller after an overflow, and larger when all goes well"),
                ("w" in text, "runs the backward pass under autocast",
                 "PyTorch advises against it: backward repeats the formats of the forward pass by itself"),
                ("W" in text, "leaves autocast on while it unscales, steps or updates",
                 "the forward pass and the loss stand under autocast, and nothing else"),
            ):  # fmt: skip
                case.fail_if(when, name, why)
            training.followed(case)
            # after a step the weights differ by what 16 bits round
            rtol = 1e-4 if sizes == (1,) else 1e-2
            a_loss(case, got, training.expected(x, y, dtype=dtype, max_norm=max_norm)[0], rtol=rtol)
            training.equal(case, tolerance=0.05)
            case.budget("host reads", waits, 1, "scaler.step() looks once whether a gradient is inf; that is enough")
            left, why = training.scaler.get_scale(), "scaler.update() knows when to change it"
            case.fail_if(left != scale, "sets the scale itself", why, expected=scale, got=left)
    training = Training(here, scale=2.0**40)
    x, y = (part.to(here) for part in batches((4,))[0])
    training.call(case, training.scaler, x, y, torch.float16, 1.0)
    why = "scaler.step(optimizer) sees that they are inf and leaves the step out"
    case.fail_if(training.moved().any(), "steps where gradients overflow", why)
    why = "scaler.update() does: without it every step is left out"
    case.fail_if(training.scaler.get_scale() >= 2.0**40, "does not make the scale smaller after an overflow", why)
    for device in (case.device, elsewhere(case.device), torch.device("cpu")):  # "`images.device.type` names the device"
        for model in models():
            if next(model.parameters()).dtype == torch.float32:
                _follows_a_mixed_step(case, model.to(device), device)


def _follows_a_mixed_step(case: Case, model: nn.Module, device: torch.device) -> None:
    """Fail unless the answer takes the step with a scaler that is disabled, as it is for bfloat16."""
    x, y = edges.permuted(torch.randn(3, 6)), torch.tensor([2, 0, 5])
    images, scaler = edges.on(x, device), torch.amp.GradScaler(device.type, enabled=False)
    formats: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, logits: formats.append(logits.dtype))
    follows(case, model, amp_step, scaler, images, y.to(device), torch.bfloat16, 0.5, tolerance=1e-3)
    name = f"computes the forward pass in {formats[-1]}, with images on {device}"
    case.fail_if(formats[-1] != torch.bfloat16, name, "`images.device.type` names the device to autocast")
    case.equal(images, edges.on(x, device), why="the batch is the caller's")


_DISORDER = (  # what the log shows of the scaler, as patterns: see `training.Log`
    ("^[^csuU]*[AB][^csuU]*$", "never uses the scaler that it is given",
     "small float16 gradients become 0 without it: scaler.scale(loss).backward()"),
    ("^[^s]*[SE]", "steps without the scaler", "scaler.step(optimizer) divides by the scale and leaves the step out "
     "where a gradient is inf; optimizer.step() does neither"),
    ("U.*U", "calls scaler.update() twice", "it ends the step, once"),
    ("U.*s", "updates the scaler before the step",
     "update() ends the step: the scaler then no longer knows that the gradients are unscaled"),
    ("^[^s]*[ABu][^sABuZ]*Z", "clears the gradients before the step has used them",
     "the order is zero_grad, backward, step"),
    ("^[^ABSE]*[us]", "unscales or steps without a backward pass before it",
     "scaler.scale(loss).backward() fills the gradients, the step uses them"),
)  # fmt: skip


def _scaler_in_order(case: Case, text: str) -> None:
    """Fail with what the log shows of the scaler to be wrong, also where an error has ended the step."""
    for pattern, name, why in _DISORDER:
        case.fail_if(re.search(pattern, text), name, why)
