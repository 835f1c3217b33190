"""Progress of a reader along the chosen way.

It is kept in a JSON file in the user's data folder; the environment variable COURSE_PROGRESS gives another path, `off`
keeps it in memory alone. On a machine that forgets (Colab): `progress.export()` gives one line of text that
`progress.restore(line)` takes elsewhere; `your_line` does both in each lesson. An instructor's table of many such
lines, and a page that shows which exercise stops whom, and by which mistake. Lines of the examination (`exam.line`) may
stand among them: the page shows what the class has gained by skill, and which misconceptions are common:

    python -m gpu_course.progress lines.txt --map class.html
"""

import argparse
import html
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from course_utils import arguments, tables
from gpu_course import classroom, look, ways
from gpu_course import solved as file
from gpu_course.checks import OTHER

__all__ = ["Lesson", "Progress", "export", "follow", "here", "progress", "restore", "take"]

_BAR = 10
_HEAD = ("lesson", "solved", "")
_NO_TEXT = (b"PK\x03\x04", b"%PDF")  # how documents, workbooks and printed pages begin


@dataclass(frozen=True)
class Lesson:
    """How many of a lesson's exercises are solved, and whether those of its spine are."""

    number: str
    solved: int
    exercises: int
    spine: bool = False

    @property
    def said(self) -> str:
        """Return how much is solved, in words."""
        more = ", spine done" if self.spine and self.solved < self.exercises else ""
        return f"{self.solved} of {self.exercises}{more}"


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
        return [(row.number, row.said, _bar(row, signs)) for row in rows]

    def __str__(self) -> str:
        return "\n".join(filter(None, [tables.text(self._rows("#."), _HEAD), self.next, self.note]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        look = {2: 'aria-hidden="true" style="font-family: monospace"'}
        remarks = "".join(f"<p>{html.escape(text)}</p>" for text in (self.next, self.note) if text)
        return tables.to_html(self._rows("█░"), _HEAD, attributes=look) + remarks


def progress() -> Progress:
    """Return what is solved, over all lessons; `progress.export` and `progress.restore` carry it to another machine."""
    return _summary(file.solved())


def export(name: str | None = None, *, mistakes: bool = False) -> str:
    """Return the progress as one line of text, with `name` for an instructor's table.

    With `mistakes` it also says how often answers were wrong, by exercise and name of the mistake, and nothing else of
    them. A code of four signs tells two people of one name apart. The line can be read by a person and holds no quotes.
    Its checksum finds a damaged line, not a made-up one.
    """
    if name is not None and not (0 < len(arguments.text("name", name).strip()) <= 80 and name.isprintable()):
        raise ValueError(f"name must be 1 to 80 printable characters on one line, not {name!r}")
    return classroom.write(name or "", file.code(), file.solved(), file.tries() if mistakes else {})


def restore(line: str) -> Progress:
    """Add what `line`, made by `progress.export`, says is solved and return the progress; nothing is forgotten.

    Wrong answers that the line counts are counted here, too, and the code of the line is yours from then on, so that
    an instructor's table knows lines of both machines as yours. Raises ValueError for a line that is damaged or no such
    line; nothing is changed then.
    """
    try:
        said = classroom.read(arguments.text("line", line))
    except ValueError as error:
        shown = line if len(line) <= 60 else f"{line[:60]}…"
        raise ValueError(f"line must be what progress.export() gave, whole and unchanged: {error}: {shown!r}") from None
    new = said.solved - file.solved()
    take(said)
    return _summary(file.solved(), f"Restored {_count(len(said.solved))}, {len(new)} of them new here.")


def follow(way: str, *, over: bool = True) -> Progress:
    """Follow a way, such as "evening", and return the progress on it: “Next” then names the exercises of its pages.

    Not `over` another one, it is followed only where none was chosen. Raises ValueError with the names of all ways
    where there is none of that name.
    """
    ways.follow(way, over=over)
    return progress()


def take(said: classroom.Progress) -> None:
    """Add what a line says to what is kept here; the code of the line is yours from then on."""
    file.change(dict.fromkeys(said.solved, True))
    file.add_tries({(*each[:2], "" if each[2] == OTHER else each[2]): count for each, count in said.tries.items()})
    if said.code:
        file.take_code(said.code)


progress.export = export  # type: ignore[attr-defined]
progress.restore = restore  # type: ignore[attr-defined]
progress.follow = follow  # type: ignore[attr-defined]


def _summary(solved: set[file.Key], note: str = "") -> Progress:
    from gpu_course.catalogue import registry

    every = {(found.lesson, found.name): found for found in registry()}
    exercises = {key: found for key, found in every.items() if key in solved or not found.task.needs()}
    names: dict[str, list[str]] = {}
    for lesson, name in exercises:
        names.setdefault(lesson, []).append(name)
    left = ways.in_order(key for key in exercises if key not in solved)
    first = exercises[left[0]] if left else None
    way = ways.chosen()
    following = (
        f"Next: {first.task.title} ({_page(left[0], way)}, {ways.minutes(left[0], first.task.minutes)})"
        if first
        else ""
    )
    if way:
        pages = (_ticked(page, solved) for page in way.pages)
        following = f"Your way, “{way.name}”: {' · '.join(pages)}. {following}"
    others = len(solved - exercises.keys())
    kept = f"{_count(others)} of another version of the course kept." if others else ""
    return Progress(_lessons(names, solved), following or "Everything is solved.", f"{note} {kept}".strip())


def _page(key: file.Key, way: ways.Way | None) -> str:
    """Return where an exercise stands: on which page of the way, or in its own lesson."""
    page = next((page for page in way.pages if key in ways.spine(page)), "") if way else ""
    return f"lesson {page.partition('#')[0] or key[0]}"


def _ticked(page: str, solved: set[file.Key]) -> str:
    """Return a page of a way, with a tick where its spine is solved."""
    spine = ways.spine(page)
    done = len(solved.intersection(spine))
    return f"{page.replace('#', ', ')} {'✓' if done == len(spine) else f'{done} of {len(spine)}'}"


def _lessons(names: dict[str, list[str]], solved: set[file.Key]) -> tuple[Lesson, ...]:
    """Return how much of each lesson is solved, given the names of its exercises."""
    rows = []
    for lesson, found in sorted(names.items()):
        spine = ways.spine(lesson)
        is_done = bool(spine) and solved.issuperset(spine)
        rows.append(Lesson(lesson, sum((lesson, name) in solved for name in found), len(found), is_done))
    return tuple(rows)


def here(number: str) -> str:
    """Return the map of the course as HTML, with the lesson `number` on it and how much of it is solved.

    It stands at the beginning of a lesson, which must not wait until all others are imported.
    """
    from gpu_course.catalogue import names

    known = Progress(_lessons(names(), file.solved()))
    row_here = next((row for row in known.lessons if row.number == number), Lesson(number, 0, 0))
    said = f"Lesson {number}: {row_here.solved} of {_count(row_here.exercises)} solved; {known.total.solved} in all."
    strip = look.map_strip([(row.number, row.solved, row.exercises) for row in known.lessons], number)
    return strip + look.quiet(said)


def _count(number: int) -> str:
    return f"{number} exercise" if number == 1 else f"{number} exercises"


def _bar(row: Lesson, signs: str) -> str:
    full = _BAR * row.solved // row.exercises if row.exercises else 0  # full only when all are solved
    full = max(full, 1) if row.solved else 0
    return signs[0] * full + signs[1] * (_BAR - full)


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
    if data.startswith(_NO_TEXT):
        parser.error(f"lines must be a file of text: save what is in {path} as text or CSV")
    gathered = classroom.gathered(_decoded(data).splitlines())
    if options.map:
        try:
            if path and options.map.exists() and options.map.samefile(path):
                parser.error(f"--map must name another file than the lines, which it would replace: {path}")
            options.map.write_text(classroom.page(gathered), encoding="utf-8")
        except OSError as error:
            parser.error(f"--map must name a file that can be written, not {options.map}: {error.strerror}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(classroom.table(gathered))
    return 0 if gathered.count else 1


def _decoded(data: bytes) -> str:
    """Return the text of a file: UTF-8, or what some versions of PowerShell and older programs of Windows write."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
