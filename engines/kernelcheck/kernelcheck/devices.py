"""Is this device a real GPU, on which a kernel can run as it is?"""

import torch


def is_real(device: torch.device) -> bool:
    """Return whether `device` is a GPU of CUDA, and not a simulated one of `simgpu` under this name.

    `simgpu` is never switched on in a process that has a real one.
    """
    return device.type == "cuda" and torch._C._get_privateuse1_backend_name() != "sim"
