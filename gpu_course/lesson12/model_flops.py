"""The exercise “The FLOPs of a step”."""

import torch

from course_utils import counting
from gpu_course.checks import Case, exercise
from gpu_course.lesson12.program import case_of, given


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "A linear layer from a to b numbers takes 2 a b operations for a token: a product and a sum for each weight.",
        "A block has W × 3W, W × W, W × 4W and 4W × W, the last layer W × 256. Attention multiplies, for each token "
        "and block, with all places of the context, twice: for the scores, and for the mixture.",
        "The backward pass takes twice what the forward pass takes: one product for the gradient of the input, and one "
        "for the gradient of the weight.",
    ),
)
def model_flops(width: int, layers: int, context: int, rows: int) -> int:
    """Return the operations in matrix products of one step on (rows, context)."""
    weights = layers * 12 * width**2 + 256 * width
    attention = layers * 2 * context * width  # scores and mixture, for each token
    return 3 * 2 * rows * context * (weights + attention)


model_flops.exempt("sizes are small numbers above 0", "number_zero number_negative number_large limit")


@model_flops.checks
def _(case: Case) -> None:
    program = case_of(given()).load()
    for width, layers, context, rows in ((4, 1, 3, 1), (2, 1, 1, 1), (8, 2, 5, 3), (16, 3, 4, 2), (12, 1, 7, 2)):
        got = case.call(width, layers, context, rows)
        model = program.run("make_model", width, 2, layers, context)
        with counting.count() as counts:
            model(torch.zeros(rows, context, dtype=torch.int64)).sum().backward()
        case.equal(got, counts.flops, why="this is what PyTorch counts in a step of the given program")
    wide, long = 12_289, 8_191  # products that no float holds to the last digit
    forward = [2 * long * wide * each for each in (3 * wide, wide, 4 * wide, 4 * wide, long, long)] * 96
    expected = 64 * 3 * sum([*forward, 2 * long * wide * 256])
    case.equal(case.call(wide, 96, long, 64), expected, rtol=0, atol=0, why="integers in Python are exact")
