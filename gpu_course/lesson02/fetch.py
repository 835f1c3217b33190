"""The exercise “Bring results back, wait once”."""

from collections.abc import Callable

import torch

from course_utils import counting
from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    title="Bring results back, wait once",
    minutes=10,
    difficulty=2,
    hints=(
        "Two rounds: first start every copy, then wait.",
        "To copy to the CPU while the host goes on, you need a keyword of `.to`, which `.cpu()` does not have.",
        "Make a list of the results of `.to` with non_blocking=True. Below it call synchronize(), and then return.",
    ),
)
def fetch(tensors: list[torch.Tensor], synchronize: Callable[[], None]) -> list[torch.Tensor]:
    """Return CPU copies of `tensors`: start every copy, then wait once."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # each call returns at once
    synchronize()  # now all of them have arrived
    return copies


fetch.exempt("the text says float32", "half bfloat16 double whole bool complex default_type")
fetch.exempt("on the CPU, and without a tensor, there is nothing to fetch", "cpu no_entries")
fetch.exempt("it is handed a function", "second_call")


@fetch.checks
def _(case: Case) -> None:
    ugly = [
        edges.on(x, case.device)
        for x in (edges.UGLY, edges.permuted(edges.UGLY), edges.sliced(edges.UGLY), torch.ones(0, 3))
    ]
    shapes = ((4,),), ((2, 3), (5,)), ((2**16,), (3, 2), ()), ((7,),) * 12, ((1,), (5,), (3,))
    drawn = [[torch.rand(shape).to(case.device) for shape in group] for group in shapes]
    far = elsewhere(case.device)
    for tensors in (*drawn, ugly, ugly[::-1], [torch.rand(3, device=far)]):
        device = tensors[0].device
        with counting.count() as before:
            synchronize = _noting(device, before)
            got = case.call(tensors, synchronize)
        copies, asked = [copy for copy in case.counts.copies if copy.direction == "d2h"], synchronize.asked
        held = sum(not copy.non_blocking for copy in copies) + case.counts.host_reads
        case.fail_if(
            held,
            "holds the host in a copy or a read",
            f"copies and reads that make the host wait: {held}; one with non_blocking=True does not",
        )
        case.fail_if(
            copies and not asked,
            "never calls the `synchronize` that it was given",
            "nothing else has to wait until the values have arrived: call it before the return",
        )
        case.fail_if(
            copies and len(asked) > 1,
            "waits more than once",
            f"{len(asked)} waits: start all copies first, then wait for all of them",
        )
        case.fail_if(
            copies and asked[0] < len(copies),
            "waits before all copies are started",
            "what is started after synchronize() may arrive after the return",
        )
        case.equal(
            got,
            [tensor.cpu() for tensor in tensors],
            why="the same tensors on the CPU, in order, in a list, and not used before they have arrived",
        )


def _noting(device: torch.device, counts: counting.Counts) -> Callable[[], None]:
    """Return a function that waits for `device`, and keeps in `asked` how many copies had been started each time."""

    def synchronize() -> None:
        synchronize.asked.append(counts.copies_d2h)
        torch.accelerator.synchronize(device)

    synchronize.asked = []
    return synchronize


@fetch.alternative("one copy pays one latency, and the joined tensor takes memory on the device")
def _(tensors, synchronize):
    joined = torch.cat([tensor.flatten() for tensor in tensors]).to("cpu", non_blocking=True)
    synchronize()
    parts = joined.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
