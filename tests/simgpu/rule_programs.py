"""Sound programs that train, in three styles, and edits of them."""

import re
import sys

from simgpu.reports.rules import RULES
from tests.simgpu.simulated import read_programs

HEAD = read_programs("rule_programs")["head"]
STEP = read_programs("rule_programs")["step"]


def indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


STYLES = {
    style: HEAD + re.sub(r"( *)STEP\n", lambda line: indented(STEP, len(line[1])), text)
    for style, text in read_programs("rule_programs")["styles"].items()
}


def edited(style: str, *edits: str) -> str:
    """Return a program of a style with edits: what is replaced, and what stands there then, in turn."""
    text = STYLES[style]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        spaces = next((len(line) - len(line.lstrip()) for line in text.splitlines() if old.split("\n")[0] in line), 0)
        first, *others = new.split("\n")
        new = "\n".join([first, *(" " * spaces + one if one else one for one in others)])
        old = "\n".join([old.split("\n")[0], *(" " * spaces + one if one else one for one in old.split("\n")[1:])])
        assert not old or old in text, (style, old)
        text = text.replace(old, new) if old else text
    return text


_FILES = {code: sys.modules[rule.__module__] for code, rule in RULES.items()}
BAD = {code: file.BAD for code, file in _FILES.items()}  # edits that give a program the fault, and a part of its line
GOOD = {f"{code}: {name}": edits for code, file in _FILES.items() for name, edits in file.GOOD.items()}
GOOD["as it is"] = ()
