"""Comparison of a resumed run with an undisturbed one."""

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from gpu_course.checks import Case, difference, edges
from gpu_course.common.probes import elsewhere, named, state_of, unchanged
from gpu_course.lesson05.training import Classifier, batches

# What the next steps depend on, and why: in this order, because a scheduler that steps changes its optimizer too.
_WHY = {
    "step": "the position in the data follows from it",
    "model": "the parameters start anew",
    "running average of batch norm": "it is a buffer: model.state_dict() holds it, model.parameters() does not",
    "scheduler": "the learning rate takes another course",
    "optimizer": "its running averages start again at 0",
    "random state": "dropout draws other numbers from here on",
    "random state of the device": "dropout draws from the generator of the model's device: get_rng_state(device)",
}
_AdamW, _StepLR = named(torch.optim.AdamW, "optimizer"), named(torch.optim.lr_scheduler.StepLR, "scheduler")
_State = type("state_dict", (dict,), {"__repr__": lambda self: "state"})  # its many numbers would fill the message


class _SavedRun:
    """A new model, optimizer and scheduler, and what the answer makes of them."""

    def __init__(self, case: Case) -> None:
        self.device, self.model = case.device, Classifier(dropout=0.5, norm=True).to(case.device)
        self.optimizer = _AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = _StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.progress = case.call(self.model, self.optimizer, self.scheduler, modifies="nothing")
        for method in ("state_dict", "load_state_dict"):
            case.fail_if(not callable(getattr(self.progress, method, None)), f"has no method {method}")

    def losses(self, data: list) -> list[float]:
        """Train on these batches and return the losses."""
        losses = []
        for number, (x, y) in enumerate(data):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
            loss.backward()
            self.optimizer.step()
            if number % 2:  # as one that steps once an epoch: its count is not the run's
                self.scheduler.step()
            losses.append(loss.item())
        return losses

    def parts(self) -> dict[str, list]:
        """Return copies, on the CPU, of all that the next steps depend on, by the names of `_WHY`."""
        parts = [
            dict(self.model.named_parameters()),
            dict(self.model.named_buffers()),
            self.scheduler.state_dict(),
            self.optimizer.state_dict(),
            torch.get_rng_state(),
        ]
        if self.device.type != "cpu":
            parts.append(torch.get_device_module(self.device).get_rng_state(self.device))
        leaves = ([_kept(leaf) for leaf in tree_leaves(part)] for part in parts)
        return dict(zip(list(_WHY)[1:], leaves, strict=False))


def _kept(leaf: Any) -> Any:
    """Return `leaf`, or of a tensor a copy on the CPU."""
    return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf


def resumes(case: Case) -> None:
    """Save in the middle of a run, load into a new one, and compare part by part, then the losses.

    Also on the CPU, and on another device than the current one.
    """
    edges.note("cpu", "elsewhere")
    here, other, cpu = case.device, elsewhere(case.device), torch.device("cpu")
    there = here if other.type == here.type else other
    ways = (here, here, "cpu"), (cpu, cpu, None), (other, there, None), (there, other, "cpu")
    for device, then, location in dict.fromkeys(way for way in ways if way[0].type == way[1].type):
        case.about("", device)
        with _generator_of_its_own(device):
            _resumes(case, then, location)


