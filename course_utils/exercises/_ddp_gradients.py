"""Which mistake is it, in gradients that are averaged over ranks or accumulated over micro-batches?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_utils.exercise import Case
from course_utils.exercises import _ddp_cases as cases
from course_utils.exercises._mistakes import name_first
from course_utils.exercises._ranks import Stuck

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
        case.mistake(not found["kept"], "changes the parameters", why)
        for name, got in found["after"].items():
            column = [other["before"][name] for other in ranks]
            if any(gradient is not None for gradient in column):
                _check_gradient(case, name, column, got, rank)
                continue
            why = "requires_grad is False: an optimizer with weight decay would now change it"
            case.mistake(got is not None and name in found["frozen"], f"gives the frozen {name} a gradient", why)
        size = sum(gradient.nbytes for gradient in found["after"].values() if gradient is not None)
        why = "a parameter that two layers share has one gradient: model.parameters() gives it once"
        for name, sent in found["call"].counts.collective_bytes.items():
            what = f"{name} takes {sent:,} bytes of gradients that have {size:,}"
            case.mistake(sent > size + _MORE, what, why)
        case.mistake(found["unfrozen"], "changes requires_grad of the frozen parameters", "they stay frozen later too")


def _check_gradient(case: Case, name: str, column: list[Any], got: Any, rank: int) -> None:
    """Check one gradient: `column` holds what each rank had, None where the parameter took no part."""
    given, n = [gradient for gradient in column if gradient is not None], len(column)
    total = torch.stack(given).sum(dim=0)
    expected, what = total / n, f"the gradient of {name} on rank {rank}"

    def close(wrong: torch.Tensor | None) -> bool:
        if wrong is None or not isinstance(got, torch.Tensor) or got.shape != expected.shape:
            return False
        near = torch.allclose(got, wrong, rtol=1e-4, atol=1e-7)
        return near and not torch.allclose(expected, wrong, rtol=1e-4, atol=1e-7)

    case.mistake(got is None and column[rank] is not None, f"{what} is gone", "the optimizer needs it")
    some = len(given) < n and close(total / len(given))
    name_first(case, expected, got, (
        (some, f"{what} is a mean over some ranks", "a rank where the parameter took no part counts as zero, as in "
         "DistributedDataParallel: divide by the world size"),
        (close(total), f"{what} is the sum", "divide by dist.get_world_size()"),
        (close(column[rank]), f"{what} is that of this rank alone",
         "all_reduce works in place, on the tensor that you hand to it; reduce tells one rank only"),
        (close(expected / n), f"{what} is divided twice", "divide once; ReduceOp.AVG divides already"),
        (len(given) < n and (got is None or not torch.allclose(got, expected, rtol=1e-4, atol=1e-7)),
         f"{what} is wrong: the parameter took part on {len(given)} of {n} ranks", _ZEROS),
    ))  # fmt: skip
    case.equal(got, expected, rtol=1e-4, why=f"this is {what}")


def check_accumulated(case: Case, found: dict[str, Any], rank: int, count: int, n: int) -> None:
    """Check what `_ddp_cases.accumulated` returned on a rank, after `count` micro-batches on each of `n` ranks."""
    times, after = len(found["synchronised"]), found["after"]
    by_hand = found["call"].counts.collectives["all_reduce"] - times
    case.mistake(
        not found["kept"], "changes the parameters", "the optimizer does that, when the gradients are complete"
    )
    _name_synchronisations(case, times, by_hand, count, bool(found["entered"]))
    mine, loss_fn = [cases.micro_batches(one, count) for one in range(n)], cases.loss_of(count)
    expected = _mean_gradients([batch for batches in mine for batch in batches], loss_fn)
    last = _mean_gradients([batches[-1] for batches in mine], loss_fn)
    stale = {name: gradient + 1 for name, gradient in expected.items()}

    def close(wrong: dict[str, torch.Tensor], scale: float = 1.0) -> bool:
        pairs = [(after[name], wrong[name] * scale) for name in wrong]
        return all(mine is not None and torch.allclose(mine, other, rtol=1e-3, atol=1e-6) for mine, other in pairs)

    several, first = count > 1, next(iter(expected))
    name_first(case, expected[first], after[first], (
        (several and close(expected, count), f"the gradient is {count} times too large",
         "the loss of each micro-batch is a mean already: divide each by their number"),
        (close(stale), "the old gradients are still in the sum", "backward() adds to .grad: clear it first"),
        (several and (close(last) or close(last, 1 / count)), "only the last micro-batch counts",
         "zero_grad inside the loop throws away what was accumulated: clear once, before it"),
        (close(expected, 1 / n), "the gradient is divided by the number of ranks twice",
         "DistributedDataParallel gives the mean over ranks already"),
    ))  # fmt: skip
    for name, gradient in expected.items():
        case.equal(after[name], gradient, rtol=1e-3, why=f"this is the gradient of {name} on rank {rank}")
    size = len(mine[0][0][0])
    what = f"the result is right, but {found['rows']} rows are computed at once, and a micro-batch has {size}"
    case.mistake(found["rows"] > size, what, "that needs the memory of the large batch, which accumulation is to save")
    what = f"the result is right, but the graphs of {found['graphs']} micro-batches are alive at once"
    case.mistake(found["graphs"] > 1, what, "call backward for each micro-batch before the next one")
    what = f"the result is right, but it synchronises {times + by_hand} times"
    case.mistake(times + by_hand > 1, what, "the gradients of all micro-batches can travel once, added up")
    case.mistake(found["left"], f"leaves {found['left']}", "code after it would behave differently")


def _name_synchronisations(case: Case, times: int, by_hand: int, count: int, entered: bool) -> None:
    often = f"synchronises {times} times for {count} micro-batches"
    why = "each backward pass of a DistributedDataParallel averages over the ranks, unless it runs under no_sync"
    case.mistake(times >= count > 1 and not entered, often, why)
    why = "the forward pass decides: call model(x) inside no_sync too, for all micro-batches but the last"
    case.mistake(times >= count > 1, f"{often}, in spite of no_sync", why)
    why = "after the step the ranks have different weights: run the last micro-batch without no_sync"
    case.mistake(not times and not by_hand, "never synchronises", why)


def _mean_gradients(batches: list[tuple[torch.Tensor, torch.Tensor]], loss_fn: Callable) -> dict[str, torch.Tensor]:
    """Return the gradients of the mean loss over `batches`, in one process."""
    model = cases.made("plain")
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss_fn(model(x), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}
