"""Does the repository weigh no more than pyproject.toml allows, room by room?"""

import tomllib

import pytest

from tools import weight


def test_no_room_has_more_lines_than_its_limit():
    found, most = weight.lines(), weight.limits()
    assert sum(found.values()) == 2 * found[weight.ALL] > 100_000 and "simgpu/device" in found
    assert weight.excess(found, most) == [], "python -m tools.weight; a limit is raised in a commit of its own"


def test_a_room_that_is_too_large_new_or_gone_is_named():
    found, most = {"all": 12, "large": 9, "new": 3}, {"all": 12, "gone": 5, "large": 8}
    assert weight.excess(found, most) == [
        "gone: None lines, limit 5", "large: 9 lines, limit 8", "new: 3 lines, limit None",
    ]  # fmt: skip


@pytest.mark.parametrize(("lines", "status"), [(120, 0), (121, 1)])
def test_limits_are_written_and_that_of_all_stays(lines, status, tmp_path, monkeypatch, capsys):
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.course.weight]\nall = 120\n"old" = 50\n\n[tool.ruff]\nline-length = 120\n', "utf-8")
    monkeypatch.setattr(weight, "ROOT", tmp_path)
    monkeypatch.setattr(weight, "lines", lambda: {"all": lines, "a/b": lines})
    assert weight.main(["--update"]) == status
    assert weight.limits() == {"all": 120, "a/b": 150}
    assert tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["ruff"] == {"line-length": 120}
    assert ("limit 120" in capsys.readouterr().out) == bool(status)
