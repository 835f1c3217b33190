"""The exercise “Predict the four parts”."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import state_of, unchanged


@exercise(
    minutes=10,
    difficulty=1,
    hints=(
        "Each part is a sum of bytes. tensor.nbytes are the bytes of a tensor or a parameter, and model.parameters() "
        "gives each parameter once.",
        "Only parameters with requires_grad have a gradient and states. A state has 4 bytes for each number: SGD keeps "
        "no state, momentum one, Adam two. A 16-bit weight also has a float32 copy.",
        "The optimizer's part is a sum over the trained parameters: numel() times the bytes that it keeps for each "
        "number, which are 4 a state, and 4 more where itemsize is 2.",
    ),
)
def four_parts(model: nn.Module, optimizer: str, saved: list[torch.Tensor]) -> dict[str, int]:
    """Return the bytes of the four parts of a training step of `model`."""
    states = {"SGD": 0, "momentum": 1, "Adam": 2}[optimizer]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.nbytes for parameter in trained),
        # states are float32, whatever the weights are; 16-bit weights have a float32 master copy besides
        "optimizer": sum(p.numel() * (4 * states + (4 if p.itemsize == 2 else 0)) for p in trained),
        "activations": sum(tensor.nbytes for tensor in saved),
    }


class _Scaled(nn.Module):
    """A layer in float64 and numbers in 8 bits, both trained, a frozen layer in 16 bits, and a scale for all."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.frozen = nn.Linear(3, 2, dtype=torch.float64), nn.Linear(5, 1, dtype=torch.float16)
        self.narrow, self.scale = nn.Parameter(torch.empty(7, dtype=torch.float8_e4m3fn)), nn.Parameter(torch.empty(()))
        self.frozen.requires_grad_(False)


class _Tied(nn.Module):
    """An embedding whose weight the output layer uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


_TYPES = torch.int64, torch.complex64, torch.float16, torch.float64, torch.bool


def _models() -> Iterator[tuple[nn.Module, str, list[torch.Tensor]]]:
    """Yield (model, optimizer, saved tensors), small ones first; all on the meta device, which keeps shapes alone."""
    with torch.device("meta"):
        linear, half = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
        frozen = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        frozen[0].requires_grad_(False)
        x = [torch.empty(5, 3), torch.empty(5, 2, dtype=torch.bfloat16)]
        mixed = nn.Sequential(nn.Linear(4, 4).to(torch.float16), nn.BatchNorm1d(4))
        large = nn.Sequential(*[nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(4)])
        for given in (
            (linear, "SGD", []),
            (linear, "SGD", x),
            (linear, "momentum", x),
            (linear, "Adam", x),
            (half, "Adam", x),
            (half, "SGD", x),
            (frozen, "Adam", x),
            (_Tied(), "Adam", x),
            (mixed, "Adam", x),
            (_Scaled(), "momentum", [torch.empty(()), torch.empty(0, 4), torch.empty(3, 5, dtype=torch.bool).T]),
            (_Scaled().requires_grad_(False), "Adam", x),  # all frozen
            (nn.ReLU(), "SGD", x),  # no parameters
            (large, "Adam", [torch.empty(64, 4096) for _ in range(8)]),
            (linear, "Adam", [x[1], x[0]]),
            (linear, "Adam", x[:1]),
            (nn.Linear(3, 1).double(), "Adam", [edges.sliced(torch.empty(4, 3)), torch.empty(1, 3)]),
            (nn.Linear(3, 1).half(), "momentum", [torch.empty(3, dtype=one) for one in _TYPES]),
        ):
            for module in given[0].modules():
                module.extra_repr = partial(_formats, module)
            yield given


def _formats(module: nn.Module) -> str:
    """Return the parameters of `module` itself for a message: the formats are what the answer depends on."""
    return ", ".join(
        f"{name} {tuple(one.shape)} {str(one.dtype)[6:]}{'' if one.requires_grad else ' frozen'}"
        for name, one in module.named_parameters(recurse=False)
    )


four_parts.exempt(
    "only shapes, formats and what is trained count: on meta there is nothing else",
    "values places default_type evaluation old_gradients",
)
four_parts.exempt("it gets no optimizer, and a model cannot be kept for later", "two_groups second_call")


@four_parts.checks
def _(case: Case) -> None:
    for model, optimizer, saved in _models():
        state = state_of(model)
        got = case.call(model, optimizer, saved)
        unchanged(case, state, model, "it is only to be counted")
        expected = four_parts.reference(model, optimizer, saved)
        if isinstance(got, dict) and set(got) == set(expected):
            got = {part: got[part] for part in expected}  # in any order
        case.equal(got, expected, why="four numbers of bytes: parameters, gradients, optimizer, activations")
