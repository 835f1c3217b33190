"""Recorded and published results of experiments on real GPUs.

A lesson calls `compare` or `value` with what it measured. They put it beside what was recorded on named GPUs and what
data sheets predict; `plots.curves` draws what `compare` returns. Where nothing is recorded under a key, what others
measured and published stands there, from recorded.toml; `published` prints it with its addresses. With COURSE_RECORD=1
on a machine with a real GPU, the same calls write what they were given into notebooks/recorded/<device>.json: no number
gets into these files in any other way. A file belongs to one set of versions; recording with other versions starts it
anew.
"""

import datetime
import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import __version__, arguments, plots, tables

__all__ = ["Fact", "Run", "Value", "compare", "curves", "facts", "load", "published", "value"]

SCHEMA = 1
_KEY = re.compile(r"\d\d\.[a-z0-9_]+(\.[a-z0-9_]+)*")
_REPOSITORY = Path(__file__).parents[1] / "notebooks" / "recorded"
_INSTALLED = Path(__file__).parent / "notebooks" / "recorded"
_FACTS = Path(__file__).with_suffix(".toml")

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
class Fact:
    """What others measured on a GPU and published: `y` in `unit`, over `x`; without `x` one number, for any."""

    key: str
    gpu: str
    unit: str
    what: str
    y: tuple[float, ...]
    by: str
    date: str  # of that version of the page, as far as it is known: a year, a month or a day
    address: str
    x: tuple[float, ...] = ()
    curve: str = ""  # the name of the lesson's curve that it belongs to
    software: str = ""

    @property
    def label(self) -> str:
        """Return the words that stand beside every number of this fact."""
        return f"published: {self.gpu}, {self.by}, {self.date}"


@dataclass(frozen=True)
class Value:
    """One measured number beside what was recorded, or published, and predicted; each with its label."""

    unit: str
    rows: tuple[tuple[str, float], ...]  # label, number

    def __str__(self) -> str:
        return "\n".join(f"{number:.4g} {self.unit} ({label})" for label, number in self.rows)

    def _repr_html_(self) -> str:
        return tables.to_html([[f"{number:.4g} {self.unit}", label] for label, number in self.rows])


def load(folder: Path | str | None = None) -> list[Run]:
    """Return the recorded runs in `folder` (default: those that come with the course), ordered by the GPU's name.

    Raises ValueError that names the file and the fault where one is damaged; the tests hold them to a stricter schema.
    """
    if folder is None:
        folder = _REPOSITORY if _REPOSITORY.is_dir() else _INSTALLED
    runs = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            runs.append(_run(json.loads(path.read_text(encoding="utf-8"))))
        except KeyError as error:
            raise ValueError(f"{path.name}: it has no {error}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}: {error}") from None
    return runs


def _run(data: dict[str, Any]) -> Run:
    """Return what a file holds; KeyError, TypeError, AttributeError or ValueError where it is damaged."""
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}, it must be {SCHEMA}")
    for key, entry in data["entries"].items():
        lines = [[entry["value"]]] if "value" in entry else [entry["x"], *entry["curves"].values()]
        if len(set(map(len, lines))) != 1 or not all(math.isfinite(number) for line in lines for number in line):
            raise ValueError(f"{key} must have finite numbers, as many in each curve as in x")
    return Run(data["device"], data["date"], data["versions"], data["entries"])


@functools.cache
def _all_facts(path: Path) -> tuple[Fact, ...]:
    known = []
    for source in tomllib.loads(path.read_text(encoding="utf-8"))["source"]:
        for own in source.pop("fact"):
            told = {**source, **own}
            numbers = [told.pop("value")] if "value" in told else told.pop("y")
            known.append(Fact(**{**told, "x": tuple(told.get("x", ())), "y": tuple(numbers)}))
    return tuple(known)


def facts(key: str = "", *, longer: bool = True) -> tuple[Fact, ...]:
    """Return what others published under `key` and, if `longer`, under the keys that go on with a dot; all for ""."""
    start = f"{key}." if key else ""
    return tuple(fact for fact in _all_facts(_FACTS) if fact.key == key or (longer and fact.key.startswith(start)))


def published(key: str) -> Value:
    """Return what others measured under `key` and the keys that go on with a dot, with addresses; of curves the best.

    Raises ValueError where nothing is known under that key.
    """
    known = facts(key)
    if not known:
        raise ValueError(f"key is {key!r}, published are {', '.join(sorted({fact.key for fact in facts()}))}")
    places = [f", {fact.software}, {fact.address}" if fact.software else f", {fact.address}" for fact in known]
    rows = [(label + place, number) for (label, number), place in zip(map(_row, known), places, strict=True)]
    return Value(known[0].unit, tuple(rows))


def _row(fact: Fact) -> tuple[str, float]:
    """Return the label and the number of a fact; of several numbers the highest."""
    best = f"the highest of {len(fact.y)} numbers: " if len(fact.y) > 1 else ""
    return f"{best}{fact.curve + ', ' if fact.curve else ''}{fact.what}; {fact.label}", max(fact.y)


