"""Is a capstone program that trains another way rejected by the name of what it does, and a right one scored?"""

import itertools
import re
import runpy
import struct
import subprocess
import zlib
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import simgpu
from course_utils import counting, devices, plots, programs
from gpu_course.checks import WrongAnswer, read
from gpu_course.lesson12 import cards, changes, program, scoring
from gpu_course.lesson12.program import CPU, SMALL, Trial, case_of
from tests import children

REFERENCE = programs.path("capstone_reference.py").read_text(encoding="utf-8")
BEFORE = "    rank, ranks = (dist"
needs_simulator = pytest.mark.skipif(devices.simulated() is None, reason="beside a real GPU the lesson tries this")


def stored(name: str, source: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the programs of a file of edits by group and name, each behind what the message must say."""
    found = defaultdict(dict)
    for row in read(Path(__file__).with_name(name)).rows:
        found[row.belief][row.name] = row.why, edited(source, *row.answers[0].places)
    return found


def edited(source: str, *places: tuple[str, str]) -> str:
    """Return a program with texts replaced, old by new; each old one stands in it once."""
    for old, new in places:
        begins = "^" if old.endswith("\n") else ""  # whole lines, or a piece of one
        before, *rest = re.split(begins + re.escape(old), source, flags=re.MULTILINE)
        assert len(rest) == 1, old
        source = before + new + rest[0]
    return source


IMAGES = program.IMAGES
STORED = stored("capstone.diff", REFERENCE)
CHEATS, LATER, RANKS = STORED["cheats"], STORED["later"], STORED["ranks"]
OF_IMAGES = stored("capstone_images.diff", IMAGES.reference)  # the judge is that of the first program
IMAGE_CHEATS = OF_IMAGES["cheats"]
STYLES = {name: source for name, (_, source) in STORED["styles"].items()}
STYLES["all changes, as the hints say"] = changes.changed(*changes.CHANGES)


def tried(source: str, seed: int = 1, sizes: program.Sizes = SMALL) -> scoring.Costs:
    """Try a program with a small model, in this process."""
    return scoring.examine(source, "my_capstone.py", seed, sizes)


# The others end where the same text of the first program does: what judges them does not ask which program it is.
ITS_OWN = (
    "half of the pictures", "a smaller model", "a stage that is not used", "no augmentation", "the wrong direction",
    "the evaluation pictures",
)  # fmt: skip


@needs_simulator
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ITS_OWN)) for name in IMAGE_CHEATS
])  # fmt: skip
def test_a_second_program_that_trains_another_way_is_rejected_under_its_name(name):
    phrase, source = IMAGE_CHEATS[name]
    with pytest.raises(WrongAnswer) as found:
        if name == "the evaluation pictures":  # it keeps those that it was asked to evaluate
            case, trial = case_of(source, kind="images").load(), Trial(IMAGES.small, 1)
            model, _ = trial.made(case, CPU)
            case.run("evaluate", model, trial.held_out, trial.tested, CPU)
            program.check_on_cpu(case, trial)
        tried(source, sizes=IMAGES.small)
    assert phrase in scoring.sentence(found.value)


@needs_simulator
def test_a_second_program_is_right_and_resumes():
    assert tried(IMAGES.reference, sizes=IMAGES.small).resume == ""


@pytest.mark.slow
@needs_simulator
def test_a_second_program_that_is_wrong_after_a_resume_or_on_two_ranks_is_named():
    """Slow: who judges does not ask which program it is."""
    phrase, source = OF_IMAGES["later"]["the optimizer is forgotten"]
    assert phrase in tried(source, sizes=IMAGES.small).resume
    wrong = [source for _, source in OF_IMAGES["ranks"].values()]
    found = scoring._on_ranks([(source, "a.py") for source in (IMAGES.given, IMAGES.reference, *wrong)], "images")
    assert [one["ranks"] for one in found[:2]] == ["", ""] and found[0]["messages"] == 18 + 1
    assert found[1]["kept_mib"] == pytest.approx(found[0]["kept_mib"] / 2, rel=0.01)
    for (phrase, *_), one in zip(OF_IMAGES["ranks"].values(), found[2:], strict=True):
        assert phrase in one["ranks"]


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Put back what a program changes."""
    monkeypatch.setattr(counting, "count", counting.count)
    yield
    if simgpu.enabled():
        simgpu.reset()


@needs_simulator
@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_trains_another_way_is_rejected_under_its_name(name):
    phrase, source = CHEATS[name]
    with pytest.raises(WrongAnswer) as found:
        tried(source)
    assert phrase in scoring.sentence(found.value)


@needs_simulator
@pytest.mark.parametrize("name", LATER)
def test_a_resume_that_is_not_bitwise_is_named(name, tmp_path):
    phrase, source = LATER[name]
    simgpu.enable()
    case = case_of(source).load()
    assert phrase in program.resumes(case, Trial(SMALL, 4), torch.device("sim", 0), tmp_path / "run.pt")


@needs_simulator
def test_a_resume_that_is_not_bitwise_costs_its_credit():
    phrase, source = LATER["the optimizer is forgotten"]
    costs = tried(source)
    assert phrase in costs.resume
    assert scoring.Score(costs, costs).level_of("resume") == 0


def test_a_program_that_is_wrong_on_two_ranks_is_named():
    sources = [source for _, source in RANKS.values()]
    right, *found = scoring._on_ranks([(source, "my_capstone.py") for source in (REFERENCE, *sources)])
    assert right["ranks"] == "" and right["messages"] == 2 + 1 / 3
    for (phrase, *_), one in zip(RANKS.values(), found, strict=True):
        assert phrase in one["ranks"]


@pytest.mark.slow
def test_right_programs_are_right_on_two_ranks_which_keep_half_each():
    """Lesson 12 scores the first two."""
    right = [program.given(), REFERENCE, STYLES["half of the products in 16 bits"]]
    found = scoring._on_ranks([(source, "my_capstone.py") for source in right])
    assert [one["ranks"] for one in found] == [""] * 3
    assert [one["messages"] for one in found] == [27 + 1, 2 + 1 / 3, 2 + 1 / 3]
    given, *halves = (one["kept_mib"] for one in found)
    assert halves == [pytest.approx(given / 2, rel=1e-3)] * 2


def flipped(path):
    """Change one byte of a weight."""
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<f", 0.25))] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "is damaged, or no checkpoint": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "the checksum of": flipped,
    "norm.bias is not finite": None,
}


