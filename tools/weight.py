"""Weight of the repository: the lines of Python in each room, and the limits for them in pyproject.toml.

    python -m tools.weight             print the lines and the limit of each room
    python -m tools.weight --update    write what each room has, rounded up to fifty, as its limit

The limit of all rooms together, `all`, is changed by hand alone. Raise a limit in a commit of its own, which says why.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

__all__ = ["ALL", "excess", "limits", "lines", "main"]

ROOT = Path(__file__).resolve().parents[1]
ALL = "all"
_STEP = 50  # lines by which limits go up
_TABLE = re.compile(r"^\[tool\.course\.weight\]\n(?:[^\[\n].*\n)*", re.MULTILINE)
_DEEP = ("gpu_course", "tests", "engines")  # folders that have rooms


def _room(path: Path) -> str:
    """Return the name of the room that a file belongs to, such as "simgpu/device"; lessons are one room."""
    top, *folders = path.parts[:-1] or (".",)
    if top not in _DEEP or not folders:
        return top
    if top == "engines":
        return "/".join(folders[1:3])
    return f"{top}/lessons" if folders[0].startswith("lesson") else f"{top}/{folders[0]}"


def lines() -> dict[str, int]:
    """Return the lines of the Python files that git keeps, by room, and of all of them."""
    command = ["git", "ls-files", "-z", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    found: Counter[str] = Counter()
    for name in filter(None, listed.split("\0")):
        count = len((ROOT / name).read_bytes().splitlines())
        found.update({_room(Path(name)): count, ALL: count})
    return dict(sorted(found.items()))


def limits() -> dict[str, int]:
    """Return the limits in pyproject.toml, by room."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["course"]["weight"]


def excess(found: dict[str, int], most: dict[str, int]) -> list[str]:
    """Return a line for each room that exceeds its limit, has none, or is gone."""
    kept = {room for room in found.keys() & most.keys() if found[room] <= most[room]}
    rooms = sorted((found.keys() | most.keys()) - kept)
    return [f"{room}: {found.get(room)} lines, limit {most.get(room)}" for room in rooms]


def main(arguments: list[str]) -> int:
    """Print the table, or write its limits; return 1 where a room is too large."""
    found, most = lines(), limits()
    if arguments == ["--update"]:
        new = {room: most[ALL] if room == ALL else -(-count // _STEP) * _STEP for room, count in found.items()}
        rows = [f"{room if room == ALL else repr(room)} = {count}" for room, count in new.items()]
        file = ROOT / "pyproject.toml"
        table = "[tool.course.weight]\n" + "".join(f"{row}\n".replace("'", '"') for row in rows)
        file.write_text(_TABLE.sub(table, file.read_text(encoding="utf-8"), count=1), encoding="utf-8")
        most = new
    for room, count in found.items():
        print(f"{room:24}{count:8,}{most.get(room, 0):10,}")
    print(*excess(found, most), sep="\n")
    return int(bool(excess(found, most)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
