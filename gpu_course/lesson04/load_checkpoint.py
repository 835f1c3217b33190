"""The exercise “Load a checkpoint on a smaller machine”."""

import tempfile
from pathlib import Path

import torch
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere, left_changed, state_of
from gpu_course.lesson04.files import Payload, payloads_run, save_elsewhere


@exercise(
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
    """Return a small model with parameters and buffers of the same shape, and a buffer that no file holds."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("scale", torch.ones(1), persistent=False)
    return model


load_checkpoint.exempt(
    "the file says what the names are, those of a shared parameter and of a scalar too",
    "shared scalar_parameter two_groups",
)
load_checkpoint.exempt("it fills the model that it is handed", "second_call unchanged")
load_checkpoint.exempt("nothing is made, and gradients are no part of a state", "default_type old_gradients")


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
        case.fail_if(
            payloads_run,
            "runs code that came in the file",
            "a pickle can call any function on your machine: weights_only=True reads tensors and nothing else",
        )
        case.fail_if(
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
            case.fail_if(
                case.error_of(_network(), path, case.device) is None,
                "accepts a file that does not fit the model",
                f"{why}; with strict=True, the default, that is an error",
            )


def _keeps(case: Case, path: Path, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Fail unless a model that is filled stays, beside its numbers and its place, what it was."""
    device = edges.supporting(case.device, model)
    before = state_of(model.to(device))
    model.to("cpu")
    got = case.call(model, path, device, modifies="numbers place")
    changed = left_changed(before, state_of(model))
    case.fail_if(changed, f"leaves the model in another state: {changed}", "only fill and move it")
    types = {name: value.dtype for name, value in model.state_dict().items()}
    expected = {name: value.to(device, types[name]) for name, value in state.items()}
    why = "every tensor of the file under its name, on `device`"
    case.equal(dict(got.state_dict()), expected, rtol=0, atol=0, why=why)


def _loads(case: Case, path: Path, device: torch.device, state: dict[str, torch.Tensor]) -> None:
    """Fail unless the answer loads `state` from the file of another machine to `place`."""
    model = _network()
    error = case.error_of(model, path, device)
    why = 'the file names a device, unless you name another: map_location="cpu" or map_location=device'
    case.fail_if(
        error is not None and "deserialize" in str(error), "loads to a GPU that this machine does not have", why
    )
    model = _network()
    got = case.call(model, path, device, modifies="numbers place")
    why = "the one that was given stays as it was, and the caller may hold it"
    case.fail_if(
        isinstance(got, nn.Module) and got is not model and type(got) is type(model), "fills another model", why
    )
    case.fail_if(got is not model, "does not return the model", "the caller goes on with what you return", got=got)
    why = "every tensor of the file under its name, on `device`"
    case.equal(dict(model.state_dict()), {name: value.to(device) for name, value in state.items()}, why=why)
    placed = f"leaves the model's buffer `scale` on {model.scale.device}"
    case.fail_if(model.scale.device != device, placed, "move the model as well: the file does not hold all of it")
