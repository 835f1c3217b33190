"""Answers that people give to the exercises of lesson 04, each with a phrase that its rejection must contain."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


# ---- MaskedLinear
class _PlainAttribute(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.mask = mask

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask.to(x.device), self.linear.bias)


class _Parameter(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.mask = nn.Parameter(mask.float())

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _FrozenParameter(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.mask = nn.Parameter(mask, requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _NotPersistent(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _MaskedOnce(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)
        with torch.no_grad():
            self.linear.weight *= mask

    def forward(self, x):
        return self.linear(x)


class _MaskedData(_MaskedOnce):
    def forward(self, x):
        self.linear.weight.data *= self.mask
        return self.linear(x)


class _Transposed(_MaskedOnce):
    def forward(self, x):
        return x @ (self.linear.weight * self.mask) + self.linear.bias


class _NoBias(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask)


class _WithoutBias(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0], bias=False)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self.linear(x)


class _Inverted(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight.masked_fill(self.mask, 0.0), self.linear.bias)


class _NoSuper(nn.Module):
    def __init__(self, mask):
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])

    def forward(self, x):
        return self.linear(x)


class _CopyInEveryCall(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)
        self.own = mask

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.own.to(x.device), self.linear.bias)


class _NoSuperAndNoParts(nn.Module):
    def __init__(self, mask):
        self.mask = mask

    def forward(self, x):
        return x


class _WithoutGradients(_MaskedOnce):
    def forward(self, x):
        with torch.no_grad():
            return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _Float64(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias).double()


class _FrozenBias(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias.detach())


class _NewParameter(_MaskedOnce):
    def forward(self, x):
        self.linear.weight = nn.Parameter(self.linear.weight * self.mask)
        return self.linear(x)


class _MaskedBias(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias * self.mask.any(dim=1))


class _InvertedBuffer(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", ~mask)

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _AllOnes(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", torch.ones_like(mask))

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _InputsAndOutputsSwapped(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(*mask.shape)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)


class _LayerInAList(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.layers = [nn.Linear(mask.shape[1], mask.shape[0])]
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.layers[0].weight * self.mask, self.layers[0].bias)


class _MaskSeenInTheWeights(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear = nn.Linear(mask.shape[1], mask.shape[0])
        self.linear.weight.data[~mask] = 0

    def forward(self, x):
        return F.linear(x, self.linear.weight * (self.linear.weight != 0), self.linear.bias)


class _MinusInfinity(_MaskedOnce):
    def forward(self, x):
        return F.linear(x, self.linear.weight.masked_fill(~self.mask, float("-inf")), self.linear.bias)


# ---- places
def _names_by_device(pairs):
    found = {}
    for name, tensor in pairs:
        found.setdefault(tensor.device, []).append(name)
    return found


def _parameters_only(model):
    return _names_by_device(model.named_parameters())


def _registered_only(model):
    return _names_by_device([*model.named_parameters(), *model.named_buffers()])


def _state_dict(model):
    return _names_by_device(model.state_dict().items())


def _own_only(model):
    named = [*model.named_parameters(recurse=False), *model.named_buffers(recurse=False), *vars(model).items()]
    return _names_by_device([(name, value) for name, value in named if isinstance(value, torch.Tensor)])


def _children_only(model):
    found = {}
    for path, module in [("", model), *model.named_children()]:
        for device, names in _own_only(module).items():
            found.setdefault(device, []).extend(f"{path}.{name}".lstrip(".") for name in names)
    return found


def _without_path(model):
    found = {}
    for module in model.modules():
        for device, names in _own_only(module).items():
            found.setdefault(device, []).extend(names)
    return found


def _text_keys(model):
    return {str(device): names for device, names in _registered_only(model).items()}


def _first_parameter(model):
    first = next(model.parameters(), None)
    return {} if first is None else {first.device: [name for name, _ in model.named_parameters()]}


def _set_of_devices(model):
    return {parameter.device for parameter in model.parameters()}


def _tensors_not_names(model):
    found = {}
    for parameter in model.parameters():
        found.setdefault(parameter.device, []).append(parameter)
    return found


def _recursive(model):
    found = {}
    for path, module in model.named_modules():
        for name, value in [*module.named_parameters(), *module.named_buffers(), *vars(module).items()]:
            if isinstance(value, torch.Tensor):
                found.setdefault(value.device, []).append(f"{path}.{name}" if path else name)
    return found


def _all_by_path(model, between="."):
    found = {}
    for path, module in model.named_modules():
        for device, names in _own_only(module).items():
            found.setdefault(device, []).extend(f"{path}{between}{name}" for name in names)
    return found


def _no_dot(model):
    return _all_by_path(model, between="")


def _empty_list(model):
    return {torch.device("meta"): []} | _own_only(model)


def _plain_without_path(model):
    found = {}
    named = [*model.named_parameters(), *model.named_buffers()]
    for module in model.modules():
        named += [(name, value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
    for name, tensor in named:
        found.setdefault(tensor.device, []).append(name)
    return found


def _underscores(model):
    return {device: [name.replace(".", "_") for name in names] for device, names in _all_tensors(model).items()}


def _all_tensors(model):
    found = {}
    for path, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False), *vars(module).items()]
        for name, tensor in own:
            if isinstance(tensor, torch.Tensor):
                found.setdefault(tensor.device, []).append(f"{path}.{name}" if path else name)
    return found


def _without_the_model_itself(model):
    return {
        device: names for path, module in model.named_modules() if path for device, names in _own_only(module).items()
    }


def _class_names(model):
    found = {}
    for module in model.modules():
        for device, names in _own_only(module).items():
            found.setdefault(device, []).extend(f"{type(module).__name__}.{name}" for name in names)
    return found


# ---- last_states
def _last_padded(states, lengths):
    return states[:, -1]


def _last_text(states, lengths):
    return states[-1]


def _swapped(states, lengths):
    return states[lengths - 1, torch.arange(len(lengths), device=states.device)]


def _one_further(states, lengths):
    return states[torch.arange(len(states), device=states.device), lengths]


def _from_the_end(states, lengths):
    return states[torch.arange(len(states), device=states.device), -lengths]


def _first_step(states, lengths):
    return states[:, 0]


def _one_before(states, lengths):
    return states[torch.arange(len(states), device=states.device), lengths - 2]


def _result_on_the_cpu(states, lengths):
    return states[torch.arange(len(states), device=states.device), lengths - 1].cpu()


def _loop(states, lengths):
    return torch.stack([states[i, n - 1] for i, n in enumerate(lengths.tolist())])


def _rows_on_the_cpu(states, lengths):
    return states[torch.arange(len(states)), lengths - 1]


def _by_a_mask(states, lengths):
    return states[torch.arange(states.shape[1], device=states.device) == lengths[:, None] - 1]


def _all_pairs(states, lengths):
    return states[:, lengths - 1]


def _detached(states, lengths):
    return states.detach()[torch.arange(len(states), device=states.device), lengths - 1]


def _mean(states, lengths):
    return states.mean(dim=1)


def _gathered_narrow(states, lengths):
    return states.gather(1, (lengths - 1)[:, None, None]).squeeze(1)


def _gathered_with_time(states, lengths):
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2]))


def _squeezed_too_much(states, lengths):
    return _gathered_with_time(states, lengths).squeeze()


def _in_double(states, lengths):
    return states.double()[torch.arange(len(states), device=states.device), lengths - 1]


def _longest(states, lengths):
    return states[:, lengths.max() - 1]


# ---- causal_mask
def _everything(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device)


def _one_ahead(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device).tril(1)


def _upper(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device).triu()


def _forbidden(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device).triu(1)


def _not_itself(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device).tril(-1)


def _numbers(time, device):
    return torch.ones(time, time, device=device).tril()


def _additive(time, device):
    return nn.Transformer.generate_square_subsequent_mask(time, device=device)


def _made_on_the_cpu(time, device):
    return torch.tril(torch.ones(time, time, dtype=torch.bool)).to(device)


def _left_on_the_cpu(time, device):
    return torch.tril(torch.ones(time, time, dtype=torch.bool))


def _first_gpu(time, device):
    place = "sim:0" if device.type in ("sim", "meta") else device
    return torch.ones(time, time, dtype=torch.bool, device=place).tril()


def _hard_coded(time, device):
    return torch.ones(3, 3, dtype=torch.bool, device=device).tril()


def _diagonal(time, device):
    return torch.eye(time, dtype=torch.bool, device=device)


def _three_places(time, device):
    places = torch.arange(time, device=device)
    return (places[:, None] >= places) & (places[:, None] - places < 3)


def _sparse(time, device):
    return torch.ones(time, time, dtype=torch.bool, device=device).tril().to_sparse()


# ---- load_checkpoint
def _no_map_location(model, path, device):
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.to(device)


def _unsafe(model, path, device):
    model.load_state_dict(torch.load(path, map_location=device, weights_only=False))
    return model.to(device)


def _not_strict(model, path, device):
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), strict=False)
    return model.to(device)


def _model_not_moved(model, path, device):
    model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    return model


def _returns_the_result(model, path, device):
    model.to(device)
    return model.load_state_dict(torch.load(path, map_location=device, weights_only=True))


def _returns_nothing(model, path, device):
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model.to(device)


def _parameters_alone(model, path, device):
    state = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])
    return model.to(device)


def _another_model(model, path, device):
    twin = copy.deepcopy(model)
    twin.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return twin.to(device)


def _not_loaded(model, path, device):
    torch.load(path, map_location="cpu", weights_only=True)
    return model.to(device)


def _whole_model(model, path, device):
    return torch.load(path, map_location=device, weights_only=True).to(device)


def _known_names(model, path, device):
    state, known = torch.load(path, map_location="cpu", weights_only=True), model.state_dict()
    model.load_state_dict({name: value for name, value in state.items() if name in known})
    return model.to(device)


def _swallows_errors(model, path, device):
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        print(error)
    return model.to(device)


def _map_location_cuda(model, path, device):
    model.load_state_dict(torch.load(path, map_location="cuda:7", weights_only=True))
    return model.to(device)


def _frozen(model, path, device):
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.to(device).requires_grad_(False)


def _doubled(model, path, device):
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.double().to(device)


# ---- forward_on_two
def _input_alone(first, second, x):
    return second(first(x.to(next(first.parameters()).device)))


def _input_forgotten(first, second, x):
    return second(first(x).to(next(second.parameters()).device))


def _through_the_host(first, second, x):
    x = first(x.to(next(first.parameters()).device)).cpu()
    return second(x.to(next(second.parameters()).device))


def _every_layer(first, second, x):
    a, b = next(first.parameters()).device, next(second.parameters()).device
    for layer in first:
        x = layer(x.to(a)).to(b)
    for layer in second:
        x = layer(x.to(b))
    return x


def _moves_the_second(first, second, x):
    device = next(first.parameters()).device
    return second.to(device)(first(x.to(device)))


def _moves_both_to_the_second(first, second, x):
    device = next(second.parameters()).device
    return second(first.to(device)(x.to(device)))


def _back_to_the_first(first, second, x):
    a, b = next(first.parameters()).device, next(second.parameters()).device
    return second(first(x.to(a)).to(b)).to(a)


def _detaches(first, second, x):
    x = first(x.to(next(first.parameters()).device))
    return second(x.detach().to(next(second.parameters()).device))


def _without_gradients(first, second, x):
    with torch.no_grad():
        x = first(x.to(next(first.parameters()).device))
    return second(x.to(next(second.parameters()).device))


def _fixed_names(first, second, x):
    kind = next(first.parameters()).device.type
    kind = kind if kind != "meta" else "sim"
    return second(first(x.to(f"{kind}:0")).to(f"{kind}:1"))


def _asks_the_first_layer(first, second, x):
    x = first(x.to(first[0].weight.device))
    return second(x.to(next(second.parameters()).device))


def _swapped_halves(first, second, x):
    x = second(x.to(next(second.parameters()).device))
    return first(x.to(next(first.parameters()).device))


def _evaluates(first, second, x):
    x = first.eval()(x.to(next(first.parameters()).device))
    return second.eval()(x.to(next(second.parameters()).device))


def _freezes_the_second(first, second, x):
    second.requires_grad_(False)
    x = first(x.to(next(first.parameters()).device))
    return second(x.to(next(second.parameters()).device))


def _changes_the_weights(first, second, x):
    x = first(x.to(next(first.parameters()).device))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(0.5)
    return second(x.to(next(second.parameters()).device))


def _leaves_hooks(first, second, x):
    for half in (first, second):
        place = next(half.parameters()).device
        half.register_forward_pre_hook(lambda _, given, place=place: tuple(one.to(place) for one in given))
    return second(first(x))


def _calls_backward(first, second, x):
    x = second(first(x.to(next(first.parameters()).device)).to(next(second.parameters()).device))
    x.sum().backward()
    return x


def _relu_between(first, second, x):
    x = F.relu(first(x.to(next(first.parameters()).device)))
    return second(x.to(next(second.parameters()).device))


WRONG = {
    "MaskedLinear": [
        ("keeps the mask as a plain attribute", _PlainAttribute),
        ("has no buffer with the mask", _MaskSeenInTheWeights),
        ("makes the mask a parameter", _Parameter),
        ("makes the mask a parameter", _FrozenParameter),
        ("does not save the mask", _NotPersistent),
        ("does not apply the mask", _MaskedOnce),
        ("trains what the mask switches off", _MaskedData),
        ("in line", _Transposed),
        ("forgets the bias", _NoBias),
        ("has no bias", _WithoutBias),
        ("takes the mask the wrong way round", _Inverted),
        ("before Module.__init__() call", _NoSuper),
        ("copies something in every call", _CopyInEveryCall),
        ("does not call super().__init__()", _NoSuperAndNoParts),
        ("cuts the gradient", _WithoutGradients),
        ("has dtype torch.float64", _Float64),
        ("cuts the gradient", _FrozenBias),
        ("makes a new parameter in forward", _NewParameter),
        ("other values", _MaskedBias),
        ("takes the mask the wrong way round", _InvertedBuffer),
        ("has a buffer that is not the mask", _AllOnes),
        ("swaps inputs and outputs", _InputsAndOutputsSwapped),
        ("hides the layer in a list", _LayerInAList),
        ("fills with infinity", _MinusInfinity),
    ],
    "places": [
        ("misses the buffers", _parameters_only),
        ("misses the plain attribute", _registered_only),
        ("calls 1.1.factor 'factor'", _plain_without_path),
        ("calls 0.weight '0_weight'", _underscores),
        ("misses the buffers", _state_dict),
        ("looks at the model itself only", _own_only),
        ("misses", _children_only),
        ("calls 0.weight 'weight'", _without_path),
        ("expected a torch.device", _text_keys),
        ("misses the buffers", _first_parameter),
        ("returns set, expected a dict", _set_of_devices),
        ("no lists of names", _tensors_not_names),
        ("more than once", _recursive),
        ("calls weight '.weight'", _all_by_path),
        ("a name is the path of the module, a dot and the attribute", _no_dot),
        ("names a device that holds nothing", _empty_list),
        ("leaves out the model itself", _without_the_model_itself),
        ("calls weight 'Linear.weight'", _class_names),
    ],
    "last_states": [
        ("takes the last padded step", _last_padded),
        ("takes batch for time", _last_text),
        ("takes batch for time", _swapped),
        ("takes the step after the last", _one_further),
        ("counts from the end", _from_the_end),
        ("takes the first step", _first_step),
        ("lets the host read a value", _loop),
        ("lets the host read a value", _by_a_mask),
        ("makes an index on the CPU", _rows_on_the_cpu),
        ("takes the step before the last", _one_before),
        ("the result is on cpu, expected on sim", _result_on_the_cpu),
        ("takes every length from every text", _all_pairs),
        ("cuts the gradient", _detached),
        ("averages the states", _mean),
        ("has dtype torch.float64", _in_double),
        ("takes one number of each state", _gathered_narrow),
        ("gives the right states in the shape (2, 1, 2)", _gathered_with_time),
        ("for one text too", _squeezed_too_much),
        ("takes the last step of the longest text", _longest),
    ],
    "causal_mask": [
        ("leaks the future", _everything),
        ("leaks the future: a change at place 1 changes the output at place 0", _one_ahead),
        ("looks at the future only", _upper),
        ("marks what is forbidden", _forbidden),
        ("hides each place from itself", _not_itself),
        ("is not a bool tensor", _numbers),
        ("is not a bool tensor", _additive),
        ("creates it on the CPU and copies", _made_on_the_cpu),
        ("is on cpu, expected", _left_on_the_cpu),
        ("ignores its argument `device`", _first_gpu),
        ("has shape (3, 3), expected (1, 1)", _hard_coded),
        ("hides place 0 from row 1", _diagonal),
        ("hides place 0 from row 3", _three_places),
        ("layout", _sparse),
    ],
    "load_checkpoint": [
        ("loads to a GPU that this machine does not have", _no_map_location),
        ("runs code that came in the file", _unsafe),
        ("accepts a file that does not fit the model", _not_strict),
        ("load_state_dict copies into the parameters where they are", _model_not_moved),
        ("does not return the model", _returns_the_result),
        ("does not return the model", _returns_nothing),
        ("loads the parameters and not the buffers", _parameters_alone),
        ("fills another model", _another_model),
        ("is not what was saved", _not_loaded),
        ("in line 2 of your function", _whole_model),
        ("it holds 2.bias, which the model has not", _known_names),
        ("raises no error for a file that holds more than tensors", _swallows_errors),
        ("loads to a GPU that this machine does not have", _map_location_cuda),
        ("freezes 0.weight", _frozen),
        ("makes 0.weight torch.float64", _doubled),
    ],
    "forward_on_two": [
        ("gives the second half its input on sim:0", _input_alone),
        ("gives the first half its input on cpu", _input_forgotten),
        ("takes the way through the host", _through_the_host),
        ("copies and the limit is", _every_layer),
        ("moves a half of the model", _moves_the_second),
        ("moves a half of the model", _moves_both_to_the_second),
        ("the loss is computed where the result is", _back_to_the_first),
        ("cuts the gradient", _detaches),
        ("cuts the gradient", _without_gradients),
        ("half its input on", _fixed_names),
        ("raises", _swapped_halves),
        ("'Linear' object is not subscriptable", _asks_the_first_layer),
        ("leaves a half in evaluation mode", _evaluates),
        ("the second half would never learn", _freezes_the_second),
        ("changes a half of the model", _changes_the_weights),
        ("changes a half of the model: _forward_pre_hooks", _leaves_hooks),
        ("calls backward itself", _calls_backward),
        ("has other values", _relu_between),
    ],
}
