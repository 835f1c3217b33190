"""Does a class of thirty reach its instructor's map whole, from the first answer to the page?

Each learner goes through the three-hour plan, each lesson in a process with a folder of its own, as Colab has it: the
line of the lesson before is pasted, answers are checked, some of them wrong, and a line is copied. The lines go through
a chat in the forms that mails and chats give them, three of them damaged. The map must equal what was put in.
"""

import json
import random
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from gpu_course import catalogue, classroom, exam
from tests import children
from tests.gpu_course.test_classroom import CHATTER, DELIVERED
from tools import plans

LEARNERS = 30
NAMES = ["Ada", "Ben", "Ben", "Zoë O'Hara", "李雷", "محمد", "Dr. Bob, PhD"]
LESSON = tomllib.loads(Path(__file__).with_name("class.toml").read_text(encoding="utf-8"))["lesson"]


class Learner:
    """Somebody with a script: for each lesson of the plan what is answered wrongly and rightly, and the examination."""

    def __init__(self, name: str, rows: list[plans.Row], seed: int) -> None:
        chance = random.Random(seed)
        known = {(one.lesson, one.name): one for one in catalogue.registry()}
        self.name, self.lines, self.forgets = name, [], seed % 10 == 3
        self.solved, self.tries, self.script = set(), Counter(), []
        for row in rows[: chance.randint(3, len(rows))]:
            answers = []
            for key in plans.exercises(row):
                count = min(len(known[key].mistakes), 3)
                wrong, solves = chance.sample(range(count), chance.randint(0, min(2, count))), chance.random() < 0.8
                answers.append((*key, wrong, solves))
                self.solved |= {key} if solves else set()
                self.tries.update((*key, known[key].mistakes[number].name) for number in wrong)
            self.script.append(answers)
        examined = chance.random() < 0.6
        self.before = {skill: (chance.randint(0, 1), 2) for skill in exam.SKILLS} if examined else {}
        self.after = {skill: (chance.randint(1, 2), 2) for skill in exam.SKILLS} if examined else {}

    def go(self, folder) -> None:
        """Go through the lessons, each in a process of its own that knows nothing of the one before."""
        for at, answers in enumerate(self.script):
            # Who forgot to paste the first line pastes both of them one lesson later.
            pasted = "" if self.forgets and at == 1 else "\n".join(self.lines)
            last = at == len(self.script) - 1
            marks, kind = (self.before, "before") if at == 0 else (self.after, "after") if last else ({}, "")
            told = {"pasted": pasted, "answers": answers, "marks": marks, "kind": kind, "name": self.name}
            progress = folder / f"lesson-{at}" / "progress.json"
            done = children.run(
                "-c", LESSON, given=json.dumps(told), env={**children.os.environ, "COURSE_PROGRESS": str(progress)}
            )
            assert done.returncode == 0, done.stderr
            shown = done.stdout.splitlines()
            if len(shown) > 1:
                self.lines.append(shown[1])


@pytest.mark.slow
def test_the_map_of_a_class_of_thirty_and_its_gain_equal_what_was_put_in(tmp_path):
    (plan,) = (plan for plan in plans.plans() if plan.name == "plan_three_hours")
    rows = [row for row in plan.rows if row.lesson]
    names = [*NAMES, *(f"Learner-{number}" for number in range(LEARNERS - len(NAMES)))]
    learners = [Learner(name, rows, seed) for seed, name in enumerate(names)]
    for number, learner in enumerate(learners):
        learner.go(tmp_path / str(number))
        assert learner.lines, learner.name

    chance = random.Random(0)
    chat, damaged = [], learners[-3:]
    ways = [*DELIVERED.values()]
    for learner in chance.sample(learners, LEARNERS):
        chat += chance.sample(CHATTER, 2)
        sent = learner.lines[-1]  # which holds what all earlier ones said
        if learner in damaged:
            line = sent.partition(" ")[0]
            at = damaged.index(learner)
            end = re.search(r";(\d\d:.*)", line)[1]
            sent = [line[:-6], line.replace(";0.", ";9.", 1), f"{learner.name}: {end}"][at]
            chat.append(sent)
        else:
            chat += chance.choice(ways)(sent).split("\n")
    made = classroom.gathered(chat)

    whole = [learner for learner in learners if learner not in damaged]
    assert sorted(unread.whose for unread in made.unread) == sorted(learner.name for learner in damaged)
    assert Counter(person.name for person in made.people) == Counter(learner.name for learner in whole)
    for person in made.people:
        same = [one for one in whole if one.name == person.name]
        assert any((one.solved, one.tries) == (person.solved, person.tries) for one in same), person.shown
        marks = (person.result.before, person.result.after) if person.result else ({}, {})
        assert any((one.before, one.after) == marks for one in same), person.shown
    assert len([remark for remark in made.remarks if "one name and several codes" in remark]) == 1
    page = classroom.page(made)
    for skill in exam.SKILLS:
        gains = [(one.after[skill][0] - one.before[skill][0]) / 2 for one in whole if one.before]
        assert f"<td>{100 * sum(gains) / len(gains):+.0f}</td>" in page.partition("<h2>Examination")[2], skill
    counted = Counter(key for one in whole for key in one.tries)
    for (lesson, exercise, mistake), people in counted.most_common(3):
        row = page[page.index(f"<bdi>{lesson} {exercise}</bdi>") :]
        assert f"<bdi>{people}</bdi>" in row and mistake.partition("`")[0] in page
