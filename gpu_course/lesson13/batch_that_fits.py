"""The exercise “The largest batch that fits”."""

import math
from collections.abc import Callable

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.exemptions import TRAINING


class _Runs:
    """Says the peak of so many steps with a batch, as a run would: what a model, its optimizer and its batch need."""

    def __init__(self, weights: int, sample: int, workspace: int = 0, block: int = 1) -> None:
        self.weights, self.sample, self.workspace, self.block = weights, sample, workspace, block
        self.made: list[int] = []

    def __repr__(self) -> str:
        return "peak_of"

    def __call__(self, batch: int, steps: int) -> int:
        if batch < 1 or steps < 1:
            raise ValueError(f"a run needs a batch and steps from 1, not {batch} and {steps}")
        self.made.append(batch)
        return self.bytes_of(batch, steps)

    def bytes_of(self, batch: int, steps: int) -> int:
        """Return the peak: AdamW has no state before its first step, which adds two numbers for each weight."""
        states = 2 * self.weights if steps > 1 else 0
        activations = math.ceil(batch * self.sample / self.block) * self.block
        return states + self.weights + max(self.weights + activations, self.workspace)


@exercise(
    where="any machine: counted bytes",
    minutes=10,
    difficulty=2,
    hints=(
        "The peak of two steps contains the optimizer's state, the peak of one step does not. That peak and the room "
        "must fit together.",
        "Double the batch until it does not fit. The answer lies between the last batch that fitted and the first that "
        "did not.",
        "Let low be a batch that fits (0 at first) and high one that does not. While high - low > 1, try the middle: "
        "if it fits it becomes low, else it becomes high. Then return low.",
    ),
)
def batch_that_fits(peak_of: Callable, capacity: int, room: int) -> int:
    """Return the largest batch that leaves `room` of `capacity` free; 0 if none."""

    def fits(batch: int) -> bool:
        return peak_of(batch, 2) + room <= capacity  # the second step has the optimizer's state

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


batch_that_fits.exempt("bytes are whole numbers, from 0 on", "number_negative number_large")
batch_that_fits.exempt(TRAINING, "second_call unchanged")


@batch_that_fits.checks
def _(case: Case) -> None:
    edges.note("limit")  # a peak that fills the room exactly
    for runs, capacity, room in (
        (_Runs(100, 10), 1_000, 0),  # 60
        (_Runs(100, 10), 1_000, 150),  # 45
        (_Runs(400, 7, workspace=600, block=32), 4_000, 250),
        (_Runs(300, 90), 1_300, 10),  # 1 alone, which leaves exactly 10
        (_Runs(300, 90), 1_250, 0),  # none
        (_Runs(10, 3), 10_000, 40),  # thousands
    ):
        got = case.call(runs, capacity, room, modifies=True)
        tried = len(runs.made)
        fitting = [batch for batch in range(1, capacity) if runs.bytes_of(batch, 9) + room <= capacity]
        largest = max(fitting, default=0)
        case.equal(
            got,
            largest,
            why=f"its runs need {runs.bytes_of(max(largest, 1), 9)} bytes and {room} of room, of "
            f"{capacity}; one sample more does not fit"
            if largest
            else "batch 1 does not fit either: 0",
        )
        limit = max(30, 2 * largest.bit_length() + 10)  # "About 20 runs must be enough for a batch of hundreds."
        why = "each try is a run of your program: double the batch, then halve the range that is left"
        case.fail_if(tried > limit, f"the result is right, but it takes {tried} runs, and {limit} are enough", why)
