"""What have I solved?

It is kept in a JSON file in the user's data folder; the environment variable COURSE_PROGRESS gives another path, `off`
keeps it in memory alone. On a machine that forgets (Colab): `progress.export()`
gives one line of text that `progress.restore(line)` takes elsewhere. An instructor's table of many such lines, and a
page that shows which exercise stops whom, and by which mistake. Lines of the examination (`exam.line`) may stand among
them: the page shows what the class has gained by skill, and which misconceptions are common:

    python -m gpu_course.progress lines.txt --map class.html
"""

import argparse
import contextlib
import html
import io
import itertools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote_plus, unquote_plus

from course_utils import arguments, tables
from gpu_course import exam, look, sealing
from gpu_course import solved as file

__all__ = ["Lesson", "Progress", "export", "here", "progress", "restore"]

_PREFIX, _EARLIER = "course-progress-2", "course-progress-1"  # the earlier one has no version of the course
_BAR = 10
_HEAD = ("lesson", "solved", "")
_START = re.compile(r"course-progress-\d+;")
_END = re.compile(r";[0-9a-f]{8}(?![0-9a-f])")  # a checksum
_QUOTED = re.compile(r"[>\s\ufeff]*")  # what a mail puts in front of each line that it quotes
_MOST_PIECES = 60  # into which a mail may have broken one line


@dataclass(frozen=True)
class Lesson:
    """How many of a lesson's exercises are solved."""

    number: str
    solved: int
    exercises: int


