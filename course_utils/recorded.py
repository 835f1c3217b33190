"""What did this experiment give on a real GPU?

A lesson calls `compare` or `value` with what it measured. They show it beside what was recorded on named GPUs and what
data sheets predict. With COURSE_RECORD=1 on a machine with a real GPU, the same calls write what they were given into
notebooks/recorded/<device>.json: no number gets into these files in any other way. A file belongs to one set of
versions; recording with other versions starts it anew.
"""

from __future__ import annotations

import datetime
import html
import json
import math
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.base import arguments

__all__ = ["Run", "Value", "compare", "load", "validate", "value"]

SCHEMA = 1
_KEY = re.compile(r"\d\d\.[a-z0-9_]+(\.[a-z0-9_]+)*")
_REPOSITORY = Path(__file__).parents[1] / "notebooks" / "recorded"
_INSTALLED = Path(__file__).parent / "notebooks" / "recorded"

Numbers = Sequence[float]
Curves = Numbers | Mapping[str, Numbers]


@dataclass(frozen=True)
class Run:
    """What was recorded on one GPU: its name, the date, the versions and the entries by key."""

    device: str
    date: str
    versions: dict[str, str | None]
    entries: dict[str, dict[str, Any]]

    @property
    def label(self) -> str:
        """Return the words that stand beside every number of this run."""
        cuda = f", CUDA {self.versions['cuda']}" if self.versions["cuda"] else ""
        return f"recorded on {self.device}, {self.date}, torch {self.versions['torch']}{cuda}"


@dataclass(frozen=True)
class Value:
    """One measured number beside what was recorded and predicted; each with its label."""

    unit: str
    rows: tuple[tuple[str, float], ...]  # label, number

    def __str__(self) -> str:
        return "\n".join(f"{number:.4g} {self.unit} ({label})" for label, number in self.rows)

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><td>{number:.4g} {html.escape(self.unit)}</td><td>{html.escape(label)}</td></tr>"
            for label, number in self.rows
        )
        return f"<table>{''.join(cells)}</table>"


def load(folder: Path | str | None = None) -> list[Run]:
    """Return the recorded runs in `folder` (default: those that come with the course), ordered by the GPU's name.

    Raises ValueError that names the file and the fault when a file does not fit the schema.
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder is {folder!r}, it must be None or the path of a folder")
    if folder is None:
        folder = _REPOSITORY if _REPOSITORY.is_dir() else _INSTALLED
    runs = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            validate(data)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
        runs.append(Run(data["device"], data["date"], data["versions"], data["entries"]))
    return runs


def compare(
    key: str,
    xs: Numbers,
    ys: Curves,
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    predicted: Mapping[str, Numbers] | None = None,
    simulated: bool | Collection[str] = False,
    device: Any = None,
    log: str = "xy",
):
    """Draw a measured curve beside the recorded and the predicted ones, and return the matplotlib Figure.

    `key` names the experiment ("02.transfer_bandwidth"). `ys` is one curve over `xs`, or several by name. `predicted`
    holds curves over the same `xs` by the name of the GPU or formula. `simulated` says that `ys` are times of the
    simulated GPU, or names those curves that are, where the others are live. `device` is where `ys` were measured if
    that is not `DEVICE`: of a CPU nothing is recorded. `log` says which axes are logarithmic. Raises TypeError for what
    is no number, text or device, and ValueError for a wrong key, unequal lengths or an unknown name in `simulated`;
    both name the argument.
    """
    _check_key(key)
    entry = _curve_entry(xs, ys, predicted, xlabel, ylabel)
    arguments.text("title", title)
    curves = dict(ys) if isinstance(ys, Mapping) else {"": ys}
    not_live = _simulated(simulated, curves)
    if device is None or arguments.device("device", device).type != "cpu":
        _record(key, entry, bool(not_live))
    lines = [(xs, line, "simulated" if name in not_live else "live", name) for name, line in curves.items()]
    for run in load():
        old = run.entries.get(key, {})
        lines += [(old["x"], line, run.label, name) for name, line in old.get("curves", {}).items()]
    lines += [(xs, line, "predicted", name) for name, line in (predicted or {}).items()]
    return _draw(lines, title, xlabel, ylabel, log)


def _curve_entry(xs: Numbers, ys: Curves, predicted: object, xlabel: str, ylabel: str) -> dict[str, Any]:
    """Return the entry that a file would hold for these curves, once all of `compare`'s curves are checked."""
    if isinstance(ys, Mapping) and not ys and not predicted:
        raise ValueError("ys is {}, it must be a curve over xs, or at least one curve by name")
    curves = dict(ys) if isinstance(ys, Mapping) else {"": ys}
    named = {f"ys[{name!r}]" if name else "ys": line for name, line in curves.items()}
    expected = arguments.mapping("predicted", predicted, "curves")
    named |= {f"predicted[{name!r}]": line for name, line in expected.items()}
    places = _numbers("xs", xs)
    for name, line in named.items():
        found = len(arguments.numbers(name, line))
        if found != len(places) or not found:
            raise ValueError(f"{name} has {found} numbers for {len(places)} in xs, it must have one for each")
    entry = {"x": places, "curves": {name: _numbers("ys", line) for name, line in curves.items()}}
    return entry | {"xlabel": arguments.text("xlabel", xlabel), "ylabel": arguments.text("ylabel", ylabel)}


