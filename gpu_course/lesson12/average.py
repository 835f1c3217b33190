"""The exercise “One message for all gradients”."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.gradients import averaged, check_average, odd, plain
from gpu_course.common.ranks import describe, on_ranks


@exercise(
    where="real ranks on the CPU",
    minutes=12,
    difficulty=2,
    hints=(
        "Every message has a latency, however small it is. So send all gradients in one tensor.",
        "torch.cat of the flattened gradients, one dist.all_reduce, which adds, and one division.",
        "split by each gradient's numel() gives the parts back; copy_ and view_as write one into its place.",
    ),
)
def average(model: nn.Module) -> None:
    """Replace each gradient of `model` by its mean over all ranks, with one message."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


average.exempt(RANKS, "default_type unchanged random_state four_ranks part")
average.exempt("the text says which model and which optimizer it is", "evaluation frozen all_frozen two_groups")
average.exempt("it changes what it is handed, or gets a function or a model", "second_call")
average.exempt("all ranks have the same model", "uneven")


@average.checks
def _(case: Case) -> None:
    for nprocs, kinds in ((3, _KINDS), (2, _KINDS[:1])):
        ranks = on_ranks(case, averaged, kinds, nprocs=nprocs, called="average(model)", known=nprocs == 3)
        for index, words in enumerate(_WORDS[: len(kinds)]):
            describe(case, f"average(model), {words}", nprocs)
            check_average(case, [rank[index] for rank in ranks])
            for rank, seen in enumerate(rank[index] for rank in ranks):
                # in place: the tensors that were the gradients hold the mean
                for name, value in seen["after"].items():
                    case.equal(
                        seen["held"][name],
                        value,
                        what=f"the tensor that was the gradient of {name} on rank {rank}",
                        why="in place: the mean belongs into that tensor",
                    )
                counts = seen["call"].counts  # send one message in all, by one dist.all_reduce
                case.budget("messages", counts.collectives.total() + counts.messages, 1, "each one has a latency")
                others = ", ".join(name for name in counts.collectives if name != "all_reduce")
                others = others or "all_reduce_coalesced" * seen["listed"]
                case.fail_if(others, f"calls {others}, expected all_reduce", "it takes one tensor, and gives the sum")


_KINDS = partial(nn.Linear, 3, 2), plain, odd
_WORDS = "one layer", "three layers", "a layer used twice, a transposed weight, and a number of 64 bits"
