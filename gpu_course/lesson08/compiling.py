"""Number of kernels that `torch.compile` writes for a function."""

from collections.abc import Callable

import torch

__all__ = ["kernels_written"]

_QUICKLY = {"cpp.vec_isa_ok": False}  # on a CPU: trying its vector instructions takes 10 s


def kernels_written(function: Callable, *args: torch.Tensor) -> tuple[int, str]:
    """Compile `function` for where `args` are; return how many kernels the compiler wrote, and how that is known.

    Where there is no compiler, that is printed and the number is 1, "predicted". The results are compared.
    """
    from torch._inductor import metrics  # takes seconds, and no other lesson needs it

    metrics.reset()
    try:
        result = torch.compile(function, options=_QUICKLY)(*args)
    except RuntimeError as error:  # no C++ compiler, or no Triton
        print(f"torch.compile needs a compiler that is not here ({type(error).__name__})")
        return 1, "predicted"
    torch.testing.assert_close(result, function(*args), rtol=1e-4, atol=1e-5)
    return metrics.generated_kernel_count, f"counted, compiled for {args[0].device.type}"
