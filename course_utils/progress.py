"""What have I solved?

It is kept in a JSON file in the user's data folder; the environment variable COURSE_PROGRESS gives another path, `off`
keeps it in memory alone. On a machine that forgets (Colab): `progress.export()`
gives one line of text that `progress.restore(line)` takes elsewhere. An instructor's table of many such lines:

    python -m course_utils.progress lines.txt
"""

from __future__ import annotations

import argparse
import html
import sys
import unicodedata
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus, unquote_plus

from course_utils.base import arguments, tables
from course_utils.base import solved as file

__all__ = ["Lesson", "Progress", "export", "progress", "restore"]

_PREFIX = "course-progress-1"
_BAR = 10
_HEAD = ("lesson", "solved", "")


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


def export(name: str | None = None) -> str:
    """Return the progress as one line of text, with `name` for an instructor's table.

    The line can be read by a person and holds no quotes. Its checksum finds a damaged line, not a made-up one.
    """
    if name is not None and not (0 < len(arguments.text("name", name).strip()) <= 80 and name.isprintable()):
        raise ValueError(f"name must be 1 to 80 printable characters on one line, not {name!r}")
    parts = [f"{lesson}:{','.join(names)}" for lesson, names in file.by_lesson(file.solved()).items()]
    body = ";".join([_PREFIX, _encoded(name or ""), *parts])
    return f"{body};{_checksum(body)}"


def restore(line: str) -> Progress:
    """Add what `line`, made by `progress.export`, says is solved and return the progress; nothing is forgotten.

    Raises ValueError for a line that is damaged or no such line; nothing is changed then.
    """
    try:
        _, found = _parsed(arguments.text("line", line))
    except ValueError as error:
        shown = line if len(line) <= 60 else f"{line[:60]}…"
        raise ValueError(f"line must be what progress.export() gave, whole and unchanged: {error}: {shown!r}") from None
    new = found - file.solved()
    file.change(dict.fromkeys(found, True))
    return _summary(file.solved(), f"Restored {_count(len(found))}, {len(new)} of them new here.")


progress.export = export  # type: ignore[attr-defined]
progress.restore = restore  # type: ignore[attr-defined]


def _summary(solved: set[file.Key], note: str = "") -> Progress:
    from course_utils.exercises import registry

    exercises = {(found.lesson, found.name): found for found in registry()}
    rows = []
    for lesson in sorted({lesson for lesson, _ in exercises}):
        names = [each for each in exercises if each[0] == lesson]
        rows.append(Lesson(lesson, sum(each in solved for each in names), len(names)))
    first = next((found for each, found in exercises.items() if each not in solved), None)
    following = f"Next: {first.task.title} (lesson {first.lesson}, {first.task.minutes} min)" if first else ""
    others = len(solved - exercises.keys())
    kept = f"{_count(others)} of another version of the course kept." if others else ""
    return Progress(tuple(rows), following or "Everything is solved.", f"{note} {kept}".strip())


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


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _parsed(line: str) -> tuple[str, set[file.Key]]:
    """Return the name and the exercises of an exported line, or raise ValueError; white space is ignored."""
    text = unicodedata.normalize("NFC", "".join(line.split()).strip("'\"`“”‘’"))
    if not text.startswith(f"{_PREFIX};"):
        raise ValueError(f"it does not begin with {_PREFIX}")
    body, _, checksum = text.rpartition(";")
    if checksum != _checksum(body):
        raise ValueError("its checksum does not match")
    _, name, *parts = body.split(";")
    found = set()
    for part in parts:
        lesson, _, names = part.partition(":")
        found |= {file.key(lesson, each) for each in names.split(",")}
    # anybody can make up a line: signs that are not printable would move the cursor or forge rows of a table
    return "".join(sign for sign in unquote_plus(name) if sign.isprintable()), found


def class_table(lines: Iterable[str]) -> tuple[str, int]:
    """Return a table of many exported lines and how many could be read; damaged lines are named by number below it.

    Lines with the same name become one row. Empty lines and lines that begin with # are passed over.
    """
    people: dict[str, tuple[str, list[str], set[file.Key]]] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, found = _parsed(line)
        except ValueError as error:
            damaged.append(f"line {number} is damaged: {error}")
            continue
        _, numbers, known = people.setdefault(name.casefold() or f"\n{number}", (name or "(no name)", [], set()))
        numbers.append(str(number))
        known |= found
    rows = []
    for _, (name, numbers, found) in sorted(people.items()):
        of = _summary(found)
        each = (str(lesson.solved) for lesson in of.lessons)
        rows.append((name, ", ".join(numbers), *each, f"{of.total.solved} of {of.total.exercises}"))
    head = ("name", "line", *(lesson.number for lesson in _summary(set()).lessons), "all")
    return "\n".join([tables.text(rows, head), *damaged]), sum(len(numbers) for _, numbers, _ in people.values())


def main(given: list[str] | None = None) -> int:
    """Print the table of a class from one line for each person; the status is 1 where no line could be read."""
    parser = argparse.ArgumentParser("python -m course_utils.progress", description=main.__doc__)
    parser.add_argument("lines", nargs="?", help="file of lines that progress.export() gave; default: standard input")
    path = parser.parse_args(given).lines
    try:
        data = Path(path).read_bytes() if path else sys.stdin.buffer.read()
    except OSError as error:
        parser.error(f"lines must be a readable file, not {path}: {error.strerror}")
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # what some versions of PowerShell write
    table, count = class_table(data.decode("utf-16" if wide else "utf-8-sig", errors="replace").splitlines())
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print(table)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
