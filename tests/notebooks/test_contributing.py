"""Can an exercise be written from its page alone, and is what it shows true?"""

import importlib.util
import re
from pathlib import Path

import pytest

from course_utils import devices
from gpu_course.checks import Exercise, WrongAnswer, alike
from tools import notebooks

SAMPLE = notebooks.ROOT / "tests" / "samples" / "new_exercise.py"
TEXT = (notebooks.ROOT / "docs" / "contributing" / "exercises.md").read_text(encoding="utf-8")


def load(path: Path) -> Exercise:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.sys.modules, path.stem, module)
        spec.loader.exec_module(module)
    return next(found for found in vars(module).values() if isinstance(found, Exercise))


def test_the_exercise_of_the_text_and_one_written_from_it_name_their_mistakes(tmp_path):
    (shown,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "shown_exercise.py").write_text(shown, encoding="utf-8")
    (edits,) = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "mistakes.diff").write_text(edits, encoding="utf-8")
    assert len(SAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    place = devices.check_devices()[-1]
    for path in (tmp_path / "shown_exercise.py", SAMPLE):
        exercise = load(path)
        exercise.examine(exercise.reference, devices.check_devices())
        seen = {mistake.name: exercise.recording(mistake, place) for mistake in exercise.mistakes}
        assert len(seen) == 3
        for mistake in exercise.mistakes:
            with pytest.raises(WrongAnswer, match=re.escape(mistake.name)):
                exercise.examine(mistake.answer, [place])
            assert [name for name, notes in seen.items() if alike(notes, seen[mistake.name])] == [mistake.name]


def test_every_room_and_engine_stands_on_the_page():
    page = (notebooks.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = [*(notebooks.ROOT / "course_utils").iterdir(), *(notebooks.ROOT / "engines").iterdir()]
    rooms = {path.stem for path in places if path.suffix == ".py" or path.is_dir()}
    shared = {"arguments", "tables", "precision"}  # what rooms share and no lesson calls
    assert rooms - {"__init__", "__pycache__"} - shared <= set(re.findall(r"`([\w]+)`", page))
    assert len(page.splitlines()) <= 90


def test_links_of_the_page_and_of_the_decisions_lead_somewhere():
    pages = [notebooks.ROOT / "CONTRIBUTING.md", *(notebooks.ROOT / "docs").glob("*/*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([\w./-]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 30 and [link for page, link in links if not (page.parent / link).exists()] == []
