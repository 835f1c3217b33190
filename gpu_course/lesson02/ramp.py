"""The exercise “Create on the device”."""

import torch

from gpu_course.checks import Case, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=6,
    difficulty=1,
    hints=(
        "One of the functions that create tensors makes even steps, both ends included. It takes `device=`.",
        "torch.linspace makes one row. Another method makes the other rows from it, on the device: no list, no loop.",
        "torch.linspace with `columns` numbers is one row. Tell `repeat` how often you want it downwards, then across.",
    ),
)
def ramp(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return (rows, columns) numbers on `device`, each row evenly from 0 to 1."""
    row = torch.linspace(0, 1, columns, dtype=torch.float32, device=device)  # created where it is needed
    return row.repeat(rows, 1)  # the device itself writes the other rows


ramp.exempt("from 0 to 1 there are two columns or more; a size is a small number", "number_negative number_large limit")
ramp.exempt("PyTorch makes float32 as long as nobody changes that, and no lesson does", "default_type")


@ramp.checks
def _(case: Case) -> None:
    for device in (case.device, elsewhere(case.device), torch.device("cpu")):
        for rows, columns in ((2, 3), (1, 2), (4, 11), (2, 7), (3, 10), (1, 22), (2, 50), (1, 97), (2, 1001), (0, 4)):
            got = case.call(rows, columns, device)
            sent = case.counts.bytes_h2d
            why = (
                "the device can write these numbers itself: give device= to the function that creates them. Python "
                "numbers in a list are on the host too"
            )
            case.fail_if(sent, f"creates it on the CPU and copies {sent} bytes to the device", why)
            why = "the host must then wait for the device; nothing here needs to be read"
            case.fail_if(case.counts.bytes_d2h or case.counts.host_reads, "brings values back to the host", why)
            why = "each row runs from 0 to 1 in even steps, on the `device` that is asked for"
            case.equal(got, torch.linspace(0, 1, columns).expand(rows, columns).to(device), why=why)
