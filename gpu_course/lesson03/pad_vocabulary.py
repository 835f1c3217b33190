"""The exercise “Pad a vocabulary”."""

import math

import torch
from torch.nn import functional

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    title="Pad a vocabulary",
    minutes=8,
    difficulty=1,
    hints=(
        "How many rows are missing up to the next multiple? -rows % multiple is that number, 0 where none is missing.",
        "torch.nn.functional.pad takes pairs from the last dimension on: (left, right, above, below).",
        "Nothing to the left, to the right and above: three zeros, and the number of missing rows last.",
    ),
)
def pad_vocabulary(weight: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return `weight` with rows of zeros below, up to a multiple of `multiple` rows."""
    missing = -weight.shape[0] % multiple  # 0 where the vocabulary is a multiple already
    return functional.pad(weight, (0, 0, 0, missing))  # (left, right, above, below)


pad_vocabulary.exempt("the text says that the weight has two dimensions", "scalar")
pad_vocabulary.exempt("weights are floating-point numbers", "whole bool complex")
pad_vocabulary.exempt("a multiple is a small number above 0", "number_zero number_negative number_large")
pad_vocabulary.exempt("the text names the type: the weight's own", "default_type")


@pad_vocabulary.checks
def _(case: Case) -> None:
    edges.note("limit")  # a vocabulary that is a multiple already
    for weight, device in (  # "keep dtype and device", and each number of `weight`
        (edges.UGLY, case.device),
        (edges.permuted(edges.UGLY), case.device),
        (edges.sliced(edges.UGLY), case.device),
        (edges.UGLY.double(), case.device),
        (edges.UGLY.bfloat16(), case.device),
        (torch.ones(0, 4), case.device),
        (torch.ones(3, 1), case.device),
        (edges.UGLY, elsewhere(case.device)),
        (edges.UGLY, torch.device("cpu")),
    ):
        device = edges.supporting(device, weight)
        got = case.call(edges.on(weight, device), 3)
        case.equal(got, torch.cat((weight, torch.zeros(-len(weight) % 3, weight.shape[1]).to(weight))).to(device))
    for rows, width, multiple, half in (
        (5, 2, 8, False),
        (5, 2, 4, False),
        (8, 2, 4, False),
        (3, 4, 8, True),
        (257, 3, 64, False),
        (1, 1, 1, True),
        (100, 5, 12, False),
    ):
        weight = torch.randn(rows, width, dtype=torch.float16 if half else torch.float32)
        got = case.call(weight.to(case.device), multiple)
        expected = torch.zeros(multiple * math.ceil(rows / multiple), width, dtype=weight.dtype)
        expected[:rows] = weight
        below = got[rows:].cpu() if isinstance(got, torch.Tensor) and got.shape == expected.shape else expected[rows:]
        case.fail_if(below.any(), "fills the new rows with something else", "zeros are asked for")
        case.equal(got, expected.to(case.device))
        counts = case.counts
        case.fail_if(
            counts.bytes_d2h or counts.bytes_h2d or counts.host_reads,
            "moves values between host and device",
            "zeros can be written where they are needed: new_zeros, or device=",
        )


@pad_vocabulary.alternative("the new rows get a name, and could hold something else than zeros; one tensor more")
def _(weight, multiple):
    below = weight.new_zeros(-weight.shape[0] % multiple, weight.shape[1])  # same dtype, same device
    return torch.cat((weight, below))
