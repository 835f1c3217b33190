"""Does a program run on any device, and does a test find one that does not? Two exercises of lesson 13."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edit, lesson
from gpu_course.common.left_out import TRAINING
from gpu_course.common.probes import elsewhere, same_parameters

__all__ = ["device_test", "train_on"]

exercise = lesson("13")


@exercise(
    title="Port a program without naming a device",
    minutes=10,
    difficulty=2,
    hints=(
        "Three things must be on `device`: the model, each batch, and what the loop makes itself.",
        "torch.linspace(…, device=device) makes the tensor on the device. And if you read a value in each step, the "
        "host waits in each step.",
        "Write total = torch.zeros((), device=device) before the loop, total += loss.detach() in it, and one .item() "
        "at the end.",
    ),
)
def train_on(model: nn.Module, batches: list, device: torch.device) -> float:
    """Train `model` on `device`, a step for each batch; return the mean loss."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros((), device=device)
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        weights = torch.linspace(0.5, 1.5, len(y), device=device)
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = (weights * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(batches)


train_on.broken(
    """
    -    model.to(device)
         optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    -    total = torch.zeros((), device=device)
    +    total = 0.0
         for x, y in batches:
    -        x, y = x.to(device), y.to(device)
    -        weights = torch.linspace(0.5, 1.5, len(y), device=device)
    +        weights = torch.linspace(0.5, 1.5, len(y))
    ...
    -        total += loss.detach()
    -    return total.item() / len(batches)
    +        total += loss.item()
    +    return total / len(batches)
    """
)


train_on.leaves_out(
    TRAINING,
    "scalar empty permuted sliced huge tiny not_finite half bfloat16 double bool complex",
    "elsewhere default_type evaluation frozen all_frozen shared two_groups double_model scalar_parameter",
    "no_entries order second_call unchanged",
)


@train_on.checks
def _(case: Case) -> None:
    # "Let it train on `device`, whichever that is."
    for sizes, device in (((2,), case.device), ((3, 5), elsewhere(case.device)), ((4, 1, 2, 6), case.device)):
        case.device = device
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        twin = copy.deepcopy(model)
        batches = [(torch.randn(size, 3), torch.randint(3, (size,))) for size in sizes]
        trained_before = len(sizes) == 4
        for parameter in model.parameters() if trained_before else ():
            parameter.grad = torch.ones_like(parameter)
        moved = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
        copies = 2 * len(sizes) + sum(tensor is not None for tensor in moved)
        why = "this is the mean loss of the steps"
        why += "; the parameters had gradients, which the program clears before each step" if trained_before else ""
        got = case.call(model, batches, case.device, modifies=True)
        counts = case.counts
        placed = {parameter.device for parameter in model.parameters()}
        case.instead(
            placed != {case.device},
            f"the model is on {', '.join(map(str, placed))}, expected {case.device}",
            "the caller says on which device: `device`",
        )
        case.instead(not model.training, "leaves the model in evaluation mode", "with dropout, it trained otherwise")
        case.equal(got, _slowly(twin, batches), rtol=1e-3, atol=1e-4, why=why)
        same_parameters(case, model, twin)
        reads = counts.host_reads + counts.copies_d2h
        case.instead(
            reads > 1,
            f"the host reads {reads} values",
            "at each read the host waits for the GPU, then the GPU for the host: add up on the device, read once",
        )
        case.budget(
            "copies to the device",
            counts.copies_h2d,
            copies,
            "copy the model and two tensors of each batch; torch.linspace and torch.zeros make what else you need with "
            "device=device, but torch.tensor copies Python's numbers there",
        )


def _slowly(model: nn.Module, batches: list) -> float:
    """Train on the CPU, each sample's loss by itself and each parameter by hand; return the mean loss."""
    total = 0.0
    for x, y in batches:
        parts = [-model(row[None]).log_softmax(-1)[0, label] for row, label in zip(x, y, strict=True)]
        weights = torch.linspace(0.5, 1.5, len(y)).tolist()
        loss = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / len(y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        total += loss.item()
    return total / len(batches)


train_on.alternative(
    "keep all losses and stack them at the end: a few bytes a step, and you can plot them",
    edit("""
        -    total = torch.zeros((), device=device)
        +    losses_of_steps = []
        ...
        -        total += loss.detach()
        -    return total.item() / len(batches)
        +        losses_of_steps.append(loss.detach())
        +    return torch.stack(losses_of_steps).mean().item()
    """),
)


class _Places(nn.Module):
    """Adds to each place of a sequence the vector of that place: right on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(24.0).view(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[: x.shape[1]]


class _Scaled(nn.Module):
    """Right as well, in another way: it has no buffer, and makes what it needs on the device of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


class _Drawn(_Places):
    """Right as well: its numbers are drawn, so two of them differ, on one device, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(6, 4)


class _Rounds(_Places):
    """Right as well: on another device than the CPU it rounds its last bit in another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.device.type == "cpu" else 1 + 2e-7)


class _PlainTable(_Places):
    """Its table is a plain attribute, which `.to` does not move."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.table = torch.arange(24.0).view(6, 4)


class _MakesOnTheCpu(_Places):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(1, x.shape[1] + 1)[:, None]


class _ReturnsToTheCpu(_Places):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).cpu()


class _ForgetsOnTheGpu(_Places):
    """A branch for the GPU that nobody ran: it adds the vector of the first place everywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.device.type == "cpu" else x + self.table[0]


class _SwapsOnTheGpu(_Places):
    """What it computes has the right sum and mean, at other places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.device.type == "cpu" else super().forward(x).flip(-1)


class _SlightlyOffOnTheGpu(_Places):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        if x.device.type != "cpu":
            result[-1] += 0.02
        return result


class _DoublesOnTheGpu(_Places):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.device.type == "cpu" else 2 * x)


class _NanOnTheGpu(_Places):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if x.device.type == "cpu" else torch.nan)


class _Maker:
    """Makes layers of a class, and notes on which devices they were called."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind, self.called = kind, []

    def __repr__(self) -> str:
        return "make_layer"

    def __call__(self) -> nn.Module:
        layer = self.kind()
        layer.register_forward_pre_hook(lambda _, inputs: self.called.append(inputs[0].device))
        return layer


_BROKEN = (
    (_PlainTable, "its table is a plain attribute, which .to() does not move"),
    (_MakesOnTheCpu, "it makes a tensor on the CPU in each call"),
    (_ReturnsToTheCpu, "it returns its result on the CPU"),
    (_ForgetsOnTheGpu, "on the GPU it computes other values"),
    (_SwapsOnTheGpu, "on the GPU its values stand at other places"),
    (_SlightlyOffOnTheGpu, "on the GPU the last row of its result is too large by 0.02"),
    (_DoublesOnTheGpu, "on the GPU it computes with 2 * x"),
    (_NanOnTheGpu, "on the GPU all its values are nan"),
)


@exercise(
    title="A test that needs the device",
    minutes=6,
    difficulty=2,
    simulated=True,
    hints=(
        "On the CPU all of these layers are right. So compute the expected result there, then do the same on `device`.",
        "Move both the layer and x to `device`. If the layer raises, your test has already failed, as it should.",
        "Check two things: the result is on `device`, and torch.testing.assert_close(result.cpu(), expected) passes.",
    ),
)
def device_test(make_layer: Callable[[], nn.Module], x: torch.Tensor, device: torch.device) -> None:
    """Raise unless the layer computes on `device` what it does on the CPU."""
    layer = make_layer()
    expected = layer(x)
    result = layer.to(device)(x.to(device))
    assert result.device == device
    torch.testing.assert_close(result.cpu(), expected)


device_test.leaves_out(
    "the layer says what its input is",
    "scalar empty single permuted sliced half bfloat16 double whole bool complex",
)
device_test.leaves_out(TRAINING, "huge tiny not_finite zero tied elsewhere default_type second_call unchanged")


@device_test.checks
def _(case: Case) -> None:
    x = torch.randn(2, 3, 4)
    cpu = torch.device("cpu")  # "`device` may be any device"
    right = *((kind, case.device) for kind in (_Places, _Scaled, _Drawn, _Rounds)), (_Places, cpu)
    for kind, device in right:
        maker = _Maker(kind)
        error = case.error_of(maker, x, device)
        case.instead(
            not maker.called,
            "tests nothing: it never calls the layer",
            "the test must run on any `device`, so it may not ask for a real GPU first",
        )
        said = "" if error is None else f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        case.instead(
            error is not None,
            f"fails for a layer that is right: {said}",
            "a test that fails for a right layer tells you nothing: move one layer and x to `device`, "
            "and let results differ by rounding",
        )
        case.instead(
            device not in maker.called,
            f"never calls the layer on {device}",
            "on the CPU the broken layers give the right result, too",
        )
        others = ", ".join({str(place) for place in maker.called if place not in (cpu, device)})
        case.instead(
            others, f"calls the layer on {others}, and `device` is {device}", "the caller says on which device"
        )
    for broken, fault in _BROKEN:
        error = case.error_of(_Maker(broken), x, case.device)
        why = "a test must fail before the repair, or nobody knows what it tests"
        if isinstance(case.returned, bool):
            why = f"it returns {case.returned}, and a test fails by an error alone: write `assert` there, not `return`"
        case.instead(error is None, f"passes, though the layer is broken: {fault}", why)


device_test.alternative(
    "assert_close compares the devices, too: one line does both",
    edit("""
        -    assert result.device == device
        -    torch.testing.assert_close(result.cpu(), expected)
        +    torch.testing.assert_close(result, expected.to(device))
    """),
)
