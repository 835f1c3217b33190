"""Can every drawing be read: on a dark page, by a screen reader, at its size, and is it shown in a lesson?"""

import re
from xml.etree import ElementTree

import pytest

from gpu_course import drawings
from tools import notebooks

COURSE = notebooks.ROOT / "gpu_course"


@pytest.mark.parametrize("name", drawings.names())
def test_a_drawing_stands_on_a_white_card_and_says_what_it_shows(name):
    (path,) = COURSE.glob(f"lesson*/drawings/{name}.svg")
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    title, description, card = list(root)[:3]
    assert title.tag.endswith("title") and 5 < len(title.text) < 70
    assert description.tag.endswith("desc") and len(description.text) > 60
    width, height = (float(number) for number in root.get("viewBox").split()[2:])
    assert width == 720 and height <= 360
    assert (card.get("width"), float(card.get("height")), card.get("fill")) == ("720", height, "#ffffff")
    sizes = [float(size) for size in re.findall(r'font-size[=:]"?\s*([\d.]+)', text)]
    assert sizes and min(sizes) >= 12
    assert not re.search(r'<script|<foreignObject|<style|href="[^#]|url\(http|@import', text)


def test_every_drawing_is_shown_in_a_lesson():
    lessons = "".join(path.read_text(encoding="utf-8") for path in notebooks.lessons())
    shown = set(re.findall(r'drawings\.show\(\\"([\w-]+)\\"\)', lessons))
    assert shown == set(drawings.names()) and len(shown) >= 8


def test_a_drawing_is_an_image_with_its_alternative_text():
    drawing = drawings.show("host-queue-device")
    assert drawing.description in drawing._repr_html_() and drawing._repr_html_().startswith('<img alt="Host')
    assert str(drawing) == f"Drawing: {drawing.title}. {drawing.description}."
    with pytest.raises(ValueError, match="no drawing is named 'none'; there are: "):
        drawings.show("none")
