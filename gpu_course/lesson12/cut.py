"""The exercise “Windows in one copy”."""

import torch

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=8,
    difficulty=1,
    hints=(
        "Gather all windows on the host, while they are bytes. Then one copy carries them all.",
        "A tensor of places is an index: text[places] has the shape of places. Each window is its start and the next "
        "`context` places.",
        "starts[..., None] + torch.arange(context + 1) has a row of places for each start. Index, .to(device), and "
        "last .long().",
    ),
)
def cut(text: torch.Tensor, starts: torch.Tensor, context: int, device: torch.device) -> torch.Tensor:
    """Return the windows of `text` at `starts` (...): (..., context + 1), one copy."""
    windows = text[starts[..., None] + torch.arange(context + 1)]  # on the host, still bytes
    return windows.to(device).long()  # made wide where memory is fast


_TEXT = torch.tensor([7, 1, 9, 4, 250, 6, 3, 8, 2, 5, 11, 13], dtype=torch.uint8)


cut.exempt(TRAINING, "empty tiny not_finite negative")
cut.exempt(TRAINING, "half bfloat16 double bool complex default_type number_negative number_large limit")


@cut.checks
def _(case: Case) -> None:
    long = (torch.arange(70_000) % 251).to(torch.uint8)  # a place is more than 16 bits count
    for device, text, starts, context in (
        (case.device, _TEXT, torch.tensor([0]), 2),
        (case.device, _TEXT, torch.tensor(4), 0),  # `starts` may have any shape: no dimension, and `context` none more
        (case.device, _TEXT, torch.tensor([9, 1]), 2),  # the last byte of the text is the last of a window
        (elsewhere(case.device), _TEXT, torch.tensor([5, 0, 7]), 4),  # on `device`, whichever that is
        (torch.device("cpu"), _TEXT, torch.tensor([[2, 4], [6, 0]]), 3),
        (case.device, _TEXT[::2], torch.tensor([[2, 1, 0], [3, 1, 2]]).T, 2),  # neither has to be contiguous
        (case.device, long, torch.tensor([[[69_699], [3]]]), 300),  # a window is longer than 8 bits count
    ):
        got = case.call(text, starts, context, device)
        counts = case.counts
        expected = torch.stack([text[start : start + context + 1] for start in starts.flatten().tolist()]).long()
        case.equal(got, expected.view(*starts.shape, context + 1).to(device))
        # copy to the device once, and at most one byte for each element of the windows
        case.budget("copies to the device", counts.copies_h2d, 1, "each one has a latency, and makes the host wait")
        case.fail_if(
            counts.bytes_h2d > expected.numel(),
            f"the result is right, but {counts.bytes_h2d} bytes travel for {expected.numel()} of text",
            "a number of 8 bytes for each byte: make it wide on the device",
        )
