"""Base of the rules of a report: a rule watches a program's events, and says of a line what is wrong with it.

Each rule is a class in a file of `rules`, whose name is the code of its remark. Its docstring, or that of a file with
one rule, says what is seen, for the docs. It has what the remark is about, its words and its handlers of events.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from simgpu.clock.lines import Line, Row
from simgpu.ground import places
from simgpu.reports.program import Program

About = Literal["result", "time", "memory"]
Often = Literal["once", "twice", "seldom", "each step"]
LOOKED_AT = 4  # steps: what takes long is looked at in the first ones
FEW_STEPS = 3  # from so many steps on, "in each step" is a habit
SELDOM = 10  # steps, of which one may make a picture or a sample
_CALL_ALONE = " The same line makes another call that is trained, which has to stay outside."
_WAITS = Path(__file__).parent / "rules" / "waits.toml"
_ADVICE: dict[str, dict[str, str]] = tomllib.loads(_WAITS.read_text(encoding="utf-8"))  # by code and wait
_VIEWS = ("View", "ReshapeAlias", "UnsafeView", "Squeeze", "ToCopy", "Unsqueeze", "Expand", "Transpose")


@dataclass(frozen=True)
class Suspect(Line):
    """A line to look at first: its code, what it is about, in a sentence what is wrong, and what that costs a step.

    `about` is "result", "time" or "memory".
    """

    seconds: float = 0.0
    bytes: float = 0.0
    text: str = ""
    code: str = ""
    about: str = ""


@dataclass(frozen=True)
class Outcome:
    """Figures of a run that decide whether a remark is worth making.

    `launching` is the share of the time in which a GPU waits for launches; `room`: a batch four times as large would
    fit; `doubles` are lines whose kernels compute with float64 for long, `odd_rows` those that multiply matrices with
    rows of an odd size; `own` are seconds of the program's own work in a step of `step_s`, by line.
    """

    launching: float = 0.0
    room: bool = False
    doubles: tuple[str, ...] = ()
    odd_rows: tuple[str, ...] = ()
    step_s: float = 0.0
    own: dict[str, float] = field(default_factory=dict)


class Rule:
    """A rule of the report; `code` and `seen`, the sentence of the docs, are those of its file."""

    code: ClassVar[str]
    seen: ClassVar[str]
    about: ClassVar[About]
    text: ClassVar[str] = ""
    by_hand: ClassVar[str] = ""  # instead of the text, in a program that has no optimizer
    cure: ClassVar[str]  # in a few words, for the docs
    often: ClassVar[Often]  # before it is a habit
    explains: ClassVar[tuple[str, ...]]  # remarks that are left out beside it

    def __init_subclass__(
        cls, about: About = "time", often: Often = "once", explains: tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.about, cls.often, cls.explains = about, often, explains

    def __init__(self, program: Program) -> None:
        self.program = program
        self.texts: dict[str, str] = {}  # by line, where it is another one than for most
        self.begin()

    def begin(self) -> None:
        """Make what the rule keeps in mind."""

    def note(self, line: str = "", text: str = "") -> None:
        """Note a line in this step, by default the one that runs, and what is said of it, by default `text`."""
        self.texts |= {line: text} if text else {}
        self.program.note(self.code, line)

    def is_habit(self, steps: int) -> bool:
        """Return whether a line that was noted in so many steps is worth a remark."""
        if self.often == "each step":
            return steps >= max(FEW_STEPS, self.program.step / 2)
        if self.often == "seldom":
            return steps >= max(1, self.program.step / SELDOM)
        return steps > (self.often == "twice")

    def habits(self) -> list[str]:
        """Return the lines that are habits by now, in the order of the run."""
        return [line for (code, line), at in self.program.notes.items() if code == self.code and self.is_habit(len(at))]

    def said(self, line: str, outcome: Outcome) -> str:
        """Return what is said of a line that is a habit, "" where it is not worth a remark."""
        text = self.texts.get(line) or (self.program.hand_steps and self.by_hand) or self.text
        return text + _CALL_ALONE * ("around it" in text and line in self.program.training_lines)

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        """Return the remark on a line that is a habit, None where it is not worth making."""
        text = self.said(line, outcome)
        return Suspect(*Line.of(line).parts, text=text, code=self.code, about=self.about) if text else None

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        """Return lines that only the whole run can tell, beside those that were noted."""
        return ()


class WaitRule(Rule):
    """A rule on lines that keep the GPU waiting, which the timeline of the run names."""

    @classmethod
    def advice(cls, cause: str, asking: str) -> str:
        """Return what to do about a wait, "" where it is none of this rule's.

        `cause` is that of its row; `asking` says why PyTorch itself reads or copies there, "wait": the program does.
        """
        wait = f"{cause} ({asking})"
        text = next((text for pattern, text in _ADVICE[cls.code].items() if re.search(pattern, wait)), "")
        return text.replace("{which}", asking.partition(" ")[2])

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        """Return whether a line is worth a remark that costs a step of `step_s` and an epoch so many seconds."""
        return row.seconds >= (0.02 if row.count >= 0.5 else SHARE_OF_FEW) * step_s


class LossRule(Rule):
    """A rule on what a loss is given; of an evaluation's loss it says nothing beside that of the training."""

    def begin(self) -> None:
        self._trained = set[str]()  # lines noted behind a model in training mode

    def note(self, line: str = "", text: str = "") -> None:
        super().note(line := line or places.place(), text)
        if not self.program.passes or self.program.passes[-1].training:
            self._trained.add(line)

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        return super().suspect(line, outcome) if line in self._trained or not self._trained else None


SHARE_OF_FEW = 0.05  # of a step, if fewer than half of the steps have the line, such as a value read once an epoch


def behind_views(node: Any) -> tuple[Any, str]:
    """Return the node that made what a node of a graph shows, and its name; views keep the first dimension."""
    while node is not None and node.name().startswith(_VIEWS):
        if 0 in (getattr(node, f"_saved_{name}", None) for name in ("dim", "dim0", "dim1")):
            break
        node = node.next_functions[0][0]
    return node, "" if node is None else node.name()
