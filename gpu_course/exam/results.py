"""Results of an examination by skill: as a table, and as one line that an instructor can read."""

import html
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_plus, unquote_plus

from course_utils import __version__, tables
from gpu_course import misconceptions, sealing
from gpu_course.exam.items import several
from gpu_course.exam.paper import Judged

__all__ = ["MARK", "PREFIX", "SKILLS", "Person", "Result", "class_section", "line", "marks_of", "read"]

SKILLS = ("place", "time", "train", "memory", "parallel", "diagnose")
MARK = "course-exam-"
PREFIX = f"{MARK}2"
ENOUGH = 6  # answers before the course and after it, half of each paper, from which a gain follows
_MOST = 99
Marks = dict[str, tuple[int, int]]  # by skill: right, asked


@dataclass(frozen=True)
class Result:
    """How many items of each skill were right, before the course and after it, and every item with its answer.

    - `marks`: by skill, right and answered, where an item that was left empty is neither; `before`: the same of the
      examination before the course, {} without one;
    - `items`: what was asked, what was answered and what is right; `asked`: how many items there were;
    - `note`: a remark, such as that nothing was answered yet.
    """

    marks: Marks
    before: Marks
    items: tuple[Judged, ...] = ()
    asked: int = 0
    note: str = ""

    @property
    def gain(self) -> float | None:
        """Return by how much the share of right answers has grown, -1 to 1.

        None without an examination before, and where fewer than half of the items of one of them were answered.
        """
        enough = min(_answered(self.marks), _answered(self.before)) >= ENOUGH
        return _share(self.marks) - _share(self.before) if enough else None

    @property
    def read(self) -> dict[str, str]:
        """The places to read again, in words, and their links; each once."""
        return {one.read.place: one.read.link for one in self.items if not one.right}

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for skill in SKILLS:
            now, then = self.marks.get(skill), self.before.get(skill)
            cells = [f"{marks[0]} of {marks[1]}" if marks else "" for marks in ([then, now] if self.before else [now])]
            rows.append((skill, *cells))
        return rows

    def _head(self) -> tuple[str, ...]:
        return ("skill", "before", "after") if self.before else ("skill", "right")

    def _rest(self) -> list[str]:
        empty = self.asked - _answered(self.marks) if self.asked else 0
        lines = [self.note, f"Left empty, and neither right nor wrong: {empty} of {self.asked} items." if empty else ""]
        if self.before and self.gain is None:
            lines.append(f"There is no gain to tell: it needs {ENOUGH} answers before the course and after it.")
        elif self.gain is not None:
            lines.append(f"Gain: {100 * self.gain:+.0f} % of all items.")
        return [line for line in lines if line]

    def __str__(self) -> str:
        shown = [f"\n{one.text(number)}" for number, one in enumerate(self.items, 1)]
        table = [tables.text(self._rows(), self._head())] if self.marks else []
        return "\n".join([*table, *self._rest(), *shown])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rest = "".join(f"<p>{html.escape(text)}</p>" for text in self._rest())
        shown = "".join(one.to_html(number) for number, one in enumerate(self.items, 1))
        table = tables.to_html(self._rows(), self._head()) if self.marks else ""
        return table + rest + shown


def _answered(marks: Marks) -> int:
    return sum(count for _, count in marks.values())


def _share(marks: Marks) -> float:
    return sum(right for right, _ in marks.values()) / max(_answered(marks), 1)


def marks_of(given: Mapping[str, Sequence[int]]) -> Marks:
    """Return marks that were written somewhere. Raises an error where they are none."""
    marks = {skill: (int(right), int(count)) for skill, (right, count) in given.items()}
    if not (marks.keys() <= {*SKILLS} and all(0 <= right <= count <= _MOST for right, count in marks.values())):
        raise TypeError(f"{marks} are no marks")
    return marks


@dataclass
class Person:
    """What lines say of one person: marks before and after, and which misconceptions answers came from."""

    name: str
    code: str = ""
    before: Marks = field(default_factory=dict)
    after: Marks = field(default_factory=dict)
    believed: Counter[str] = field(default_factory=Counter)


def line(name: str, code: str, before: Marks, after: Marks, believed: Iterable[str]) -> str:
    """Return the results as one line of text, such as `progress.export` gives: no answers, no times, no machine."""
    parts = []
    for kind, marks in (("before", before), ("after", after)):
        if marks:
            parts.append(f"{kind}:" + ",".join(f"{skill}={right}.{asked}" for skill, (right, asked) in marks.items()))
    parts += [f"!{each}:{count}" for each, count in sorted(Counter(believed).items())]
    return sealing.sealed(";".join([PREFIX, quote_plus(name), code, __version__, *parts]))


def read(text: str) -> Person:
    """Return what a line says. Raises ValueError where it is damaged or none."""
    text = "".join(text.split())
    if text.partition(";")[0] != PREFIX:
        raise ValueError(f"it does not begin with {PREFIX}")
    _, name, code, _, *parts = sealing.unsealed(text).split(";")
    person = Person(sealing.printable(unquote_plus(name), 200), sealing.code_of(code))
    known = {one.id for one in [*misconceptions.every(), *misconceptions.slips()]}
    for part in parts:
        kind, _, rest = part.partition(":")
        if kind.startswith("!") and kind[1:] in known:
            person.believed[kind[1:]] += min(max(int(rest), 0), _MOST)
        elif kind in ("before", "after"):
            getattr(person, kind).update(_marks(rest))
    return person


def _marks(text: str) -> Marks:
    counts = re.findall(r"(\w+)=(\d{1,2})\.(\d{1,2})", text)
    return {skill: (min(int(right), int(asked)), int(asked)) for skill, right, asked in counts if skill in SKILLS}


def class_section(people: list[Person]) -> str:
    """Return a part of a page of HTML: the class by skill, before and after, and its most common misconceptions."""
    if not people:
        return ""
    both = [person for person in people if person.before and person.after]
    rows = []
    for skill in SKILLS:
        shares = [_class_share(people, kind, skill) for kind in ("before", "after")]
        then, now = (_class_share(both, kind, skill) for kind in ("before", "after"))
        gain = "" if then is None or now is None else f"{100 * (now - then):+.0f}"
        rows.append((skill, *("" if share is None else f"{100 * share:.0f}" for share in shares), gain))
    head = ("skill", "before, % right", "after, % right", f"gain of {several(len(both), 'person', 'people')}")
    common: Counter[str] = Counter()
    for person in people:
        common.update(person.believed.keys())
    believed = [(misconceptions.get(name).name, str(count)) for name, count in common.most_common(20)]
    return (
        f"<h2>Examination, {several(len(people), 'person', 'people')}</h2>{tables.to_html(rows, head)}"
        f"<h2>Misconceptions behind wrong answers</h2>{tables.to_html(believed, ('misconception', 'people'))}"
    )


def _class_share(people: list[Person], kind: str, skill: str) -> float | None:
    """Return the mean of what share of a skill's items each person had right: everybody counts once."""
    marks = [getattr(person, kind)[skill] for person in people if skill in getattr(person, kind)]
    shares = [right / count for right, count in marks if count]
    return statistics.fmean(shares) if shares else None
