"""Changes of the given program in order of their gain, as hints.

A change is an edit of the given program's text; changes.toml holds them. The edits show the answer: a reader sees
names, numbers and hints.
"""

import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import simgpu
from course_utils import tables
from gpu_course.checks import run_forked
from gpu_course.lesson12.program import GPT, KINDS, Kind, Trial, case_of
from gpu_course.lesson12.scoring import measured


@dataclass(frozen=True)
class Change:
    """A change of the given program for a level: its name, a hint, and texts with what replaces them.

    One that stands on others' lines has a text for each way in which they may be found.
    """

    name: str
    level: int
    hint: str
    edits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Gain:
    """What a change alone takes off a step of the given program on a simulated T4: ms, launches, waits, MiB at peak."""

    name: str
    ms: float
    launches: float
    waits: float
    peak_mib: float


@dataclass(frozen=True, repr=False)
class Gains(tables.Table):
    """What each change brings; prints as a table."""

    rows: tuple[Gain, ...]

    head, right = ("change, alone", "ms saved", "launches saved", "waits saved", "MiB saved"), ()

    def caption(self) -> str:
        return "a step of the given program on a simulated T4"

    def cells(self) -> list[tuple[str, ...]]:
        return [
            (row.name, f"{row.ms:.3f}", f"{row.launches:.1f}", f"{row.waits:.1f}", f"{round(row.peak_mib, 1) + 0:.1f}")
            for row in self.rows
        ]


def _read(file: str, known: tuple[Change, ...] = ()) -> tuple[Change, ...]:
    """Return the changes in a file; of one that has a name alone, the known one."""
    named = {change.name: change for change in known}
    return tuple(
        Change(one["name"], one.get("level", 1), one["hint"], tuple((text["old"], text["new"]) for text in one["edit"]))
        if "edit" in one
        else named[one["name"]]
        for one in tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))["change"]
    )


CHANGES = _read("changes.toml")
OF_KIND = {"gpt": CHANGES, "images": _read("images.toml", CHANGES)}


def of_level(level: int, kind: Kind = GPT) -> tuple[Change, ...]:
    """Return the changes that a level needs, beside those of the levels below it."""
    return tuple(change for change in OF_KIND[kind.name] if change.level == level)


def changed(*changes: Change, kind: Kind = GPT) -> str:
    """Return the text of the given program of a kind with these changes, in the order of the hints."""
    source = kind.given
    for change in sorted(changes, key=OF_KIND[kind.name].index):
        before = source
        for old, new in change.edits:
            if source.count(old) > 1:
                raise ValueError(f"{change.name}: the text to replace must occur once: {old!r}")
            source = source.replace(old, new)
        if source == before:
            raise ValueError(f"{change.name}: no text to replace occurs")
    return source


def gains(kind: Kind = GPT) -> Gains:
    """Return what each change of level 1 brings alone, that of most time first."""
    return Gains(tuple(Gain(*row) for row in run_forked(_gains, kind.name, limit_s=simgpu.CHILD_LIMIT_S)))


def _gains(name: str) -> list[tuple]:
    torch.set_num_threads(1)
    kind, measurements = KINDS[name], []
    trial = Trial(replace(kind.scored, warm_up=1, steps=3, windows=8), seed=0)
    changes = of_level(1, kind)
    for these in ((), *((change,) for change in changes)):
        costs = measured(case_of(changed(*these, kind=kind), kind.file, name).load(), trial, "T4").costs
        measurements.append([costs[part] for part in ("ms", "launches", "waits", "peak_mib")])
    naive, *others = measurements
    rows = [
        (change.name, *(a - b for a, b in zip(naive, other, strict=True)))
        for change, other in zip(changes, others, strict=True)
    ]
    return sorted(rows, key=lambda row: -row[1])


_hinted: Counter[str] = Counter()  # of each kind, how many


def hint(kind: Kind = GPT) -> None:
    """Print the next hint: level by level, of what brings most first; after the last one the first again."""
    changes = OF_KIND[kind.name]
    number = _hinted[kind.name] % len(changes)
    _hinted[kind.name] += 1
    change = changes[number]
    print(f"Hint {number + 1} of {len(changes)}, for level {change.level}, {change.name}: {change.hint}")
