"""Where are the parts of the model, and does it compute what it should? The exercises of lesson 04."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.checks import Case, WrongAnswer, difference, lesson
from course_utils.exercises.common.places import IGNORED, elsewhere
from course_utils.exercises.common.probes import left_changed, state_of
from course_utils.exercises.lesson04.checkpoints import Payload, loads, network, payloads_run, refuses, save_elsewhere
from course_utils.exercises.lesson04.masked_layer import is_a_buffer, learns, masked, weight_and_bias
from course_utils.exercises.lesson04.named_tensors import Scale, listed
from course_utils.exercises.lesson04.sequences import leak_of, wrong_state

# One line for each mistake and for each hint.
# fmt: off
__all__ = [
    "MaskedLinear", "causal_mask", "forward_on_two", "last_states", "load_checkpoint", "places", "save_elsewhere",
]

exercise = lesson("04")


@exercise(title="Make the mask a buffer", minutes=8, difficulty=2, draws=True, hints=(
    "An nn.Linear inside holds weight and bias. Its weight has the shape of the mask: (outputs, inputs).",
    "register_buffer(name, tensor) makes a tensor part of the module: moved and saved, not trained.",
    'In __init__, after super().__init__(): self.register_buffer("mask", mask). '
    "In forward: F.linear(x, self.linear.weight * self.mask, self.linear.bias).",
))
class MaskedLinear(nn.Module):
    """A linear layer with bias whose weight counts only where `mask`, a bool (outputs, inputs) tensor, is True."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        outputs, inputs = mask.shape
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("mask", mask)  # moved and saved with the layer, and not trained

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.linear.weight * self.mask, self.linear.bias)  # masked anew in every call


@MaskedLinear.checks
def _(case: Case) -> None:
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    layer = case.call(mask)
    is_a_buffer(case, layer, mask)
    weight, bias = weight_and_bias(case, layer, mask)
    for place in (case.device, elsewhere(case.device)):
        layer.to(place)
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape))  # as an optimizer would
        x = torch.randn(4, 2).to(place)
        got = case.use(layer, x)
        case.instead(case.counts.copies, "copies something in every call", "a buffer is where the layer is: use it")
        masked(case, got, x, weight, bias, mask)
        learns(case, layer, got, mask, weight)
    other = case.call(~mask)
    other.load_state_dict(layer.state_dict())
    masked(case, case.use(other.to(place), x), x, weight, bias, mask)


@exercise(title="Find the straggler", minutes=8, difficulty=2, hints=(
    "model.named_modules() gives every module with its path; look at what each of them holds itself.",
    "named_parameters(recurse=False) and named_buffers(recurse=False) are the registered ones; vars(module) is the "
    "dict of a module's plain attributes.",
    "own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False), *vars(module).items()]; "
    "keep what is a torch.Tensor; found.setdefault(tensor.device, []).append(...).",
))
def places(model: nn.Module) -> dict[torch.device, list[str]]:
    """Return the names of all tensors in `model` by device: parameters, buffers and plain attributes of its modules."""
    found = {}
    for path, module in model.named_modules():
        registered = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, value in [*registered, *vars(module).items()]:  # vars: what is not registered
            if isinstance(value, torch.Tensor):
                found.setdefault(value.device, []).append(f"{path}.{name}" if path else name)
    return found


@places.checks
def _(case: Case) -> None:
    here, cpu = case.device, torch.device("cpu")
    norms = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sequential(nn.BatchNorm1d(2)))
    norms[0].to(here)
    inside = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), Scale())).to(here)
    batch = [f"1.0.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    for model, kinds in (
        (nn.Linear(2, 2).to(here), [(here, ["weight", "bias"])]),
        (norms, [(here, ["0.weight"]), (cpu, batch)]),
        (Scale().to(here), [(here, ["weight", "mean"]), (cpu, ["factor"])]),
        (inside, [(here, ["0.weight", "0.bias", "1.1.weight", "1.1.mean"]), (cpu, ["1.1.factor"])]),
        (nn.ReLU(), []),
    ):
        expected: dict[torch.device, list[str]] = {}
        for device, names in kinds:
            expected.setdefault(device, []).extend(names)
        listed(case, case.call(model), expected)


