"""The host waits for a value: `.item()`, `print`, `.cpu()`, `if loss > …`, a check of arguments."""

from simgpu.clock.events import LOADING
from simgpu.reports.rule import WaitRule

_ADVICE = {  # by what PyTorch itself needs, or the program ("wait")
    "wait": "After that the GPU has nothing to do until the host launches again. Read the value less often, or later.",
    "size": "No value is read in this line, but an operation needs one on the host, such as how many elements a mask "
    "of booleans picks. `torch.where` needs none.",
    "check": "PyTorch reads the arguments of this distribution to check them. Once the program is right, write "
    "`validate_args=False`, or call `torch.distributions.Distribution.set_default_validate_args(False)`.",
}


class HostWaits(WaitRule):
    cure = "read it less often, or later"

    @staticmethod
    def advice(cause: str, asking: str) -> str:
        is_other = cause == LOADING or "the GPU waits for" in cause or "to the GPU" in cause
        return "" if is_other else _ADVICE.get(asking, "")
