"""Is what a reader solved kept, whatever happens to the file, and carried whole from one machine to another?"""

import json
import os
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_utils import exercises
from course_utils import progress as module
from course_utils.base import solved
from course_utils.progress import progress

ROOT = Path(__file__).parents[1]
EXERCISES = [
    SimpleNamespace(lesson=lesson, name=name, task=SimpleNamespace(title=name.title(), minutes=minutes))
    for lesson, name, minutes in [("00", "double", 3), ("01", "pick", 5), ("01", "free", 8), ("01", "last", 2)]
]


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, a fresh memory and a small registry."""
    path = tmp_path / "data" / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(solved, "_PENDING", {})
    monkeypatch.setattr(solved, "_WARNED", set())
    monkeypatch.setattr(exercises, "registry", lambda: iter(EXERCISES))
    return path


def python(code: str, *arguments: str, **keywords) -> subprocess.Popen:
    """Start another process with the same progress file."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, text=True, **keywords)


def counts() -> dict[str, int]:
    return {row.number: row.solved for row in progress().lessons}


def test_the_tests_do_not_use_the_readers_file(monkeypatch):
    monkeypatch.undo()
    used = solved.location()
    monkeypatch.delenv("COURSE_PROGRESS")
    readers = solved.location()
    assert used is not None and used != readers and used.parent != readers.parent


# --- what is shown ---


def test_the_table_is_short_and_stable():
    module.mark("00", "double")
    module.mark("01", "free")
    expected = """\
lesson  solved
00      1 of 1  ##########
01      1 of 3  ###.......
all     2 of 4  #####.....
Next: Pick (lesson 01, 5 min)"""
    assert str(progress()) == repr(progress()) == expected
    shown = progress()._repr_html_()
    assert shown == progress()._repr_html_() and "<td>1 of 3</td>" in shown and "■■■□□□□□□□" in shown


def test_the_bar_is_full_only_when_all_is_solved_and_empty_only_when_nothing_is():
    assert module._bar(module.Lesson("01", 99, 100), "#.") == "#########."
    assert module._bar(module.Lesson("01", 1, 100), "#.") == "#........."
    assert (
        module._bar(module.Lesson("01", 0, 100), "#.") == module._bar(module.Lesson("01", 0, 0), "#.") == ".........."
    )
    for found in EXERCISES:
        module.mark(found.lesson, found.name)
    assert str(progress()).splitlines()[-2:] == ["all     4 of 4  ##########", "Everything is solved."]


def test_titles_are_escaped_in_html(monkeypatch):
    monkeypatch.setattr(EXERCISES[0], "title", "<b>a & b</b>")
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in progress()._repr_html_()


def test_the_real_registry_is_shown(monkeypatch):
    monkeypatch.undo()
    assert progress().total.exercises >= 1 and progress().lessons[0].number == "00"


def test_importing_loads_neither_torch_nor_widgets():
    code = "import course_utils.progress, sys; print({'torch', 'ipywidgets', 'matplotlib'} & set(sys.modules))"
    assert python(code, stdout=subprocess.PIPE).communicate()[0].strip() == "set()"


# --- the file ---


def test_marks_are_kept_and_forgotten(path):
    module.mark("01", "pick")
    module.mark("01", "pick")
    module.mark("00", "double")
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "version": 1,
        "solved": {"00": ["double"], "01": ["pick"]},
    }
    module.forget("01", "pick")
    module.forget("01", "free")
    assert counts() == {"00": 1, "01": 0}
    assert {each.name for each in path.parent.iterdir()} <= {"progress.json", "progress.json.lock"}


def test_another_notebook_sees_what_is_solved_here():
    module.mark("01", "free")
    code = "from course_utils.base import solved as file; print(file.solved())"
    assert python(code, stdout=subprocess.PIPE).communicate()[0].strip() == "{('01', 'free')}"


