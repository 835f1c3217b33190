"""Files of strangers: tensors of a device that is not here, code that runs when it is read."""

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import torch

payloads_run: list[str] = []  # one entry for each time that a payload was unpickled


def save_elsewhere(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write `state` to `path` as a machine would where it lies on a GPU that this one does not have, `cuda:7`."""
    location = f"cuda:{max(7, torch.cuda.device_count())}"
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: location):
        torch.save({name: tensor.cpu() for name, tensor in state.items()}, path)


def _run(shape: tuple[int, ...]) -> torch.Tensor:
    payloads_run.append("ran")
    return torch.zeros(shape)


class Payload:
    """Becomes a tensor of zeros when it is unpickled: by running a function of ours, and it could be any other."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __reduce__(self):
        return _run, (self.shape,)