@pytest.mark.parametrize("phrase", DAMAGE)
@pytest.mark.parametrize("name", ["capstone.py", "capstone_reference.py"])
def test_a_damaged_checkpoint_is_refused_in_one_line_with_its_name(name, phrase, tmp_path):
    program, path = runpy.run_path(str(programs.path(name))), tmp_path / "run.pt"
    model = program["make_model"](8, 2, 1, 8)
    optimizer = program["make_optimizer"](model)
    torch.nn.init.constant_(model.norm.bias, 0.25 if DAMAGE[phrase] else float("nan"))
    program["save"](path, model, optimizer, 3)
    assert [one.name for one in tmp_path.iterdir()] == ["run.pt"]
    if DAMAGE[phrase]:
        assert program["load"](path, model, optimizer) == 3
        DAMAGE[phrase](path)
    with pytest.raises(ValueError) as found:
        program["load"](path, model, optimizer)
    assert phrase in str(found.value) and str(path) in str(found.value) and "\n" not in str(found.value)


def test_all_programs_save_and_load_alike(monkeypatch, tmp_path):
    """So what is true of the checkpoints of the first two is true of all."""
    monkeypatch.chdir(tmp_path)
    paths = [*map(programs.path, ("capstone.py", "capstone_reference.py", "images.py")), cards.draw().solution()]
    assert len({program.excerpt(path, "save", "whole", "load") for path in paths}) == 1


def test_an_excerpt_may_be_one_method():
    step = program.excerpt(programs.path("capstone_reference.py"), "Sharded.step")
    assert step.startswith("def step(self):\n    ") and "def " not in step[1:]


