"""Answers to an exercise: edits of its reference and whole functions, as they stand in the file beside it.

`train_step.diff` stands beside `train_step.py`. It holds the known mistakes, each with the belief behind it, the styles
that the solution shows, with what they cost, further right answers, and wrong ones, each behind words of the message:

    == applies softmax before cross_entropy [softmax-before-the-loss]
    # cross_entropy does that itself: it takes logits
    ~ model(images) → model(images).softmax(dim=1)

    == style: the logits have a name; it costs nothing
    -    loss = F.cross_entropy(model(images), labels)
    +    logits = model(images)
    +    loss = F.cross_entropy(logits, labels)

    == right: asks for the mean
    ~ labels) → labels, reduction="mean")

    == wrong: never calls the model
    ```python
    train_step = lambda model, optimizer, images, labels, device: torch.zeros(())
    ```
"""

from __future__ import annotations
import __future__

import functools
import inspect
import linecache
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Alternative", "Answers", "Edit", "Row", "Whole", "beside", "edit", "read", "source_of"]

_FENCE, _END = "```python", "```"
_HEAD = re.compile(r"== (?:(broken|style|right|wrong): (.*)|(.*?)(?: \[([\w-]+)\])?)")


@dataclass(frozen=True)
class Edit:
    """The reference answer with text replaced: `places` has pairs of old and new text.

    It is whole lines, which end in a line break, or a piece of one line.
    """

    places: tuple[tuple[str, str], ...]

    def of(self, reference: Callable, names: Mapping[str, Any] | None = None) -> Callable:
        """Return the changed answer, in the reference's module with `names` beside.

        Raises ValueError unless each place stands in the reference once.
        """
        return _made(reference, self.source(reference), names or {})

    def source(self, reference: Callable) -> str:
        """Return the source of the changed answer. Raises ValueError as `of` does."""
        return self.applied(_kept_source(reference), reference.__name__)

    def applied(self, source: str, name: str) -> str:
        """Return the source of a reference with the changes. Raises ValueError, with its `name`, as `of` does."""
        changes = []
        for old, new in self.places:
            begins = "" if old and not old.endswith("\n") else "^"
            places = re.finditer(f"{begins}(?={re.escape(old)})", source, flags=re.MULTILINE)
            starts = [place.start() for place in places]
            if len(starts) != 1:
                raise ValueError(f"{old!r} stands {len(starts)} times in {name}, it must be once")
            changes.append((starts[0], old, new))
        for start, old, new in sorted(changes, reverse=True):  # the last place first: the others stay where they are
            source = source[:start] + new + source[start + len(old) :]
        return source


@dataclass(frozen=True)
class Whole:
    """An answer written out: Python that gives the exercise's name to a function or class, with what it needs."""

    text: str

    def of(self, reference: Callable, names: Mapping[str, Any] | None = None) -> Callable:
        """Return the answer, made in the reference's module with `names` beside."""
        return _made(reference, self.text, names or {})

    def source(self, reference: Callable) -> str:
        """Return the text, whatever the reference is."""
        return self.text


def _made(reference: Callable, source: str, names: Mapping[str, Any]) -> Callable:
    made = {**_names_of(reference), **names}
    _run(f"<{reference.__name__}, edited {zlib.crc32(source.encode()):08x}>", source, made)
    return made[reference.__name__]


def _names_of(reference: Callable) -> dict[str, Any]:
    module = inspect.getmodule(reference)
    return reference.__globals__ if module is None else vars(module)


