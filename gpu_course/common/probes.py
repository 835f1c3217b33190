"""State of a model beside its numbers, and other devices on which an answer can be tried."""

from typing import Any

import torch
from torch import nn

from gpu_course.checks import Case


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return what a model is beside its numbers: settings such as `training`, hooks, requires_grad, the device."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            path = f"{name}.{key}".lstrip(".")
            if isinstance(value, bool | int | float | str):
                state[path] = value
            elif "hooks" in key and isinstance(value, dict):
                state[path] = len(value)
            elif key == "forward":
                state[path] = "replaced"
    for name, parameter in model.named_parameters():
        hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        state[f"{name}.hooks"] = sum(map(len, filter(None, hooks)))
        state |= {f"{name}.requires_grad": parameter.requires_grad, f"{name}.device": str(parameter.device)}
        state[f"{name}.dtype"] = str(parameter.dtype)
    return state


def left_changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return in words the first thing in which two results of `state_of` differ, or nothing."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"{names[0]} is {after.get(names[0])}, was {before.get(names[0])}" if names else ""


def unchanged(case: Case, before: dict[str, Any], model: nn.Module, why: str) -> None:
    """Fail where `model` is no longer what `state_of` returned `before`."""
    changed = left_changed(before, state_of(model))
    case.fail_if(changed, f"leaves the model in another state: {changed}", why)


def is_a_module(case: Case, made: Any) -> None:
    """Fail unless a class of the answer made a module, with the tables of one."""
    case.fail_if(not isinstance(made, nn.Module), f"makes a {type(made).__name__}, not a module")
    why = "nn.Module makes its tables of parameters and buffers there: it is the first line of __init__"
    case.fail_if("_parameters" not in vars(made), "does not call super().__init__()", why)


def same_parameters(case: Case, model: nn.Module, twin: nn.Module) -> None:
    """Fail unless each parameter of a trained `model` is that of its `twin`, which was trained on the CPU."""
    for name, value in model.named_parameters():
        right = twin.get_parameter(name).detach()
        case.equal(value.detach().cpu(), right, rtol=1e-4, atol=3e-5, what=name, why="after all steps")


def detached(got: Any) -> Any:
    """Return what an answer gave without its graph, where it is a tensor: the values alone are compared."""
    return got.detach() if isinstance(got, torch.Tensor) else got


def named(kind: type, word: str) -> type:
    """Return a class like `kind` whose objects messages show as `word`; errors of Python show the name of `kind`."""
    return type(kind.__name__, (kind,), {"__repr__": lambda self: word})


def elsewhere(device: torch.device) -> torch.device:
    """Return another device than `device`, the second simulated GPU or the CPU; from the CPU there is only itself."""
    return torch.device("sim", 1) if str(device) == "sim:0" else torch.device("cpu")
