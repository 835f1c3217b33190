"""Where are the parts of the model, and does it compute what it should? The exercises of lesson 04."""

import copy
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, difference, edges, edit, lesson
from gpu_course.common.probes import detached, elsewhere, is_a_module, left_changed, state_of
from gpu_course.lesson04.files import Payload, payloads_run, save_elsewhere

__all__ = [
    "MaskedLinear",
    "causal_mask",
    "forward_on_two",
    "last_states",
    "load_checkpoint",
    "places",
    "save_elsewhere",
]

exercise = lesson("04")


@exercise(
    title="Make the mask a buffer",
    minutes=8,
    difficulty=2,
    draws=True,
    hints=(
        "An nn.Linear inside holds weight and bias. Its weight has the shape of the mask: (outputs, inputs).",
        "register_buffer(name, tensor) makes a tensor part of the module: moved and saved, not trained.",
        "After super().__init__() make both. In forward give F.linear the weight of the linear layer times the buffer, "
        "and its bias.",
    ),
)
class MaskedLinear(nn.Module):
    """A linear layer with bias, whose weights count where the bool `mask` is True."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        outputs, inputs = mask.shape
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("mask", mask)  # moved and saved with the layer, and not trained

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)  # masked anew in every call


MaskedLinear.leaves_out("a mask is bool and has two dimensions", "scalar whole complex")
MaskedLinear.leaves_out(
    "weights that float32 holds: times a mask, no type behaves in another way",
    "half bfloat16 not_finite default_type",
)
MaskedLinear.leaves_out("its weights begin at random", "second_call random_state")


@MaskedLinear.checks
def _(case: Case) -> None:
    rows = [True, False, False], [True, True, False], [False, True, False], [False, False, False]
    mask = torch.tensor(rows)  # an input and an output that count nowhere
    layer = case.call(mask)
    _is_a_buffer(case, layer, mask)
    for device, mode in ((case.device, True), (elsewhere(case.device), True), (case.device, False)):
        layer.to(device).train(mode)
        weight, bias = _weight_and_bias(case, layer, mask)
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape))  # as an optimizer would
        x = torch.randn(2, 3).to(device).requires_grad_()
        got = case.use(layer, x)
        case.instead(case.counts.copies, "copies something in every call", "a buffer is where the layer is: use it")
        _equals_by_hand(case, got, x, weight, bias, mask)
        case.instead(
            _weight_and_bias(case, layer, mask)[0] is not weight,
            "makes a new parameter in forward",
            "the optimizer holds the parameter of before: compute with weight * mask, and keep the parameter",
        )
        layer.zero_grad()
        case.backward(got)
        case.instead(weight.grad is None or bias.grad is None, "cuts the gradient", "weight and bias are to be trained")
        case.instead(x.grad is None, "cuts the gradient of `x`", "the layers before this one are to be trained, too")
        case.instead(
            weight.grad.cpu()[~mask].any(),
            "trains what the mask switches off",
            "multiply by the mask where gradients see it: no .data, no torch.no_grad",
        )
    other, x = case.call(~mask), x.detach()
    other.load_state_dict(layer.state_dict())
    _equals_by_hand(case, case.use(other.to(device), x), x, weight, bias, mask)
    large = torch.tensor([[2e4, -3.0, 1e-6], [0.0, 1.0, 1.0]])
    for which, x in (  # "bool, of shape (outputs, inputs)", and F.linear takes any `x` whose last size fits
        (torch.tensor([[True]]), torch.randn(4, 1)),
        (edges.permuted(mask), torch.randn(2, 5, 3)),
        (edges.sliced(mask), torch.randn(3)),
        (mask, torch.ones(0, 3)),
        (mask, edges.permuted(large)),
        (mask, edges.sliced(large).double()),
    ):
        place = edges.supporting(case.device, x)
        layer = case.call(which).to(place, x.dtype)
        x = edges.on(x, place)
        _equals_by_hand(case, case.use(layer, x), x, *_weight_and_bias(case, layer, which), which)


def _is_a_buffer(case: Case, layer: Any, mask: torch.Tensor) -> None:
    """Fail with the name of what the mask is instead of a persistent buffer."""
    is_a_module(case, layer)

    def masks(named: Iterable[tuple[str, Any]]) -> list[str]:
        alike = [m.float() for m in (mask, mask.mT, ~mask, ~mask.mT)]
        flat = [(name, value) for name, value in named if isinstance(value, torch.Tensor) and value.dim() == 2]
        return [name for name, value in flat if any(torch.equal(value.detach().cpu().float(), m) for m in alike)]

    case.instead(
        masks(layer.named_parameters()),
        "makes the mask a parameter",
        "a parameter is handed to the optimizer, and the mask is a choice that no gradient may change",
    )
    buffers = dict(layer.named_buffers())
    case.instead(buffers and not masks(buffers.items()), "has a buffer that is not the mask", got=buffers)
    plain = masks(attribute for module in layer.modules() for attribute in vars(module).items())
    case.instead(
        not buffers,
        "keeps the mask as a plain attribute" if plain else "has no buffer with the mask",
        ".to(device) and state_dict() look at what is registered alone: register_buffer makes it a part",
    )
    case.instead(
        not masks(layer.state_dict().items()),
        "does not save the mask",
        "which weights were switched off cannot be computed again: with persistent=False it is lost",
    )


def _weight_and_bias(case: Case, layer: nn.Module, mask: torch.Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the two parameters of the layer, found by their shapes."""
    by_shape = {tuple(p.shape): p for p in layer.parameters()}
    case.instead(
        tuple(mask.shape) not in by_shape and tuple(mask.mT.shape) in by_shape,
        "swaps inputs and outputs",
        "the mask is (outputs, inputs), and nn.Linear takes (inputs, outputs)",
    )
    lists = [value for value in vars(layer).values() if isinstance(value, list | tuple)]
    case.instead(
        any(isinstance(part, nn.Module) for parts in lists for part in parts),
        "hides the layer in a list",
        "a module knows its attributes, not what is in a Python list",
    )
    for name, shape in (("weight", tuple(mask.shape)), ("bias", (mask.shape[0],))):
        why = "the layer holds an nn.Linear"
        case.instead(shape not in by_shape, f"has no {name}: no parameter of shape {shape}", why)
    return by_shape[tuple(mask.shape)], by_shape[(mask.shape[0],)]