@dataclass(frozen=True)
class Progress:
    """Solved exercises by lesson, the next one to solve, and a remark."""

    lessons: tuple[Lesson, ...]
    next: str = ""
    note: str = ""

    @property
    def total(self) -> Lesson:
        """Return the sum over all lessons."""
        return Lesson("all", sum(row.solved for row in self.lessons), sum(row.exercises for row in self.lessons))

    def _rows(self, signs: str) -> list[tuple[str, str, str]]:
        rows = (*self.lessons, self.total)
        return [(row.number, f"{row.solved} of {row.exercises}", _bar(row, signs)) for row in rows]

    def __str__(self) -> str:
        return "\n".join(filter(None, [tables.text(self._rows("#."), _HEAD), self.next, self.note]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        look = {2: 'aria-hidden="true" style="font-family: monospace"'}
        remarks = "".join(f"<p>{html.escape(text)}</p>" for text in (self.next, self.note) if text)
        return tables.to_html(self._rows("■□"), _HEAD, attributes=look) + remarks


def progress() -> Progress:
    """Return what is solved, over all lessons; `progress.export` and `progress.restore` carry it to another machine."""
    return _summary(file.solved())


def export(name: str | None = None, *, mistakes: bool = False) -> str:
    """Return the progress as one line of text, with `name` for an instructor's table.

    With `mistakes` it also says how often answers were wrong, by exercise and name of the mistake, and nothing else of
    them. The line can be read by a person and holds no quotes. Its checksum finds a damaged line, not a made-up one.
    """
    if name is not None and not (0 < len(arguments.text("name", name).strip()) <= 80 and name.isprintable()):
        raise ValueError(f"name must be 1 to 80 printable characters on one line, not {name!r}")
    parts = [f"{lesson}:{','.join(names)}" for lesson, names in file.by_lesson(file.solved()).items()]
    if mistakes:
        found = sorted(file.tries().items())
        parts += [f"!{lesson}:{each}:{_encoded(mistake)}:{count}" for (lesson, each, mistake), count in found]
    return sealing.sealed(";".join([_PREFIX, _encoded(name or ""), version("course-utils"), *parts]))


def restore(line: str) -> Progress:
    """Add what `line`, made by `progress.export`, says is solved and return the progress; nothing is forgotten.

    Raises ValueError for a line that is damaged or no such line; nothing is changed then.
    """
    try:
        found = _parsed(arguments.text("line", line)).solved
    except ValueError as error:
        shown = line if len(line) <= 60 else f"{line[:60]}…"
        raise ValueError(f"line must be what progress.export() gave, whole and unchanged: {error}: {shown!r}") from None
    new = found - file.solved()
    file.change(dict.fromkeys(found, True))
    return _summary(file.solved(), f"Restored {_count(len(found))}, {len(new)} of them new here.")


progress.export = export  # type: ignore[attr-defined]
progress.restore = restore  # type: ignore[attr-defined]


def _summary(solved: set[file.Key], note: str = "") -> Progress:
    from gpu_course.catalogue import registry

    exercises = {(found.lesson, found.name): found for found in registry()}
    names: dict[str, list[str]] = {}
    for lesson, name in exercises:
        names.setdefault(lesson, []).append(name)
    left = [found for each, found in exercises.items() if each not in solved]
    first = min(left, key=lambda found: not found.lesson.isdecimal(), default=None)  # pages such as 08b come last
    following = f"Next: {first.task.title} (lesson {first.lesson}, {first.task.minutes} min)" if first else ""
    others = len(solved - exercises.keys())
    kept = f"{_count(others)} of another version of the course kept." if others else ""
    return Progress(_lessons(names, solved), following or "Everything is solved.", f"{note} {kept}".strip())


def _lessons(names: dict[str, list[str]], solved: set[file.Key]) -> tuple[Lesson, ...]:
    """Return how much of each lesson is solved, whose exercises have these names."""
    rows = sorted(names.items())
    return tuple(Lesson(lesson, sum((lesson, name) in solved for name in found), len(found)) for lesson, found in rows)


def here(number: str) -> str:
    """Return the map of the course as HTML, with the lesson `number` on it and how much of it is solved.

    It stands at the beginning of a lesson, which must not wait until all others are imported.
    """
    from gpu_course.catalogue import names

    known = Progress(_lessons(names(), file.solved()))
    found = next((row for row in known.lessons if row.number == number), Lesson(number, 0, 0))
    said = f"Lesson {number}: {found.solved} of {_count(found.exercises)} solved; {known.total.solved} in all."
    strip = look.map_strip([(row.number, row.solved, row.exercises) for row in known.lessons], number)
    return strip + look.quiet(said)


def _count(number: int) -> str:
    return f"{number} exercise" if number == 1 else f"{number} exercises"


def _bar(row: Lesson, signs: str) -> str:
    full = _BAR * row.solved // row.exercises if row.exercises else 0  # full only when all are solved
    full = max(full, 1) if row.solved else 0
    return signs[0] * full + signs[1] * (_BAR - full)


def _encoded(name: str) -> str:
    """Return `name` without spaces and signs that a mail or a string in Python would change; letters stay."""
    name = unicodedata.normalize("NFC", " ".join(name.split()))
    return "".join(sign if sign.isalnum() else quote_plus(sign) for sign in name)


@dataclass(frozen=True)
class Person:
    """What exported lines say of one person: what is solved, and how often which mistake was made."""

    name: str
    solved: set[file.Key] = field(default_factory=set)
    tries: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by lesson, exercise and mistake
    lines: list[str] = field(default_factory=list)


def _parsed(line: str) -> Person:
    """Return what an exported line says, or raise ValueError; white space is ignored."""
    text = unicodedata.normalize("NFC", "".join(line.split()).strip("'\"`“”‘’"))
    if not text.startswith((f"{_PREFIX};", f"{_EARLIER};")):
        raise ValueError(f"it does not begin with {_PREFIX}")
    prefix, name, *parts = sealing.unsealed(text).split(";")
    person = Person(_plain(name))
    for part in parts[prefix == _PREFIX :]:
        if part.startswith("!"):
            lesson, each, mistake, count = part[1:].split(":")
            person.tries[(*file.key(lesson, each), _plain(mistake))] += min(max(int(count), 0), file.MOST_TRIES)
            continue
        lesson, _, names = part.partition(":")
        person.solved.update(file.key(lesson, each) for each in names.split(","))
    return person


def _plain(text: str) -> str:
    return sealing.printable(unquote_plus(text), 200)


def _people(lines: Iterable[str]) -> tuple[list[Person], list[str]]:
    """Return the people of many exported lines, by name, and what is wrong with damaged lines, by number.

    Lines with the same name are one person. Empty lines and lines that begin with # are passed over.
    """
    people: dict[str, Person] = {}
    damaged = []
    for number, line in _delivered(lines):
        try:
            found = _parsed(line)
        except ValueError as error:
            damaged.append(f"line {number} is damaged: {error}")
            continue
        person = people.setdefault(found.name.casefold() or f"\n{number}", Person(found.name or "(no name)"))
        person.lines.append(str(number))
        person.solved.update(found.solved)
        for each, count in found.tries.items():  # a later line of the same person counts from the beginning
            person.tries[each] = max(person.tries[each], count)
    return [person for _, person in sorted(people.items())], damaged


def _delivered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each exported line, with the number of the line where it begins, out of mails, forms and chats.

    There it may follow a name or a time, be quoted with >, stand in a table beside other columns, or be broken into
    several lines. A line that holds no exported one, or a damaged one, comes as it is.
    """
    given = [line.rstrip("\r\n") for line in lines]
    number = 0
    while number < len(given):
        line, first = given[number].strip("\ufeff \t"), number + 1
        number += 1
        if not line or line.startswith(("#", exam.PREFIX)):
            continue
        starts = [found.start() for found in _START.finditer(line)]
        for begin, end in itertools.pairwise(starts):  # several on one line: all but the last are whole
            yield first, _whole(line[begin:end]) or line[begin:end]
        if not starts:
            yield first, line
            continue
        text = line[starts[-1] :]
        whole, pieces = _whole(text), 0
        for piece in itertools.takewhile(_goes_on, given[first : first + _MOST_PIECES]):
            if whole:
                break
            text = text.removesuffix("=") + _QUOTED.sub("", piece, count=1)
            whole, pieces = _whole(text), pieces + 1
        yield first, whole or line[starts[-1] :]
        number += pieces if whole else 0


def _goes_on(piece: str) -> bool:
    """Return whether a line may be a further piece of one that is not whole yet."""
    return bool(_QUOTED.sub("", piece, count=1)) and not _START.search(piece)


def _whole(text: str) -> str | None:
    """Return the exported line with which `text` begins, up to a checksum that matches; None where there is none."""
    text = "".join(text.split())
    for end in _END.finditer(text):
        try:
            sealing.unsealed(unicodedata.normalize("NFC", text[: end.end()]))
        except ValueError:
            continue
        return text[: end.end()]
    return None


def class_table(lines: Iterable[str]) -> tuple[str, int]:
    """Return a table of many exported lines and how many could be read; damaged lines are named by number below it."""
    people, damaged = _people(lines)
    rows = []
    for person in people:
        of = _summary(person.solved)
        each = (str(lesson.solved) for lesson in of.lessons)
        rows.append((person.name, ", ".join(person.lines), *each, f"{of.total.solved} of {of.total.exercises}"))
    head = ("name", "line", *(lesson.number for lesson in _summary(set()).lessons), "all")
    return "\n".join([tables.text(rows, head), *damaged]), sum(len(person.lines) for person in people)


def class_map(lines: Iterable[str]) -> str:
    """Return a page of HTML: which exercise stops whom, and which mistakes were made most, from exported lines."""
    from gpu_course.catalogue import registry

    lines = list(lines)
    people, damaged = _people(lines)
    columns = [(found.lesson, found.name, found.task.title) for found in registry()]
    head = "".join(
        f'<th scope="col" title="{html.escape(title)}"><span>{lesson} {name}</span></th>'
        for lesson, name, title in columns
    )
    rows = []
    for person in people:
        cells = []
        for lesson, name, _ in columns:
            wrong = {key[2]: count for key, count in person.tries.items() if key[:2] == (lesson, name)}
            cells.append(_cell((lesson, name) in person.solved, wrong))
        rows.append(f'<tr><th scope="row">{html.escape(person.name)}</th>{"".join(cells)}</tr>')
    return _MAP.format(
        head=head,
        rows="".join(rows),
        totals=_totals(people, columns),
        mistakes=_most_made(people, columns),
        damaged="".join(f"<li>{html.escape(one)}</li>" for one in damaged) or "<li>None.</li>",
        exams=_exams(lines),
    )


def _totals(people: list[Person], columns: list[tuple[str, str, str]]) -> str:
    """Return rows of HTML: how many people solved each exercise, and how many tried it and have not solved it."""
    rows = []
    for title, among in (("solved", lambda person, key: key in person.solved), ("stuck or tried", _tried)):
        counts = [sum(among(person, (lesson, name)) for person in people) for lesson, name, _ in columns]
        cells = "".join(f"<td>{count or ''}</td>" for count in counts)
        rows.append(f"<tr><th>{title}</th>{cells}</tr>")
    return "".join(rows)


def _tried(person: Person, key: file.Key) -> bool:
    """Return whether a person answered an exercise wrongly and has not solved it."""
    return key not in person.solved and any(each[:2] == key and count for each, count in person.tries.items())


def _exams(lines: Iterable[str]) -> str:
    """Return the part of the page on the examination; of lines of the same name the last one counts."""
    found: dict[str, exam.Person] = {}
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith(exam.PREFIX):
            with contextlib.suppress(ValueError):
                person = exam.read(line)
                found[person.name.casefold() or f"\n{number}"] = person
    return exam.class_section(list(found.values()))


def _cell(solved: bool, wrong: dict[str, int]) -> str:
    """Return the cell of one person and exercise; its sign says whether it is solved, its number the tries."""
    count = sum(wrong.values())
    kind = "solved" if solved else "stuck" if count > 2 else "tried" if count else "untouched"
    said = "; ".join(f"{name or 'a mistake without a name'}: {times}" for name, times in sorted(wrong.items()))
    sign = {"solved": "✓", "stuck": "✗", "tried": "·", "untouched": ""}[kind]
    return f'<td class="{kind}" title="{html.escape(said)}">{sign}{count or ""}</td>'


def _most_made(people: list[Person], columns: list[tuple[str, str, str]]) -> str:
    """Return rows of HTML: each mistake with a name, who made it and how often; the most frequent first."""
    made: dict[tuple[str, str, str], list[int]] = {}
    for person in people:
        for each, count in person.tries.items():
            if each[2] and count:
                made.setdefault(each, []).append(count)
    known = {column[:2] for column in columns}
    order = sorted(((-len(counts), -sum(counts), each) for each, counts in made.items() if each[:2] in known))[:30]
    return "".join(
        f"<tr><td>{lesson} {name}</td><td>{html.escape(mistake)}</td><td>{-who}</td><td>{-times}</td></tr>"
        for who, times, (lesson, name, mistake) in order
    )


_MAP = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Which exercise stops whom</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222222; background: #ffffff; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #e2e2e2; padding: 2px 6px; text-align: left; }}
.class {{ max-width: 100%; overflow: auto; max-height: 80vh; }}
.class table {{ border-collapse: separate; border-spacing: 0; }}
.class thead span {{ writing-mode: vertical-rl; font-weight: normal; }}
.class thead th {{ position: sticky; top: 0; background: #ffffff; z-index: 1; }}
.class tr > :first-child {{ position: sticky; left: 0; background: #ffffff; z-index: 2; max-width: 14rem; }}
.class thead tr > :first-child {{ z-index: 3; }}
tfoot td, tfoot th {{ font-weight: 600; background: #f5f5f5; }}
.solved {{ background: #cdebdf; }} .tried {{ background: #fbe7c0; }} .stuck {{ background: #f4b9a3; }}
</style>
<main><h1>Which exercise stops whom</h1>
<p>✓ solved, · tried, ✗ wrong more than twice and not solved; the number counts wrong answers.
Point at a cell to see the mistakes.</p>
<div class="class" role="region" aria-label="Who solved what" tabindex="0">
<table><thead><tr><th scope="col">name</th>{head}</tr></thead><tbody>{rows}</tbody><tfoot>{totals}</tfoot></table></div>
<h2>Mistakes made by most</h2>
<table><thead><tr><th>exercise</th><th>mistake</th><th>people</th><th>times</th></tr></thead><tbody>{mistakes}</tbody></table>
{exams}
<h2>Lines that could not be read</h2>
<ul>{damaged}</ul>
</main></html>
"""  # fmt: skip


def main(given: list[str] | None = None) -> int:
    """Print the table of a class from one line for each person; the status is 1 where no line could be read."""
    parser = argparse.ArgumentParser("python -m gpu_course.progress", description=main.__doc__)
    parser.add_argument("lines", nargs="?", help="file of lines that progress.export() gave; default: standard input")
    parser.add_argument("--map", type=Path, metavar="class.html", help="write a page: which exercise stops whom")
    options = parser.parse_args(given)
    path = options.lines
    try:
        data = Path(path).read_bytes() if path else sys.stdin.buffer.read()
    except OSError as error:
        parser.error(f"lines must be a readable file, not {path}: {error.strerror}")
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # what some versions of PowerShell write
    lines = data.decode("utf-16" if wide else "utf-8-sig", errors="replace").splitlines()
    table, count = class_table(lines)
    if options.map:
        try:
            if path and options.map.exists() and options.map.samefile(path):
                parser.error(f"--map must name another file than the lines, which it would replace: {path}")
            options.map.write_text(class_map(lines), encoding="utf-8")
        except OSError as error:
            parser.error(f"--map must name a file that can be written, not {options.map}: {error.strerror}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(table)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
