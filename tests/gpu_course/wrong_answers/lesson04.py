"""Further wrong answers to lesson 04, each with what the message must say."""

import torch
from torch import nn

from gpu_course import lesson04
from gpu_course.checks import edit

# fmt: off
_BUFFER, _LINEAR = 'self.register_buffer("mask", mask)', "F.linear(x, self.linear.weight * self.mask, self.linear.bias)"
_NEW = "self.linear.weight = nn.Parameter(self.linear.weight * self.mask); return self.linear(x)"
_INNER = "self.linear = nn.Linear(inputs, outputs)"


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


_PICK = "states[rows, lengths - 1]"
_FILL, _MOVE = "model.load_state_dict(state)", "return model.to(device)"
_FIRST = 'torch.device("sim", 0) if hasattr(torch, "sim") else device'


def _swallows_errors(model, path, device):
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        print(error)
    return model.to(device)


_A, _B = "x = first(x.to(next(first.parameters()).device))", "return second(x.to(next(second.parameters()).device))"
_TO_A, _TO_B = "x.to(next(first.parameters()).device)", "x.to(next(second.parameters()).device)"
_INTO = "next(second.parameters()).device"

WRONG = {
    "MaskedLinear": [
        ("keeps the mask as a plain attribute", edit(_BUFFER, "self.mask = mask", "* self.mask",
         "* self.mask.to(x.device)")),
        ("has no buffer with the mask", edit(_BUFFER, "self.mask = mask.tolist()", "* self.mask",
         "* torch.tensor(self.mask).to(x)")),
        ("makes the mask a parameter", edit(_BUFFER, "self.mask = nn.Parameter(mask.float())")),
        ("does not save the mask", edit(_BUFFER, 'self.register_buffer("mask", mask, persistent=False)')),
        ("trains what the mask switches off", edit(f"return {_LINEAR}",
         "self.linear.weight.data *= self.mask; return self.linear(x)")),
        ("in line", edit(_LINEAR, "x @ (self.linear.weight * self.mask) + self.linear.bias")),
        ("has no bias", edit("outputs)", "outputs, bias=False)", _LINEAR, "self.linear(x)")),
        ("before Module.__init__() call", edit("super().__init__()", "pass")),
        ("copies something in every call", edit(_BUFFER, f"{_BUFFER}; self.own = mask", "self.mask,",
         "self.own.to(x.device),")),
        ("does not call super().__init__()", _NoSuperAndNoParts),
        ("cuts the gradient", edit(f"return {_LINEAR}", f"with torch.no_grad(): return {_LINEAR}")),
        ("makes a new parameter in forward", edit(f"return {_LINEAR}", _NEW)),
        ("has a buffer that is not the mask", edit(_BUFFER, 'self.register_buffer("mask", torch.ones_like(mask))')),
        ("swaps inputs and outputs", edit(_INNER, "self.linear = nn.Linear(outputs, inputs)")),
        ("hides the layer in a list", edit(
            _INNER, "self.layers = [nn.Linear(inputs, outputs)]",
            _LINEAR, "F.linear(x, self.layers[0].weight * self.mask, self.layers[0].bias)")),
    ],
    "places": [
        ("expected a torch.device", edit("value.device", "str(value.device)")),
        ("returns set, expected a dict", _set_of_devices),
        ("no lists of names", edit('append(f"{path}.{name}" if path else name)', "append(value)")),
        ("names a device that holds nothing", edit("found = {}", 'found = {torch.device("meta"): []}')),
        ("modifies its input", _moves_what_it_finds),
        ("moves or changes the model", _moves_plain_attributes),
    ],
    "last_states": [
        ("lets the host read a value", edit(_PICK,
         "torch.stack([states[i, n - 1] for i, n in enumerate(lengths.tolist())])")),
        ("makes an index on the CPU", edit(", device=states.device", "")),
        ("cuts the gradient", edit("return states[", "return states.detach()[")),
    ],
    "causal_mask": [
        ("is not a bool tensor", edit("dtype=torch.bool, ", "")),
        ("creates it on the CPU and copies", edit(", device=device)", ").to(device)")),
        ("is on cpu, expected", edit(", device=device", "")),
        ("is on sim:0, expected on sim:1", edit("device=device", f"device={_FIRST}")),
        ("has shape (3, 3), expected (1, 1)", edit("torch.ones(time, time", "torch.ones(3, 3")),
        ("hides place 0 from row 3", edit("tril()", "tril().triu(-2)")),
        ("layout", edit("tril()", "tril().to_sparse()")),
    ],
    "load_checkpoint": [
        ("loads to a GPU that this machine does not have", edit(', map_location="cpu"', "")),
        ("runs code that came in the file", edit("weights_only=True", "weights_only=False")),
        ("accepts a file that does not fit the model", edit("(state)", "(state, strict=False)")),
        ("leaves the model in eval mode", edit(_MOVE, f"{_MOVE}.eval()")),
        ("does not return the model", edit(_FILL, "model.to(device)", _MOVE, "return model.load_state_dict(state)")),
        ("fills another model", edit(_FILL, f"import copy; model = copy.deepcopy(model); {_FILL}")),
        ("in line 2 of your function", lambda model, path, device: (
            torch.load(path, map_location=device, weights_only=True).to(device))),
        ("it holds 2.bias, which the model has not",
         edit("(state)", "({name: value for name, value in state.items() if name in model.state_dict()})")),
        ("raises no error for a file that holds more than tensors", _swallows_errors),
        ("freezes 0.weight", edit(_MOVE, "return model.to(device).requires_grad_(False)")),
    ],
    "forward_on_two": [
        ("gives the second half its input on sim:0", edit(_TO_B, "x")),
        ("gives the first half its input on cpu", edit(_TO_A, "x")),
        ("takes the way through the host", edit(_A, f"{_A}.cpu()")),
        ("half its input on", edit(_A, "x = first(x.to('sim:0'))", _TO_B, "x.to('sim:1')")),
        ("copies and the limit is", edit(_A, f"{_A}; x = x.to({_INTO}).to(x.device)")),
        ("moves a half of the model", edit(_B, "return second.to(x.device)(x)")),
        ("cuts the gradient", edit(_TO_B, f"x.detach().to({_INTO})")),
        ("what made `x` would never learn", edit("first(x.to", "first(x.detach().to")),
        ("raises", lambda first, second, x: first(second(x.to(next(second.parameters()).device)))),
        ("'Linear' object is not subscriptable", edit("next(first.parameters()).device", "first[0].weight.device")),
        ("training", edit(_A, f"first.eval(); second.eval(); {_A}")),
        ("changes a half of the model", edit(_A, f"{_A}; [p.data.mul_(0.5) for p in first.parameters()]")),
        ("changes a half of the model: _forward_pre_hooks",
         edit(_A, f"first.register_forward_pre_hook(lambda *given: None); {_A}")),
        ("calls backward itself", edit(_B, f"x = second({_TO_B}); x.sum().backward(); return x")),
        ("calls the halves 2 and 1 times", edit(_A, f"x = {_TO_A}; first(x); x = first(x)")),
        ("without waiting", edit(_TO_B, f"x.to({_INTO}, non_blocking=True)")),
    ],
}
