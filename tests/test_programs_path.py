"""Are the programs of the lessons found beside the lesson, in the repository and in an installed package?"""

import pytest

from course_utils import programs


@pytest.fixture
def folders(tmp_path, monkeypatch):
    repository, installed, here = tmp_path / "repository", tmp_path / "installed", tmp_path / "here"
    for folder in (repository, installed, here / "programs"):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(folder.name, encoding="utf-8")
    monkeypatch.setattr(programs, "_REPOSITORY", repository)
    monkeypatch.setattr(programs, "_INSTALLED", installed)
    monkeypatch.chdir(here)
    return here / "programs", repository, installed


def test_the_nearest_copy_is_taken(folders):
    for folder in folders:
        assert programs.path("train.py") == (folder / "train.py").resolve()
        (folder / "train.py").unlink()
    with pytest.raises(ValueError, match=r"name is 'train\.py'"):
        programs.path("train.py")


def test_an_unknown_name_is_told_what_there_is(folders):
    with pytest.raises(ValueError, match=r"name is 'other\.py', it must be one of: train\.py"):
        programs.path("other.py")
    with pytest.raises(TypeError, match="name must be text"):
        programs.path(3)
