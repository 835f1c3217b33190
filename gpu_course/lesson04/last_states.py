"""The exercise “Take the right hidden state”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import detached, elsewhere


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "The last token of text i is at place lengths[i] - 1.",
        "Two index tensors of the same length pick one element for each pair: states[rows, places].",
        "One index counts the texts, torch.arange on the device of the states; the other comes from the lengths.",
    ),
)
def last_states(states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the state after each text's own last token, shape (batch, hidden)."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows, lengths - 1]  # one place for each row; the padding behind it is not looked at


last_states.exempt("the text says which shapes there are, and there is a text", "scalar empty")
last_states.exempt("states are real numbers, and what lies behind the last token is padding", "bool complex")
last_states.exempt("nothing is made, so no default is asked", "default_type")
last_states.exempt("states are numbers: whoever adds up states times 0 or 1 is right too", "not_finite")


@last_states.checks
def _(case: Case) -> None:
    for batch, time, lengths in (
        (2, 3, [2, 1]),
        (3, 5, [2, 1, 3]),
        (2, 3, [3, 1]),
        (1, 4, [4]),
        (5, 2, [2, 1, 2, 1, 1]),
        (3, 4, [2, 3, 2]),
    ):
        states = torch.randn(batch, time, 2).to(case.device).requires_grad_()
        got = case.call(states, torch.tensor(lengths).to(case.device))
        why = "it waits for a length, or to count what a mask lets through: pick with two index tensors"
        case.fail_if(case.counts.host_reads, "lets the host read a value", why)
        why = "it is copied to the device in every call: torch.arange(n, device=states.device)"
        case.fail_if(case.counts.copies_h2d, "makes an index on the CPU", why)
        expected = torch.stack([states.detach().cpu()[i, length - 1] for i, length in enumerate(lengths)])
        why = "(batch, hidden): for each text its state at place lengths - 1"
        case.equal(detached(got), expected.to(case.device), why=why)
        case.fail_if(not got.requires_grad, "cuts the gradient", "the LSTM learns through this state")
    large = torch.cat((edges.UGLY.clamp(-6e4, 6e4), torch.randn(2, 4))).view(2, 4, 2)
    turned = torch.randn(4, 3, 2).transpose(0, 1)  # as an LSTM gives it with the time first
    for states, lengths, device in (
        (large, [1, 4], case.device),
        (turned, [4, 1, 2], case.device),
        (edges.sliced(large), [3, 2], case.device),
        (torch.randn(2, 1, 1), [1, 1], case.device),
        (large.double(), [3, 2], case.device),
        (large.half(), [3, 2], case.device),
        (large.bfloat16(), [3, 2], case.device),
        (large, [2, 2], elsewhere(case.device)),
        (large, [2, 2], torch.device("cpu")),
    ):
        device = edges.supporting(device, states)
        index = torch.tensor(lengths, dtype=torch.int64)
        got = case.call(edges.on(states, device), index.to(device))
        case.equal(got, torch.stack([states[i, length - 1] for i, length in enumerate(lengths)]).to(device))
