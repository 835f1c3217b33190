"""Does progress go along from notebook to notebook, each on a machine of its own, by one line that is pasted?"""

from collections import Counter

import pytest

from gpu_course import classroom, exam, misconceptions, solved, your_line

MARKS = {skill: (1, 2) for skill in exam.SKILLS}
BELIEF = misconceptions.every()[0].id
NOTHING = "No exercise is solved yet."


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Give a function that goes to the machine of that name; the test begins on the first one."""

    def go(name: str) -> None:
        monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / name / "progress.json"))
        monkeypatch.setattr(solved, "_PENDING", {})

    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    go("first")
    return go


@pytest.fixture
def said(capsys):
    """Give a function that returns what a call prints."""

    def of(call, *given, **named) -> str:
        capsys.readouterr()
        call(*given, **named)
        return capsys.readouterr().out

    return of


@pytest.fixture
def copied(said):
    """Give a function that returns the line that is copied."""
    return lambda *given, **named: said(your_line.copy, *given, **named).splitlines()[1]


def solve(lesson: str, name: str) -> None:
    solved.change({(lesson, name): True})


def examined(kind: str, believed=()) -> None:
    exam.take(exam.Person("", **{kind: MARKS}, believed=Counter(believed)))


def test_a_class_of_notebooks_carries_all_from_machine_to_machine(machine, said, copied):
    solve("00", "double")
    solved.tried(("00", "double"), "adds one")
    examined("before", [BELIEF])
    line = copied("Zoë O'Hara")
    machine("second")
    assert said(your_line.paste, line).startswith("1 of ")
    solve("01", "pick_device")
    line = copied()  # the name is kept in the line
    machine("third")
    your_line.paste(line)
    examined("after")
    (person,) = classroom.gathered([copied()]).people
    assert person.name == "Zoë O'Hara" and person.solved == {("00", "double"), ("01", "pick_device")}
    assert person.tries == {("00", "double", "adds one"): 1}
    assert (person.result.before, person.result.after) == (MARKS, MARKS) and person.result.believed == {BELIEF: 1}
    assert exam.before().taken and "another machine" in str(exam.Examination("before").result())


def test_lines_of_notebooks_that_knew_nothing_of_each_other_add_up(machine, said, copied):
    lines = []
    for at, name in enumerate(("double", "pick_device", "ramp")):
        machine(name)
        solve(f"0{at}", name)
        lines.append(copied("Ada"))
    machine("last")
    chat = f"[10:02] Ada: {lines[0]}\n> {lines[1][:40]}\n> {lines[1][40:]}\n{lines[2]} {lines[2]}"
    assert said(your_line.paste, chat).startswith("3 of ")
    assert {code.code for code in map(classroom.read, lines)} > {solved.code()}


def test_pasting_again_changes_nothing(machine, said, copied):
    solve("00", "double")
    solved.tried(("00", "double"), "adds one")
    line = copied("Ada")
    machine("second")
    assert said(your_line.paste, line) == said(your_line.paste, line)
    assert copied() == line


def test_where_nothing_is_solved_there_is_no_line_and_the_place_to_paste_is_named(said):
    assert said(your_line.paste, "  ").startswith(f"{NOTHING}\nDo you have a line")
    assert said(your_line.copy, "Ada") == f"{NOTHING}\n"


def test_a_machine_that_keeps_the_progress_asks_nobody_to_paste_and_gives_a_line_to_a_class(monkeypatch, said):
    monkeypatch.delenv("COLAB_RELEASE_TAG")
    assert said(your_line.paste, "") == f"{NOTHING}\n"
    solve("00", "double")
    assert "nothing to copy" in said(your_line.copy) and "aste" not in said(your_line.copy)
    assert said(your_line.copy, "Ada").startswith("Copy this line.\ncourse-progress-3;Ada;")


@pytest.mark.parametrize(
    "text, phrase",
    [
        ("course-progress-3;Ada;k3f9;0.1.0;00:dou", "its end is missing. It must be copied again, with the button"),
        ("course-progress-3;Ada;k3f9;0.1.0;00:double;00000000", "something in it was changed on its way"),
        ("hello", "This text holds no line. Yours begins with course-progress."),
    ],
)
def test_what_cannot_be_read_is_said_and_changes_nothing(text, phrase, said):
    shown = said(your_line.paste, text)
    assert phrase in shown and shown.rstrip().endswith("run this cell again.") and solved.solved() == set()


def test_lines_of_several_people_are_not_taken(machine, said, copied):
    lines = []
    for name in ("Ben", "Ada"):
        machine(name)
        solve("00", "double")
        lines.append(copied(name))
    machine("third")
    assert "These are lines of several people: Ada, Ben. Nothing was taken" in said(your_line.paste, "\n".join(lines))
    assert solved.solved() == set()


def test_the_first_result_of_an_examination_stays(machine):
    examined("before")
    exam.take(exam.Person("", before={"place": (2, 2)}))
    assert exam.line("").count("place=1.2") == 1


def test_a_line_says_that_it_names_mistakes_and_how_to_leave_them_out(said, copied):
    solved.tried(("00", "double"), "adds one")
    assert "!00" in copied() and "!00" not in copied(mistakes=False)
    assert 'your_line.copy("", mistakes=False)' in said(your_line.copy)
    assert "mistakes" not in said(your_line.copy, mistakes=False)


@pytest.mark.parametrize("call", [your_line.paste, your_line.copy])
def test_what_is_no_text_is_refused(call):
    with pytest.raises(TypeError, match="must be text, not None"):
        call(None)


def test_a_button_copies_the_line_and_the_name_runs_no_code(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    your_line._show_button('a"><script>b')
    assert shown[0]["text/plain"] == "" and "<script>" not in shown[0]["text/html"]
    assert 'value="a&quot;&gt;&lt;script&gt;b"' in shown[0]["text/html"]
