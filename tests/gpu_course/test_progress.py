"""Is what a reader solved kept, whatever happens to the file, and carried whole from one machine to another?"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import filelock
import platformdirs
import pytest

from gpu_course import catalogue, solved, ways
from gpu_course import progress as module
from gpu_course.progress import progress
from tests import children
from tools import notebooks

ROOT = Path(__file__).parents[2]
EXERCISES = [
    SimpleNamespace(lesson=lesson, name=name, task=SimpleNamespace(title=name.title(), minutes=minutes, needs=str))
    for lesson, name, minutes in [("00", "double", 3), ("01", "pick", 5), ("01", "free", 8), ("01", "last", 2)]
]


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, a fresh memory and a small registry."""
    path = tmp_path / "data" / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(solved, "_PENDING", {})
    monkeypatch.setattr(solved, "_WARNED", set())
    monkeypatch.setattr(catalogue, "registry", lambda: iter(EXERCISES))
    return path


def python(code: str, *arguments: str, **keywords) -> subprocess.Popen:
    """Start another process with the same progress file."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, text=True, **keywords)


def mark(lesson: str, name: str) -> None:
    solved.change({(lesson, name): True})


def forget(lesson: str, name: str) -> None:
    solved.change({(lesson, name): False})


def stored(path: Path) -> dict[str, list[str]]:
    return json.loads(path.read_text(encoding="utf-8"))["solved"]


def counts() -> dict[str, int]:
    return {row.number: row.solved for row in progress().lessons}


def test_a_page_that_no_lesson_needs_is_kept_and_carried_and_its_exercises_come_last(monkeypatch):
    gym = SimpleNamespace(lesson="00b", name="lift", task=SimpleNamespace(title="Lift", minutes=9, needs=str))
    monkeypatch.setattr(catalogue, "registry", lambda: iter([gym, *EXERCISES]))
    mark("00", "double")
    assert progress().next == "Next: Pick (lesson 01, 5 min)"
    for name in ("pick", "free", "last"):
        mark("01", name)
    assert progress().next == "Next: Lift (lesson 00b, 9 min)"
    mark("00b", "lift")
    line = progress.export()
    forget("00b", "lift")
    assert progress.restore(line).lessons[1] == module.Lesson("00b", 1, 1)


def test_the_tests_do_not_use_the_readers_file(monkeypatch):
    monkeypatch.undo()
    used = solved.location()
    monkeypatch.delenv("COURSE_PROGRESS")
    readers = solved.location()
    assert used is not None and used != readers and used.parent != readers.parent


# --- what is shown ---


def test_the_table_is_short_and_stable():
    mark("00", "double")
    mark("01", "free")
    expected = """\
