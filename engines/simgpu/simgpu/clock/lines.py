"""Line of a program: file, number and text, parsed from `places.place`."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_PLACE = re.compile(r"(?P<file>cell(?: \[\d+\])?|.*?)(?:, line |:)(?P<line>\d+)(?:: (?P<source>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Line:
    """A line of the program: "train.py", 12, "loss.item()"; `file` may be "cell", "cell [3]"; "", 0, "" is none."""

    file: str = ""
    line: int = 0
    source: str = ""

    @classmethod
    def of(cls, place: str) -> "Line":
        """Return the line that `places.place` names."""
        match = _PLACE.fullmatch(place)
        return Line() if match is None else Line(match["file"], int(match["line"]), match["source"] or "")

    @property
    def parts(self) -> tuple[str, int, str]:
        return self.file, self.line, self.source

    @property
    def where(self) -> str:
        """The place in a few words: "train.py:12", "cell [3], line 12"."""
        if not self.line:
            return "no line of the program"
        return f"{self.file}{', line ' if self.file == 'cell' or self.file.startswith('cell [') else ':'}{self.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.source}" if self.source else self.where


@dataclass(frozen=True)
class Row(Line):
    """What one line does in a step: how long (s), how often, with how many bytes, and in which way (`cause`)."""

    seconds: float = 0.0
    count: float = 0.0
    bytes: float = 0.0
    cause: str = ""


@dataclass(frozen=True)
class Part:
    """What one event adds to the row of its line."""

    line: str
    seconds: float
    bytes: int = 0
    cause: str = ""


def rows(parts: Iterable[Part], steps: int = 1, apart: bool = False) -> list[Row]:
    """Return a row for each line, as means over `steps`; the longest first. The cause is that with most seconds.

    `apart`: each cause has a row of its own.
    """
    groups: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.line, part.cause * apart].append(part)
    result = []
    for (line, _), group in groups.items():
        seconds, nbytes = sum(part.seconds for part in group), sum(part.bytes for part in group)
        causes: dict[str, float] = defaultdict(float)
        for part in group:
            causes[part.cause] += part.seconds
        cause = max(causes, key=causes.__getitem__)
        sizes = seconds / steps, len(group) / steps, nbytes / steps
        result.append(Row(*Line.of(line).parts, *sizes, cause))
    return sorted(result, key=lambda row: (-row.seconds, -row.bytes, -row.count))


ENDED, INTERRUPTED = "the program ended by itself", "the program was interrupted"  # kinds that are no faults
UNLIKE = "a step that does more than the others"  # the cause of a row
KILLED = "killed"  # the kind of a rank that could say nothing
IN_A_THREAD = " in a thread"  # the end of a kind: the program has gone on


@dataclass(frozen=True)
class Error(Line):
    """What a GPU would not have done: `kind` in a few words, the program's own line, and the message.

    `rank` is that of another process in which it happened, None for this one.
    """

    kind: str = ""
    text: str = ""
    rank: int | None = None