def _resumes(case: Case, then: torch.device, location: str | None) -> None:
    """Save on the device of the case and go on on the device `then`, after a load with this `map_location`."""
    data, first = batches((6,) * 6), _SavedRun(case)
    begin = getattr(first.progress, "step", None)
    case.fail_if(begin is None, "has no `step`", "the loop counts it up")
    case.fail_if(difference(begin, 0), "`step` is not 0 at first", "no step is done", expected=0, got=begin)
    first.losses(data[:3])
    first.progress.step = 3
    saved, again = (case.use(first.progress.state_dict, draws=False) for _ in range(2))
    why = "who kept that one then has the state of another step: make a new dict each time"
    case.fail_if(
        isinstance(saved, dict) and saved is again, "state_dict() returns the dict that it returned before", why
    )
    state = _through_a_file(case, saved, location)
    was, expected = first.parts(), first.losses(data[3:])
    _another_process(case)
    case.about("", then)
    second = _SavedRun(case)
    parameters = list(second.model.parameters())
    given, before = _State(copy.deepcopy(dict(state))), state_of(second.model)
    case.use(second.progress.load_state_dict, given, modifies=True, draws=True)
    changed = difference(dict(given), dict(state), where="state")
    case.fail_if(changed, f"changes the state that it loads: {changed}", "it may be loaded once more")
    same_objects = all(one is other for one, other in zip(second.model.parameters(), parameters, strict=True))
    why = "the optimizer trains those of before: load_state_dict copies into them, unless assign=True"
    case.fail_if(not same_objects, "gives the model new parameters", why)
    unchanged(case, before, second.model, "only numbers, step and random states are put back")
    step = getattr(second.progress, "step", None)
    wrong = difference(step, 3) or isinstance(step, float)
    case.fail_if(wrong, "the step is not what it was", _WHY["step"], expected=3, got=step)
    now, got = second.parts(), second.losses(data[3:])
    # The simulated GPU draws from the CPU's generator, and evaluation alone reads averages: losses may be equal.
    shown = {} if got == expected else {"expected": expected, "got": got}
    for name, value in was.items():
        case.fail_if(difference(now[name], value), f"the {name} is not what it was", _WHY[name], **shown)
    tolerance = 1e-5 if case.device.type in ("mps", "xpu") else 0  # on these two, the last bits may differ
    case.equal(got, expected, rtol=tolerance, atol=0)


def _another_process(case: Case) -> None:
    """Bring about what is different in another process: its random numbers, and what classes and modules hold."""
    torch.rand(100), torch.rand(100, device=case.device)
    if case.device.type == "sim":
        module = torch.get_device_module("sim")
        module.set_rng_state_all([torch.zeros(16, dtype=torch.uint8)] * module.device_count())
    other = _SavedRun(case).progress
    other.step = 1
    case.use(other.state_dict, draws=False)


def _through_a_file(case: Case, state: Any, location: str | None) -> Any:
    """Return the state as a file gives it back; fail where it cannot be written, or be loaded safely."""
    case.fail_if(not isinstance(state, dict), f"state_dict() returns {type(state).__name__}, expected a dict")
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        return _State(torch.load(file, map_location=location, weights_only=True))
    except Exception as error:
        case.fail(
            f"torch.save and torch.load(…, weights_only=True) do not take this state: {type(error).__name__}",
            "save tensors, numbers, texts, lists and dicts: an object in a file can run code when it is loaded",
        )


@contextmanager
def _generator_of_its_own(device: torch.device) -> Iterator[None]:
    """Give each simulated GPU a random state that is not the CPU's, as a GPU has one; elsewhere change nothing."""
    if device.type != "sim":
        yield
        return
    module = torch.get_device_module("sim")
    states = [torch.full((16,), number, dtype=torch.uint8) for number in range(1, 1 + module.device_count())]

    def place(device: Any) -> int:
        index = device if isinstance(device, int) else torch.device(device).index
        return module.current_device() if index is None else index

    def put(state: torch.Tensor, device: Any = "sim") -> None:
        if state.dtype != torch.uint8 or state.device.type != "cpu":  # CUDA's generator takes neither
            raise TypeError("RNG state must be a torch.ByteTensor")
        states[place(device)] = state.clone()

    new = {
        "get_rng_state": lambda device="sim": states[place(device)].clone(),
        "set_rng_state": put,
        "get_rng_state_all": lambda: [one.clone() for one in states],
        "set_rng_state_all": lambda given: [put(state, index) for index, state in enumerate(given)] and None,
    }
    with mock.patch.multiple(module, **new):
        yield