@exercise(title="Take the right hidden state", minutes=5, difficulty=2, hints=(
    "The last token of text i is at place lengths[i] - 1.",
    "Two index tensors of the same length pick one element for each pair: states[rows, places].",
    "rows = torch.arange(len(states), device=states.device); return states[rows, lengths - 1]",
))
def last_states(states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the state after each text's own last token: (batch, time, hidden) and (batch,) -> (batch, hidden)."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows, lengths - 1]  # one place for each row; the padding behind it is not looked at


@last_states.checks
def _(case: Case) -> None:
    for batch, time, lengths in ((2, 3, [2, 1]), (3, 5, [2, 1, 3]), (2, 3, [3, 1]), (1, 4, [4]),
                                 (5, 2, [2, 1, 2, 1, 1])):
        states = torch.randn(batch, time, 2).to(case.device).requires_grad_()
        got = case.call(states, torch.tensor(lengths).to(case.device))
        reads = case.counts.host_reads + case.counts.copies_d2h
        rows = states.detach().cpu()
        expected = torch.stack([rows[i, length - 1] for i, length in enumerate(lengths)])
        if isinstance(got, torch.Tensor):
            wrong_state(case, rows, lengths, expected, got)
            case.instead(got.device != states.device, f"the result is on {got.device}, expected on {states.device}")
        case.instead(reads, "lets the host read a value",
                     "it waits for a length, or to count what a mask lets through: pick with two index tensors")
        case.instead(case.counts.copies_h2d, "makes an index on the CPU",
                     "it is copied to the device in every call: torch.arange(n, device=states.device)")
        case.equal(got.detach() if isinstance(got, torch.Tensor) else got, expected.to(case.device))
        case.instead(not got.requires_grad, "cuts the gradient", "the LSTM learns through this state")


@exercise(title="A causal mask", minutes=5, difficulty=1, hints=(
    "Row t may look at the columns 0 to t: a lower triangle, the diagonal included.",
    "torch.ones with dtype=torch.bool and device=device makes the square; one function keeps the lower triangle.",
    "return torch.ones(time, time, dtype=torch.bool, device=device).tril()",
))
def causal_mask(time: int, device: torch.device) -> torch.Tensor:
    """Return a bool (time, time) tensor on `device`: True where place `row` may look at place `column`."""
    return torch.ones(time, time, dtype=torch.bool, device=device).tril()  # itself and what came before


@causal_mask.checks
def _(case: Case) -> None:
    for time in (3, 1, 6):
        got = case.call(time, case.device)
        expected = torch.tensor([[column <= row for column in range(time)] for row in range(time)])
        sent = case.counts.bytes_h2d
        plain = isinstance(got, torch.Tensor) and got.layout == torch.strided
        if plain and got.shape == expected.shape and got.dtype == torch.bool:
            show, mine = {"expected": expected.to(case.device), "got": got}, got.cpu()
            for wrong, name, why in (
                (expected.mT, "looks at the future only", "row t may look at the columns up to t: the lower triangle"),
                (~expected, "marks what is forbidden",
                 "nn.MultiheadAttention wants it so; F.scaled_dot_product_attention takes True for allowed"),
                (expected.tril(-1), "hides each place from itself", "the first row then sees nothing, and gives NaN"),
            ):
                case.instead(time > 1 and torch.equal(mine, wrong), name, why, **show)
            leak = leak_of(mine)
            case.instead(leak, f"leaks the future: {leak}", "the model would see what it is to predict", **show)
            row, column = next(iter((expected & ~mine).nonzero().tolist()), (0, -1))
            case.instead(column >= 0, f"hides place {column} from row {row}",
                         "a place may look at itself and at all before it", **show)
        case.instead(isinstance(got, torch.Tensor) and got.dtype != torch.bool, "is not a bool tensor",
                     "numbers would be added to the scores; True and False say who may look", got=got)
        case.instead(sent, f"creates it on the CPU and copies {sent} bytes", "the device can write it: device=device")
        case.equal(got, expected.to(case.device))
    place = elsewhere(case.device)
    other = case.call(3, place)
    case.instead(isinstance(other, torch.Tensor) and other.device != place, *IGNORED)


@exercise(title="Load a checkpoint on a smaller machine", minutes=5, difficulty=2, hints=(
    "torch.load puts each tensor back on the device that the file names, unless map_location says otherwise.",
    "The file holds a state_dict. The model is where it was made; it still has to go to `device`.",
    'state = torch.load(path, map_location="cpu", weights_only=True); model.load_state_dict(state); '
    "return model.to(device)",
))
def load_checkpoint(model: nn.Module, path: Path, device: torch.device) -> nn.Module:
    """Fill `model` with the state_dict saved at `path`, move it to `device`, and return it."""
    state = torch.load(path, map_location="cpu", weights_only=True)  # wherever it was saved; nothing but tensors
    model.load_state_dict(state)  # strict: a file that does not fit raises
    return model.to(device)


@load_checkpoint.checks
def _(case: Case) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.pt"
        for place in (case.device, elsewhere(case.device)):
            loads(case, path, place)
        saved = network().state_dict()
        torch.save(dict(saved) | {"0.bias": Payload((3,))}, path)  # it becomes a tensor, and the file fits
        payloads_run.clear()
        refused = refuses(case, path)
        case.instead(payloads_run, "runs code that came in the file",
                     "a pickle can call any function on your machine: weights_only=True reads tensors and nothing else")
        case.instead(not refused, "raises no error for a file that holds more than tensors",
                     "the model is not filled, and the caller must hear of it")
        for names, why in ((saved.keys() - {"0.bias"}, "a bias is missing in it and stays random"),
                           (saved.keys() | {"2.bias"}, "it holds 2.bias, which the model has not")):
            save_elsewhere({name: saved.get(name, torch.zeros(3)) for name in sorted(names)}, path)
            case.instead(not refuses(case, path), "accepts a file that does not fit the model",
                         f"{why}; with strict=True, the default, that is an error")


@exercise(title="A model over two devices", minutes=8, difficulty=2, hints=(
    "A module knows its device by its parameters: next(first.parameters()).device.",
    "Two moves: the input to the first half, the activations to the second half.",
    "x = first(x.to(next(first.parameters()).device)); return second(x.to(next(second.parameters()).device))",
))
def forward_on_two(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return `second(first(x))` on the device of `second`; the halves stay where they are, `x` may be anywhere."""
    x = first(x.to(next(first.parameters()).device))
    return second(x.to(next(second.parameters()).device))  # the activations cross once; gradients will cross back


@forward_on_two.checks
def _(case: Case) -> None:
    here, there = case.device, elsewhere(case.device)
    long = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4))
    bare, inner = nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(3, 4), nn.Tanh())  # no first[0].weight
    cpu = torch.device("cpu")
    for a, b, start, first in ((here, there, cpu, long), (there, here, there, bare), (here, here, here, inner)):
        first = first.to(a)
        second = nn.Sequential(nn.Tanh(), nn.Linear(4, 8), nn.Linear(8, 2)).to(b)
        x, before = torch.randn(5, 3), copy.deepcopy([first, second])
        with torch.no_grad():
            expected = second(first(x.to(a)).to(b))
        arrived = _inputs_of(first), _inputs_of(second)
        states = state_of(first), state_of(second)
        try:
            got = case.call(first, second, x.to(start), modifies=True)
        except WrongAnswer as wrong:
            if "same device" in str(wrong):
                _not_moved(case, arrived, (a, b))
            raise
        parts = [{p.device for p in half.parameters()} for half in (first, second)]
        case.instead(parts != [{a}, {b}], "moves a half of the model",
                     "it may not fit on the other device: move the activations")
        if isinstance(got, torch.Tensor) and got.device != b:
            case.fail(f"the result is on {got.device}, expected on {b}", "the loss is computed where the result is")
        case.equal(got.detach() if isinstance(got, torch.Tensor) else got, expected, atol=1e-5)
        filled = any(parameter.grad is not None for half in (first, second) for parameter in half.parameters())
        case.instead(filled, "calls backward itself", "the caller does, on its loss: these gradients would be added")
        used, needed = len(case.counts.copies), (start != a) + (a != b)
        case.instead(used > needed and case.counts.copies_d2h and "cpu" not in (a.type, b.type),
                     "takes the way through the host", "a copy between devices needs no stop there: x.to(other)")
        case.budget("copies", used, needed, "one to the first half and one between the halves; each costs time")
        case.instead(difference([first, second], before), "changes a half of the model", "it is only to be used")
        case.instead(not (first.training and second.training), "leaves a half in evaluation mode",
                     "it came in training mode")
        case.backward(got)
        for half, name in ((first, "first"), (second, "second")):
            learns = all(parameter.grad is not None for parameter in half.parameters())
            case.instead(not learns, "cuts the gradient", f"the {name} half would never learn")
        changed = next(filter(None, map(left_changed, states, (state_of(first), state_of(second)))), "")
        case.instead(changed, f"changes a half of the model: {changed}", "it is only to be used")


def _not_moved(case: Case, arrived: tuple[list, list], places: tuple[torch.device, torch.device]) -> None:
    """Fail with the name of the half whose last input was not where its parameters are."""
    for name, seen, place in zip(("first", "second"), arrived, places, strict=True):
        wrong = [device for device in seen[-1:] if device != place]
        case.instead(wrong, f"gives the {name} half its input on {wrong and wrong[0]}",
                     f"its parameters are on {place}, and an operation runs on one device")
    case.instead(places[0] != places[1], "runs an operation on two devices",
                 f"the first half is on {places[0]}, the second on {places[1]}: move the input and the activations")


def _inputs_of(half: nn.Module) -> list[torch.device]:
    """Return a list to which each call of `half` adds where its input is."""
    seen: list[torch.device] = []
    half.register_forward_pre_hook(lambda _, given: seen.extend(x.device for x in given))
    return seen
