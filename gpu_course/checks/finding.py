"""Findings on an answer, in words."""

import dataclasses
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What is wrong with an answer: `name` says what was seen or which mistake it is, in the call `call`.

    `why` says why it matters, `note` what else is to be known of this input; a message shows one of the two.
    `mistake` is the name of the known mistake that it is, if it is one; `counted` the name under which it is counted,
    which holds nothing of the answer, "" where it has none.
    """

    name: str
    why: str = ""
    call: str = ""
    expected: str = ""
    got: str = ""
    said: str = ""
    mistake: str = ""
    counted: str = ""
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.call}\n  {self.name}" if self.call else self.name]
        lines += [f"  expected: {self.expected}"] if self.expected else []
        lines += [f"  got:      {self.got}"] if self.got else []
        lines += [f"  {self.reason}"] if self.reason else []
        return "\n".join(lines) + self.said

    @property
    def reason(self) -> str:
        """The reason, else the note, each behind its label; nothing where there is neither."""
        note = f"Note: {self.note}" if self.note else ""
        return f"Because: {self.why}" if self.why else note

    def named(self, name: str, why: str) -> "Finding":
        """Return the same with the name of the mistake; what was seen stays where expected and got do not show it."""
        shown_below = self.got and re.search(r"\bresult\b.* has other values$| is (?!on |of type |None)", self.name)
        seen = "" if shown_below or self.name == name else f": {self.name}"
        return dataclasses.replace(self, name=f"{name}{seen}", why=why or self.why, mistake=name, counted=name)