def _equals_by_hand(
    case: Case, got: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, mask: torch.Tensor
):
    """Fail unless `got` is what the layer computes with these parameters, one product after the other."""
    products = x.cpu()[..., None, :] * torch.where(mask, weight.detach().cpu(), 0.0)
    expected = (products.sum(-1) + bias.detach().cpu()).to(weight.device)
    atol = 1e-5 if x.dtype == torch.float32 else 1e-9
    why = "a weight counts where the mask is True, in every call and mode"
    case.equal(detached(got), expected, atol=atol, why=why)


MaskedLinear.alternative(
    "an infinite or NaN weight that is switched off stays out, where times 0 makes it NaN",
    edit("""
-        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)  # masked anew in every call
+        return F.linear(x, torch.where(self.mask, self.linear.weight, 0.0), self.linear.bias)  # masked anew in every call
    """),  # noqa: E501,
)


@exercise(
    title="Find what stayed behind",
    minutes=12,
    difficulty=2,
    hints=(
        "model.named_modules() gives every module with its path; look at what each of them holds itself.",
        "named_parameters(recurse=False) and named_buffers(recurse=False) are the registered ones; vars(module) is the "
        "dict of a module's plain attributes.",
        "For each module put the three kinds into one list of pairs, keep what is a torch.Tensor, and append path, dot "
        "and name to the list of its device, which setdefault makes.",
    ),
)
def places(model: nn.Module) -> dict[torch.device, list[str]]:
    """Return the names of all tensors in `model`, by device."""
    by_device = {}
    for path, module in model.named_modules():
        registered = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, value in [*registered, *vars(module).items()]:  # vars: what is not registered
            if isinstance(value, torch.Tensor):
                by_device.setdefault(value.device, []).append(f"{path}.{name}" if path else name)
    return by_device


