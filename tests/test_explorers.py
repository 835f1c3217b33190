"""Does every explorer answer to each of its controls, and does one picture appear wherever it is shown?"""

import importlib
import math
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from course_utils import explorers, plots
from course_utils.explorers import Choice, Explorer, Slider, Switch, transfer
from course_utils.explorers.will_it_fit import OWN_SIZES
from tests.explorer_settings import LIVE, settings

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Made:
    """An explorer: its module, how it is made, how it says where numbers come from, what a control needs to matter."""

    name: str
    arguments: tuple = ()
    source: str = "Predicted"
    beside: dict = field(default_factory=dict)

    def explore(self):
        return importlib.import_module(f"course_utils.explorers.{self.name}").explore(*self.arguments)


OWN = {name: {"model": OWN_SIZES} for name in ("width", "layers", "heads", "vocabulary")}
EXPLORERS = [
    Made("choose_gpu"),
    Made("transfer"),
    Made("roofline", (LIVE, {"linear": (30.0, 0.1)})),
    Made("number_formats", source="Computed"),
    Made("loss_scaling"),
    Made("will_it_fit", beside={"stage": {"gpus": 8}, **OWN, "heads": OWN["heads"] | {"fused": False}}),
    Made("checkpointing"),
    Made("collectives", source="Computed", beside={"root": {"operation": "broadcast"}}),
    Made("ring"),
    Made("buckets"),
]
each = pytest.mark.parametrize("made", EXPLORERS, ids=lambda made: made.name)


def test_all_explorers_are_tested():
    there = Path(explorers.__file__).parent.glob("*.py")
    assert {path.stem for path in there if "\ndef explore(" in path.read_text(encoding="utf-8")} == {
        made.name for made in EXPLORERS
    }


@each
def test_every_setting_gives_words(made):
    explorer = made.explore()
    for setting in settings(explorer):
        assert len(explorer.caption(**setting)) > 60


@each
def test_every_extreme_can_be_drawn(made):
    explorer = made.explore()
    corners = settings(explorer, most=4)
    drawn = [explorer.figure(**setting) for setting in random.Random(1).sample(corners, min(len(corners), 5))]
    assert plots.png(drawn[0]).startswith(b"\x89PNG")


def others(control):
    """Return the first and the last value of a control that are numbers and not its default."""
    found = [value for value in control.values if value not in (control.default, math.inf) and value == value]
    return found[0], found[-1]


@each
def test_every_control_shows_its_default_and_changes_the_words_and_the_first_one_the_picture_too(made, monkeypatch):
    explorer = made.explore()
    picture, words = explorer.widget().children[-2:]
    before, said = bytes(picture.value), words.value
    assert before.startswith(b"\x89PNG") and "failed" not in said
    first = explorer.controls[0]
    explorer.boxes[first.name].value = others(first)[0]
    assert bytes(picture.value) != before and words.value != said and "failed" not in words.value
    monkeypatch.setattr(plots, "png", lambda figure: b"")  # the words are enough from here on
    monkeypatch.setattr(explorer, "_draw", lambda result: None)
    explorer.boxes[first.name].value = first.default
    assert words.value == said
    for control in explorer.controls:
        box = explorer.boxes[control.name]
        assert box.value == control.default and (isinstance(control, Switch) or box.label == control.text(box.value))
        beside = made.beside.get(control.name, {})
        for name, value in beside.items():
            explorer.boxes[name].value = value
        said = words.value
        for other in others(control):
            box.value = other
            assert words.value != said and "failed" not in words.value
        box.value = control.default
        for name in beside:
            explorer.boxes[name].value = explorer.defaults[name]


@each
def test_one_bundle_has_the_widget_the_picture_with_words_that_say_where_numbers_come_from_and_a_stable_line(made):
    bundle = made.explore()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", VIEW}
    assert bundle["text/plain"] == repr(made.explore()) and "0x" not in bundle["text/plain"]
    page = made.explore().static_html()
    assert bundle["text/html"] == page and page.count("<img") == 1 and len(page) < 120_000
    assert made.source in re.search(r'alt="([^"]+)"', page)[1]


def test_a_setting_that_fails_says_so_in_place_of_the_picture_and_the_next_one_works():
    explorer = transfer.explore()
    picture, words = explorer.widget().children[-2:]
    working, explorer._function = explorer._function, lambda **_: 1 / 0
    explorer.boxes["pieces"].value = 4
    assert "ZeroDivisionError" in words.value and picture.layout.display == "none"
    explorer._function = working
    explorer.boxes["pieces"].value = 16
    assert "16 pieces" in words.value and picture.layout.display is None
    assert repr(explorer) == "Explorer(what a copy to the device costs)"


def test_a_default_outside_the_values_is_refused():
    with pytest.raises(ValueError, match="size"):
        Explorer("t", dict, plots.new, str, [Slider("size", "Size", (1, 2), 3)])
    assert Switch("s", "S").values == (False, True) and Choice("c", "C", (1,), 1).text(1) == "1"