def stepped(path: Path, width: int) -> subprocess.CompletedProcess[str]:
    """Run the reference for a step, from the checkpoint in `path` if there is one."""
    program = programs.path("capstone_reference.py")
    return children.run(program, "--steps", 1, "--checkpoint", path, "--width", width)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The bytes of a checkpoint of the reference, of width 8."""
    path = tmp_path_factory.mktemp("run") / "run.pt"
    assert stepped(path, 8).returncode == 0
    return path.read_bytes()


@pytest.mark.parametrize("width", [8, 16])
def test_a_program_ends_in_one_line_where_its_checkpoint_is_of_no_use(width, checkpoint, tmp_path):
    """It is damaged, or of a model of another width; and it stays as it was."""
    path, before = tmp_path / "run.pt", checkpoint[: len(checkpoint) // 2] if width == 8 else checkpoint
    path.write_bytes(before)
    done = stepped(path, width)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert path.read_bytes() == before and ("run.pt" in done.stderr or width == 16)


def test_the_reference_names_the_first_step_whose_loss_is_no_number():
    program, trial = case_of(REFERENCE).load(), Trial(SMALL, seed=1)
    model, optimizer = trial.made(program, CPU)
    optimizer.param_groups[0]["lr"] = float("inf")
    with pytest.raises(WrongAnswer, match="not a number from step 1 on"):
        program.run("train", model, optimizer, trial.text, trial.starts, CPU)


# One alone is judged by the tolerances of 16 bits, one has a function within `train`; of the others, each changes one
# thing of the reference, as most programs above do.
QUICK = ("half of the products in 16 bits", "a training function inside")


@needs_simulator
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in STYLES
])  # fmt: skip
def test_a_right_program_in_another_style_counts(name):
    costs = tried(STYLES[name])
    assert costs.resume == "" and costs.t4_ms > 0


@pytest.mark.slow
@needs_simulator
@pytest.mark.parametrize("change", changes.CHANGES, ids=lambda change: change.name)
def test_each_change_of_the_hints_alone_trains_as_before(change):
    assert tried(changes.changed(change)).resume == ""


@pytest.mark.slow
def test_the_hints_stand_in_the_order_of_what_they_bring_and_lead_to_level_three():
    """Those that save time by it; then one that saves memory; the changes of each level lead to that level."""
    names = [change.name for change in changes.CHANGES]
    rows = changes.gains().rows
    assert [row.name for row in rows if row.ms > 0] == names[:8] and rows[-1].peak_mib > 10
    steps = [[change for change in changes.CHANGES if change.level <= level] for level in (0, 1, 2, 3)]
    scores = [scoring.score(changes.changed(*some), "my_capstone.py") for some in steps]
    assert [score.level for score in scores] == [0, 1, 2, 3]
    assert [score.credit[0] for score in scores] == [4, 21, 31, 33]
    assert scoring.score(REFERENCE, "capstone.py").level == 3


@pytest.mark.slow
def test_the_hints_of_the_second_program_lead_to_its_levels_and_no_subset_of_a_level_to_another():
    known = changes.OF_KIND["images"]
    assert [row.name for row in changes.gains(IMAGES).rows] == [change.name for change in known if change.level == 1]
    wanted = {(): 0, (1,): 1, (1, 2): 2, (1, 2, 3): 3, (2, 3): 0, (1, 3): 1}
    for levels, level in wanted.items():
        source = changes.changed(*(one for one in known if one.level in levels), kind=IMAGES)
        assert scoring.score(source, "my_images.py", IMAGES).level == level, levels
    assert scoring.score(IMAGES.reference, "images.py", IMAGES).level == 3
    trial = Trial(scoring.replace(IMAGES.scored, warm_up=1, steps=2, windows=1), seed=0)

    def costs(*some: changes.Change) -> dict:
        case = case_of(changes.changed(*some, kind=IMAGES), kind="images").load()
        return scoring.measured(case, trial, "T4").costs

    whole = scoring.measured(case_of(IMAGES.given, kind="images").load(), Trial(IMAGES.scored, seed=0), "T4").costs
    training = [one for one in changes.of_level(1, IMAGES) if not one.name.startswith("an evaluation")]
    for some in subsets(training):
        assert whole["peak_mib"] / costs(*some)["peak_mib"] < scoring.asked("peak_mib", "images")[1]
    for some in (*subsets(changes.of_level(2, IMAGES)), *subsets(changes.of_level(3, IMAGES))):
        assert costs()["waits"] / costs(*some)["waits"] < scoring.asked("waits", "images")[0]


def gpu_costs(*some: changes.Change) -> dict:
    """Return what the given program with these changes costs in two steps on the GPU: no more than in six."""
    trial = Trial(scoring.replace(program.SCORED, warm_up=1, steps=2, windows=1), seed=0)
    return scoring.measured(case_of(changes.changed(*some)).load(), trial, "T4").costs


def subsets(some: list) -> list[tuple]:
    """Return all subsets."""
    return list(itertools.chain.from_iterable(itertools.combinations(some, size) for size in range(len(some) + 1)))


@pytest.mark.slow
@needs_simulator
def test_no_subset_of_the_changes_of_one_level_reaches_another():
    """Each subset is tried. One part of the score says no, and what a level asks of it, the levels above ask too."""
    asked = {part: least for part, (_, least) in scoring.LEVELS.items()}
    assert all(least == tuple(sorted(least)) for least in asked.values())
    naive = scoring.measured(case_of(program.given()).load(), Trial(program.SCORED, seed=0), "T4").costs
    training = [change for change in changes.of_level(1) if not change.name.startswith("an evaluation")]
    assert len(subsets(training)) == 256
    for some in subsets(training):  # an evaluation makes no peak smaller
        assert naive["peak_mib"] / gpu_costs(*some)["peak_mib"] < asked["peak_mib"][1], [one.name for one in some]
    waits = gpu_costs()["waits"]
    for some in (*subsets(changes.of_level(2)), *subsets(changes.of_level(3))):
        assert waits / gpu_costs(*some)["waits"] < asked["waits"][0], [one.name for one in some]
    pairs = [(1, 3), (2, 3)]
    unions = [changes.changed(*(one for one in changes.CHANGES if one.level in pair)) for pair in pairs]
    assert [scoring.score(source, "my_capstone.py").level for source in unions] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "phrase"), [
    ("    while True:\n        pass\n", "does not end"),
    ("    import os\n    os._exit(0)\n", "ends the process"),
    ("    import os\n    os._exit(3)\n", "ends the process"),
])  # fmt: skip
def test_a_program_that_never_returns_is_ended(monkeypatch, line, phrase):
    monkeypatch.setattr(scoring, "LIMIT_S", 20.0)
    score = scoring.score(edited(REFERENCE, (BEFORE, line + BEFORE)), "my_capstone.py")
    assert score.costs is None and score.rejected.startswith(phrase) and str(score).startswith("It does not count")


NAIVE = scoring.Costs(
    6.0, 5.0, waits=90, copies=80, copied_bytes=5e5, launches=1000, peak_mib=70, messages=28, kept_mib=2, flops=8e8
)
BETTER = scoring.replace(
    NAIVE, t4_ms=1.0, h200_ms=0.5, waits=9, copies=0, copied_bytes=5e3, launches=100, peak_mib=5, messages=4, kept_mib=1
)


def test_a_score_has_the_level_of_its_worst_part_and_credit_for_each():
    score = scoring.Score(NAIVE, BETTER)
    levels = {part: score.level_of(part) for part in (*scoring.LEVELS, *scoring.RIGHT)}
    assert list(levels.values()) == [3, 3, 1, 3, 1, 3, 3, 2, 3, 3, 3]
    assert score.level == 1 and score.credit == (20, 33)  # a part counts at most one level above the program's
    said = str(score).splitlines()
    assert "Level 1 of 3, credit 20 of 33." in said and "Level 2 still needs the 2 rows that have level 1." in said
    assert f"Its idea: {scoring.IDEAS[1]}." in " ".join(said) and "Level 1 of 3" in score._repr_html_()
    assert [row[0] for row in score._rows() if row[4] == "1"] == ["waits a step", "bytes copied a step"]
    assert max(map(len, said)) <= 100
    broken = scoring.Score(NAIVE, scoring.replace(BETTER, ranks="<b>wrong</b>"))
    assert {row[-1] for row in broken._rows()[-4:-2]} == {"2 ranks equal 1"}  # messages count where the ranks are right
    assert broken.level == 0 and broken.credit == (8, 33) and "<b>wrong" not in broken._repr_html_()
    assert (
        scoring.Score(NAIVE, rejected="<i>").level == 0
        and "<i>" not in scoring.Score(NAIVE, rejected="<i>")._repr_html_()
    )


def test_a_line_comes_back_as_the_score_that_it_was():
    score = scoring.Score(NAIVE, scoring.replace(BETTER, resume="after a resume the weights are others"))
    name, back = cards.parse(f"  {cards.export(score, 'Ada; Löwe 1')}\n")
    assert name == "Ada; Löwe 1" and back.credit == score.credit and back.level == 0
    assert {part: back.ratio(part) for part in scoring.LEVELS} == {part: score.ratio(part) for part in scoring.LEVELS}
    with pytest.raises(ValueError, match="does not count"):
        cards.export(scoring.Score(NAIVE, rejected="fewer tokens"))
    for wrong in ("a\nb", "x" * 61, "\x1b[2J"):
        with pytest.raises(ValueError, match="name must be"):
            cards.export(score, wrong)


def forged(old: str, new: str, count: int = 1) -> str:
    """Return a line with a text replaced, and a checksum that matches."""
    body = cards.export(scoring.Score(NAIVE, BETTER), "Ada").rpartition(";")[0]
    assert old in body
    body = body.replace(old, new, count)
    return f"{body};{zlib.crc32(body.encode()):08x}"


@pytest.mark.parametrize("line", [
    "", "course-capstone-1", "hello", "course-progress-1;;00:a;12345678", "x" * 10_000, ";" * 25,
    cards.export(scoring.Score(NAIVE, BETTER), "Ada").replace("Ada", "Eve"),
    cards.export(scoring.Score(NAIVE, BETTER))[:-1], forged(";1000;", ";nan;"), forged(";1000;", ";inf;"),
    forged(";1000;", ";-5;"), forged(";1000;", ";1e99;"), forged(";1000;", ";__import__('os');"), forged(";1000;", ";"),
    forged(";11;", ";2;"), forged(";6;", ";0;"), forged(";70;", ";70;70;"),
])  # fmt: skip
def test_a_hostile_line_is_refused(line):
    with pytest.raises(ValueError, match="line"):
        cards.parse(line)


def test_a_name_cannot_move_the_cursor_or_make_markup():
    name, score = cards.parse(forged("Ada", "%1b[2J%0a%3cscript%3e"))
    assert name == "[2J<script>" and "<script>" not in cards.Card(((name, score),))._repr_html_()
    assert len(cards.parse(forged("Ada", "A" * 200))[0]) == 60


def test_the_programs_have_tries_and_lines_of_their_own(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.chdir(tmp_path)
    images = cards.draw("images")
    path = images.start()
    assert path.name == "my_images.py" and path.read_text(encoding="utf-8") == images.given.read_text(encoding="utf-8")
    first, second = scoring.Score(NAIVE, BETTER), scoring.Score(NAIVE, BETTER, kind="images")
    for score in (first, second, second):
        cards.remember(score)
    monkeypatch.setattr(scoring, "score", lambda *_: second)
    assert [name for name, _ in images.card(cards.export(second, "Ada")).rows] == ["given", "try 1", "Ada", "reference"]
    assert cards.parse(cards.export(second))[1] == second and first.level == second.level == 1
    with pytest.raises(ValueError, match=r"line is of the program capstone\.py, this card of images\.py"):
        images.card(cards.export(first))
    with pytest.raises(ValueError, match="name must be one of gpt, images"):
        cards.draw("music")
    images.hint()
    assert capsys.readouterr().out.startswith("Hint 1 of 12, for level 1, one pass for a batch")


def test_tries_are_kept_in_order_and_damaged_ones_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    first, second = scoring.Score(NAIVE, NAIVE), scoring.Score(NAIVE, BETTER)
    for score in (first, first, second):
        cards.remember(score)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + "damaged\n\x00\n", encoding="utf-8")
    monkeypatch.setattr(scoring, "score", lambda *_: second)
    made = cards.card(cards.export(second, "Ada"))
    assert [name for name, _ in made.rows] == ["given", "try 1", "try 2", "Ada", "reference"]
    assert [score.costs.t4_ms for _, score in made.rows] == [6, 6, 1, 1, 1]
    assert plots.png(made.plot()).startswith(b"\x89PNG") and "20 of 33" in str(made)


def test_tries_are_kept_in_memory_where_no_file_can_be(monkeypatch, capsys):
    monkeypatch.setattr(cards, "_here", [])
    for place, said in (("off", ""), ("/dev/null/none/progress.json", "could not be saved")):
        monkeypatch.setenv("COURSE_PROGRESS", place)
        cards.remember(scoring.Score(NAIVE, NAIVE if said else BETTER))
        assert said in capsys.readouterr().out
    assert len(cards._tries("gpt")) == 2


def test_the_readers_file_is_made_once_and_never_written_over(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = cards.start()
    assert path.read_text(encoding="utf-8") == program.given()
    path.write_text("mine", encoding="utf-8")
    assert cards.start() == path and path.read_text(encoding="utf-8") == "mine"
    with pytest.raises(ValueError, match="path must be a program"):
        cards.score(tmp_path / "none.py")