class _Scale(nn.Module):
    """Holds a tensor of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2), persistent=False)
        self.register_parameter("bias", None)
        self.factor, self.name, self.nothing = torch.ones(2), "scale", None
        self.like = SimpleNamespace(device=torch.device("cpu"))  # has a device, and is no tensor
        self.kept = [torch.ones(2)]  # "ignore Python lists"
        self.table = {"row": torch.ones(2)}  # nor is a dict a tensor


places.leaves_out("a tensor of two names may stand under one of them or both", "shared")
places.leaves_out(
    "it gets no optimizer, makes no numbers, and a model cannot be kept for later",
    "two_groups default_type second_call",
)


def _scalar() -> nn.Module:
    """Return a layer with a parameter of shape ()."""
    layer = nn.Linear(2, 2)
    layer.scale = nn.Parameter(torch.tensor(1.0))
    return layer


@places.checks
def _(case: Case) -> None:
    here, cpu = case.device, torch.device("cpu")
    norms = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sequential(nn.BatchNorm1d(2)))
    norms[0].to(here)
    inside = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), _Scale())).to(here)
    inside.offset = torch.ones(1)  # "an attribute of the model itself", which holds modules too
    planned = nn.Linear(2, 2, device="meta")
    planned.register_buffer("none", torch.ones(0))  # "the names of the tensors": one may have no elements
    batch = [f"1.0.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    for model, kinds in (
        (nn.Linear(2, 2).to(here), [(here, ["weight", "bias"])]),
        (norms, [(here, ["0.weight"]), (cpu, batch)]),
        (_Scale().to(here), [(here, ["weight", "mean"]), (cpu, ["factor"])]),
        (inside, [(here, ["0.weight", "0.bias", "1.1.weight", "1.1.mean"]), (cpu, ["1.1.factor", "offset"])]),
        (nn.ReLU(), []),
        (planned, [(torch.device("meta"), ["weight", "bias"]), (cpu, ["none"])]),  # "for each device"
        (edges.frozen(norms, "0.weight").eval(), [(here, ["0.weight"]), (cpu, batch)]),
        (edges.frozen(edges.with_old_gradients(nn.Linear(2, 2)).double()), [(cpu, ["weight", "bias"])]),
        (edges.with_old_gradients(_scalar().to(elsewhere(here))), [(elsewhere(here), ["weight", "bias", "scale"])]),
    ):
        expected: dict[torch.device, list[str]] = {}
        for device, names in kinds:
            expected.setdefault(device, []).extend(names)
        before = state_of(model), _where(model)
        got = case.call(model)
        case.instead(
            (state_of(model), _where(model)) != before,
            "moves or changes the model",
            "it is only to be looked at: nothing is moved",
        )
        case.instead(not isinstance(got, dict), f"returns {type(got).__name__}, expected a dict from devices to lists")
        wrong = [key for key in got if not isinstance(key, torch.device)]
        case.instead(wrong, f"has the key {wrong[:1]}, expected a torch.device", "tensor.device is one", got=got)
        lists = [isinstance(one, list) and all(isinstance(n, str) for n in one) for one in got.values()]
        case.instead(not all(lists), "has values that are no lists of names", expected=expected, got=got)
        case.instead(
            [] in [list(names) for names in got.values()],
            "names a device that holds nothing",
            "the number of devices in the dict is the number of places: leave out empty lists",
            got=got,
        )
        mine, right = (
            {str(device): sorted(found[device]) for device in sorted(found, key=str)} for found in (got, expected)
        )
        case.equal(mine, right, why="every tensor of every module once, by path and attribute, under its device")


def _where(model: nn.Module) -> list[torch.device]:
    """Return the device of each plain tensor attribute."""
    return [
        value.device for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)
    ]


_SPELLING = (
    "a name is the path of the module, a dot and the attribute; the path of the model itself is empty, and no "
    "dot follows it"
)


@places.mistake("leaves out the path of plain attributes", _SPELLING)
def _(model):
    by_device = {}
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named + [pair for module in model.modules() for pair in vars(module).items()]:
        if isinstance(tensor, torch.Tensor):
            by_device.setdefault(tensor.device, []).append(name)
    return by_device


@places.alternative("all that is registered in one go, with its path; a parameter under two names is listed once")
def _(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    for path, module in model.named_modules():
        named += [(f"{path}.{name}".lstrip("."), value) for name, value in vars(module).items()]
    by_device = {}
    for name, value in named:
        if isinstance(value, torch.Tensor):
            by_device.setdefault(value.device, []).append(name)
    return by_device


@exercise(
    title="Take the right hidden state",
    minutes=10,
    difficulty=2,
    hints=(
        "The last token of text i is at place lengths[i] - 1.",
        "Two index tensors of the same length pick one element for each pair: states[rows, places].",
        "One index counts the texts, torch.arange on the device of the states; the other comes from the lengths.",
    ),
)
def last_states(states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the state after each text's own last token, shape (batch, hidden)."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows, lengths - 1]  # one place for each row; the padding behind it is not looked at


last_states.leaves_out("the text says which shapes there are, and there is a text", "scalar empty")
last_states.leaves_out("states are real numbers, and what lies behind the last token is padding", "bool complex")
last_states.leaves_out("nothing is made, so no default is asked", "default_type")
last_states.leaves_out("states are numbers: whoever adds up states times 0 or 1 is right too", "not_finite")


@last_states.checks
def _(case: Case) -> None:
    for batch, time, lengths in (
        (2, 3, [2, 1]),
        (3, 5, [2, 1, 3]),
        (2, 3, [3, 1]),
        (1, 4, [4]),
        (5, 2, [2, 1, 2, 1, 1]),
        (3, 4, [2, 3, 2]),
    ):
        states = torch.randn(batch, time, 2).to(case.device).requires_grad_()
        got = case.call(states, torch.tensor(lengths).to(case.device))
        case.instead(
            case.counts.host_reads,
            "lets the host read a value",
            "it waits for a length, or to count what a mask lets through: pick with two index tensors",
        )
        case.instead(
            case.counts.copies_h2d,
            "makes an index on the CPU",
            "it is copied to the device in every call: torch.arange(n, device=states.device)",
        )
        expected = torch.stack([states.detach().cpu()[i, length - 1] for i, length in enumerate(lengths)])
        case.equal(
            detached(got),
            expected.to(case.device),
            why="(batch, hidden): for each text its state at place lengths - 1",
        )
        case.instead(not got.requires_grad, "cuts the gradient", "the LSTM learns through this state")
    large = torch.cat((edges.UGLY.clamp(-6e4, 6e4), torch.randn(2, 4))).view(2, 4, 2)
    turned = torch.randn(4, 3, 2).transpose(0, 1)  # as an LSTM gives it with the time first
    for states, lengths, device in (
        (large, [1, 4], case.device),
        (turned, [4, 1, 2], case.device),
        (edges.sliced(large), [3, 2], case.device),
        (torch.randn(2, 1, 1), [1, 1], case.device),
        (large.double(), [3, 2], case.device),
        (large.half(), [3, 2], case.device),
        (large.bfloat16(), [3, 2], case.device),
        (large, [2, 2], elsewhere(case.device)),
        (large, [2, 2], torch.device("cpu")),
    ):
        device = edges.supporting(device, states)
        index = torch.tensor(lengths, dtype=torch.int64)
        got = case.call(edges.on(states, device), index.to(device))
        case.equal(got, torch.stack([states[i, length - 1] for i, length in enumerate(lengths)]).to(device))


@last_states.alternative("one operator along one dimension; its index must be as wide as a state")
def _(states, lengths):
    index = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index).squeeze(1)


@exercise(
    title="A causal mask",
    minutes=5,
    difficulty=1,
    hints=(
        "Row t may look at the columns 0 to t: a lower triangle, the diagonal included.",
        "torch.ones makes a square on the device; one function keeps the lower triangle.",
        "The square takes dtype=torch.bool and device=device; .tril() keeps its lower triangle, the diagonal included.",
    ),
)
def causal_mask(time: int, device: torch.device) -> torch.Tensor:
    """Return a bool (time, time) tensor on `device`: True where a row may look."""
    return torch.ones(time, time, dtype=torch.bool, device=device).tril()  # itself and what came before


causal_mask.leaves_out(
    "a time is a small number, from 0 on, and no default is asked",
    "number_negative number_large limit default_type",
)


@causal_mask.checks
def _(case: Case) -> None:
    far, cpu = elsewhere(case.device), torch.device("cpu")
    for time, device in (*((time, case.device) for time in (3, 1, 6, 0, 33, 300)), (4, far), (3, cpu)):
        got = case.call(time, device)
        expected = torch.tensor([column <= row for row in range(time) for column in range(time)])
        expected = expected.bool().view(time, time)
        case.instead(
            isinstance(got, torch.Tensor) and got.dtype != torch.bool,
            "is not a bool tensor",
            "numbers would be added to the scores; True and False say who may look",
            got=got,
        )
        comparable = isinstance(got, torch.Tensor) and got.layout == torch.strided and got.shape == expected.shape
        mine = got.cpu() if comparable else expected
        leaks, hides = (mine & ~expected).nonzero().tolist(), (expected & ~mine).nonzero().tolist()
        case.instead(
            leaks,
            f"leaks the future: row {leaks and leaks[0][0]} looks at place {leaks and leaks[0][1]}",
            "the model would see what it is to predict",
            expected=expected,
            got=got,
        )
        case.instead(
            hides,
            f"hides place {hides and hides[0][1]} from row {hides and hides[0][0]}",
            "a place may look at itself and at all before it",
            expected=expected,
            got=got,
        )
        sent = case.counts.bytes_h2d
        case.instead(sent, f"creates it on the CPU and copies {sent} bytes", "the device can write it: device=device")
        case.equal(got, expected.to(device), why="(time, time), on the `device` that is asked for")


@causal_mask.alternative("says the rule itself, and a window or an offset is as easy; two small tensors more")
def _(time, device):
    places = torch.arange(time, device=device)
    return places[:, None] >= places


@exercise(
    title="Load a checkpoint on a smaller machine",
    minutes=8,
    difficulty=2,
    hints=(
        "torch.load puts each tensor back on the device that the file names, unless map_location says otherwise.",
        "The file holds a state_dict. The model is where it was made; it still has to go to `device`.",
        "torch.load takes map_location and weights_only; model.load_state_dict checks the names; .to(device) comes "
        "last.",
    ),
)
def load_checkpoint(model: nn.Module, path: Path, device: torch.device) -> nn.Module:
    """Fill `model` with the state_dict at `path`; return it on `device`."""
    state = torch.load(path, map_location="cpu", weights_only=True)  # wherever it was saved; nothing but tensors
    model.load_state_dict(state)  # strict: a file that does not fit raises
    return model.to(device)


def _network() -> nn.Module:
    """Return a small model with parameters and buffers of the same shape."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


