"""The exercise “A test that needs the device”."""

from collections.abc import Callable

import torch
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import TRAINING


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


device_test.exempt(
    "the layer says what its input is", "scalar empty single permuted sliced half bfloat16 double whole bool complex"
)
device_test.exempt(TRAINING, "huge tiny not_finite zero tied elsewhere default_type second_call unchanged")


@device_test.checks
def _(case: Case) -> None:
    x = torch.randn(2, 3, 4)
    cpu = torch.device("cpu")  # "`device` may be any device"
    right = *((kind, case.device) for kind in (_Places, _Scaled, _Drawn, _Rounds)), (_Places, cpu)
    for kind, device in right:
        maker = _Maker(kind)
        error = case.error_of(maker, x, device, modifies="nothing")
        case.fail_if(
            not maker.called,
            "tests nothing: it never calls the layer",
            "the test must run on any `device`, so it may not ask for a real GPU first",
        )
        said = "" if error is None else f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        case.fail_if(
            error is not None,
            f"fails for a layer that is right: {said}",
            "a test that fails for a right layer tells you nothing: move one layer and x to `device`, "
            "and let results differ by rounding",
        )
        case.fail_if(
            device not in maker.called,
            f"never calls the layer on {device}",
            "on the CPU the broken layers give the right result, too",
        )
        others = ", ".join({str(place) for place in maker.called if place not in (cpu, device)})
        case.fail_if(others, f"calls the layer on {others}, and `device` is {device}", "the caller says on which")
    for broken, fault in _BROKEN:
        error = case.error_of(_Maker(broken), x, case.device)
        why = "a test must fail before the repair, or nobody knows what it tests"
        if isinstance(case.returned, bool):
            why = f"it returns {case.returned}, and a test fails by an error alone: write `assert` there, not `return`"
        case.fail_if(error is None, f"passes, though the layer is broken: {fault}", why)