def _run(file: str, source: str, names: dict[str, Any]) -> None:
    """Run `source` with `names`, so that tracebacks show its lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", flags=__future__.annotations.compiler_flag), names)


def edit(text: str) -> Edit:
    """Return the reference with lines replaced, as a wrong answer.

        edit('''
        -    return 2 * x
        +    return x + x
        ''')

    Lines marked `-` become those marked `+`. Lines marked by a space stay: they say where, if that is not clear
    from the others. A line of three dots separates places that are apart. `~ 2 → 3` changes a piece of one line.
    """
    lines = textwrap.dedent(text).strip("\n").splitlines()
    places = []
    while lines:
        size = lines.index("...") if "..." in lines else len(lines)
        part, lines = lines[:size], lines[size + 1 :]
        pieces = [line[2:].partition(" →") for line in part if line.startswith("~ ")]
        places += [(old, new.removeprefix(" ")) for old, _, new in pieces]
        if len(pieces) == len(part):
            continue
        old, new = ("".join(f"{line[1:]}\n" for line in part if line[0] not in other) for other in ("+~", "-~"))
        places.append((old, new))
    return Edit(tuple(places))


@dataclass(frozen=True)
class Row:
    """An entry of a file of answers.

    - `kind`: "mistake", "style", "right", "wrong", or "broken" for the program that a repair begins with;
    - `name`: that of the mistake, what a style costs, what a right answer does, or a phrase of the message;
    - `belief`: the id of the misconception or slip behind a mistake, and `why` it matters;
    - `answers`: one or several that show the same.
    """

    kind: str
    name: str
    belief: str
    why: str
    answers: tuple[Edit | Whole, ...]


@dataclass(frozen=True)
class Answers:
    """A file of answers: its rows, and the Python above the first of them, shared by all."""

    rows: list[Row] = field(default_factory=list)
    shared: str = ""

    def of(self, kind: str, reference: Callable) -> list[tuple[Row, Callable]]:
        """Return the answers of one kind, each behind its row. Raises ValueError as `Edit.of` does."""
        rows = [(row, answer) for row in self.rows if row.kind == kind for answer in row.answers]
        names = dict(_names_of(reference)) if rows and self.shared else {}
        if names:
            _run(f"<beside {reference.__name__}>", self.shared, names)
        return [(row, answer.of(reference, names)) for row, answer in rows]


@functools.cache
def read(file: Path) -> Answers:
    """Return the answers in a file such as lesson05/train_step.diff; none without a file.

    A row begins with "== name [belief]", "== broken: program to repair", "== style: cost", "== right: what it does" or
    "== wrong: phrase"; lines behind "# " say why a mistake matters. Its answer follows: an edit, in the form that
    `edit` takes, or Python between "```python" and "```". If several answers show the same, "or" stands between them.
    """
    if not file.exists():
        return Answers()
    head, *parts = _split(file.read_text(encoding="utf-8").splitlines(), lambda line: line.startswith("== "))
    shared = [one.text for one in map(_answer, [head]) if isinstance(one, Whole)]
    return Answers([_row(part) for part in parts], "".join(shared))


def _split(lines: list[str], begins: Callable[[str], bool]) -> list[list[str]]:
    """Split lines into parts: a new part at each line that `begins` one, but not inside Python."""
    parts: list[list[str]] = [[]]
    inside = False
    for line in lines:
        inside = line == _FENCE or (inside and line != _END)
        if not inside and begins(line):
            parts.append([])
        parts[-1].append(line)
    return parts


def _row(lines: list[str]) -> Row:
    head, *rest = lines
    said = [line[2:] for line in rest[: rest.index(_FENCE) if _FENCE in rest else None] if line.startswith("# ")]
    parts = _split(rest[len(said) :], lambda line: line == "or")
    kind, other, name, belief = _HEAD.fullmatch(head).groups(default="")  # pyright: ignore[reportOptionalMemberAccess]
    answers = (_answer([line for line in part if line != "or"]) for part in parts)
    return Row(kind or "mistake", other or name, belief, " ".join(said), tuple(answers))


def _answer(lines: list[str]) -> Edit | Whole:
    if _FENCE in lines:
        return Whole("".join(f"{line}\n" for line in lines[lines.index(_FENCE) + 1 : lines.index(_END)]))
    return edit("\n".join(lines))


def beside(reference: Callable) -> Answers:
    """Return the answers in the file beside a reference that has its name."""
    return read(Path(inspect.getfile(reference)).with_name(f"{reference.__name__}.diff"))


def source_of(reference: Callable) -> str:
    """Return the source of a function or class without its decorators."""
    source = textwrap.dedent(inspect.getsource(reference))
    _, keyword, after = re.split(r"^(def |class )", source, maxsplit=1, flags=re.MULTILINE)
    return f"{keyword}{after}".rstrip() + "\n"


_kept_source = functools.cache(source_of)  # of references: Python reads the file again each time


@dataclass(frozen=True)
class Alternative:
    """A right answer in another style, its source, and what it costs or when to prefer it."""

    cost: str
    answer: Any
    source: str
