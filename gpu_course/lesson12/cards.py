"""Score cards: memory against time, beside the given program, earlier tries and others' lines.

Tries are kept as lines of text beside the file of `progress`, in memory alone where that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from course_utils import arguments, plots, programs, tables
from gpu_course import sealing, solved
from gpu_course.lesson12 import changes, scoring
from gpu_course.lesson12.program import GPT, KINDS, Kind
from gpu_course.lesson12.scoring import RIGHT, Costs, Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIXES = {"gpt": "course-capstone-2", "images": "course-images-2"}
_NUMBERS = [one.name for one in fields(Costs) if one.name not in (*RIGHT, "regimes")]
_LONGEST, _KEPT = 1000, 40  # signs of a line; tries that are shown
_here: list[str] = []  # tries of all kinds, where no file is kept


def export(score: Score, name: str = "") -> str:
    """Return a score as one line of text, with `name`; raises ValueError for a program that does not count.

    The checksum at its end finds a damaged line, not a made-up one.
    """
    if score.costs is None:
        raise ValueError(f"the program does not count, so there is no line of it: {score.rejected}")
    if len(arguments.text("name", name)) > 60 or not (name.isprintable() or not name):
        raise ValueError(f"name must be at most 60 printable characters, not {name!r}")
    right = "".join("0" if getattr(score.costs, part) else "1" for part in RIGHT)
    numbers = [f"{getattr(one, part):.10g}" for one in (score.naive, score.costs) for part in _NUMBERS]
    return sealing.sealed(";".join([_PREFIXES[score.kind], quote(name, safe=""), right, *numbers]))


def parse(line: str) -> tuple[str, Score]:
    """Return the name and the score of a line that `export` made; ValueError that says why where it is no such line.

    Level and credit are computed anew from the numbers.
    """
    text = "".join(arguments.text("line", line).split()) if len(line) <= _LONGEST else ""
    parts = text.rpartition(";")[0].split(";")
    shown = repr(line if len(line) <= 60 else f"{line[:60]}…")
    kinds = {prefix: kind for kind, prefix in _PREFIXES.items()}
    if parts[0] not in kinds or len(parts) != 3 + 2 * len(_NUMBERS):
        raise ValueError(f"line must be what lesson12.export gave, whole: {shown}")
    try:
        sealing.unsealed(text)
    except ValueError as error:
        raise ValueError(f"line is damaged, {error}: {shown}") from None
    _, name, right, *numbers = parts
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = [math.nan]
    if not all(0 <= value < 1e12 for value in values) or right not in ("00", "01", "10", "11"):  # no nan, no infinity
        raise ValueError(f"line holds numbers that no program has: {shown}")
    half = len(_NUMBERS)
    naive, costs = (Costs(**dict(zip(_NUMBERS, some, strict=True))) for some in (values[:half], values[half:]))
    if not (naive.t4_ms and naive.h200_ms and costs.t4_ms and costs.h200_ms and costs.peak_mib):
        raise ValueError(f"line holds numbers that no program has: {shown}")
    wrong = {part: "" if sign == "1" else "wrong" for part, sign in zip(RIGHT, right, strict=True)}
    return sealing.printable(unquote(name), 60), Score(naive, replace(costs, **wrong), kind=kinds[parts[0]])


def start(path: str | Path = "my_capstone.py", kind: Kind = GPT) -> Path:
    """Copy the given program to `path`, unless there is a file already, which stays as it is; return the path."""
    path = Path(path)
    if not path.exists():
        path.write_text(kind.given, encoding="utf-8")
    return path


def score(path: str | Path, kind: Kind = GPT) -> Score:
    """Try the program at `path` and return what it costs beside the given one; it is one more try on the `card`.

    It runs in processes of its own, and for two minutes at most. A program that trains another way is not scored: the
    result says what it does instead. Raises ValueError where there is no such file, and `simgpu.Unavailable` where
    there can be no simulated GPU.
    """
    try:
        source = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path must be a program that can be read, not {str(path)!r}: {error}") from None
    result = scoring.score(source, Path(path).name, kind)
    if result.costs is not None and source not in (kind.given, kind.reference):
        remember(result)
    return result


def _file(kind: str) -> Path | None:
    stored = solved.location()
    return stored and stored.with_name(f"{stored.stem}-{'capstone' if kind == 'gpt' else kind}.txt")


def remember(score: Score) -> None:
    """Keep a try, unless it is what the last one was; what cannot be written is kept in memory, and said."""
    line, known = export(score), _tries(score.kind)
    if known and known[-1] == line:
        return
    path = _file(score.kind)
    try:
        if path is None:
            raise OSError
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        with path.open("a", encoding="ascii") as file:
            file.write(f"{line}\n")
    except OSError as error:
        _here.append(line)
        if path is not None:
            print(f"The try could not be saved ({error.strerror or error}): {path}")


def _tries(kind: str) -> list[str]:
    """Return the lines of the last tries of a kind that can be read, the oldest first."""
    path, earlier = _file(kind), []
    if path is not None and path.is_file():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LONGEST * _KEPT))
            earlier = file.read().decode("ascii", "replace").splitlines()
    good = []
    for line in (*earlier, *_here):
        try:
            _, score = parse(line)
        except ValueError:
            continue
        if score.kind == kind:
            good.append(line)
    return good[-_KEPT:]


@dataclass(frozen=True, repr=False)
class Card(tables.Table):
    """The given program, the reader's tries so far, the lines of others, and the reference; a table and a picture."""

    rows: tuple[tuple[str, Score], ...]

    def cells(self) -> list[tuple[str, ...]]:
        cells = []
        for name, score in self.rows:
            credit, of = score.credit
            numbers = (f"{getattr(score.costs, part):.4g}" for part in ("t4_ms", "h200_ms", "peak_mib"))
            cells.append((name, *numbers, str(score.level), f"{credit} of {of}"))
        return cells

    head, right = ("", "ms a step, T4", "ms a step, H200", "peak, MiB", "level", "credit"), ()

    def plot(self) -> Figure:
        """Return a picture: peak memory against simulated time, both axes logarithmic; below on the left is better."""
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        labels = "ms a step on a T4 (simulated)", "peak memory (MiB)"
        figure, axes = plots.new("Memory against time", *labels, log="xy", height_in=4.0)
        points = [(name, (score.costs.t4_ms, score.costs.peak_mib)) for name, score in self.rows]
        own = [point for name, point in points if name.startswith("try ")]
        if len(own) > 1:
            axes.plot(*zip(*own, strict=True), color=plots.SKY, linewidth=1)
        for name, point in points:
            axes.plot(*point, "o", color=_colour(name))
            axes.annotate(name, point, xytext=(6, 5), textcoords="offset points", fontsize=8.5, parse_math=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.margins(0.15)
        return figure


def _colour(name: str) -> str:
    """Return the colour of a row of the card: the given program, the reference, a try, or somebody else's line."""
    known = {"given": plots.RED, "reference": plots.GREEN}
    return known.get(name, plots.BLUE if name.startswith("try ") else plots.PLUM)


def card(*lines: str, kind: Kind = GPT) -> Card:
    """Return where the tries so far stand, and the programs of others from the `lines` that they exported.

    Raises ValueError for a line that is damaged, or none, or of another kind of program.
    """
    others = [parse(line) for line in lines]
    for line, (_, score) in zip(lines, others, strict=True):
        if score.kind != kind.name:
            raise ValueError(
                f"line is of the program {KINDS[score.kind].file}, this card of {kind.file}: {line[:40]!r}…"
            )
    best = scoring.score(kind.reference, kind.file, kind)
    tries = [(f"try {number}", parse(line)[1]) for number, line in enumerate(_tries(kind.name), 1)]
    naive = Score(best.naive, best.naive, kind=kind.name)
    named = [(name or f"line {number}", score) for number, (name, score) in enumerate(others, 1)]
    return Card((("given", naive), *tries, *named, ("reference", best)))


@dataclass(frozen=True)
class Drawn:
    """One of the capstone's programs, with what lesson 12 has for the first: `draw` returns it."""

    kind: Kind

    @property
    def given(self) -> Path:
        """Where the given program is."""
        return programs.path(self.kind.file)

    def start(self, path: str | Path = "") -> Path:
        """Copy the given program, as "my_images.py" say, unless there is such a file already; return the path."""
        return start(path or f"my_{self.kind.file}", self.kind)

    def solution(self) -> Path:
        """Write a program that reaches level three, as "images_reference.py" say; return the path."""
        path = Path(self.kind.file.replace(".py", "_reference.py"))
        path.write_text(self.kind.reference, encoding="utf-8")
        return path

    def score(self, path: str | Path) -> Score:
        """Try the program at `path`; see `lesson12.score`."""
        return score(path, self.kind)

    def card(self, *lines: str) -> Card:
        """Return the tries so far and the lines of others; see `lesson12.card`."""
        return card(*lines, kind=self.kind)

    def gains(self) -> changes.Gains:
        """Return what each change of level 1 brings alone; see `lesson12.gains`."""
        return changes.gains(self.kind)

    def hint(self) -> None:
        """Print the next hint; see `lesson12.hint`."""
        changes.hint(self.kind)


def draw(name: str = "images") -> Drawn:
    """Return another program to make fast: "images", a small network with a pipeline of pictures, or "gpt".

    Raises ValueError for another name.
    """
    if name not in KINDS:
        raise ValueError(f"name must be one of {', '.join(sorted(KINDS))}, not {name!r}")
    return Drawn(KINDS[name])
