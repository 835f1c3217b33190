"""Reader's copies of the lessons, and the lessons that are newer than their copies.

Standard library only. `python tools/workbook.py` makes the missing copies in `workbook/` and opens JupyterLab there;
further arguments go to JupyterLab.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Update", "main", "prepare"]

ROOT = Path(__file__).resolve().parents[1]
FIRST = "00_start_here.ipynb"
# No question about news; and in overrides.d, which the wheel brings to every JupyterLab, widgets are saved.
SETTINGS = ROOT / "tools" / "jupyterlab" / "settings"
RECORD = ".copied.json"
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
                f"A newer {name} is there. Your copy stays; rename or delete workbook/{name} to get the new one."
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
                unrun = [
                    {**output, "execution_count": None} if "execution_count" in output else output for output in kept
                ]
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


def _hash(path: Path) -> str:
    return hashlib.sha256(_opened(_bare(path))).hexdigest()


def _read(record: Path) -> dict[str, str]:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def prepare(lessons: Path, workbook: Path) -> Update:
    """Copy every lesson that has no copy yet, without outputs but drawings; never write over one.

    Programs and the card of symptoms follow, and links to the card lead to its copy. The hash of each lesson as it was
    copied, outputs left out, is kept in `workbook/.copied.json`; where it is lost or damaged, a copy that differs from
    its lesson counts as taken from an older lesson once, and is remembered from then on.
    """
    if not lessons.is_dir():
        raise ValueError(f"lessons: {lessons} is no folder; expected the course's notebooks/")
    workbook.mkdir(parents=True, exist_ok=True)
    record = workbook / RECORD
    known, copied, newer = _read(record), [], []
    for lesson in sorted(lessons.glob("[0-9][0-9]*_*.ipynb")):
        copy, now = workbook / lesson.name, _hash(lesson)
        if not copy.exists():
            copy.write_bytes(_opened(_bare(lesson, drawings=True)))
            known[lesson.name] = now
            copied.append(lesson.name)
        elif known.setdefault(lesson.name, now if _hash(copy) == now else "") != now:
            newer.append(lesson.name)
    for beside in (*lessons.glob("programs/*.*"), *lessons.parent.glob("docs/what_is_wrong.*")):
        target = workbook / beside.parent.name / beside.name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(beside, target)
    temporary = record.with_suffix(".tmp")
    temporary.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(record)
    return Update(tuple(copied), tuple(newer))


def main(arguments: list[str]) -> int:
    """Prepare the workbook and turn this process into JupyterLab at lesson 00; return its exit status."""
    workbook = ROOT / "workbook"
    update = prepare(ROOT / "notebooks", workbook)
    if str(update):
        print(update, flush=True)
    first = ["--LabApp.default_url=/lab/tree/" + FIRST] if (workbook / FIRST).exists() else []
    print("JupyterLab prints its address below; Control-C ends it.", flush=True)
    from jupyterlab.labapp import LabApp

    root = ["--ServerApp.allow_root=True"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    settings = f"--LabApp.app_settings_dir={SETTINGS}"
    return LabApp.launch_instance([f"--ServerApp.root_dir={workbook}", settings, *first, *root, *arguments]) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