lesson  solved
00      1 of 1  ##########
01      1 of 3  ###.......
all     2 of 4  #####.....
Next: Pick (lesson 01, 5 min)"""
    assert str(progress()) == repr(progress()) == expected
    shown = progress()._repr_html_()
    assert shown == progress()._repr_html_() and "<td>1 of 3</td>" in shown and "███░░░░░░░" in shown


def test_the_bar_is_full_only_when_all_is_solved_and_empty_only_when_nothing_is():
    assert module._bar(module.Lesson("01", 99, 100), "#.") == "#########."
    assert module._bar(module.Lesson("01", 1, 100), "#.") == "#........."
    assert {module._bar(module.Lesson("01", 0, n), "#.") for n in (0, 100)} == {".........."}
    for found in EXERCISES:
        mark(found.lesson, found.name)
    assert str(progress()).splitlines()[-2:] == ["all     4 of 4  ##########", "Everything is solved."]


# --- the file ---


def test_marks_are_kept_and_forgotten(path):
    mark("01", "pick")
    mark("01", "pick")
    mark("00", "double")
    assert json.loads(path.read_text(encoding="utf-8")) == {"version": 1, "solved": {"00": ["double"], "01": ["pick"]}}
    forget("01", "pick")
    forget("01", "free")
    assert counts() == {"00": 1, "01": 0}
    assert {each.name for each in path.parent.iterdir()} <= {"progress.json", "progress.json.lock"}


def test_notebooks_that_write_at_once_lose_nothing(path):
    code = "import sys; from gpu_course import sealing, solved as file\n"
    code += "for i in range(40): file.change({('01', f'{sys.argv[1]}_{i}'): True})"
    writers = [python(code, name) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0] and ("01", "c_39") in solved.solved()
    assert len(stored(path)["01"]) == 120


@pytest.fixture
def holder(path):
    """Give another process that holds the lock."""
    path.parent.mkdir()
    code = "import sys; from gpu_course import sealing, solved as file\nwith file._locked(file.location()):\n"
    code += " print('held', flush=True); sys.stdin.read()"
    holder = python(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    yield holder
    holder.communicate()


def test_a_dead_notebook_holds_no_lock(path, holder, capsys):
    holder.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    holder.wait(60)
    mark("00", "double")
    assert stored(path) == {"00": ["double"]} and capsys.readouterr().err == ""


def test_a_lock_that_is_held_delays_the_writing_and_loses_nothing(path, holder, capsys, monkeypatch):
    monkeypatch.setattr(solved, "LOCK_S", 0.1)
    mark("00", "double")
    assert "another notebook has locked it" in capsys.readouterr().err
    assert not path.exists() and counts() == {"00": 1, "01": 0}
    holder.communicate()
    mark("01", "pick")
    assert stored(path) == {"00": ["double"], "01": ["pick"]}


DAMAGED = [
    b"", b"{", b"[]", b"\xff\xfe\x00", b"null", b'{"version": 0, "solved": {}}', b'{"version": 1}', b"[" * 200_000,
    b'{"version": 1, "solved": []}', b'{"version": 1, "solved": {"00": "double"}}',
    b'{"version": 1, "solved": {"zero": ["double"]}}', b'{"version": 1, "solved": {"00": [["double"]]}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:45]))
def test_a_damaged_file_is_reported_once_and_kept_aside(path, capsys, content):
    path.parent.mkdir()
    path.write_bytes(content)
    assert counts() == {"00": 0, "01": 0}
    mark("00", "double")
    assert counts() == {"00": 1, "01": 0}
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1 and "damaged" in reported[0] and "progress.damaged-1.json" in reported[0]
    assert path.with_name("progress.damaged-1.json").read_bytes() == content


def test_each_damaged_file_is_kept(path):
    path.parent.mkdir()
    for number in (1, 2, 3):
        path.write_text(f"damage {number}", encoding="utf-8")
        mark("00", "double")
        assert path.with_name(f"progress.damaged-{number}.json").read_text(encoding="utf-8") == f"damage {number}"


def test_a_file_of_a_later_version_is_called_that_and_left_alone(path, capsys):
    path.parent.mkdir()
    later = b'{"version": 2, "solved": {"00": {"double": "2027-01-01"}}}'
    path.write_bytes(later)
    assert counts() == {"00": 0, "01": 0}
    mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and path.read_bytes() == later
    assert len(list(path.parent.glob("*.json"))) == 1
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 2 and all("(it was written by a later version of the course)" in one for one in reported)


def make_pipe(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("pipes with names are of POSIX")
    os.mkfifo(path)


@pytest.mark.parametrize("make", [Path.mkdir, make_pipe, lambda path: path.symlink_to(os.devnull)])
def test_what_is_no_regular_file_is_neither_read_nor_replaced_and_gets_no_lock(path, capsys, monkeypatch, make):
    path.parent.mkdir()
    make(path)
    monkeypatch.setattr(solved, "location", lambda: path)
    before = path.lstat()
    for _ in range(2):
        mark("00", "double")
        assert counts() == {"00": 1, "01": 0}
    assert os.path.samestat(path.lstat(), before) and list(path.parent.iterdir()) == [path]
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 2 and all("(it is no regular file)" in one for one in reported)


def fails_with(error: Exception):
    def fail(*_):
        raise error

    return fail


def test_a_damaged_file_that_cannot_be_put_aside_is_not_overwritten(path, capsys, monkeypatch):
    path.parent.mkdir()
    path.write_text("damage", encoding="utf-8")
    monkeypatch.setattr(Path, "rename", fails_with(PermissionError(13, "Permission denied")))
    mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and path.read_text(encoding="utf-8") == "damage"
    assert len(capsys.readouterr().err.splitlines()) == 2  # not saved, not read


def test_an_unwritable_place_gives_one_line_and_progress_stays_in_memory(path, capsys):
    path.parent.write_text("a file where the folder should be", encoding="utf-8")
    mark("00", "double")
    mark("01", "pick")
    forget("01", "pick")
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == 1 and "could not be saved" in warned[0] and "progress.export()" in warned[0]
    assert counts() == {"00": 1, "01": 0} and ";00:double;" in progress.export()
    path.parent.unlink()
    mark("01", "last")
    assert stored(path) == {"00": ["double"], "01": ["last"]}


def test_a_write_that_fails_leaves_the_old_file_whole(path, capsys, monkeypatch):
    mark("00", "double")
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails_with(OSError(28, "No space left on device")))
        mark("01", "pick")
    assert path.read_bytes() == before and not list(path.parent.glob("*.new"))
    assert "No space left on device" in capsys.readouterr().err and counts() == {"00": 1, "01": 1}


def test_a_file_system_without_locks_still_keeps_progress(path, monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", fails_with(NotImplementedError()))
    mark("00", "double")
    assert "double" in path.read_text(encoding="utf-8")


def test_off_keeps_progress_in_memory_alone(path, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and not path.parent.exists() and not Path("off").exists()
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    assert counts() == {"00": 0, "01": 0} and capsys.readouterr().err == ""


def test_without_a_path_the_users_data_folder_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: tmp_path / "user")
    for setting in ("", "  "):
        monkeypatch.setenv("COURSE_PROGRESS", setting)
        assert solved.location() == tmp_path / "user" / "progress.json"


@pytest.mark.parametrize("answer", [fails_with(RuntimeError("no home")), lambda *_, **__: Path("~/.local/share")])
def test_without_a_home_folder_one_sentence_is_printed_and_progress_stays_in_memory(monkeypatch, capsys, answer):
    monkeypatch.delenv("COURSE_PROGRESS")
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: answer())
    mark("00", "double")
    assert counts() == {"00": 1, "01": 0} and not Path("~").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "no home folder is known" in line and "COURSE_PROGRESS" in line


# --- a line of text ---


@pytest.fixture
def line(path, monkeypatch) -> str:
    """Give a line of two exercises; from here on progress is kept in another file, with nothing in it."""
    mark("00", "double")
    mark("01", "pick")
    line = progress.export("Zoë O'Hara; 100 %")
    monkeypatch.setenv("COURSE_PROGRESS", str(path.with_name("elsewhere.json")))
    return line


def test_a_line_carries_progress_elsewhere(line):
    assert line.isprintable() and not set(line) & set(" \"'\\`") and ";00:double;01:pick;" in line
    mark("00", "double")
    mark("01", "last")
    assert "Restored 2 exercises, 1 of them new here." in str(progress.restore(line))
    assert counts() == {"00": 1, "01": 2}


def test_no_damage_to_a_line_is_taken(line, path):
    damaged = [line[:end] for end in range(len(line))]
    damaged += [line[:at] + ("x" if sign != "x" else "y") + line[at + 1 :] for at, sign in enumerate(line)]
    damaged += [line[1:], line + "0", line + line, "", "hello"]
    for text in damaged:
        with pytest.raises(ValueError, match=r"line must be what progress.export\(\) gave"):
            progress.restore(text)
    assert counts() == {"00": 0, "01": 0} and not path.with_name("elsewhere.json").exists()


def test_nothing_solved_and_exercises_of_another_version_can_be_exported(path):
    assert str(progress.restore(progress.export())).endswith("Restored 0 exercises, 0 of them new here.")
    mark("09", "later")
    assert counts() == {"00": 0, "01": 0} and ";09:later;" in progress.export()
    assert str(progress()).endswith("1 exercise of another version of the course kept.")


@pytest.mark.parametrize(("call", "error", "phrase"), [
    (lambda: progress.export(7), TypeError, "name must be text, not 7"),
    (lambda: progress.export("  "), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.export("a\nb"), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.export("a" * 81), ValueError, "name must be 1 to 80 printable characters"),
    (lambda: progress.restore(None), TypeError, "line must be text, not None"),
])  # fmt: skip
def test_wrong_arguments_are_named(path, call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()
    assert not path.exists()


# --- a class ---


def lines_of_a_class() -> list[str]:
    mark("00", "double")
    ada = progress.export("Ada")
    mark("01", "pick")
    zoe, nobody, again = (progress.export(name) for name in ("Zoë", None, "ada "))
    return [ada, "", "# first week", zoe, "rubbish", ada[:-1], nobody, again]


TABLE = """\
name       line  00  01  all
(no name)  7     1   1   2 of 4
Ada        1, 8  1   1   2 of 4
Zoë        4     1   1   2 of 4
(no name), Ada, Zoë: one code, {code}, so one machine wrote them, or one restored another's line.
line 6 seems to be of Ada and could not be read: its end is missing. It must be copied again, with the \
button below it, or sent as a file."""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_the_command_reads_a_file_and_names_damaged_lines(tmp_path, capsys, encoding):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines_of_a_class()), encoding=encoding)
    assert module.main([str(file)]) == 0
    assert capsys.readouterr().out == TABLE.format(code=solved.code()) + "\n"


@pytest.mark.parametrize("begin", [b"PK\x03\x04", b"%PDF-1.7"])
def test_the_command_refuses_a_document_that_is_no_text(tmp_path, capsys, begin):
    file = tmp_path / "lines.docx"
    file.write_bytes(begin + b"\x00course-progress-3;Ada;")
    with pytest.raises(SystemExit):
        module.main([str(file)])
    assert "must be a file of text: save what is in" in capsys.readouterr().err


def test_the_map_has_the_exercises_of_the_registry_without_importing_them():
    program = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["here"]
    found = children.run("-c", program, env={**os.environ, "COURSE_PROGRESS": "off"})
    assert found.returncode == 0, found.stderr


def test_the_command_reads_standard_input_with_the_real_registry():
    done = children.run("-m", "gpu_course.progress", cwd=ROOT, given="\n".join(lines_of_a_class()))
    assert done.returncode == 0 and done.stderr == ""
    assert "line 6 seems to be of Ada" in done.stdout and done.stdout.splitlines()[2].startswith("Ada        1, 8  1")


def test_the_command_says_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "bad.txt").write_bytes(b"\xff\xff\n")
    assert module.main([str(tmp_path / "bad.txt")]) == 1
    assert capsys.readouterr().out == "name  line  all\n"
    with pytest.raises(SystemExit) as stopped:
        module.main([str(tmp_path / "missing.txt")])
    assert stopped.value.code == 2 and "lines must be a readable file" in capsys.readouterr().err


# --- with an exercise ---


def test_a_right_answer_is_kept_and_reset_forgets_it(monkeypatch, capsys):
    from gpu_course import lesson00

    def double(x, device):
        return x.to(device) * 2

    lesson00.double.check(double)
    assert counts()["00"] == 1
    lesson00.double.reset()
    assert counts()["00"] == 0


# --- mistakes, only where somebody says so ---


def wrong(lesson: str, name: str, mistake: str, times: int = 1) -> None:
    for _ in range(times):
        solved.tried((lesson, name), mistake)


def test_mistakes_leave_this_machine_only_where_one_says_so():
    mark("00", "double")
    wrong("01", "pick", "returns a string", 2)
    wrong("01", "pick", "")
    assert "pick" not in progress.export("Ada")
    line = progress.export("Ada", mistakes=True)
    assert "!01:pick:returns+a+string:2" in line and "!01:pick:other:1" in line
    assert progress.restore(line).total.solved == 1


def test_a_wrong_answer_is_counted_under_the_name_of_its_mistake_alone(monkeypatch):
    monkeypatch.undo()
    from gpu_course import lesson00
    from gpu_course.checks import WrongAnswer

    monkeypatch.setenv("COURSE_PROGRESS", "off")
    monkeypatch.setattr(solved, "_TRIES", {})
    known = lesson00.double.mistakes[0]
    for answer in (known.answer, lambda x, device: None):
        with pytest.raises(WrongAnswer):
            lesson00.double.check(answer)
    assert solved.tries() == {("00", "double", known.name): 1, ("00", "double", ""): 1}


def test_a_damaged_count_of_tries_begins_anew(path):
    wrong("01", "pick", "a", 3)
    file = path.with_name("progress.tries.json")
    assert json.loads(file.read_text(encoding="utf-8")) == [["01", "pick", "a", 3]]
    rows = ('[["01", "pick", "a", "b"]]', '[["01", "pick", "a", 1e999]]', '[["01", "pick", "a", -3]]', "[[1]]", "[7]")
    for damaged in ("", "{}", "3", '"a"', "null", *rows, "[" * 5000):
        file.write_text(damaged, encoding="utf-8")
        assert solved.tries() == {}
    file.write_text('[["01", "pick", "a", 1e999], ["01", "pick", "b", 2], ["01", "pick", "c", true]]', encoding="utf-8")
    assert solved.tries() == {("01", "pick", "b"): 2}
    file.unlink()
    wrong("01", "pick", "a")
    assert solved.tries() == {("01", "pick", "a"): 1}


def test_a_map_never_replaces_the_lines_and_a_folder_that_is_missing_is_said_in_a_line(tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text(progress.export("Ada"), encoding="utf-8")
    for made, said in ((file, "another file than the lines"), (tmp_path / "no" / "class.html", "can be written")):
        before = file.read_bytes()
        with pytest.raises(SystemExit):
            module.main([str(file), "--map", str(made)])
        assert said in capsys.readouterr().err
        assert file.read_bytes() == before


# --- ways ---


def key_of(text: str) -> tuple[str, str]:
    lesson, name = text.split(".")
    return lesson, name


def test_the_way_that_is_followed_comes_first_then_spines_then_what_goes_deeper_then_practice():
    every = ["08b.top_k", "08b.transpose", "08b.layer_norm", "02.ramp", "05.mean_loss", "01.pick_device", "05.evaluate"]
    every = [*map(key_of, every)]
    assert [name for _, name in ways.in_order(every)] == [
        "pick_device",
        "ramp",
        "evaluate",
        "mean_loss",
        "layer_norm",
        "transpose",
        "top_k",
    ]
    assert ways.minutes(("08b", "top_k"), 12) == "12 min, for practice" and ways.minutes(every[1], 18) == "18 min"
    progress.follow("evening")
    assert ways.in_order(every)[0] == ("05", "evaluate")
    mark("05", "evaluate")
    said = str(progress())
    assert "Your way, “evening”: 00b 1 of 7. Next: " in said and "(lesson 00b, " in said
    for key in ways.spine("00b"):
        mark(*key)
    assert "Your way, “evening”: 00b ✓" in str(progress())
    assert progress.follow("weekend", over=False) == progress() and ways.chosen().name == "evening"
    with pytest.raises(ValueError, match="evening, well"):
        progress.follow("nowhere")


def test_what_comes_next_is_on_the_way_and_elsewhere_in_the_lesson_with_its_spine_first():
    lesson = [("05", name) for name in catalogue.names()["05"]]
    assert ways.left(("05", "evaluate"), lesson)[1] == ("05", "train_epoch")  # mean_loss, in between, goes deeper
    progress.follow("evening")
    assert ways.left(("05", "evaluate"), lesson)[1] == ("05", "mean_loss")  # which the evening has
    for key in ways.chosen().exercises:
        mark(*key)
    assert ways.left(("05", "evaluate"), lesson) == []


def test_ways_and_their_table_repeat_what_the_notebooks_say():
    text = Path(ways.__file__).with_suffix(".toml").read_text(encoding="utf-8")
    assert notebooks.with_spines(text) == text and len(ways.ways()) >= 6
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert notebooks.with_ways(readme, "notebooks/") == readme
    assert notebooks.with_ways(readme.replace("100 min |", "7 min |"), "notebooks/") == readme
    known = {(lesson, name) for lesson, names in catalogue.names().items() for name in names}
    assert all(set(way.exercises) <= known and way.exercises for way in ways.ways().values())
