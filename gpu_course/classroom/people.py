"""People of a class, what each has solved, and whose lines are which."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_course import exam
from gpu_course import solved as store
from gpu_course.classroom import reading, written

__all__ = ["Class", "Person", "gathered"]

_NOBODY = "(no name)"


@dataclass
class Person:
    """All that the lines of one person say. Several lines add up, whatever their order.

    - `lines`: the numbers of the lines of the text;
    - `code`: four signs that tell people of one name apart, or "";
    - `solved`, `tries`: what is solved, and how often which mistake was made;
    - `result`: the examination, None without one; `shown`: the name, with the code where another one has the same.
    """

    name: str
    code: str
    lines: list[int] = field(default_factory=list)
    solved: set[store.Key] = field(default_factory=set)
    tries: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    result: exam.Person | None = None
    shown: str = ""

    def add(self, line: reading.Line) -> str:
        """Take what a line says; return a remark where it contradicts what an earlier one said."""
        if line.number not in self.lines:  # progress and examination may stand on one line of the text
            self.lines.append(line.number)
        if isinstance(line.says, written.Progress):
            self.solved |= line.says.solved
            for each, count in line.says.tries.items():  # counts go on from line to line
                self.tries[each] = max(self.tries[each], count)
            return ""
        if self.result is None:
            self.result = line.says
            return ""
        return self._examined(line.number, line.says)

    def _examined(self, number: int, says: exam.Person) -> str:
        """Take a further result of the examination: of each paper the first result counts."""
        assert self.result is not None
        other = ""
        for kind in ("before", "after"):
            known, given = getattr(self.result, kind), getattr(says, kind)
            if known and given and known != given:
                other = f"line {number} has another result {kind} the course; that of the earlier line counts"
            setattr(self.result, kind, known or given)
        for each, count in says.believed.items():
            self.result.believed[each] = max(self.result.believed[each], count)
        return other


@dataclass(frozen=True)
class Class:
    """The people of a class by name, remarks on who is who, and the lines that could not be read."""

    people: list[Person]
    remarks: list[str]
    unread: list[reading.Unread]

    @property
    def count(self) -> int:
        """How many lines of the text could be read."""
        return sum(len(person.lines) for person in self.people)


def gathered(lines: Iterable[str]) -> Class:
    """Return who is in a class, from a text with their lines.

    Lines of the same name and code are of one person, lines of the same name and another code of another one. Lines
    without a name stay apart.
    """
    people: dict[tuple[str, str], Person] = {}
    remarks, unread = [], []
    for line in reading.lines(lines):
        if isinstance(line, reading.Unread):
            if line not in unread:
                unread.append(line)
            continue
        name, code = line.says.name.strip(), line.says.code
        key = (name.casefold(), code) if name else (f"\n{line.number}", code)
        person = people.setdefault(key, Person(name or _NOBODY, code))
        if remark := person.add(line):
            remarks.append(f"{person.name}: {remark}.")
    order = [people[key] for key in sorted(people)]
    return Class(order, [*remarks, *_alike(order)], unread)


def _alike(people: list[Person]) -> list[str]:
    """Say who is who where several have one name, or one code."""
    names, codes = Counter(one.name.casefold() for one in people), Counter(one.code for one in people if one.code)
    remarks = []
    for person in people:
        same = names[person.name.casefold()] > 1 and person.name != _NOBODY
        person.shown = f"{person.name} ({person.code or 'no code'})" if same else person.name
    for name in sorted(name for name, count in names.items() if count > 1 and name != _NOBODY):
        shown = ", ".join(person.shown for person in people if person.name.casefold() == name)
        remarks.append(
            f"{shown}: one name and several codes, so these are several people, or one person who went on without "
            "restoring the line of before."
        )
    for code in sorted(code for code, count in codes.items() if count > 1):
        shown = ", ".join(person.shown for person in people if person.code == code)
        remarks.append(f"{shown}: one code, {code}, so one machine wrote them, or one restored another's line.")
    return remarks
