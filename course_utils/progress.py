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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from course_utils.base import solved as file

__all__ = ["Lesson", "Progress", "export", "forget", "mark", "progress", "restore"]

_PREFIX = "course-progress-1"
_BAR = 10


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

    def _remarks(self) -> list[str]:
        return [text for text in (self.next, self.note) if text]

    def __str__(self) -> str:
        rows = [("lesson", "solved", "")]
        rows += [
            (row.number, f"{row.solved} of {row.exercises}", _bar(row, "#.")) for row in (*self.lessons, self.total)
        ]
        return "\n".join([_table(rows), *self._remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{row.number}</td><td>{row.solved} of {row.exercises}</td>"
            f'<td aria-hidden="true" style="font-family: monospace">{_bar(row, "■□")}</td></tr>'
            for row in (*self.lessons, self.total)
        )
        head = '<tr><th scope="col">lesson</th><th scope="col">solved</th><th></th></tr>'
        remarks = "".join(f"<p>{html.escape(text)}</p>" for text in self._remarks())
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{remarks}"


def progress() -> Progress:
    """Return what is solved, over all lessons; `progress.export` and `progress.restore` carry it to another machine."""
    return _summary(file.solved())


def mark(lesson: str, name: str) -> None:
    """Remember that exercise `name` of `lesson` ("02") is solved. Where it cannot be saved, one line says so."""
    file.change({file.key(lesson, name): True})


def forget(lesson: str, name: str) -> None:
    """Forget that exercise `name` of `lesson` ("02") is solved."""
    file.change({file.key(lesson, name): False})


def export(name: str | None = None) -> str:
    """Return the progress as one line of text, with `name` for an instructor's table.

    The line can be read by a person and holds no quotes. Its checksum finds a damaged line, not a made-up one.
    """
    if not (name is None or isinstance(name, str)):
        raise TypeError(f"name must be text or None, not {name!r}")
    if name is not None and not (0 < len(name.strip()) <= 80 and name.isprintable()):
        raise ValueError(f"name must be 1 to 80 printable characters on one line, not {name!r}")
    lessons: dict[str, list[str]] = {}
    for lesson, exercise in sorted(file.solved()):
        lessons.setdefault(lesson, []).append(exercise)
    parts = [f"{lesson}:{','.join(exercises)}" for lesson, exercises in lessons.items()]
    body = ";".join([_PREFIX, _encoded(name or ""), *parts])
    return f"{body};{_checksum(body)}"


def restore(line: str) -> Progress:
    """Add what `line`, made by `progress.export`, says is solved and return the progress; nothing is forgotten.

    Raises ValueError for a line that is damaged or no such line; nothing is changed then.
    """
    if not isinstance(line, str):
        raise TypeError(f"line must be the text that progress.export() gave, not {line!r}")
    try:
        _, found = _parsed(line)
    except ValueError as error:
        shown = line if len(line) <= 60 else f"{line[:60]}…"
        raise ValueError(f"line must be what progress.export() gave, whole and unchanged: {error}: {shown!r}") from None
    new = found - file.solved()
    file.change(dict.fromkeys(found, True))
    return _summary(file.solved(), f"Restored {_count(len(found))}, {len(new)} of them new here.")


progress.export = export  # type: ignore[attr-defined]
progress.restore = restore  # type: ignore[attr-defined]
progress.mark = mark  # type: ignore[attr-defined]
progress.forget = forget  # type: ignore[attr-defined]


def _summary(solved: set[file.Key], note: str = "") -> Progress:
    exercises = _exercises()
    lessons = sorted({lesson for lesson, _ in exercises})
    rows = tuple(
        Lesson(lesson, sum(each in solved for each in keys), len(keys))
        for lesson in lessons
        for keys in [[each for each in exercises if each[0] == lesson]]
    )
    missing = [found for each, found in exercises.items() if each not in solved]
    following = "Everything is solved." if exercises and not missing else ""
    if missing:
        first = missing[0]
        following = f"Next: {first.title} (lesson {first.lesson}, {first.minutes} min)"
    return Progress(rows, following, " ".join(filter(None, [note, _unknown(solved, exercises)])))


def _exercises() -> dict[file.Key, Any]:
    from course_utils.exercises import registry

    return {(found.lesson, found.name): found for found in registry()}


def _unknown(solved: Iterable[file.Key], exercises: Mapping[file.Key, Any]) -> str:
    unknown = sum(each not in exercises for each in set(solved))
    return f"{_count(unknown)} of another version of the course kept." if unknown else ""


def _count(number: int) -> str:
    return f"{number} exercise" if number == 1 else f"{number} exercises"


def _bar(row: Lesson, signs: str) -> str:
    full = _BAR * row.solved // row.exercises if row.exercises else 0  # full only when all are solved
    full = max(full, 1) if row.solved else 0
    return signs[0] * full + signs[1] * (_BAR - full)


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


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
    return unquote_plus(name), found


def class_table(lines: Iterable[str]) -> tuple[str, int]:
    """Return a table of many exported lines and how many could be read; damaged lines are named by number below it.

    Lines with the same name become one row. Empty lines and lines that begin with # are passed over.
    Raises TypeError where `lines` are no lines of text.
    """
    if isinstance(lines, str) or not isinstance(lines, Iterable):
        raise TypeError(f"lines must be a list of lines or an open file, not {lines!r}")
    people: dict[str, tuple[str, list[int], set[file.Key]]] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, str):
            raise TypeError(f"lines must be a list of lines, its item {number} is {line!r}")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, found = _parsed(line)
        except ValueError as error:
            damaged.append(f"line {number} is damaged: {error}")
            continue
        _, numbers, known = people.setdefault(name.casefold() or f"\n{number}", (name or "(no name)", [], set()))
        numbers.append(number)
        known |= found
    exercises = _exercises()
    lessons = sorted({lesson for lesson, _ in exercises})
    rows = [("name", "line", *lessons, "all")]
    for _, (name, numbers, found) in sorted(people.items()):
        solved = [sum(each in found for each in exercises if each[0] == lesson) for lesson in lessons]
        rows.append((name, ", ".join(map(str, numbers)), *map(str, solved), f"{sum(solved)} of {len(exercises)}"))
    return "\n".join([_table(rows), *damaged]), sum(len(numbers) for _, numbers, _ in people.values())


def main(arguments: list[str] | None = None) -> int:
    """Print the table of a class; return 0, or 1 where no line could be read."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.progress", description="Table of a class from lines that progress.export() gave."
    )
    parser.add_argument("lines", nargs="?", help="file with one line for each person; default: standard input")
    path = parser.parse_args(arguments).lines
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
