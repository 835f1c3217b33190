"""Sound programs that train, in three styles, and edits of them."""

import re
import tomllib
from pathlib import Path

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


_EDITS = tomllib.loads(Path(__file__).with_name("rule_edits.toml").read_text(encoding="utf-8"))
BAD = {code: _EDITS.get(code, {}).get("bad", []) for code in RULES}  # the fault, and a part of the line to be named
GOOD = {f"{code}: {name}": edits for code, rows in _EDITS.items() for name, edits in rows.get("good", {}).items()}
GOOD["as it is"] = ()
