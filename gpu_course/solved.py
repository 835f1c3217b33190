"""Store of solved exercises, safe against two open notebooks, a full disk or a damaged file.

The file is changed under a lock between processes and replaced as a whole. What cannot be written stays in memory and
is written with the next change. A damaged file is put aside under another name and reported once.

Wrong answers are counted in a file beside it, by the name of the mistake: nothing else of them is kept. Files beside it
also hold what was asked and answered in the examination and at the start of lessons.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_course import sealing

VERSION = 1
LOCK_S = 5.0
MOST_TRIES = 999  # of one mistake that are counted
Key = tuple[str, str]  # lesson, exercise

# What the file does not hold: by path (None: kept in memory alone) and exercise, whether it is solved.
_PENDING: dict[Path | None, dict[Key, bool]] = {}
_WARNED: set[str] = set()
_TRIES: dict[tuple[str, str, str], int] = {}  # without a file: lesson, exercise and mistake; how often
_KEPT: dict[str, Any] = {}  # without a file: what else is kept, by its kind


def key(lesson: Any, name: Any) -> Key:
    """Return the pair that names an exercise, such as "02" and "double"; ValueError where it can name none."""
    texts = isinstance(lesson, str) and isinstance(name, str)
    if not (texts and re.fullmatch("[0-9]{2}b?", lesson) and name.isidentifier() and name.isascii()):
        raise ValueError(f"lesson {lesson!r}, exercise {name!r} cannot be: the names are such as '02' and 'double'")
    return lesson, name


def by_lesson(found: set[Key]) -> dict[str, list[str]]:
    """Return the names of exercises by lesson, both in order."""
    lessons: dict[str, list[str]] = {}
    for lesson, name in sorted(found):
        lessons.setdefault(lesson, []).append(name)
    return lessons


def location() -> Path | None:
    """Return where progress is kept, None for in memory alone."""
    given = os.environ.get("COURSE_PROGRESS", "").strip()
    if given.lower() == "off":
        return None
    if given:
        return Path(os.path.realpath(os.path.expanduser(given)))
    import platformdirs

    try:
        path = platformdirs.user_data_path("pytorch-gpu-course", appauthor=False)
    except RuntimeError:
        path = Path("~")
    if path.is_absolute():
        return path / "progress.json"
    _warn(
        "Progress is kept only while this kernel runs: no home folder is known. COURSE_PROGRESS may name a file for it."
    )
    return None


def solved() -> set[Key]:
    """Return what the file and the memory say is solved; a damaged file is put aside, an unreadable one reported."""
    path, stored = location(), set()
    if path is not None:
        try:
            try:
                stored = _read(path)
            except ValueError:
                with _locked(path):
                    stored = _read_or_put_aside(path)
        except OSError as error:
            _warn(f"Progress could not be read ({_reason(error)}): {path}")
    return _with(stored, _PENDING.get(path, {}))


def change(changes: dict[Key, bool]) -> None:
    """Write `changes` into the file as it is now; what cannot be written waits in memory."""
    path = location()
    pending = _PENDING.setdefault(path, {})
    pending.update(changes)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            before = _read_or_put_aside(path)
            after = _with(before, pending)
            if after != before:
                text = json.dumps({"version": VERSION, "solved": by_lesson(after)}, indent=1) + "\n"
                _write(path, text)
        pending.clear()
    except OSError as error:
        _warn(
            f"Progress could not be saved ({_reason(error)}): {path}. "
            "It is kept while this kernel runs: progress.export() gives it as one line."
        )


def tries() -> dict[tuple[str, str, str], int]:
    """Return how often an answer was wrong, by lesson, exercise and name of the mistake ("" where it has none)."""
    if location() is None:
        return dict(_TRIES)
    return dict(filter(None, map(_try, kept("tries", list) or [])))


def _try(row: Any) -> tuple[tuple[str, str, str], int] | None:
    """Return what a row of the file counts; None for a damaged row."""
    with contextlib.suppress(ValueError):
        match row:
            case [lesson, name, str(mistake), int(count)] if count > 0 and not isinstance(count, bool):
                return (*key(lesson, name), mistake), min(count, MOST_TRIES)
    return None


def tried(exercise: Key, mistake: str) -> None:
    """Count a wrong answer to `exercise`. What cannot be written is forgotten."""
    each = (*exercise, mistake)
    if location() is None:
        _TRIES[each] = _TRIES.get(each, 0) + 1
        return

    _change_tries(lambda found: {**found, each: found.get(each, 0) + 1})


def add_tries(counts: Mapping[tuple[str, str, str], int]) -> None:
    """Raise the count of each mistake to at least that of another machine."""
    if location() is None:
        _TRIES.update(_more(_TRIES, counts))
    else:
        _change_tries(lambda found: _more(found, counts))


def _more(one: Mapping[tuple[str, str, str], int], other: Mapping[tuple[str, str, str], int]) -> dict[tuple, int]:
    return {each: max(one.get(each, 0), other.get(each, 0)) for each in {**one, **other}}


def _change_tries(change: Callable[[dict[tuple[str, str, str], int]], dict[tuple, int]]) -> None:
    def counted(_: Any) -> list:
        return [[*names, count] for names, count in sorted(change(tries()).items())]

    keep("tries", counted, list)


def code() -> str:
    """Return this learner's code, which tells two people of one name apart; made at the first call."""
    stored = kept("reader", str)
    if stored is None or not _is_code(stored):
        stored = sealing.new_code()
        keep("reader", lambda before: before if before and _is_code(before) else stored, str)
        stored = kept("reader", str) or stored  # another notebook may have been first
    return stored


