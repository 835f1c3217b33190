"""Copies of the lessons for the reader, and answers that follow into a newer lesson. Standard library only.

    python tools/workbook.py               make the missing copies in `workbook/`, and open JupyterLab there
    python tools/workbook.py --only-copy   make them, for VS Code and `jupyter notebook`
    python tools/workbook.py --renew 05    take the newer lesson 05, with the answers of your copy

Further arguments go to JupyterLab.
"""

import argparse
import difflib
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Update", "main", "prepare", "renew"]

ROOT = Path(__file__).resolve().parents[1]
FIRST = "00_start_here.ipynb"
# No question about news; and in overrides.d, which the wheel brings to every JupyterLab, widgets are saved.
SETTINGS = ROOT / "tools" / "jupyterlab" / "settings"
TAKEN = ".lessons"  # folder of the lessons as they were copied
SHOWN = 110  # letters of a line that has changed
# As ipykernel, which `make lab` installs, introduces itself.
KERNEL = "Python 3 (ipykernel)"
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
    "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}  # fmt: skip


@dataclass(frozen=True)
class Update:
    """What `prepare` did: names of lessons copied, and of lessons that changed since they were copied."""

    copied: tuple[str, ...]
    newer: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"Copied to workbook/: {', '.join(self.copied)}"] if self.copied else []
        for name in self.newer:
            lines.append(
                f"A newer {name} is there; your copy stays. To take it, with your answers: "
                f"python tools/workbook.py --renew {name.partition('_')[0]}"
            )
        return "\n".join(lines)