def value(key: str, live: float, unit: str, *, predicted: Mapping[str, float] | None = None, simulated=False) -> Value:
    """Return one measured number, in `unit`, beside the recorded and the predicted ones, each labelled.

    Raises TypeError or ValueError that names the argument for what is no key, finite number, text or bool.
    """
    _check_key(key)
    entry = {"value": _rounded(arguments.number("live", live)), "unit": arguments.text("unit", unit)}
    if not isinstance(simulated, bool):
        raise TypeError(f"simulated is {simulated!r}, it must be True or False")
    formulas = arguments.mapping("predicted", predicted, "numbers").items()
    rows = [(f"predicted, {name}", arguments.number(f"predicted[{name!r}]", number)) for name, number in formulas]
    _record(key, entry, simulated)
    known = [(run.label, run.entries[key]["value"]) for run in load() if "value" in run.entries.get(key, {})]
    return Value(unit, (("simulated" if simulated else "live", float(live)), *known, *rows))


def validate(data: object) -> None:
    """Raise ValueError that says what is wrong when `data`, read from a file, is not a recorded run."""
    if not isinstance(data, dict):
        raise ValueError(f"the file holds a {type(data).__name__}, it must hold an object")
    _same_keys("the file", data, {"schema", "device", "date", "versions", "entries"})
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}, it must be {SCHEMA}")
    if not isinstance(data["device"], str) or not data["device"] or re.search(r"(?i)simulated|\bcpu\b", data["device"]):
        raise ValueError(f"device is {data['device']!r}, it must be the name of a real GPU")
    if not isinstance(data["date"], str):
        raise ValueError(f"date is {data['date']!r}, it must be a date such as '2026-01-02'")
    datetime.date.fromisoformat(data["date"])
    _same_keys("versions", data["versions"], {"torch", "cuda", "driver", "python"})
    if not data["entries"]:
        raise ValueError("entries is empty")
    _must_be_object("entries", data["entries"])
    for key, entry in data["entries"].items():
        _validate_entry(key, entry)


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(f"key is {key!r}, it must be the lesson and a name, such as '02.transfer_bandwidth'")


def _simulated(given: object, curves: Collection[str]) -> set[str]:
    """Return the names of the curves that are simulated."""
    listed = isinstance(given, Collection) and not isinstance(given, str)
    names = list(given) if listed else list(curves) if given is True else []
    if not (listed or given is True or given is False) or not all(name in curves for name in names):
        raise ValueError(f"simulated is {given!r}, it may be True, False or names of curves: {sorted(curves)}")
    return set(names)