def take_code(new: str) -> None:
    """Adopt a learner's code on this machine."""
    keep("reader", lambda before: new, str)


def _is_code(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(sealing.code_of(text))
    return False


def kept(kind: str, shape: type = object) -> Any:
    """Return what `keep` wrote beside the progress under `kind`; None where there is nothing of this `shape`."""
    path = _beside(kind)
    if path is None:
        return _KEPT.get(kind)
    try:
        return _kept(path, shape)
    except (OSError, ValueError):
        return None


def _kept(path: Path, shape: type) -> Any:
    """Return what a file holds, None where there is none. Raises ValueError where that is damaged."""
    _must_be_file(path)
    try:
        stored = json.loads(_retried(path.read_bytes))
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(stored, shape):
        raise ValueError(f"no {shape.__name__}")
    return stored


def keep(kind: str, change: Callable[[Any], Any], shape: type = object) -> None:
    """Replace what is kept under `kind` by `change` of it, under the lock; `change` gets None where there is nothing.

    A damaged file is put aside. What cannot be written is forgotten.
    """
    path = _beside(kind)
    if path is None:
        _KEPT[kind] = change(_KEPT.get(kind))
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            try:
                before = _kept(path, shape)
            except ValueError:
                _put_aside(path, "A file beside the progress was damaged.")
                before = None
            _write(path, json.dumps(change(before)) + "\n")


def _beside(kind: str) -> Path | None:
    path = location()
    return None if path is None else path.with_name(f"{path.stem}.{kind}.json")


def _with(stored: set[Key], changes: Mapping[Key, bool]) -> set[Key]:
    return (stored - changes.keys()) | {each for each, is_solved in changes.items() if is_solved}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock between processes; the system releases it when its owner dies. OSError after LOCK_S seconds."""
    import filelock  # comes with torch

    _must_be_file(path)  # before a lock lies beside a device
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(NotImplementedError):  # a file system without locks
            stack.enter_context(filelock.FileLock(f"{path}.lock", timeout=LOCK_S))
        yield


def _must_be_file(path: Path) -> None:
    """Raise OSError for a device, a pipe or a folder: reading it might never end, replacing it breaks the machine."""
    if path.exists() and not path.is_file():
        raise OSError("it is no regular file")


def _read(path: Path) -> set[Key]:
    """Return what the file holds, nothing where there is none. ValueError: it is damaged; OSError: it is not ours."""
    _must_be_file(path)
    try:
        data = json.loads(_retried(path.read_bytes))
    except FileNotFoundError:
        return set()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    version, lessons = (data.get(name) if isinstance(data, dict) else None for name in ("version", "solved"))
    if isinstance(version, int) and version > VERSION:
        raise OSError("it was written by a later version of the course")
    if version != VERSION or not isinstance(lessons, dict):
        raise ValueError(f"no progress of version {VERSION}")
    if not all(isinstance(names, list) for names in lessons.values()):
        raise ValueError("exercises must be lists")
    return {key(lesson, name) for lesson, names in lessons.items() for name in names}


def _read_or_put_aside(path: Path) -> set[Key]:
    """Return what the file holds; rename it if it is damaged. The caller has the lock."""
    try:
        return _read(path)
    except ValueError:
        _put_aside(path, "The progress file was damaged.")
        return set()


def _put_aside(path: Path, what: str) -> None:
    """Rename a damaged file and say so."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    _warn(f"{what} It is kept as {aside}, a new one begins.")


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _retried(lambda: os.replace(temporary, path))
    finally:
        Path(temporary).unlink(missing_ok=True)


def _retried(action: Callable[[], Any]) -> Any:
    """Return what `action` gives; Windows refuses for a moment while another process has the file open."""
    for _ in range(5 if os.name == "nt" else 0):
        try:
            return action()
        except PermissionError:
            time.sleep(0.05)
    return action()


def _reason(error: OSError) -> str:
    return "another notebook has locked it" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _warn(text: str) -> None:
    """Print a line on standard error, each only once."""
    if text not in _WARNED:
        _WARNED.add(text)
        print(text, file=sys.stderr)