load_checkpoint.leaves_out(
    "the file says what the names are, those of a shared parameter and of a scalar too",
    "shared scalar_parameter two_groups",
)
load_checkpoint.leaves_out("it fills the model that it is handed", "second_call unchanged")
load_checkpoint.leaves_out("nothing is made, and gradients are no part of a state", "default_type old_gradients")


@load_checkpoint.checks
def _(case: Case) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path, saved = Path(folder) / "model.pt", _network()
        saved(torch.randn(8, 2))  # so that the running mean is not that of a new model
        state = dict(saved.state_dict())
        for device, names in ((case.device, list(state)), (elsewhere(case.device), list(reversed(state)))):
            save_elsewhere({name: state[name] for name in names}, path)
            _loads(case, path, device, state)
        save_elsewhere(state, path)
        _loads(case, path, torch.device("cpu"), state)
        _keeps(case, path, edges.frozen(_network(), "0.bias").eval(), state)
        exact = {name: value.double() + 1e-9 if value.is_floating_point() else value for name, value in state.items()}
        save_elsewhere(exact, path)
        _keeps(case, path, edges.frozen(_network()).double(), exact)
        torch.save(state | {"0.bias": Payload((3,))}, path)  # it becomes a tensor, and the file fits
        payloads_run.clear()
        refused = case.error_of(_network(), path, case.device)
        case.instead(
            payloads_run,
            "runs code that came in the file",
            "a pickle can call any function on your machine: weights_only=True reads tensors and nothing else",
        )
        case.instead(
            refused is None,
            "raises no error for a file that holds more than tensors",
            "the model is not filled, and the caller must hear of it",
        )
        for file, why in (
            ({name: state[name] for name in state if name != "0.bias"}, "a bias is missing in it and stays random"),
            (state | {"2.bias": torch.zeros(3)}, "it holds 2.bias, which the model has not"),
            ({f"module.{name}": value for name, value in state.items()}, "it holds module.0.bias, the model 0.bias"),
        ):
            save_elsewhere(file, path)
            case.instead(
                case.error_of(_network(), path, case.device) is None,
                "accepts a file that does not fit the model",
                f"{why}; with strict=True, the default, that is an error",
            )


