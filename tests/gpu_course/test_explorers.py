"""Does every explorer answer to each of its controls, and does one picture appear wherever it is shown?"""

import base64
import itertools
import math
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from course_utils import plots
from gpu_course import catalogue, explorers
from gpu_course.explorers import Choice, Explorer, Slider, Switch
from gpu_course.lesson02.explorers import transfer
from gpu_course.lesson03.explorers import number_formats, roofline
from gpu_course.lesson03.explorers.number_formats import DIGITS
from gpu_course.lesson07.explorers import will_it_fit  # fmt: skip
from gpu_course.lesson07.explorers.will_it_fit import OWN_SIZES
from gpu_course.lesson09.explorers import collectives, ring
from tests.gpu_course.explorer_settings import LIVE, settings

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Made:
    """An explorer: its module, how it is made, how it says where numbers come from, what a control needs to matter."""

    name: str
    arguments: tuple = ()
    source: str = "Predicted"
    beside: dict = field(default_factory=dict)

    def explore(self):
        return catalogue.explorer(self.name).explore(*self.arguments)


OWN = {name: {"model": OWN_SIZES} for name in ("width", "layers", "heads", "vocabulary")}
EXPLORERS = [
    Made("choose_gpu"),
    Made("transfer"),
    Made("roofline", (LIVE, {"linear": (30.0, 0.1)})),
    Made("number_formats", source="Computed"),
    Made("will_it_fit", beside={"stage": {"gpus": 8}, **OWN, "heads": OWN["heads"] | {"fused": False}}),
    Made("collectives", source="Computed", beside={"root": {"operation": "broadcast"}}),
    Made("ring"),
    Made("buckets"),
    Made("pipeline"),
    Made("bottleneck"),
    Made("parallel_plan"),
    Made("sharding", beside={"between": {"ranks": 16}}),
    Made("grid", source="Counted"),
    Made("tiles"),
    Made("fusion"),
    Made("incidents", source="Source", beside={"look": {"cause": "ranks wait in a collective"}}),
    Made("symptoms", source="Usual causes", beside={kind: {"kind": kind} for kind in ("wrong", "stuck")}),
]
each = pytest.mark.parametrize("made", EXPLORERS, ids=lambda made: made.name)


def test_all_explorers_are_tested():
    there = Path(explorers.__file__).parent.glob("lesson*/explorers/*.py")
    exploring = {path.stem for path in there if "\ndef explore(" in path.read_text(encoding="utf-8")}
    assert exploring == {made.name for made in EXPLORERS}


@each
def test_the_settings_that_are_tried_hold_every_pair_of_values_and_each_gives_words_and_some_a_picture(made):
    explorer = made.explore()
    tried = settings(explorer)
    for one, two in itertools.combinations(explorer.controls, 2):
        found = {(str(setting[one.name]), str(setting[two.name])) for setting in tried}
        assert len(found) == len(one.values) * len(two.values)
    for setting in tried:
        assert len(explorer.caption(**setting)) > 60
    for setting in random.Random(1).sample(tried, 2):
        assert explorer.figure(**setting).axes


def others(explorer, control):
    """Return the first and the last value that a control offers, but for its default."""
    offered = len(getattr(explorer.boxes[control.name], "options", control.values))
    found = [value for value in control.values[:offered] if value not in (control.default, math.inf)]
    return found[0], found[-1]


@each
def test_a_bundle_has_widget_picture_and_words_with_their_source_and_every_control_changes_them(made, monkeypatch):
    explorer = made.explore()
    bundle = explorer._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", VIEW}
    assert bundle["text/plain"] == repr(made.explore()) and "0x" not in bundle["text/plain"]
    page = bundle["text/html"]
    assert page.count("<img") == 1 and len(page) < 120_000 and made.source in re.search(r'alt="([^"]+)"', page)[1]
    picture, words = explorer.widget().children[-2:]
    before, said = bytes(picture.value), words.value
    assert before.startswith(b"\x89PNG") and "failed" not in said
    assert base64.b64encode(before).decode() in page  # one drawing is both
    first = explorer.controls[0]
    explorer.boxes[first.name].value = others(explorer, first)[0]
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
        for other in others(explorer, control):
            box.value = other
            assert words.value != said and "failed" not in words.value
        box.value = control.default
        for name in beside:
            explorer.boxes[name].value = explorer.defaults[name]


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


def test_a_number_that_is_none_is_shown_and_left_again(monkeypatch):
    texts = lambda figure: [text.get_text() for axes in figure.axes for text in axes.texts]  # noqa: E731
    monkeypatch.setattr(plots, "png", lambda figure: repr(texts(figure)).encode())
    explorer = number_formats.explore()
    picture, words = explorer.widget().children[-2:]
    box, seen = explorer.boxes["digits"], []
    for place in (DIGITS.index(math.nan), 0, len(DIGITS) - 1):  # as the browser does it
        box.index = place
        seen.append((words.value, bytes(picture.value)))
    assert "fp16 stores nan (NaN)" in seen[0][0] and seen[0] == seen[2] != seen[1] and box.label == "NaN"
    box.value = 2.5
    assert "2.5: fp32 stores 2.5 (exact)" in words.value


WRONG = [
    (number_formats, {"digits": 7.0}, "digits is 7.0, it may be one of: 1.0"),
    (transfer, {"pinned": "no"}, "pinned is 'no', it may be one of: False, True"),
    (transfer, {"size": 3}, "'size' is no parameter of this explorer; it has nbytes, pieces"),
    (collectives, {"ranks": 9}, "ranks must be at most 8, not 9"),
    (collectives, {"root": -1}, "root must be at least 0, not -1"),
    (collectives, {"nbytes": 2048.5}, "nbytes must be a whole number, not 2048.5"),
    (ring, {"gbps": "1"}, "gbps must be a number, not '1'"),
    (ring, {"latency_us": math.nan}, "latency_us must be a finite number, not nan"),
]


@pytest.mark.parametrize(("module", "given", "message"), WRONG)
def test_what_no_control_can_give_is_named(module, given, message):
    explorer = module.explore()
    for use in (explorer.compute, explorer.caption, explorer.figure):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            use(**given)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Explorer("t", dict, plots.new, str, [Slider("size", "Size", (1, 2), 3)]), "size is 3, it may be one"),
    (lambda: collectives.explore("sum"), "operation is 'sum', it may be one of: broadcast"),
    (lambda: roofline.explore(machine="T5"), "machine is 'T5', which is not in the table"),
    (lambda: roofline.explore(machine="Apple M4 Max"), "machine is 'Apple M4 Max', it may be one of: T4"),
    (lambda: roofline.explore(machine="this machine"), "machine is 'this machine', it may be one of: T4"),
    (lambda: transfer.explore(gpu="Apple M1"), "gpu is 'Apple M1', it may be one of: T4"),
    (lambda: transfer.explore(gpu=4), "gpu is a int"),
    (lambda: will_it_fit.explore(layers=25), "layers is 25, it may be one of: 2, 4"),
])  # fmt: skip
def test_a_first_setting_that_no_control_can_give_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_values_are_written_plainly_and_a_number_between_two_of_them_may_be_computed():
    assert [Slider("n", "N", (1, 20_000), 1).text(n) for n in (20_000, 10.0, 0.5, "a")] == ["20,000", "10", "0.5", "a"]
    assert ring.explore().compute(ranks=5, nbytes=1000).sent_bytes == 1600 and Switch("s", "S").values == (False, True)
    assert Choice("c", "C", (1,), 1).text(1) == "1"
