"""Are edges seen where they are, and only there? Do makers make what they say?"""

import pytest
import torch
from torch import nn

from gpu_course import catalogue
from gpu_course.checks import edges, exercise
from gpu_course.common import exemptions

GPU = torch.device("cuda", 0)


def drawn(*given, device=GPU):
    """Return the edges that are seen in a call with these arguments."""
    with edges.recording() as seen:
        edges.note_call(given, device)
    return seen.drawn


def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def shared():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, layer)


def with_scalar():
    made = model()
    made.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    return made


SQUARE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
SHOWN = {
    "scalar": torch.tensor(2.0), "empty": torch.ones(0, 2), "single": torch.ones(2, 1), "odd": torch.ones(33, 4),
    "permuted": edges.permuted(SQUARE), "sliced": edges.sliced(SQUARE),
    "huge": torch.tensor([2e4, 1.0]), "tiny": torch.tensor([1e-5, 1.0]), "not_finite": torch.tensor([torch.inf, 1.0]),
    "zero": torch.tensor([0.0, 1.0]), "negative": torch.tensor([-1.0, 1.0]), "tied": torch.tensor([1.0, 1.0]),
    "half": SQUARE.half(), "bfloat16": torch.bfloat16, "double": SQUARE.double(), "whole": SQUARE.int(),
    "bool": torch.tensor([True, False]), "complex": torch.tensor([1j, 1]),
    "cpu": torch.device("cpu"), "elsewhere": torch.device("cuda", 1),
    "evaluation": model().eval(), "frozen": edges.frozen(model(), "0.bias"), "all_frozen": edges.frozen(model()),
    "shared": shared(), "old_gradients": edges.with_old_gradients(model()), "double_model": model().double(),
    "two_groups": torch.optim.SGD([{"params": [one]} for one in model().parameters()]),
    "scalar_parameter": with_scalar(),
    "number_zero": 0.0, "number_negative": -1, "number_large": 2**31,
    "no_entries": "", "one_entry": [SQUARE],
}  # fmt: skip
PLAIN = SQUARE, model(), torch.optim.SGD(model().parameters()), 1, [1, 2], (1,), GPU, "text", torch.float32


@pytest.mark.parametrize("name", SHOWN)
def test_an_edge_is_seen_where_it_is_and_nowhere_else(name):
    assert name in drawn(SHOWN[name])
    assert name not in drawn(*PLAIN) - {"cpu"} and (name == "cpu" or name not in drawn(SQUARE.clone()))


def test_every_edge_that_arguments_show_is_tried_here():
    noted = {*edges.CATALOGUE["calls"], *edges.CATALOGUE["ranks"], "limit", "order", "default_type"}
    assert SHOWN.keys() | noted == edges.GROUP.keys() and not SHOWN.keys() & noted
    assert sum(map(len, edges.CATALOGUE.values())) == len(edges.GROUP)  # each name once


def test_strided_copies_have_the_values_and_what_lies_between_is_another_number():
    for x in (torch.arange(6.0), torch.arange(6).view(2, 3), torch.ones(2, 1, dtype=torch.bool)):
        assert torch.equal(edges.sliced(x), x) and edges.sliced(x).dtype == x.dtype
        assert not edges.sliced(x).is_contiguous()
        assert torch.equal(edges.permuted(x), x)
    assert edges.permuted(SQUARE).stride() == (1, 2)


def test_groups_concern_only_who_gets_such_things_and_nothing_is_kept_outside():
    with edges.recording() as seen:
        edges.note_call((1, 2), GPU)
        edges.note("limit", "second_call")
    assert seen.groups == {"calls", "numbers"} and "limit" not in seen.missing() and "number_zero" in seen.missing()
    edges.note_call((SQUARE,), GPU)
    assert "odd" not in seen.drawn and not edges.watched()


def test_another_order_of_the_same_entries_is_seen_and_other_entries_are_none():
    with edges.recording() as seen:
        edges.note_call(([1, 2, 2], {"a": SQUARE}), GPU)
        edges.note_call(([1, 1, 2], {"a": SQUARE}, (2, 1)), GPU)
        assert "order" not in seen.drawn
        edges.note_call(([2, 1, 2],), GPU)
    assert "order" in seen.drawn


def test_another_default_type_is_seen_and_left_again():
    with edges.default_type():
        assert "default_type" in drawn(SQUARE)
    assert torch.get_default_dtype() == torch.float32 and "default_type" not in drawn(SQUARE)


def test_each_reason_of_the_tables_is_given_by_an_exercise_and_tables_are_read_by_edge():
    given = {why for exercise in catalogue.registry() for why in exercise.exempted.values()}
    tables = [getattr(exemptions, name) for name in exemptions.__all__]
    assert tables and [why for table in tables for why in table.values() if why not in given] == []
    made = exercise(title="Made up", minutes=1, difficulty=1, hints=("",))(drawn)
    made.exempt({"half": "no", "bool": "never"}, "half", "bool")
    made.exempt("neither", "lists")
    assert made.exempted == {"half": "no", "bool": "never", **dict.fromkeys(edges.CATALOGUE["lists"], "neither")}
    with pytest.raises(KeyError):
        made.exempt({"half": "no"}, "formats")


def test_a_name_that_is_no_edge_is_an_error_that_lists_them():
    assert edges.named("calls") == list(edges.CATALOGUE["calls"])
    with pytest.raises(ValueError, match=r"'frosen' is no edge.*frozen"):
        edges.named("frosen")
