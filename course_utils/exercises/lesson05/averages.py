"""Which average of the batches is this, instead of that over all samples?"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["average_mistake"]

# fmt: off


def average_mistake(
    got: float, means: Sequence[float], sizes: Sequence[int], *, share: bool = False
) -> tuple[str, str]:
    """Return the name of what `got` is instead of the mean over all samples and why it matters, or two empty texts.

    `means` are the means of the batches, `sizes` their numbers of samples; a `share` lies between 0 and 1.
    """
    total, number = sum(m * s for m, s in zip(means, sizes, strict=True)), len(sizes)
    each = "each batch has its own size"
    right, before_last = total / sum(sizes), sizes[0] * (number - 1)
    wrongs = [
        (sum(means) / number, "takes the mean of the batches' means", "a sample of a small batch would count more"),
        (total, "does not divide by the number of samples", "this is the sum over all of them"),
        (total / number, "divides by the number of batches", "the sum is one over samples"),
        (total / sizes[-1], "divides by the size of the last batch", "count all samples: += instead of ="),
        (means[-1] * sizes[-1] / sum(sizes), "counts the last batch alone", "add up over the batches: += instead of ="),
        (sum(means) / sum(sizes), "does not weigh each batch by its size", "the mean of 4 samples stands for 4"),
        (means[-1], "gives the last batch alone", "all samples are asked for: add up over the batches"),
        (means[0], "gives the first batch alone", "all samples are asked for: does the loop end too early?"),
        (total / (number * sizes[0]), "takes all batches for equally large", each),
        ((sum(means[:-1]) * sizes[0] + means[-1] * sizes[-1]) / (before_last + sizes[-1]),
         "takes all batches but the last for equally large", each),
    ]
    if share:
        wrongs += [(100 * right, "returns per cent", "the share is a number from 0 to 1"),
                   (1 - right, "gives the share of wrong answers", "that of right ones is asked for")]
    for wrong, name, why in wrongs:
        if abs(got - wrong) < 1e-5 * max(1.0, abs(wrong)) and abs(wrong - right) > 1e-4:
            return name, why
    return "", ""
