"""Which state of a text was taken, and which future does a mask let through?"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from course_utils.checks import Case
from course_utils.exercises.common.mistakes import name_first

__all__ = ["leak_of", "wrong_state"]

# fmt: off


def wrong_state(case: Case, rows: torch.Tensor, lengths: list[int], expected: torch.Tensor, got: Any) -> None:
    """Fail with the name of the state that was taken instead, if it is known."""
    mine, last = got.detach().cpu(), torch.tensor(lengths)
    each, time = torch.arange(len(rows)), rows.shape[1]
    inside_text = torch.arange(time) < last[:, None]

    def is_(wrong: torch.Tensor) -> bool:
        alike = (mine.shape, mine.dtype) == (wrong.shape, wrong.dtype)
        return not torch.equal(expected, wrong) and alike and torch.allclose(mine, wrong)

    swap = "batch_first=True puts the texts first: states[text, place]"
    inside = int(last.max()) <= len(rows) <= time
    name_first(case, expected.to(got.device), got.detach(), (
        (is_(rows[:, -1]), "takes the last padded step", "it depends on the padding behind the shorter texts"),
        (is_(rows[:, max(lengths) - 1]) or is_((rows * inside_text[..., None])[:, max(lengths) - 1]),
         "takes the last step of the longest text", "a shorter text ends before it: each has its own length"),
        (is_(rows[-1]), "takes batch for time", swap),
        (inside and is_(rows[last - 1, each]), "takes batch for time", swap),
        (max(lengths) < time and is_(rows[each, last]), "takes the step after the last", "places count from 0"),
        (is_(rows[each, last - 2]), "takes the step before the last", "the last token of length n is at place n - 1"),
        (is_(rows[:, 0]), "takes the first step", "that state has read one token"),
        (is_(rows[each, -last]), "counts from the end", "the texts begin at place 0; the padding is at the end"),
        (is_(rows[:, last - 1]), "takes every length from every text",
         "a `:` beside an index tensor takes all: two index tensors of the same length go together, in pairs"),
        (is_(torch.einsum("bth,bt->bh", rows, inside_text / last[:, None])) or is_(rows.mean(1)),
         "averages the states", "the last one has read the whole text"),
        (mine.flatten().equal(expected[:, 0]), "takes one number of each state",
         "a state has several: an index for gather must be as wide as a state"),
        (mine.shape != expected.shape and mine.flatten().equal(expected.flatten()),
         f"gives the right states in the shape {tuple(mine.shape)}", "(batch, hidden) is asked for, for one text too"),
    ))


def leak_of(mask: torch.Tensor) -> str:
    """Return which output a change of which later token changes, or nothing; `mask` is a square on the CPU."""
    time = len(mask)
    q, k, v = torch.randn(3, 1, time, 4)
    before = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0]
    for later in range(1, time):
        changed = v.clone()
        changed[0, later] += 1
        after = F.scaled_dot_product_attention(q, k, changed, attn_mask=mask)[0]
        for row in range(later):
            if not torch.equal(before[row].nan_to_num(), after[row].nan_to_num()):
                return f"a change at place {later} changes the output at place {row}"
    return ""
