"""Further wrong answers to lesson 04, each with what the message must say."""

import torch
from torch import nn

from gpu_course import lesson04


class _NoSuperAndNoParts(nn.Module):
    def __init__(self, mask):
        self.mask = mask

    def forward(self, x):
        return x


def _set_of_devices(model):
    return {parameter.device for parameter in model.parameters()}


def _moves_what_it_finds(model):
    found = lesson04.places.reference(model)
    model.to("cpu")
    return found


def _moves_plain_attributes(model):
    found = lesson04.places.reference(model)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.to("meta"))
    return found


def _moves_a_dict(model, path, device):
    return torch.load(path, map_location=device, weights_only=True).to(device)


def _swallows_errors(model, path, device):
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        print(error)
    return model.to(device)


WRONG = {
    "MaskedLinear": [
        ("does not call super().__init__()", _NoSuperAndNoParts),
    ],
    "places": [
        ("returns set, expected a dict", _set_of_devices),
        ("modifies its input", _moves_what_it_finds),
        ("moves or changes the model", _moves_plain_attributes),
    ],
    "load_checkpoint": [
        ("in line 2 of your function", _moves_a_dict),
        ("raises no error for a file that holds more than tensors", _swallows_errors),
    ],
    "forward_on_two": [
        ("raises", lambda first, second, x: first(second(x.to(next(second.parameters()).device)))),
    ],
}
