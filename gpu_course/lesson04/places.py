"""The exercise “Find what stayed behind”."""

from types import SimpleNamespace

import torch
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere, state_of


@exercise(
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


places.exempt("a tensor of two names may stand under one of them or both", "shared")
places.exempt(
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
        why = "it is only to be looked at: nothing is moved"
        case.fail_if((state_of(model), _where(model)) != before, "moves or changes the model", why)
        case.fail_if(not isinstance(got, dict), f"returns {type(got).__name__}, expected a dict from devices to lists")
        wrong = [key for key in got if not isinstance(key, torch.device)]
        case.fail_if(wrong, f"has the key {wrong[:1]}, expected a torch.device", "tensor.device is one", got=got)
        lists = [isinstance(one, list) and all(isinstance(n, str) for n in one) for one in got.values()]
        case.fail_if(not all(lists), "has values that are no lists of names", expected=expected, got=got)
        why = "the number of devices in the dict is the number of places: leave out empty lists"
        case.fail_if([] in [list(names) for names in got.values()], "names a device that holds nothing", why, got=got)
        mine, right = ({str(one): sorted(found[one]) for one in sorted(found, key=str)} for found in (got, expected))
        case.equal(mine, right, why="every tensor of every module once, by path and attribute, under its device")


def _where(model: nn.Module) -> list[torch.device]:
    """Return the device of each plain tensor attribute."""
    return [one.device for module in model.modules() for one in vars(module).values() if isinstance(one, torch.Tensor)]