def test_notebooks_that_write_at_once_lose_nothing(path):
    code = "import sys; from course_utils import progress as p\nfor i in range(40): p.mark('01', f'{sys.argv[1]}_{i}')"
    writers = [python(code, name) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(json.loads(path.read_text(encoding="utf-8"))["solved"]["01"]) == 120


HOLD = """
import sys
from course_utils.base import solved as file
with file._locked(file.location()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_dead_notebook_holds_no_lock(path, capsys):
    path.parent.mkdir()
    holder = python(HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    holder.wait(30)
    module.mark("00", "double")
    assert "double" in path.read_text(encoding="utf-8") and capsys.readouterr().err == ""


def test_a_lock_that_is_held_delays_the_writing_and_loses_nothing(path, capsys, monkeypatch):
    monkeypatch.setattr(solved, "LOCK_S", 0.1)
    path.parent.mkdir()
    holder = python(HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    module.mark("00", "double")
    assert "another notebook has locked it" in capsys.readouterr().err
    assert not path.exists() and counts() == {"00": 1, "01": 0}
    holder.communicate()
    module.mark("01", "pick")
    assert json.loads(path.read_text(encoding="utf-8"))["solved"] == {"00": ["double"], "01": ["pick"]}


DAMAGED = [
    b"", b"{", b"[]", b"\xff\xfe\x00", b"null", b'{"version": 2, "solved": {}}', b'{"version": 1}', b"[" * 200_000,
    b'{"version": 1, "solved": []}', b'{"version": 1, "solved": {"00": "double"}}',
    b'{"version": 1, "solved": {"zero": ["double"]}}', b'{"version": 1, "solved": {"00": [["double"]]}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:45]))
def test_a_damaged_file_is_reported_once_and_kept_aside(path, capsys, content):
    path.parent.mkdir()
    path.write_bytes(content)
    assert counts() == {"00": 0, "01": 0}
    module.mark("00", "double")
    assert counts() == {"00": 1, "01": 0}
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1 and "damaged" in reported[0] and "progress.damaged-1.json" in reported[0]
    assert path.with_name("progress.damaged-1.json").read_bytes() == content


def test_each_damaged_file_is_kept(path):
    path.parent.mkdir()
    for number in (1, 2, 3):
        path.write_text(f"damage {number}", encoding="utf-8")
        module.mark("00", "double")
    kept = sorted(each.read_text(encoding="utf-8") for each in path.parent.glob("progress.damaged-*.json"))
    assert kept == ["damage 1", "damage 2", "damage 3"]


def test_a_damaged_file_that_cannot_be_put_aside_is_not_overwritten(path, capsys, monkeypatch):
    path.parent.mkdir()
    path.write_text("damage", encoding="utf-8")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    module.mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and path.read_text(encoding="utf-8") == "damage"
    assert len(capsys.readouterr().err.splitlines()) == 2  # not saved, not read


def test_an_unwritable_place_gives_one_line_and_progress_stays_in_memory(path, capsys):
    path.parent.write_text("a file where the folder should be", encoding="utf-8")
    module.mark("00", "double")
    module.mark("01", "pick")
    module.forget("01", "pick")
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == 1 and "could not be saved" in warned[0] and "progress.export()" in warned[0]
    assert counts() == {"00": 1, "01": 0} and ";00:double;" in progress.export()
    path.parent.unlink()
    module.mark("01", "last")
    assert json.loads(path.read_text(encoding="utf-8"))["solved"] == {"00": ["double"], "01": ["last"]}


def test_a_write_that_fails_leaves_the_old_file_whole(path, capsys, monkeypatch):
    module.mark("00", "double")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        module.mark("01", "pick")
    assert path.read_bytes() == before and not list(path.parent.glob("*.new"))
    assert "No space left on device" in capsys.readouterr().err and counts() == {"00": 1, "01": 1}


def test_a_file_system_without_locks_still_keeps_progress(path, monkeypatch):
    import filelock

    def refuse(*_):
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    module.mark("00", "double")
    assert "double" in path.read_text(encoding="utf-8")


def test_off_keeps_progress_in_memory_alone(path, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    module.mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and not path.parent.exists() and not Path("off").exists()
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    assert counts() == {"00": 0, "01": 0} and capsys.readouterr().err == ""


def test_without_a_path_the_users_data_folder_is_used(monkeypatch, tmp_path):
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path / "user")
    for setting in ("", "  "):
        monkeypatch.setenv("COURSE_PROGRESS", setting)
        assert solved.location() == tmp_path / "user" / "progress.json"


# --- a line of text ---


@pytest.fixture
def line() -> str:
    module.mark("00", "double")
    module.mark("01", "pick")
    return progress.export("Zoë O'Hara; 100 %")


def elsewhere(monkeypatch, path: Path) -> None:
    monkeypatch.setenv("COURSE_PROGRESS", str(path.with_name("elsewhere.json")))


def test_a_line_carries_progress_elsewhere(line, path, monkeypatch):
    assert line.isprintable() and not set(line) & set(" \"'\\`") and ";00:double;01:pick;" in line
    elsewhere(monkeypatch, path)
    module.mark("00", "double")
    module.mark("01", "last")
    assert "Restored 2 exercises, 1 of them new here." in str(progress.restore(line))
    assert counts() == {"00": 1, "01": 2}


@pytest.mark.parametrize("change", [
    lambda line: f"  {line}\r\n", lambda line: f"'{line}'", lambda line: f"“{line}”", lambda line: f"`{line}`",
    lambda line: f"{line[:30]}\n{line[30:]}", lambda line: unicodedata.normalize("NFD", line),
])  # fmt: skip
def test_a_line_survives_mail_and_chat(line, path, monkeypatch, change):
    assert change(line) != line
    elsewhere(monkeypatch, path)
    progress.restore(change(line))
    assert counts() == {"00": 1, "01": 1}


def test_no_damage_to_a_line_is_taken(line, path, monkeypatch):
    elsewhere(monkeypatch, path)
    damaged = [line[:end] for end in range(len(line))]
    damaged += [line[:at] + ("x" if sign != "x" else "y") + line[at + 1 :] for at, sign in enumerate(line)]
    damaged += [line[1:], line + "0", line + line, "", "hello"]
    for text in damaged:
        with pytest.raises(ValueError, match=r"line must be what progress.export\(\) gave"):
            progress.restore(text)
    assert counts() == {"00": 0, "01": 0} and not path.with_name("elsewhere.json").exists()


def test_nothing_solved_can_be_exported_and_restored():
    assert str(progress.restore(progress.export())).endswith("Restored 0 exercises, 0 of them new here.")


def test_exercises_of_another_version_are_kept(path):
    module.mark("09", "later")
    assert counts() == {"00": 0, "01": 0} and ";09:later;" in progress.export()
    assert str(progress()).endswith("1 exercise of another version of the course kept.")


@pytest.mark.parametrize(("call", "error", "phrase"), [
    (lambda: module.mark("2", "double"), ValueError, "lesson must be two digits such as '02', not '2'"),
    (lambda: module.mark(2, "double"), TypeError, "lesson must be text, not 2"),
    (lambda: module.mark("02", "a b"), ValueError, "name must be the name of an exercise"),
    (lambda: module.mark("02", ""), ValueError, "name must be"),
    (lambda: module.forget("02", None), TypeError, "name must be text, not None"),
    (lambda: progress.export(7), TypeError, "name must be text or None, not 7"),
    (lambda: progress.export("  "), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.export("a\nb"), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.export("a" * 81), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.restore(None), TypeError, "line must be the text that"),
    (lambda: module.class_table("lines.txt"), TypeError, "lines must be a list of lines or an open file, not 'lines"),
    (lambda: module.class_table(5), TypeError, "lines must be a list of lines or an open file, not 5"),
    (lambda: module.class_table(["", 7]), TypeError, "lines must be a list of lines, its item 2 is 7"),
])  # fmt: skip
def test_wrong_arguments_are_named(path, call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()
    assert not path.exists()


# --- a class ---


def lines_of_a_class() -> list[str]:
    module.mark("00", "double")
    ada = progress.export("Ada")
    module.mark("01", "pick")
    return [
        ada,
        "",
        "# first week",
        progress.export("Zoë"),
        "rubbish",
        ada[:-1],
        progress.export(),
        progress.export("ada "),
    ]


TABLE = """\
name       line  00  01  all
(no name)  7     1   1   2 of 4
Ada        1, 8  1   1   2 of 4
Zoë        4     1   1   2 of 4
line 5 is damaged: it does not begin with course-progress-1
line 6 is damaged: its checksum does not match"""


def test_the_table_of_a_class_names_damaged_lines():
    assert module.class_table(lines_of_a_class()) == (TABLE, 4)


def test_lines_without_a_name_stay_apart():
    module.mark("00", "double")
    table, count = module.class_table([progress.export(), progress.export()])
    assert count == 2 and table.count("(no name)") == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_command_reads_a_file(tmp_path, capsys, encoding):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines_of_a_class()), encoding=encoding)
    assert module.main([str(file)]) == 0
    assert capsys.readouterr().out == TABLE + "\n"


def test_the_command_reads_standard_input_with_the_real_registry():
    text = "\n".join(lines_of_a_class())
    done = subprocess.run(
        [sys.executable, "-m", "course_utils.progress"], input=text, capture_output=True, cwd=ROOT, encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert "line 6 is damaged" in done.stdout and done.stdout.splitlines()[2].startswith("Ada        1, 8  1")


def test_the_command_says_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "bad.txt").write_bytes(b"\xff\xff\n")
    assert module.main([str(tmp_path / "bad.txt")]) == 1
    assert "line 1 is damaged" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        module.main([str(tmp_path / "missing.txt")])
    assert stopped.value.code == 2 and "lines must be a readable file" in capsys.readouterr().err


# --- with an exercise ---


def test_a_right_answer_is_kept_and_reset_forgets_it(monkeypatch, capsys):
    from course_utils.exercises import lesson00

    def double(x, device):
        return x.to(device) * 2

    lesson00.double.check(double)
    assert counts()["00"] == 1
    lesson00.double.reset()
    assert counts()["00"] == 0
