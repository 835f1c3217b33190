"""On which other device can a check try an answer, to see whether it takes the device from its argument?"""

import torch


def elsewhere(device: torch.device) -> torch.device:
    """Return another device than `device`, the second simulated GPU or the CPU; from the CPU there is only itself."""
    return torch.device("sim", 1) if device == torch.device("sim", 0) else torch.device("cpu")