def _keeps(case: Case, path: Path, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Fail unless a model that is filled stays, beside its numbers and its place, what it was."""
    device = edges.supporting(case.device, model)
    before = state_of(model.to(device))
    model.to("cpu")
    got = case.call(model, path, device, modifies=True)
    changed = left_changed(before, state_of(model))
    case.instead(changed, f"leaves the model in another state: {changed}", "only fill and move it")
    types = {name: value.dtype for name, value in model.state_dict().items()}
    expected = {name: value.to(device, types[name]) for name, value in state.items()}
    why = "every tensor of the file under its name, on `device`"
    case.equal(dict(got.state_dict()), expected, rtol=0, atol=0, why=why)


def _loads(case: Case, path: Path, device: torch.device, state: dict[str, torch.Tensor]) -> None:
    """Fail unless the answer loads `state` from the file of another machine to `place`."""
    model = _network()
    error = case.error_of(model, path, device)
    case.instead(
        error is not None and "deserialize" in str(error),
        "loads to a GPU that this machine does not have",
        'the file names a device, unless you name another: map_location="cpu" or map_location=device',
    )
    model = _network()
    got = case.call(model, path, device, modifies=True)
    case.instead(
        isinstance(got, nn.Module) and got is not model and type(got) is type(model),
        "fills another model",
        "the one that was given stays as it was, and the caller may hold it",
    )
    case.instead(got is not model, "does not return the model", "the caller goes on with what you return", got=got)
    case.equal(
        dict(model.state_dict()),
        {name: value.to(device) for name, value in state.items()},
        why="every tensor of the file under its name, on `device`",
    )
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    case.instead(frozen, f"freezes {frozen and frozen[0]}", "the caller may train the model: only fill and move it")
    case.instead(
        not all(module.training for module in model.modules()),
        "leaves the model in eval mode",
        "the caller may train the model: only fill and move it",
    )


@load_checkpoint.alternative("straight to the device, which for a moment holds the file's tensors beside the model")
def _(model, path, device):
    model.to(device).load_state_dict(torch.load(path, map_location=device, weights_only=True))
    return model


@exercise(
    title="A model over two devices",
    minutes=10,
    difficulty=2,
    hints=(
        "A module knows its device by its parameters: next(first.parameters()).device.",
        "Two moves: the input to the first half, the activations to the second half.",
        "Before each of the two calls move x with .to to the device of that half, found as in the first hint.",
    ),
)
def forward_on_two(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return `second(first(x))`; each half stays and computes on its own device."""
    x = first(x.to(next(first.parameters()).device))
    return second(x.to(next(second.parameters()).device))  # the activations cross once; gradients will cross back


forward_on_two.leaves_out(
    "the halves take what they take: which numbers travel plays no part",
    "scalar huge tiny not_finite half bfloat16 bool complex default_type",
)
forward_on_two.leaves_out("two halves share nothing, and need no optimizer", "shared two_groups")
forward_on_two.leaves_out("of a half only its place is asked", "scalar_parameter old_gradients")
forward_on_two.leaves_out("it is handed modules, which cannot be kept for later", "second_call unchanged")


@forward_on_two.checks
def _(case: Case) -> None:
    here, there, cpu = case.device, elsewhere(case.device), torch.device("cpu")
    long = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4))
    bare, inner = nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(3, 4), nn.Tanh())  # no first[0].weight
    words = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(12, 4))
    for a, b, start, first, x in (
        (here, there, cpu, long, torch.randn(5, 3)),
        (there, here, there, bare, torch.randn(5, 3)),
        (here, here, here, inner, torch.randn(5, 3)),
        (here, cpu, here, copy.deepcopy(long), torch.randn(5, 3)),
        (there, here, cpu, words, torch.randint(9, (5, 2))),
        (here, there, cpu, edges.frozen(long, "0.weight"), torch.randn(1, 3)),
        (here, there, here, edges.frozen(long), edges.sliced(torch.randn(2, 3))),
        (here, there, cpu, nn.Sequential(nn.Linear(3, 4), nn.Dropout()).eval(), edges.permuted(torch.randn(2, 3))),
        (here, there, cpu, copy.deepcopy(bare), torch.ones(0, 3)),
    ):
        halves = first.to(a), nn.Sequential(nn.Tanh(), nn.Linear(4, 8), nn.Linear(8, 2)).to(b)
        halves[1].train(halves[0].training)
        _two_halves(case, halves, (a, b), edges.on(x, start))
    exact = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    here, there = (edges.supporting(place, exact) for place in (here, there))
    _two_halves(case, (exact[0].to(here), exact[1].to(there)), (here, there), torch.randn(2, 3).double())


