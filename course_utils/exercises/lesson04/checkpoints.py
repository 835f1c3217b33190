"""Is this file loaded as it should be: a checkpoint of a larger machine, and one that runs code when unpickled?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from course_utils.checks import Case, WrongAnswer
from course_utils.exercises.common.mistakes import name_first

__all__ = ["Payload", "loads", "network", "payloads_run", "refuses", "save_elsewhere"]

payloads_run: list[str] = []  # one entry for each time that a payload was unpickled


def save_elsewhere(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write `state` to `path` as a machine would where it lies on a GPU that this one does not have, `cuda:7`."""
    place = f"cuda:{max(7, torch.cuda.device_count())}"
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: place):
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


def network() -> nn.Module:
    """Return a small model with parameters and buffers."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


# fmt: off
def loads(case: Case, path: Path, place: torch.device) -> None:
    """Fail unless the answer loads a file of another machine to `place`."""
    saved, model = network(), network()
    saved(torch.randn(8, 2))  # so that the running mean is not that of a new model
    save_elsewhere(saved.state_dict(), path)
    try:
        got = case.call(model, path, place, modifies=True)
    except WrongAnswer as wrong:
        case.instead("deserialize" in str(wrong), "loads to a GPU that this machine does not have",
                     'the file names one that counts unless you say another: map_location="cpu" or map_location=device')
        raise
    case.instead(isinstance(got, nn.Module) and got is not model and type(got) is type(model), "fills another model",
                 "the one that was given stays as it was, and the caller may hold it")
    case.instead(got is not model, "does not return the model", "the caller goes on with what you return", got=got)
    for name, value in model.state_dict().items():
        right = saved.state_dict()[name]
        other = not torch.equal(value.cpu(), right)
        name_first(case, right, value, (
            (value.dtype != right.dtype, f"makes {name} {value.dtype}", f"it was saved as {right.dtype}"),
            (value.device != place, f"leaves {name} on {value.device}, expected on {place}",
             "load_state_dict copies into the parameters where they are; model.to(device) moves them"),
            (other and "running" in name, "loads the parameters and not the buffers",
             "the running mean is part of what the model has learned: load_state_dict takes both"),
            (other, f"{name} is not what was saved", "load_state_dict(state) copies every tensor of the file"),
        ))
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    case.instead(frozen, f"freezes {frozen and frozen[0]}", "the caller may train the model: only fill and move it")


def refuses(case: Case, path: Path) -> bool:
    """Return whether the answer raises an error for the file at `path`."""
    try:
        case.call(network(), path, case.device, modifies=True)
    except WrongAnswer:
        return True
    return False
