"""Page of the site on the misconceptions that the course refutes, lesson by lesson.

python tools/misconceptions.py     write the headings above the cells into gpu_course/misconceptions.toml
"""

import re
import sys
from itertools import groupby
from pathlib import Path

import nbformat

from gpu_course import catalogue, misconceptions
from gpu_course.checks import beside
from tools import notebooks as lessons

__all__ = ["main", "page", "sections"]

_FILE = Path(misconceptions.__file__).with_suffix(".toml")


def sections() -> dict[str, str]:
    """Return the heading that each cell of the lessons stands under, by cell such as "02:move"."""
    found = {}
    for path in lessons.lessons():
        heading = ""
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                heading = [heading, *re.findall(r"^#+ (.*)", cell.source, re.MULTILINE)][-1]
            found[f"{lessons.number(path)}:{cell.id}"] = heading
    return found


def page() -> str:
    """Return the page: by lesson, what is believed, why, how it is, and where the course shows it."""
    parts = ["# Misconceptions\n\nWhat people believe who go wrong, and the lesson that shows how it is.\n"]
    exercises = _exercises()
    books = {lessons.number(path): path for path in lessons.lessons()}
    for lesson, found in groupby(sorted(misconceptions.every(), key=lambda one: one.lesson), lambda one: one.lesson):
        parts.append("\n#" + nbformat.read(books[lesson], as_version=4).cells[0].source.splitlines()[0] + "\n")
        for one in found:
            met = f" Met in {', '.join(exercises[one.id])}." if one.id in exercises else ""
            link = f"[{one.section}](notebooks/{books[lesson].name}), cell `{one.cell.partition(':')[2]}`"
            parts.append(
                f"\n**{one.name}**\n: {one.believed} *Why do people believe it?* {one.why} *How is it?* {one.instead} "
                f"*Where?* {link}.{met}\n"
            )
    return "".join(parts)


def _exercises() -> dict[str, list[str]]:
    """Return the exercises that have a mistake with a misconception behind it, by the id of that."""
    found: dict[str, dict[str, None]] = {}
    for exercise in catalogue.registry():
        for row in beside(exercise.reference).rows:
            found.setdefault(row.belief, {})[f"`lesson{exercise.lesson}.{exercise.name}`"] = None
    return {belief: list(names) for belief, names in found.items()}


def main() -> int:
    """Write the headings into the file; return the exit status."""
    known, missing = sections(), []
    lines = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("section = "):
            lines.append(line)
        if found := re.fullmatch(r'cell = "(.*)"', line):
            if found[1] not in known:
                missing.append(found[1])
            heading = known.get(found[1], "").replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'section = "{heading}"')
    _FILE.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(*[f"there is no cell {cell}" for cell in missing], sep="\n", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
