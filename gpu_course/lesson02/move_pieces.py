"""The exercise “One copy instead of N”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=7,
    difficulty=2,
    hints=(
        "Three steps: join the pieces on the host, copy once, take them apart on the device.",
        "torch.cat(pieces).to(device) is the one copy. Views take it apart, and copy nothing.",
        "Keep the length of each piece. Call `split` with these lengths on the tensor that was moved, then list().",
    ),
)
def move_pieces(pieces: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of `pieces` on `device`, moved with one copy."""
    lengths = [len(piece) for piece in pieces]
    joined = torch.cat(pieces).to(device)  # latency is paid once
    return list(joined.split(lengths))  # views: nothing is copied again


move_pieces.exempt("the text says one-dimensional", "scalar permuted")
move_pieces.exempt("the text says float32", "half bfloat16 double whole bool complex default_type")
move_pieces.exempt("without a piece there is nothing to move", "no_entries")


@move_pieces.checks
def _(case: Case) -> None:
    ugly = [edges.UGLY[0], edges.UGLY[1, :2], edges.sliced(edges.UGLY[1]), edges.UGLY[:, 0]]
    rows = []
    for device, lengths in (
        *((case.device, lengths) for lengths in ((2, 3, 1), (4,), (5, 1, 0, 7), (6, 6, 6))),
        (case.device, tuple(range(1, 33))),
        (elsewhere(case.device), (1, 2)),
    ):
        rows.append((device, [torch.rand(length) for length in lengths]))
    for device, pieces in (*rows, (case.device, ugly), (case.device, ugly[::-1])):
        lengths = [len(piece) for piece in pieces]
        got = case.call(pieces, device)
        why = "the caller wants the pieces back: tensor.split(lengths) gives views"
        case.fail_if(isinstance(got, torch.Tensor), "returns one tensor, not a list", why, got=got)
        case.fail_if(type(got) is tuple, "returns a tuple, not a list", "split gives a tuple: list(…) makes the list")
        copies, back = case.counts.copies_h2d, case.counts.copies_d2h + case.counts.host_reads
        why = f"{copies} copies pay the latency {copies} times: join the pieces first, then copy once"
        case.fail_if(len(lengths) > 2 and copies >= len(lengths) - lengths.count(0), "copies each piece", why)
        case.equal(got, [piece.to(device) for piece in pieces])
        case.budget("copies from the host", copies, 1, "each pays the latency again")
        case.budget("reads or copies back to the host", back, 0, "the lengths are known on the host already")
