"""Which mistake is it, in gradients that are averaged over ranks or accumulated over micro-batches?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_utils.checks import Case
from course_utils.exercises.common.mistakes import name_first, name_unwaited
from course_utils.exercises.common.part_weights import part_weights, vector
from course_utils.exercises.common.ranks import Stuck
from course_utils.exercises.lesson09 import cases as cases

__all__ = ["check_accumulated", "check_average", "unused_stuck"]

_MORE = 256  # bytes that an answer may send beside gradients, to agree on which there are
_ZEROS = "a rank that skips it hands its next tensor to the same collective, or none: take part with zeros"


def unused_stuck(case: Case, stuck: Stuck) -> None:
    """Name what makes ranks wait or die where a parameter has a gradient on some ranks only."""
    case.fail(f"ranks call different collectives, some have no gradient to give\n{stuck.lines}", _ZEROS)


def check_average(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Check the gradients of one model; `ranks` holds what `_ddp_cases.gradients` returned on each rank."""
    for rank, found in enumerate(ranks):
        why = "average parameter.grad; it is the optimizer that changes the parameters, later"
        case.instead(not found["kept"], "changes the parameters", why)
        name_unwaited(case, found["call"], rank)
        for name, got in found["after"].items():
            column = [other["before"][name] for other in ranks]
            if any(gradient is not None for gradient in column):
                _check_gradient(case, name, column, got, rank)
                continue
            why = "requires_grad is False: an optimizer with weight decay would now change it"
            case.instead(got is not None and name in found["frozen"], f"gives the frozen {name} a gradient", why)
        size = sum(gradient.nbytes for gradient in found["after"].values() if gradient is not None)
        why = "each gradient travels once: model.parameters() gives a shared parameter once, and pickles are larger"
        for name, sent in found["call"].counts.collective_bytes.items():
            what = f"{name} takes {sent:,} bytes of gradients that have {size:,}"
            case.instead(sent > size + _MORE, what, why)
        case.instead(found["unfrozen"], "changes requires_grad of the frozen parameters", "they stay frozen later too")


def _check_gradient(case: Case, name: str, column: list[Any], got: Any, rank: int) -> None:
    """Check one gradient: `column` holds what each rank had, None where the parameter took no part."""
    given, n = [gradient for gradient in column if gradient is not None], len(column)
    total = torch.stack(given).sum(dim=0)
    expected, what = total / n, f"the gradient of {name} on rank {rank}"

    factor = float((got * total).sum() / total.square().sum()) if _fits(got, total) else 0.0
    divided = f" divided by {1 / factor:.3g}" if factor > 0 and abs(factor - 1) > 1e-3 else ""

    def close(wrong: torch.Tensor | None) -> bool:
        if wrong is None or not _fits(got, expected):
            return False
        near = torch.allclose(got, wrong, rtol=1e-4, atol=1e-7)
        return near and not torch.allclose(expected, wrong, rtol=1e-4, atol=1e-7)

    case.instead(got is None and column[rank] is not None, f"{what} is gone", "the optimizer needs it")
    some = len(given) < n and close(total / len(given))
    name_first(case, expected, got, (
        (some, f"{what} is a mean over some ranks", "a rank where the parameter took no part counts as zero, as in "
         "DistributedDataParallel: divide by the world size"),
        (close(total * factor), f"{what} is the sum{divided}",
         f"divide it by dist.get_world_size(), here {n}, once; ReduceOp.AVG divides already"),
        (close(column[rank]), f"{what} is that of this rank alone",
         "all_reduce works in place, on the tensor that you hand to it; reduce tells one rank only"),
        (len(given) < n and (got is None or not torch.allclose(got, expected, rtol=1e-4, atol=1e-7)),
         f"{what} is wrong: the parameter took part on {len(given)} of {n} ranks", _ZEROS),
    ))  # fmt: skip
    later = _fits(got, expected) and rank > 0 and not torch.allclose(got, expected, rtol=1e-4, atol=1e-7)
    case.instead(later, f"rank 0 has the mean for {name}, rank {rank} has not",
                 "reduce gives the sum to one rank, and what the others then hold is not to be used: all_reduce",
                 expected=expected, got=got)  # fmt: skip
    case.equal(got, expected, rtol=1e-4, why=f"this is {what}")


def _fits(got: Any, expected: torch.Tensor) -> bool:
    return isinstance(got, torch.Tensor) and got.shape == expected.shape