def _validate_entry(key: str, entry: dict[str, Any]) -> None:
    _check_key(key)
    _must_be_object(key, entry)
    if "value" in entry:
        _same_keys(key, entry, {"value", "unit"})
        numbers = [[entry["value"]]]
    else:
        _same_keys(key, entry, {"x", "curves", "xlabel", "ylabel"})
        if not isinstance(entry["curves"], dict) or not all(
            isinstance(line, list) for line in (entry["x"], *entry["curves"].values())
        ):
            raise ValueError(f"{key}: curves and x must be lists of numbers, curves in an object by name")
        numbers = [entry["x"], *entry["curves"].values()]
        for name, line in entry["curves"].items():
            if len(line) != len(entry["x"]) or not line:
                raise ValueError(f"{key}: curve {name!r} has {len(line)} numbers for {len(entry['x'])} values of x")
    for line in numbers:
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in line):
            raise ValueError(f"{key}: every number must be finite, these are not: {line}")


def _must_be_object(what: str, data: object) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{what} is a {type(data).__name__}, it must be an object")


def _same_keys(what: str, data: object, keys: set[str]) -> None:
    if not isinstance(data, dict) or set(data) != keys:
        has = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"{what} has {has}, it must have {sorted(keys)}")


def _numbers(argument: str, line: Numbers) -> list[float]:
    """Return `line` as plain numbers of six digits: more would only be noise in the file."""
    return [_rounded(number) for number in arguments.numbers(argument, line)]


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")


def _record(key: str, entry: dict[str, Any], simulated: bool) -> None:
    """Write `entry` into the file of this machine's GPU where COURSE_RECORD=1 asks for it."""
    if os.environ.get("COURSE_RECORD") != "1":
        return
    from course_utils import devices

    device = devices.pick()
    if device.type in ("cpu", "sim") or simulated:
        raise RuntimeError(f"COURSE_RECORD=1 records real GPUs only, and {key!r} was measured on {device}")
    if not _REPOSITORY.parent.is_dir():
        raise RuntimeError("COURSE_RECORD=1 needs a clone of the course: there is no folder 'notebooks' to write to")
    _write(_REPOSITORY, _identity(device), key, entry)


def _identity(device) -> dict[str, Any]:
    """Return everything in a file but its entries, for the real GPU `device`."""
    import torch

    from course_utils.devices import Report

    report = Report.collect()
    name = "Apple MPS" if device.type == "mps" else getattr(torch, device.type).get_device_name(device)
    versions = {"torch": report.torch, "cuda": report.cuda_build, "driver": report.driver, "python": report.python}
    return {"schema": SCHEMA, "device": name, "date": datetime.date.today().isoformat(), "versions": versions}


def _write(folder: Path, identity: dict[str, Any], key: str, entry: dict[str, Any]) -> Path:
    """Merge `entry` into the file of the GPU; readers meet the old file or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', identity['device'].lower()).strip('-')}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries = old.get("entries", {}) if old.get("versions") == identity["versions"] else {}
    data = {**identity, "entries": dict(sorted({**entries, key: entry}.items()))}
    validate(data)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(data, indent=1) + "\n")
        Path(name).chmod(0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return path


def _draw(lines: list[tuple[Numbers, Numbers, str, str]], title: str, xlabel: str, ylabel: str, log: str):
    from course_utils import plots

    styles = {"live": plots.LIVE, "simulated": plots.SIMULATED, "predicted": plots.PREDICTED}
    figure, axes = plots.new(title, xlabel, ylabel, log=log)
    order = list(dict.fromkeys(name for *_, name in lines))  # one colour for each curve, whatever it was measured on
    for xs, ys, kind, name in lines:
        text = ", ".join(part for part in (name, kind) if part)
        colour = plots.PALETTE[order.index(name) % len(plots.PALETTE)]
        plots.line(axes, xs, ys, name, styles.get(kind, plots.RECORDED), label=text, color=colour)
    plots.legend(axes)
    return figure
