"""Do lessons run where PyTorch has no ranks, but for the cells that need them?"""

import json

import pytest

from gpu_course import catalogue
from tests import imitated
from tools import notebooks

RANKS = {  # cells that need ranks, or what such a cell leaves behind; the rest of each lesson runs
    "06": "ranks-files",
    "11": "ten ten-explained three-hangs three-hangs-clue three-hangs-evidence hang hang-evidence ranks unused "
    "straggler week-real-run",
    "12": "score-given host-share cheat gains live card utilisation reference-evaluate full-run scene-end",
    "13": "mine-compiled",  # in this process without Jupyter it fails with ranks, too
}
CODE = "from pathlib import Path; from tests.notebooks.on_face import run_cells; run_cells(Path({!r}), Path({!r}))"


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(set(catalogue.numbers()) - {"09", "10"}))
def test_the_cells_of_a_lesson_run_without_ranks(tmp_path, number):
    (lesson,) = (notebooks.ROOT / "notebooks").glob(f"{number}_*.ipynb")
    found, kept = tmp_path / "found.json", {"COURSE_PROGRESS": str(tmp_path / "progress.json"), "MPLBACKEND": "agg"}
    done = imitated.start(tmp_path, imitated.WITHOUT_RANKS, "-c", CODE.format(str(lesson), str(found)), **kept)
    seen = json.loads(found.read_text(encoding="utf-8"))
    assert set(seen["failed"]) <= set(RANKS.get(number, "").split()), (seen["failed"], done.stderr[-2000:])