def check_accumulated(case: Case, ranks: list[dict[str, Any]], count: int) -> None:
    """Check what `_ddp_cases.accumulated` returned on each rank, after `count` micro-batches on each."""
    n, loss_fn = len(ranks), cases.loss_of(count)
    mine = [cases.micro_batches(rank, count) for rank in range(n)]
    means = [_mean_gradients(batches, loss_fn) for batches in zip(*mine, strict=True)]
    expected = {name: sum(mean[name] for mean in means) / count for name in means[0]}
    for rank, found in enumerate(ranks):
        times, after = len(found["synchronised"]), found["after"]
        by_hand = found["call"].counts.collectives["all_reduce"] - times
        case.instead(not found["kept"], "changes the parameters",
                     "the optimizer does that, when the gradients are complete")  # fmt: skip
        _name_synchronisations(case, times, by_hand, count, bool(found["entered"]))
        if all(gradient is not None for one in ranks for gradient in one["after"].values()):
            _name_sum(case, [one["after"] for one in ranks], expected, means, rank)
        for name, gradient in expected.items():
            why = "the optimizer needs it: no zero_grad after the last backward()"
            case.instead(after[name] is None, f"{name} has no gradient on rank {rank}", why)
            case.equal(after[name], gradient, rtol=1e-3, why=f"this is the gradient of {name} on rank {rank}")
        _cost(case, found, len(mine[0][0][0]), times + by_hand)


def _name_sum(case: Case, afters: list[dict], expected: dict, means: list[dict[str, torch.Tensor]], rank: int) -> None:
    """Fail with the name of what was added up instead of the mean gradient of all micro-batches, if it is known."""
    count, right = len(means), vector(expected.values())
    got, *others = [vector(after.values()) for after in (afters[rank], *afters)]
    apart = [n for n, other in enumerate(others) if not torch.allclose(got, other, rtol=1e-3, atol=1e-6)]
    stale = torch.allclose(got, right + 1, rtol=1e-3, atol=1e-6)
    weights = part_weights(got, [vector(mean.values()) for mean in means])
    name = next(iter(expected))
    shown = expected[name], afters[rank][name]
    wrong = bool(weights) and any(abs(weight * count - 1) > 1e-3 for weight in weights)
    words, plural = ", ".join(f"{round(weight, 6) + 0.0:.3g}" for weight in weights), "es" if count > 1 else ""
    name_first(case, *shown, (
        (apart, f"rank {rank} and rank {max(apart, default=rank)} have different gradients",
         "what is added after the synchronisation stays on its rank: the last micro-batch synchronises"),
        (stale, "the old gradients are still in the sum", "backward() adds to .grad: clear it first"),
        (wrong and count > 1 and all(abs(weight - 1) < 1e-3 for weight in weights),
         f"the gradient is {count} times too large",
         "the loss of each micro-batch is a mean already: divide each by their number"),
        (wrong and count > 1 and not any(abs(weight) > 1e-3 for weight in weights[:-1]),
         "only the last micro-batch counts",
         "zero_grad inside the loop throws away what was accumulated: clear once, before it"),
        (wrong, f"the micro-batch{plural} count{'' if plural else 's'} {words} times, expected {1 / count:g} each",
         "divide each loss by the number of micro-batches; DistributedDataParallel gives the mean over ranks already"),
    ))  # fmt: skip


def _cost(case: Case, found: dict[str, Any], rows: int, times: int) -> None:
    """Check what a right result took: rows at once, graphs at once, synchronisations; and what was left changed."""
    what = f"the result is right, but {found['rows']} rows are computed at once, and a micro-batch has {rows}"
    case.instead(found["rows"] > rows, what, "that needs the memory of the large batch, which accumulation is to save")
    what = f"the result is right, but the graphs of {found['graphs']} micro-batches are alive at once"
    case.instead(found["graphs"] > 1, what, "call backward for each micro-batch before the next one")
    what = f"the result is right, but it synchronises {times} times"
    case.instead(times > 1, what, "the gradients of all micro-batches can travel once, added up")
    case.instead(found["left"], f"leaves {found['left']}", "code after it would behave differently")


def _name_synchronisations(case: Case, times: int, by_hand: int, count: int, entered: bool) -> None:
    often = f"synchronises {times} times for {count} micro-batches"
    why = "each backward pass of a DistributedDataParallel averages over the ranks, unless it runs under no_sync"
    case.instead(times >= count > 1 and not entered, often, why)
    why = "the forward pass decides: call model(x) inside no_sync too, for all micro-batches but the last"
    case.instead(times >= count > 1, f"{often}, in spite of no_sync", why)
    why = "after the step the ranks have different weights: run the last micro-batch without no_sync"
    case.instead(not times and not by_hand, "never synchronises", why)


def _mean_gradients(batches: list[tuple[torch.Tensor, torch.Tensor]], loss_fn: Callable) -> dict[str, torch.Tensor]:
    """Return the gradients of the mean loss over `batches`, in one process."""
    model = cases.made("plain")
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss_fn(model(x), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}
