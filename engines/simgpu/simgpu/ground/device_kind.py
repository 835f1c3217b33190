"""As what kind of device does Python see a simulated GPU: as `sim`, or as `cuda` while `simgpu.cuda` is on?"""

import torch

kind = "sim"  # `simgpu.cuda` sets it


def title() -> str:
    """Return how messages call the device: "sim", or "CUDA" as PyTorch's own messages do."""
    return "CUDA" if kind == "cuda" else kind


def is_ours(device: torch.device) -> bool:
    """Return whether `device` means a simulated GPU now. `sim` always does."""
    return device.type in ("sim", kind)


def forked() -> RuntimeError:
    """Return the error of a child process that was forked and uses a simulated GPU, in the words of CUDA's."""
    return RuntimeError(
        f"Cannot re-initialize {title()} in forked subprocess. To use {title_of_gpu()} with multiprocessing, you must "
        "use the 'spawn' start method"
    )


def title_of_gpu() -> str:
    """Return how a sentence calls the device: "the simulated GPU", or "CUDA"."""
    return "CUDA" if kind == "cuda" else "the simulated GPU"