def compare(
    key: str,
    xs: Numbers,
    ys: Curves,
    xlabel: str,
    ylabel: str,
    *,
    predicted: Mapping[str, Numbers] | None = None,
    simulated: bool | Collection[str] = False,
    device: Any = None,
) -> plots.Comparison:
    """Return a measured curve beside recorded, or published, and predicted ones, for `plots.curves` to draw.

    `key` names the experiment ("02.transfer_bandwidth"). `ys` is one curve over `xs`, or several by name; `xlabel` and
    `ylabel` say what they are, with units. `predicted` holds curves over the same `xs` by the name of the GPU or
    formula. `simulated` says that `ys` are times of the simulated GPU, or names those curves that are, where the others
    are live. `device` is where `ys` were measured if that is not `DEVICE`: of a CPU nothing is recorded. Raises
    TypeError for what is no number or device, and ValueError for a wrong key, unequal lengths or an unknown name in
    `simulated`; both name the argument.
    """
    _check_key(key)
    measured = dict(ys) if isinstance(ys, Mapping) else {"": ys}
    _check_lengths(xs, measured, predicted or {})
    not_live = _not_live(simulated, measured)
    if device is None or arguments.device("device", device).type != "cpu":
        lines = {name: _rounded(line) for name, line in measured.items()}
        entry = {"x": _rounded(xs), "curves": lines, "xlabel": xlabel, "ylabel": ylabel}
        _record(key, entry, bool(not_live))
    here = [_measured(name, xs, line, name in not_live) for name, line in measured.items()]
    elsewhere = curves(load(), key) or _published(key, xs)
    promised = [plots.Curve(name, xs, line, plots.PREDICTED, "predicted") for name, line in (predicted or {}).items()]
    return plots.Comparison((*here, *elsewhere, *promised), xlabel, ylabel)


def curves(runs: Sequence[Run], key: str) -> tuple[plots.Curve, ...]:
    """Return the recorded curves of an entry."""
    return tuple(
        plots.Curve(name, tuple(entry["x"]), tuple(line), plots.RECORDED, run.label)
        for run in runs
        if (entry := run.entries.get(key))
        for name, line in entry.get("curves", {}).items()
    )


def _measured(name: str, xs: Numbers, line: Numbers, simulated: bool) -> plots.Curve:
    if simulated:
        return plots.Curve(name, xs, line, plots.SIMULATED, "simulated")
    return plots.Curve(name, xs, line, plots.LIVE, "live")


def _published(key: str, xs: Numbers) -> tuple[plots.Curve, ...]:
    """Return what others published under `key` as curves; a number for any x is a line from end to end of `xs`."""
    return tuple(
        plots.Curve(
            fact.curve, fact.x or (min(xs), max(xs)), fact.y if fact.x else fact.y * 2, plots.PUBLISHED, fact.label
        )
        for fact in facts(key, longer=False)
    )


def _not_live(simulated: bool | Collection[str], measured: Mapping[str, Numbers]) -> set[str]:
    """Return the names of the curves that are simulated; ValueError where one is not measured."""
    names = set(measured) if simulated is True else set(simulated or ())
    if names - set(measured):
        raise ValueError(f"simulated is {simulated!r}, it may be True, False or names of curves: {sorted(measured)}")
    return names


def _check_lengths(xs: Numbers, curves: Mapping[str, Numbers], predicted: Mapping[str, Numbers]) -> None:
    """Raise for what is no list of finite numbers, and for a curve that has not one for each in `xs`."""
    named = {f"ys[{name!r}]" if name else "ys": line for name, line in curves.items()}
    named |= {f"predicted[{name!r}]": line for name, line in predicted.items()}
    if not named:
        raise ValueError("ys is {}, it must be a curve over xs, or at least one curve by name")
    places = len(arguments.numbers("xs", xs))
    for name, line in named.items():
        points = len(arguments.numbers(name, line))
        if points != places or not points:
            raise ValueError(f"{name} has {points} numbers for {places} in xs, it must have one for each")


def value(key: str, live: float, unit: str, *, predicted: Mapping[str, float] | None = None, simulated=False) -> Value:
    """Return one measured number, in `unit`, beside recorded, or published, and predicted ones, each labelled.

    Raises TypeError or ValueError that names the argument for what is no key or finite number.
    """
    _check_key(key)
    number = arguments.number("live", live)
    _record(key, {"value": _rounded([number])[0], "unit": unit}, simulated)
    known = [(run.label, run.entries[key]["value"]) for run in load() if "value" in run.entries.get(key, {})]
    known = known or [_row(fact) for fact in facts(key, longer=False)]
    rows = [(f"predicted, {name}", float(expected)) for name, expected in (predicted or {}).items()]
    return Value(unit, (("simulated" if simulated else "live", number), *known, *rows))


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(f"key is {key!r}, it must be the lesson and a name, such as '02.transfer_bandwidth'")


def _rounded(line: Numbers) -> list[float]:
    """Return `line` as plain numbers of six digits: more would only be noise in the file."""
    return [float(f"{float(number):.6g}") for number in line]


def _record(key: str, entry: dict[str, Any], simulated: bool) -> None:
    """Write `entry` into the file of this machine's GPU where COURSE_RECORD=1 asks for it."""
    if os.environ.get("COURSE_RECORD") != "1":
        return
    import simgpu
    from course_utils import devices

    device = devices.pick()
    if device.type in ("cpu", "sim") or simulated or simgpu.is_simulated(device):
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
    made = {"date": datetime.date.today().isoformat(), "course": __version__}
    return {"schema": SCHEMA, "device": name, **made, "versions": versions}


def _write(folder: Path, identity: dict[str, Any], key: str, entry: dict[str, Any]) -> Path:
    """Merge `entry` into the file of the GPU; readers meet the old file or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', identity['device'].lower()).strip('-')}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries = old.get("entries", {}) if old.get("versions") == identity["versions"] else {}
    data = {**identity, "entries": dict(sorted({**entries, key: entry}.items()))}
    _run(data)
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
