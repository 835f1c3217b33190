"""Do updates of the course never meet a reader's answers, and does the set-up say what it lacks?"""

import pytest

from tools import environment, workbook


@pytest.fixture
def folders(tmp_path):
    lessons = tmp_path / "notebooks"
    lessons.mkdir()
    (lessons / "00_start_here.ipynb").write_text("first", encoding="utf-8")
    return lessons, tmp_path / "workbook"


def test_missing_copies_are_made_once(folders):
    assert workbook.prepare(*folders).copied == ("00_start_here.ipynb",)
    assert (folders[1] / "00_start_here.ipynb").read_text(encoding="utf-8") == "first"
    assert workbook.prepare(*folders) == workbook.Update((), ())


def test_programs_and_job_scripts_follow_the_lessons(folders):
    programs = folders[0] / "programs"
    (programs / "__pycache__").mkdir(parents=True)
    for name in ("train.py", "train.sbatch"):
        (programs / name).touch()
    workbook.prepare(*folders)
    assert sorted(file.name for file in (folders[1] / "programs").iterdir()) == ["train.py", "train.sbatch"]


def test_a_copy_with_answers_is_kept_and_a_newer_lesson_announced(folders):
    workbook.prepare(*folders)
    copy = folders[1] / "00_start_here.ipynb"
    copy.write_text("my answers", encoding="utf-8")
    assert workbook.prepare(*folders).newer == ()
    (folders[0] / copy.name).write_text("second", encoding="utf-8")
    update = workbook.prepare(*folders)
    assert update.newer == (copy.name,) and "newer 00_start_here.ipynb" in str(update)
    assert copy.read_text(encoding="utf-8") == "my answers"
    copy.unlink()
    assert workbook.prepare(*folders).copied == (copy.name,)
    assert workbook.prepare(*folders).newer == ()


@pytest.mark.parametrize("damage", ["", "{", "[]"])
def test_a_damaged_record_loses_no_copy(folders, damage):
    workbook.prepare(*folders)
    copy = folders[1] / "00_start_here.ipynb"
    copy.write_text("my answers", encoding="utf-8")
    (folders[1] / workbook.RECORD).write_text(damage, encoding="utf-8")
    assert workbook.prepare(*folders).copied == ()
    assert copy.read_text(encoding="utf-8") == "my answers"


def test_a_missing_folder_of_lessons_is_named(tmp_path):
    with pytest.raises(ValueError, match="lessons"):
        workbook.prepare(tmp_path / "nowhere", tmp_path / "workbook")


def test_the_set_up_names_an_old_python_and_a_missing_module():
    assert environment.problem() is None
    assert "3.10.4" in environment.problem((3, 10, 4))
    assert "no_such_module" in environment.problem(modules=("no_such_module",))


def test_an_installed_torch_is_never_replaced():
    text = "numpy==2.4.6\ntorch==2.13.0\ntorchgen==1\n"
    assert environment.constraints_for(text, None) == text
    assert environment.constraints_for(text, "2.11.0+cu128").split() == [
        "numpy==2.4.6",
        "torchgen==1",
        "torch==2.11.0+cu128",
    ]
    assert environment.usable("2.11.0+cu128") and not environment.usable("2.10.1") and not environment.usable(None)


def test_a_changed_file_makes_the_environment_out_of_date(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text("a", encoding="utf-8")
    before = environment.fingerprint([file])
    file.write_text("b", encoding="utf-8")
    assert environment.fingerprint([file]) != before