def _two_halves(
    case: Case, halves: tuple[nn.Module, nn.Module], places: tuple[torch.device, torch.device], x: torch.Tensor
) -> None:
    a, b = places
    with torch.no_grad():
        expected = halves[1](halves[0](x.to(a)).to(b))
    x.requires_grad_(x.is_floating_point())
    before, states, arrived = copy.deepcopy(halves), [state_of(half) for half in halves], [[], []]
    hooks = [
        half.register_forward_pre_hook(lambda _, given, seen=seen: seen.extend(one.device for one in given))
        for half, seen in zip(halves, arrived, strict=True)
    ]
    error = case.error_of(*copy.deepcopy(halves), x.detach())
    for name, seen, own in zip(("first", "second"), arrived, places, strict=True):
        wrong = next((device for device in seen[-1:] if device != own), None)
        case.instead(
            error and "same device" in str(error) and wrong,
            f"gives the {name} half its input on {wrong}",
            f"its parameters are on {own}, and an operation runs on one device",
        )
    arrived[0].clear(), arrived[1].clear()
    got = case.call(*halves, x, modifies=True)
    for hook in hooks:
        hook.remove()
    case.instead(
        [{p.device for p in half.parameters()} for half in halves] != [{a}, {b}],
        "moves a half of the model",
        "it may not fit on the other device: move the activations",
    )
    early = any(one.direction == "d2h" and one.non_blocking for one in case.counts.copies)
    case.instead(
        early,
        "copies to the CPU without waiting",
        "with non_blocking=True the CPU may compute with values that have not arrived",
    )
    case.equal(
        detached(got),
        expected,
        atol=1e-5,
        why="second(first(x)), on the device of `second`: the loss is computed there",
    )
    case.instead(
        any(p.grad is not None for half in halves for p in half.parameters()),
        "calls backward itself",
        "the caller does, on its loss: these gradients would be added",
    )
    used, needed = case.counts.copies, (x.device != a) + (a != b)
    case.instead(
        len(used) > needed and case.counts.copies_d2h and "cpu" not in (a.type, b.type),
        "takes the way through the host",
        "a copy between devices needs no stop there: x.to(other)",
    )
    case.budget("copies", len(used), needed, "one to the first half and one between the halves; each costs time")
    case.instead(
        max(map(len, arrived)) > 1,  # none: it called forward itself, which no hook sees
        f"calls the halves {len(arrived[0])} and {len(arrived[1])} times",
        "each call is the work of a half",
    )
    case.instead(difference(halves, before), "changes a half of the model", "it is only to be used")
    changed = next(filter(None, map(left_changed, states, map(state_of, halves))), "")
    case.instead(changed, f"changes a half of the model: {changed}", "it is only to be used")
    case.backward(got)
    for half, name in zip(halves, ("first", "second"), strict=True):
        learns = all(one.grad is not None or not one.requires_grad for one in half.parameters())
        case.instead(not learns, "cuts the gradient", f"the {name} half would never learn")
    case.instead(x.requires_grad and x.grad is None, "cuts the gradient", "what made `x` would never learn")


@forward_on_two.alternative("a loop over the pieces takes any number of them")
def _(first, second, x):
    for piece in (first, second):
        x = piece(x.to(next(piece.parameters()).device))
    return x
