"""The exercise “Accumulate with one synchronisation”."""

from collections.abc import Callable

from torch.nn.parallel import DistributedDataParallel

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import describe, on_ranks
from gpu_course.lesson09 import cases, training


@exercise(
    where="real ranks on the CPU",
    minutes=10,
    difficulty=2,
    hints=(
        "Clear the gradients first. Which of the backward passes should exchange gradients, and which should not?",
        "Each loss is a mean over its micro-batch. For the mean over all micro-batches, divide each loss by their "
        "number.",
        "All micro-batches but the last, batches[:-1], run forward and backward inside model.no_sync(). The last one "
        "runs outside of it.",
    ),
)
def accumulate(model: DistributedDataParallel, batches: list, loss_fn: Callable) -> None:
    """Leave the gradient of the mean loss in `.grad`, with one synchronisation."""

    def backward(x, y):
        loss = loss_fn(model(x), y) / len(batches)
        loss.backward()  # adds to what is there

    model.zero_grad()
    for batch in batches[:-1]:
        with model.no_sync():  # the forward pass too: it decides whether its backward pass synchronises
            backward(*batch)
    backward(*batches[-1])  # all ranks average the sum


accumulate.exempt("a micro-batch is what the model takes", "scalar empty single permuted sliced")
accumulate.exempt(
    RANKS,
    "huge tiny not_finite zero tied formats",
    "default_type no_entries order second_call unchanged random_state three_ranks four_ranks part uneven",
)
accumulate.exempt(
    "only gradients are asked, whatever the model is",
    "evaluation frozen all_frozen shared two_groups double_model scalar_parameter",
)


@accumulate.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case, cases.accumulated, nprocs=2, called="accumulate(model, micro-batches, loss_fn)", compiler=True
    )
    for index, count in enumerate(cases.MICRO_BATCHES):
        number = f"{count} micro-batch{'es' if count > 1 else ''}"
        describe(case, f"accumulate(model, {number}, {cases.loss_of(count).__name__})", 2)
        training.check_accumulated(case, [rank[index] for rank in ranks], count)
