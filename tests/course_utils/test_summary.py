"""Is the table of a model right: every module, shapes, tied parameters once, FLOPs, on every device and on none?"""

import pytest
import torch
from torch import nn

from course_utils import devices, models
from course_utils.summary import summary

DEVICE = devices.pick()
PLACES = sorted({torch.device("cpu"), torch.device("meta"), DEVICE, *devices.check_devices()}, key=str)


class Twice(nn.Module):
    """Calls one layer two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(5, dtype=torch.int64))

    def forward(self, x):
        return {"y": self.layer(self.layer(x))}


def rows(found):
    return {row.name: row for row in found.rows}


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_linear_layers_row_is_what_a_sheet_of_paper_gives(place):
    found = summary(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(place), torch.ones(2, 3, device=place))
    assert (found.parameters, found.bytes, found.flops) == (16, 64, 2 * 2 * 3 * 4)
    assert found.device == str(place)
    assert [(row.name, row.kind, row.depth, row.shape, row.dtype) for row in found.rows] == [
        ("", "Sequential", 0, "(2, 4)", "float32"),
        ("0", "Linear", 1, "(2, 4)", "float32"),
        ("1", "ReLU", 1, "(2, 4)", ""),
    ]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_three_models_have_the_same_table_everywhere(place):
    text, lengths = torch.zeros(2, 16, dtype=torch.int64), torch.tensor([4, 16])
    for model, inputs, flops in (
        (models.ConvNet(width=8), (torch.zeros(2, 1, 8, 8),), 2 * 2 * (64 * 9 * (8 + 64) + 16 * 9 * 128 + 160)),
        (models.RecurrentClassifier(50, 8, 16), (text, lengths), 2 * (32 * 4 * 16 * (8 + 16) + 2 * 32)),
        (
            models.TransformerLM(50, width=16, heads=2, layers=1),
            (text,),
            2 * 32 * (12 * 16 * 16 + 16 * 50) + 2 * (2 * 2 * 16 * 16 * 16),
        ),
    ):
        found = summary(model.to(place), *(x.to(place) for x in inputs))
        assert found.flops == flops, type(model).__name__
        assert found.parameters == sum(p.numel() for p in model.parameters())
        assert len(found.rows) == len(list(model.modules()))


def test_tied_parameters_count_once_and_are_named():
    text = torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)
    tied, free = (
        summary(models.TransformerLM(50, width=16, heads=2, layers=1, tied=tied).to(DEVICE), text)
        for tied in (True, False)
    )
    assert free.parameters - tied.parameters == 50 * 16 and free.bytes - tied.bytes == 50 * 16 * 4
    assert tied.tied == (("embed.weight", "head.weight"),) and free.tied == ()
    assert rows(tied)["head"].parameters == 50 * 16
    assert "one parameter under several names: embed.weight, head.weight" in str(tied)


def test_modules_called_twice_in_lists_and_with_outputs_in_a_dict_have_their_flops():
    found = rows(summary(Twice(), torch.ones(2, 3)))
    assert found["layer"].flops == found[""].flops == 2 * (2 * 2 * 3 * 3)
    assert found[""].bytes == 12 * 4 + 5 * 8 and found[""].parameters == 12
    assert found[""].shape == "(2, 3)" and found[""].dtype == "float32"
    found = rows(summary(models.TransformerLM(50, width=16, heads=2, layers=3), torch.zeros(1, 4, dtype=torch.int64)))
    assert found["blocks"].flops == 3 * found["blocks.0"].flops > 0 and found["blocks"].shape == ""
    assert found[""].flops == found["blocks"].flops + found["head"].flops


def test_a_model_on_two_devices_says_so():
    if DEVICE.type == "cpu":
        pytest.skip("there is one device")
    model = nn.Sequential(nn.Linear(2, 2).half().to(DEVICE), nn.Linear(2, 2))
    model[1].register_forward_pre_hook(lambda module, args: (args[0].float().cpu(),))
    found = summary(model, torch.ones(1, 2, dtype=torch.float16, device=DEVICE))
    assert found.device == f"cpu, {DEVICE}" and rows(found)["0"].device == str(DEVICE)
    assert rows(found)[""].dtype == "float16, float32"


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(training):
    model = models.ConvNet(width=8)
    model.head = nn.Sequential(nn.Dropout(), model.head).eval()  # of one mode, in a model of another
    model.features.train(training)
    model.training = training
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    summary(model, torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(RuntimeError):
        summary(model, torch.ones(2, 3, 8, 8))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_depth_text_and_table_and_wrong_arguments_are_named():
    found = summary(models.ConvNet(width=8), torch.rand(2, 1, 8, 8), depth=1)
    assert [row.name for row in found.rows] == ["", "features", "head"]
    assert repr(found) == str(found)
    lines = str(found).splitlines()
    assert lines[0].split() == ["module", "output", "shape", "parameters", "bytes", "dtype", "device", "FLOPs"]
    assert lines[1].startswith("ConvNet") and lines[3].startswith("  head: Linear")
    assert found._repr_html_().count("<tr>") == 4
    whole = summary(models.ConvNet(width=8), torch.rand(2, 1, 8, 8))
    assert whole.flops == found.flops and len(whole.rows) > len(found.rows)
    with pytest.raises(TypeError, match="model is Tensor"):
        summary(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="depth"):
        summary(nn.Linear(2, 2), torch.ones(2), depth=0)
