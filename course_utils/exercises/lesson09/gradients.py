"""Are the gradients right that were averaged over ranks or accumulated over micro-batches, and what did they take?"""

from typing import Any

import torch

from course_utils.checks import Case
from course_utils.exercises.common.ranks import check_call
from course_utils.exercises.lesson09 import cases as cases

_MORE = 256  # bytes that an answer may send beside gradients, to agree on which there are
# fmt: off


def check_average(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check the gradients of one model; `ranks` holds what `cases.gradients` returned of it on each rank."""
    for rank, found in enumerate(ranks):
        case.instead(found["weights"], "changes the parameters",
                     "average parameter.grad; it is the optimizer that changes the parameters, later")
        check_call(case, found["call"], rank)
        for name, got in found["after"].items():
            given = [one["before"][name] for one in ranks if one["before"][name] is not None]
            if given:
                what = f"the gradient of {name} on rank {rank}"
                case.instead(got is None, f"{what} is None", "where it took no part it counts as zero")
                case.equal(got, sum(given) / len(ranks), rtol=1e-4, why=f"this is {what}")
            else:
                case.instead(got is not None, f"gives the frozen {name} a gradient",
                             "requires_grad is False: an optimizer with weight decay would now change it")
        size = sum(gradient.nbytes for gradient in found["after"].values() if gradient is not None)
        sent, name = max([(sent, name) for name, sent in found["call"].counts.collective_bytes.items()] + [(0, "")])
        case.instead(sent > size + _MORE, f"{name} takes {sent:,} bytes of gradients that have {size:,}",
                     "each gradient travels once: model.parameters() gives a shared parameter once, and pickles are "
                     "larger")
        case.instead(found["unfrozen"], "changes requires_grad of the frozen parameters", "they stay frozen later too")


def check_accumulated(case: Case, ranks: list[dict[str, Any]], count: int) -> None:
    """Check what `cases.accumulated` returned on each rank, after `count` micro-batches on each."""
    micro = [one for rank in range(len(ranks)) for one in cases.micro_batches(rank, count)]
    model, rows = cases.seeded(cases.plain), len(micro[0][0])
    for x, y in micro:
        (cases.loss_of(count)(model(x), y) / len(micro)).backward()
    for rank, found in enumerate(ranks):
        times, right = found["call"].counts.collectives["all_reduce"], "the result is right, but"
        case.instead(found["weights"], "changes the parameters",
                     "the optimizer does that, when the gradients are complete")
        case.instead(times == count > 1, f"synchronises {times} times for {count} micro-batches", "a backward pass "
                     "averages unless it, and the forward pass before it, run under no_sync: all but the last")
        case.instead(not found["call"].counts.collectives, "never synchronises", "the ranks would step apart: the last "
                     "backward() averages, without no_sync, if its forward pass was model(x), not model.module(x)")
        for name, parameter in model.named_parameters():
            got, other = found["after"][name], ranks[1 - rank]["after"][name]
            case.instead(got is None, f"{name} has no gradient on rank {rank}",
                         "the optimizer needs it: no zero_grad after the last backward()")
            apart = got is not None and other is not None and not torch.allclose(got, other, rtol=1e-3, atol=1e-6)
            case.instead(apart, f"rank 0 and rank 1 have different gradients of {name}", "what is added after the "
                         "synchronisation stays on its rank: the last micro-batch synchronises",
                         expected=other, got=got)
            case.equal(got, parameter.grad, rtol=1e-3, why=f"this is the gradient of {name} on rank {rank}")
        case.instead(found["rows"] > rows, f"{right} {found['rows']} rows are computed at once, and a micro-batch has "
                     f"{rows}", "that needs the memory of the large batch, which accumulation is to save")
        case.instead(found["graphs"] > 1, f"{right} the graphs of {found['graphs']} micro-batches are alive at once",
                     "call backward for each micro-batch before the next one")
        case.instead(times > 1, f"{right} it synchronises {times} times",
                     "the gradients of all micro-batches can travel once, added up")
        for what, there in found["left"].items():
            case.instead(there, f"leaves {what}", "code after it would behave differently")
