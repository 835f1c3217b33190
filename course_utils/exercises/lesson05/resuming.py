"""Does a run that was saved and loaded go on to the losses of one that nobody disturbed?"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from course_utils.checks import Case, difference
from course_utils.exercises.common.places import elsewhere
from course_utils.exercises.lesson05.training import Probe, batches

__all__ = ["resumes"]

_WHY = {
    "model": "the parameters start anew",
    "running average of batch norm": "it is a buffer: model.state_dict() holds it, model.parameters() does not",
    "optimizer": "its running averages start again at 0",
    "scheduler": "the learning rate takes another course",
    "random state": "dropout draws other numbers from here on",
    "random state of the device": "dropout draws from the generator of the model's device: get_rng_state(device)",
}


class _AdamW(torch.optim.AdamW):
    def __repr__(self) -> str:
        return "optimizer"


class _StepLR(torch.optim.lr_scheduler.StepLR):
    def __repr__(self) -> str:
        return "scheduler"


class _State(dict):
    """A state whose many numbers do not fill the message."""

    def __repr__(self) -> str:
        return "state"


def resumes(case: Case) -> None:
    """Save in the middle of a run, load into a new one, and compare part by part, then the losses.

    Also on the CPU, and on another device than the current one.
    """
    for device in dict.fromkeys((case.device, torch.device("cpu"), elsewhere(case.device))):
        case.about("", device)
        with _generator_of_its_own(device):
            _resumes(case)


@contextmanager
def _generator_of_its_own(device: torch.device) -> Iterator[None]:
    """Give each simulated GPU a random state that is not the CPU's, as a GPU has one; elsewhere change nothing."""
    if device.type != "sim":
        yield
        return
    backend = torch.get_device_module(device)
    states = [torch.full((16,), number, dtype=torch.uint8) for number in range(1, 1 + backend.device_count())]

    def place(device: Any) -> int:
        index = device if isinstance(device, int) else torch.device(device).index
        return backend.current_device() if index is None else index

    def put(state: torch.Tensor, device: Any = "sim") -> None:
        if state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        states[place(device)] = state.cpu().clone()

    def get(device: Any = "sim") -> torch.Tensor:
        return states[place(device)].clone()

    def put_all(given: list[torch.Tensor]) -> None:
        for index, state in enumerate(given):
            put(state, index)

    every = {"get_rng_state_all": lambda: [one.clone() for one in states], "set_rng_state_all": put_all}
    with mock.patch.multiple(backend, get_rng_state=get, set_rng_state=put, **every):
        yield


def _resumes(case: Case) -> None:
    data = batches((6,) * 6)
    first, progress = _resumable(case)
    case.instead(not hasattr(progress, "step"), "has no `step`", "the loop counts it up")
    case.instead(difference(progress.step, 0), "`step` is not 0 at first", expected=0, got=progress.step)
    _losses(first, data[:3], case.device)
    progress.step = 3
    state = _through_a_file(case, case.use(progress.state_dict, draws=False))
    was = copy.deepcopy(_state(first, 3, case.device))
    expected = _losses(first, data[3:], case.device)
    _another_process(case)
    second, progress = _resumable(case)
    parameters = list(second["model"].parameters())
    case.use(progress.load_state_dict, state, modifies=True, draws=True)
    kept = all(one is other for one, other in zip(second["model"].parameters(), parameters, strict=True))
    case.instead(
        not kept,
        "gives the model new parameters",
        "the optimizer trains those of before: load_state_dict copies into them, unless assign=True",
    )
    now = copy.deepcopy(_state(second, getattr(progress, "step", None), case.device))
    got = _losses(second, data[3:], case.device)
    for name, value in was.items():
        case.instead(
            name == "step" and difference(now[name], value),
            "the step is not what it was",
            "the position in the data follows from it",
            expected=value,
            got=now[name],
        )
        if difference(_plain(now[name]), _plain(value)):
            if got == expected:  # the simulated GPU draws from the CPU's generator, and evaluation alone reads averages
                case.fail(f"the {name} is not what it was", _WHY[name])
            why = f"{_WHY[name]}, so the losses differ from those of a run that nobody disturbed"
            case.fail(f"the {name} is not what it was", why, expected=expected, got=got)
    case.equal(got, expected, rtol=0, atol=0)


def _resumable(case: Case) -> tuple[dict[str, Any], Any]:
    """Return a new model, optimizer and scheduler by name, and what the answer makes of them."""
    model = Probe(dropout=0.5, norm=True).to(case.device)
    optimizer = _AdamW(model.parameters(), lr=0.05)
    scheduler = _StepLR(optimizer, step_size=2, gamma=0.5)
    progress = case.call(model, optimizer, scheduler, modifies=True)
    for method in ("state_dict", "load_state_dict"):
        case.instead(not callable(getattr(progress, method, None)), f"has no method {method}")
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}, progress


def _another_process(case: Case) -> None:
    """Bring about what is different in another process: its random numbers, and what classes and modules hold."""
    torch.rand(100), torch.rand(100, device=case.device)
    if case.device.type == "sim":
        backend = torch.get_device_module(case.device)
        backend.set_rng_state_all([torch.zeros(16, dtype=torch.uint8)] * backend.device_count())
    _, other = _resumable(case)
    other.step = 1
    case.use(other.state_dict, draws=False)


def _losses(run: dict[str, Any], data: list, device: torch.device) -> list[float]:
    """Train on these batches and return the losses."""
    found = []
    for x, y in data:
        run["optimizer"].zero_grad()
        loss = F.cross_entropy(run["model"](x.to(device)), y.to(device))
        loss.backward()
        run["optimizer"].step()
        run["scheduler"].step()
        found.append(loss.item())
    return found


def _state(run: dict[str, Any], step: Any, device: torch.device) -> dict[str, Any]:
    """Return all that the next steps depend on."""
    model = run["model"]
    found: dict[str, Any] = {"model": dict(model.named_parameters())}
    found["running average of batch norm"] = dict(model.named_buffers())
    for name in ("scheduler", "optimizer"):  # a scheduler that steps changes its optimizer too
        found[name] = run[name].state_dict()
    found["step"] = step
    found["random state"] = torch.get_rng_state()
    if device.type != "cpu":
        found["random state of the device"] = torch.get_device_module(device).get_rng_state(device)
    return found


def _plain(value: Any) -> Any:
    """Return a state with Python's own containers, to compare."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _through_a_file(case: Case, state: Any) -> Any:
    """Return the state as a file gives it back; fail where it cannot be written, or be loaded safely."""
    case.instead(not isinstance(state, dict), f"state_dict() returns {type(state).__name__}, expected a dict")
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        return _State(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:
        case.fail(
            f"torch.save and torch.load(…, weights_only=True) do not take this state: {type(error).__name__}",
            "save tensors, numbers, texts, lists and dicts: an object in a file can run code when it is loaded",
        )
