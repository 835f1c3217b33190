"""The exercise “Average a metric”."""

import torch
import torch.distributed as dist

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson09 import cases


@exercise(
    where="real ranks on the CPU",
    minutes=8,
    difficulty=1,
    hints=(
        "Ranks may hold different numbers of values, so a mean of means is not the mean. Which two numbers decide?",
        "A sum and a count can be added up over the ranks, and a rank without values adds zero to both.",
        "Put both into one tensor, with torch.stack and values.new_tensor; dist.all_reduce adds in place. Divide once.",
    ),
)
def global_mean(values: torch.Tensor) -> torch.Tensor:
    """Return the mean over the values of all ranks, on every rank."""
    sum_and_count = torch.stack([values.sum(), values.new_tensor(len(values))])  # both can be added up
    dist.all_reduce(sum_and_count)
    return sum_and_count[0] / sum_and_count[1]


global_mean.exempt("the text says one dimension", "scalar permuted sliced")
global_mean.exempt(RANKS, "huge tiny not_finite")
global_mean.exempt(RANKS, "formats default_type second_call random_state two_ranks four_ranks part")


@global_mean.checks
def _(case: Case) -> None:
    why = "ranks hold different numbers of values, but a collective needs one shape on all: send the sum and the count"
    ranks = on_ranks(case, cases.each, cases.mean_columns, nprocs=3, called="global_mean(values)", why=why)
    for index, group in enumerate(cases.mean_columns(3)):
        short = [f"{len(values)} values" if len(values) > 5 else str(values.tolist()) for values in group]
        describe(case, f"global_mean(values) of {', '.join(short)}", 3)
        for rank, calls in enumerate(ranks):
            call, counts = calls[index], calls[index].counts
            check_call(case, call, rank)
            case.equal(call.value, torch.cat(group).mean(), what=f"rank {rank}'s result")
            nbytes = max([counts.message_bytes // max(counts.messages, 1), *counts.collective_bytes.values()])
            case.fail_if(
                nbytes > 2 * call.width,
                f"the result is right, but rank {rank} sends {nbytes:,} bytes for {len(group[rank]):,} values",
                "two numbers are enough, however many values there are: the sum and the count",
            )
            case.budget("collectives", counts.collectives.total(), 2, "each one waits for the slowest rank")