def _bare(path: Path, drawings: bool = False) -> bytes:
    """Return the notebook at `path` without outputs: they show the answers to what a reader is to guess.

    With `drawings`, those that a cell shows stay: the lesson opens with them.
    """
    try:
        notebook = json.loads(path.read_bytes().replace(b"](../docs/", b"](docs/"))  # JupyterLab's root is workbook/
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                kept = cell["outputs"] if drawings and "drawings.show(" in "".join(cell["source"]) else []
                unrun = [{**one, "execution_count": None} if "execution_count" in one else one for one in kept]
                cell.update(outputs=unrun, execution_count=None)
    except (ValueError, KeyError, TypeError):
        return path.read_bytes()
    notebook.get("metadata", {}).pop("widgets", None)
    return (json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _opened(bare: bytes) -> bytes:
    """Return the notebook with what JupyterLab writes when its kernel starts: so opening a copy changes nothing."""
    try:
        notebook = json.loads(bare)
        kernel = notebook["metadata"]["kernelspec"]
    except (ValueError, KeyError, TypeError):
        return bare
    kernel["display_name"] = KERNEL
    notebook["metadata"]["language_info"] = LANGUAGE
    return (json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of the notebook at `path`, each with its source as one text; a file that is none is one cell."""
    try:
        cells = json.loads(_bare(path))["cells"]
        return [{**cell, "source": "".join(cell["source"])} for cell in cells]
    except (ValueError, KeyError, TypeError):
        return [{"cell_type": "raw", "source": path.read_bytes().decode("utf-8", "replace")}]


def _same(one: Path, other: Path) -> bool:
    """Return whether two notebooks say the same, whatever their outputs and their kernels are."""
    return [(cell["cell_type"], cell["source"]) for cell in _cells(one)] == [
        (cell["cell_type"], cell["source"]) for cell in _cells(other)
    ]


def prepare(lessons: Path, workbook: Path) -> Update:
    """Copy every lesson that has no copy yet, without outputs but drawings; never write over one.

    Programs and the card of symptoms follow, and links to the card lead to its copy. Each lesson is kept in
    `workbook/.lessons` as it was copied; where that is lost, a copy that differs from its lesson counts as taken from
    an older one once.
    """
    if not lessons.is_dir():
        raise ValueError(f"lessons: {lessons} is no folder; expected the course's notebooks/")
    (workbook / TAKEN).mkdir(parents=True, exist_ok=True)
    copied, newer = [], []
    for lesson in sorted(lessons.glob("[0-9][0-9]*_*.ipynb")):
        copy, taken = workbook / lesson.name, workbook / TAKEN / lesson.name
        if not copy.exists():
            copy.write_bytes(_opened(_bare(lesson, drawings=True)))
            taken.write_bytes(_bare(lesson))
            copied.append(lesson.name)
            continue
        known = taken.exists()
        if not _same(lesson, taken if known else copy):
            newer.append(lesson.name)
        if not known:
            taken.write_bytes(_bare(lesson))
    for beside in (*lessons.glob("programs/*.*"), *lessons.parent.glob("docs/what_is_wrong.*")):
        target = workbook / beside.parent.name / beside.name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(beside, target)
    return Update(tuple(copied), tuple(newer))


def renew(number: str, lessons: Path, workbook: Path) -> list[str]:
    """Put a newer lesson in place of its copy, with the cells that the reader wrote; return in lines what was done.

    What the reader changed goes into the same cell of the new lesson; where the lesson has changed that cell too, or
    has it no more, it stands below. The copy of before stays beside it, under another name.
    """
    found = [path for path in lessons.glob(f"{number}_*.ipynb") if (workbook / path.name).exists()]
    if len(found) != 1:
        raise ValueError(f"--renew {number}: there is no such copy in {workbook}; name a lesson, such as 05 or 08b")
    lesson, copy, taken = found[0], workbook / found[0].name, workbook / TAKEN / found[0].name
    before = {cell.get("id"): cell["source"] for cell in _cells(taken if taken.exists() else lesson)}
    made = json.loads(_opened(_bare(lesson, drawings=True)))
    cells, said, place = made["cells"], [], 0
    for mine in _cells(copy):
        name, source = mine.get("id", ""), mine["source"]
        at = next((at for at, cell in enumerate(cells) if cell.get("id") == name), None)
        place = place if at is None else at + 1
        if not source.strip() or before.get(name) == source:
            continue
        old = None if at is None else "".join(cells[at]["source"])
        if old == source:
            continue
        if at is not None and (old == before.get(name) or "raise NotImplementedError" in (old or "")):
            cells[at]["source"] = source.splitlines(keepends=True)
            said.append(f"carried over: {name}")
            continue
        there = {cell.get("id") for cell in cells}
        free = next(filter(lambda one: one not in there, [name, *(f"{name}-mine-{count}" for count in range(1, 999))]))
        cells.insert(place, {**mine, "id": free, "source": source.splitlines(keepends=True)})
        place += 1
        said.append(f"{'your own cell' if at is None else 'changed by the lesson too, yours stands below'}: {name}")
    kept = next(path for path in map(copy.with_name, _names(copy.stem)) if not path.exists())
    changes = difflib.unified_diff(_lines(taken if taken.exists() else copy), _lines(lesson), n=0, lineterm="")
    said += [line[:SHOWN] for line in changes if line[0] in "+-" and line[:3] not in ("+++", "---")]
    copy.rename(kept)
    copy.write_text(json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    taken.parent.mkdir(exist_ok=True)
    taken.write_bytes(_bare(lesson))
    return [*said, f"workbook/{copy.name} is the newer lesson; your copy of before is workbook/{kept.name}"]


def _names(stem: str) -> list[str]:
    return [f"{stem} (before{f' {count}' if count else ''}).ipynb" for count in range(999)]


def _lines(path: Path) -> list[str]:
    return [line for cell in _cells(path) for line in cell["source"].splitlines()]


def main(arguments: list[str]) -> int:
    """Prepare the workbook and turn this process into JupyterLab at lesson 00; return its exit status."""
    parser = argparse.ArgumentParser(description="Copies of the lessons in workbook/, opened in JupyterLab.")
    parser.add_argument("--only-copy", action="store_true", help="make the copies and end, for VS Code and others")
    parser.add_argument("--renew", metavar="05", help="take the newer lesson, with the answers of your copy, and end")
    options, arguments = parser.parse_known_args(arguments)
    workbook = ROOT / "workbook"
    if options.renew:
        try:
            print(*renew(options.renew, ROOT / "notebooks", workbook), sep="\n")
        except ValueError as error:
            parser.error(str(error))
        return 0
    update = prepare(ROOT / "notebooks", workbook)
    if str(update):
        print(update, flush=True)
    if options.only_copy:
        print(f"Open the folder {workbook} with the Python of {sys.prefix}, and begin with {FIRST}.")
        return 0
    first = ["--LabApp.default_url=/lab/tree/" + FIRST] if (workbook / FIRST).exists() else []
    print("JupyterLab prints its address below; Control-C ends it.", flush=True)
    from jupyterlab.labapp import LabApp

    root = ["--ServerApp.allow_root=True"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    settings = f"--LabApp.app_settings_dir={SETTINGS}"
    return LabApp.launch_instance([f"--ServerApp.root_dir={workbook}", settings, *first, *root, *arguments]) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
