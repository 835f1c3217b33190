"""The exercise “Average the gradients”."""

import torch
import torch.distributed as dist
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.gradients import averaged, check_average
from gpu_course.common.ranks import describe, on_ranks
from gpu_course.lesson09 import cases


@exercise(
    where="real ranks on the CPU",
    minutes=10,
    difficulty=2,
    hints=(
        "After backward(), every rank has its own gradients. Call all_reduce on each, and divide by the world size.",
        "A parameter that took no part on this rank has grad None, but other ranks wait for it in all_reduce: give it "
        "a gradient of zeros. A frozen one (requires_grad is False) has a gradient on no rank: leave it out.",
        "Go through model.parameters(), which lists a shared one once. torch.zeros_like makes a missing gradient; "
        "a sum over the ranks becomes a mean by one division.",
    ),
)
def average_gradients(model: nn.Module) -> None:
    """Replace each gradient of `model` by its mean over all ranks."""
    for parameter in model.parameters():  # a shared parameter comes once
        if parameter.requires_grad:
            if parameter.grad is None:  # it took no part on this rank, but other ranks wait for it
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


average_gradients.exempt(RANKS, "default_type second_call unchanged random_state two_ranks four_ranks part")
average_gradients.exempt(
    "only gradients are asked, whatever the model is", "evaluation all_frozen two_groups scalar_parameter"
)
average_gradients.exempt("all ranks have the same model", "uneven")


@average_gradients.checks
def _(case: Case) -> None:
    why = "all ranks must call the same collectives, in the same order: where a parameter took no part, with zeros"
    ranks = on_ranks(case, averaged, tuple(cases.KINDS), nprocs=3, called="average_gradients(model)", why=why)
    for index, words in enumerate(cases.KINDS.values()):
        describe(case, f"average_gradients(model), {words}", 3)
        check_average(case, [rank[index] for rank in ranks])
