"""Alerts of `torch.use_deterministic_algorithms(True)` for operators without a deterministic kernel on CUDA.

Which operators these are says `operator_table`.

Sources: that function's docstring, the functions `test_nondeterministic_alert_…` in PyTorch's test/test_torch.py, and
the calls of `alertNotDeterministic` in its code for CUDA, from which the words come. Where the code takes another way
instead, as for bilinear interpolation, MaxPool3d, replication padding or scatter_add, nothing is said. Products of
matrices need no CUBLAS_WORKSPACE_CONFIG: PyTorch 2.13 no longer asks for it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch

from simgpu.ground import places
from simgpu.ground.calls import Call

_Rule: TypeAlias = Callable[[Call], bool]
MAX = 2  # how `EmbeddingBag(mode="max")` is numbered; `Reduction` numbers none 0
_ASK = (
    "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
    "this operation."
)


class Alert(NamedTuple):
    """PyTorch's name for an operator in its message, and the calls of it without a deterministic kernel."""

    name: str
    holds: _Rule = lambda call: True


def takes_greatest(call: Call) -> bool:
    """Return whether a call is of `EmbeddingBag(mode="max")`."""
    return call["mode"] == MAX


def without_cudnn(call: Call) -> bool:
    """Return whether grid_sample is PyTorch's own kernel; cuDNN's, for the usual pictures, is not told of."""
    takes = call["interpolation_mode"] == call["padding_mode"] == 0 and call["align_corners"]
    image = call["input"]
    fits = image.size(1) <= 1024 and image.dtype in (torch.float16, torch.float32, torch.float64)
    return not (takes and fits and torch.backends.cudnn.enabled)


@contextmanager
def told(alert: Alert, call: Call) -> Generator[None]:
    """Raise or warn for a call without a deterministic kernel; in the block the CPU's kernel stays silent.

    Raises RuntimeError in PyTorch's words, or warns where the program set `warn_only=True`.
    """
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if alert.holds(call):
        setting = "True, warn_only=True" if warn_only else "True"
        words = (
            f"{alert.name} does not have a deterministic implementation, but you set "
            f"'torch.use_deterministic_algorithms({setting})'. "
        )
        if not warn_only:
            raise RuntimeError(
                f"{words}You can turn off determinism just for this operation, or you can use the 'warn_only=True' "
                f"option, if that's acceptable for your application. You can also {_ASK}"
            )
        places.warn(f"{words}You can {_ASK}")
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=warn_only)
