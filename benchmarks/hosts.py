"""Host time of PyTorch's operators: traces of real GPUs, each predicted from the others.

    python -m benchmarks.hosts FOLDER       # or SIMGPU_TRACES=FOLDER python -m benchmarks.hosts
    python -m benchmarks.hosts published    # predicts what is stored again; half an hour, needs timm (see published.py)

FOLDER has files of `torch.profiler`, such as those that HTA tests itself with (MIT License):
https://github.com/facebookresearch/HolisticTraceAnalysis/tree/f4d0062/tests/data

First table: µs of each class of `simgpu.hosts`, the mean without the longest hundredth. Second: what hosts.toml has as
`ratios.measured` beside what the traces give, the geometric mean over hosts of a class beside "library". Third: the
error of the host's own time in the later steps of each trace, with prices from all others. Traces of less than three
steps, sampled ones and odd builds are left out of the fit; the last are tried all the same.

With HTA's five traces, each predicted from the others, launches alone are 86 to 98 % too short, the others' mean is
-80 % (an odd build) to +48 % off, and the speed that the first step tells -4 to +1 %.

The published runs that the host decides (regime "short operators") are of models, whose hosts nobody describes: a host
is who published and on which GPU. `published` stores what the clock predicts for each on hosts of several speeds, and
what that says of three situations: the host is unknown (the server of hosts.toml); it is known from its other models;
one step was measured on it, of this program with another batch, or of another program in the same mode.

The server's speed is that of the traces and of no published run: the geometric mean over the four hosts with release
builds is 82 µs under the profiler, which makes steps 1.15 to 1.5 times longer, so 62 µs without it, rounded to 60. The
171 published runs then differ by 23.1 % in the median, and mostly take longer. The median speed of the other published
hosts, which needs no trace, comes to 27.9 %.
"""

import json
import math
import os
import statistics
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import simgpu
from course_utils import tables
from simgpu import evidence, hosts, profiles

STEPS = 3  # of the profiler that a trace must have: the first sets up
STARTING = ("library", "light", "cast", "library backward", "light backward", "optimizer", "copy")


def read(folder: Path) -> list[profiles.Profile]:
    """Return the traces of a folder, in order of their names."""
    return [profiles.Profile(path) for path in sorted(folder.glob("*.json*"))]


def whole(found: Iterable[profiles.Profile]) -> list[profiles.Profile]:
    """Return those with enough steps, in which the host's operators are all there."""
    return [profile for profile in found if len(profile.steps) >= STEPS and profile.by_class.get("library")]


def ratios(found: Iterable[profiles.Profile]) -> dict[str, float]:
    """Return what each class takes beside "library": the geometric mean over hosts that have both."""
    kept: dict[str, list[float]] = {}
    for profile in found:
        means = profile.means_us
        for name in means:
            if name != profiles.OTHER and means[name] > 0:
                kept.setdefault(name, []).append(means[name] / means["library"])
    return {name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in kept.items()}


def left_out(profile: profiles.Profile, others: list[profiles.Profile]) -> tuple[float, float, float]:
    """Return the errors of the host's own time in the later steps: launches alone, others' mean, its own first step."""
    known = ratios(others)
    mean_us = math.exp(sum(math.log(other.speed_us(known)) for other in others) / len(others))
    end = profile.steps[0][1]
    first = [unit for unit in profile.units if unit.call.start < end]
    later = [unit for unit in profile.units if unit.call.start >= end]
    real, launch_us = sum(unit.own_us for unit in later), hosts.get("kernel launch").operator_us
    launches = launch_us * sum(part.of in STARTING for unit in later for part in unit.parts)
    priced = sum(known.get(part.of, 0.0) for unit in later for part in unit.parts)
    own_us = profile.speed_us(known, first)
    return launches / real - 1, mean_us * priced / real - 1, own_us * priced / real - 1


def show(found: list[profiles.Profile]) -> None:
    classes = [name for name in (*hosts.CLASSES, profiles.OTHER) if any(name in profile.by_class for profile in found)]
    rows = [[p.name, p.gpu or "not named", *(f"{p.means_us.get(name, 0):.1f}" for name in classes)] for p in found]
    right = tuple(range(2, 2 + len(classes)))
    print("µs of the host by class, the profiler included")
    print(tables.text(rows, ("trace", "GPU", *classes), right=right))
    fit = [profile for profile in whole(found) if not profile.odd]
    table, known = hosts.get("server").ratios, ratios(fit)
    rows = [[name, f"{table[name]:.2f}", f"{known[name]:.2f}" if name in known else "–"] for name in hosts.CLASSES]
    print(f"\nRatios: of hosts.toml, and of {', '.join(profile.name for profile in fit)}")
    print(tables.text(rows, ("class", "hosts.toml", "traces"), right=(1, 2)))
    print("\nError of the host's own time in later steps, each trace by the others")
    rows = []
    for profile in whole(found):
        errors = left_out(profile, [other for other in fit if other is not profile])
        rows.append([profile.name, *(f"{error:+.0%}" for error in errors), profile.odd])
    head = ("trace", "kernel launch", "others' mean", "speed by its first step", "")
    print(tables.text(rows, head, right=(1, 2, 3)))
    print("\nSpeed of each host by hosts.toml, µs of a library operator under the profiler")
    for profile in whole(found):
        print(f"  {profile.name}: {profile.speed_us(table):.0f}; its kernel launch {profile.launch_us:.1f}")


# ---- published runs --------------------------------------------------------------------------------------------------
SPEEDS_US = (0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0)
ALONE = ("product", "copy", "times", "bus", "cluster")  # programs that are no models


class Run(NamedTuple):
    """A published run that the host decides, in ms, with the clock's predictions on hosts of SPEEDS_US."""

    host: str
    program: str
    batch: int
    mode: str
    format: str
    measured_ms: float
    predicted_ms: tuple[float, ...]

    def on(self, operator_us: float) -> float:
        """Return the predicted ms on a host of this speed, between those that were predicted."""
        place = min(max(bisect_left(SPEEDS_US, operator_us), 1), len(SPEEDS_US) - 1)
        (low, high), (below, above) = SPEEDS_US[place - 1 : place + 1], self.predicted_ms[place - 1 : place + 1]
        return below + (above - below) * (operator_us - low) / (high - low)

    def ratio(self, operator_us: float) -> float:
        return self.on(operator_us) / self.measured_ms

    @property
    def speed_us(self) -> float | None:
        """The speed on which it takes what was measured; None where its GPU takes as long."""
        if self.predicted_ms[0] >= self.measured_ms:
            return None
        low, high = 0.0, 1000.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.on(middle) < self.measured_ms else (low, middle)
        return high


def predicted(stored: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the stored form of each run: host, program, batch, mode, format, measured ms, and what is predicted."""
    from benchmarks import programs

    known: dict[str, simgpu.Forecast] = {}
    for table in stored["tables"]:
        rows = [row for row in table["rows"] if row[5] == "short operators"]
        if table["programs"] in ALONE:
            continue
        how = {key: value for key, value in table.items() if key not in ("gpu", "address", "date", "software", "rows")}
        for name, size, batch, measured, *_ in rows:
            key = json.dumps([how, name, size, batch], sort_keys=True)
            if key not in known:
                known[key] = programs.forecast(table, name, size, batch)
            machine = simgpu.Machine(evidence.card(table["gpu"]))
            nbytes = batch * 3 * size**2 * (2 if table["format"] == "half" else 4)
            copy_ms = machine.rates.copy_ns(nbytes, pinned=False) / 1e6 if table.get("copies") else 0.0
            times = [1e3 * known[key].on(machine.gpu, host=simgpu.Host(us)).total_s + copy_ms for us in SPEEDS_US]
            host = f"{table['by']}, {table['gpu']}"
            digits = [float(f"{ms:.4g}") for ms in times]
            yield [host, name, batch, table["mode"], table["format"], measured, digits]


def situations(runs: list[Run]) -> dict[str, list[float]]:
    """Return predicted over measured time of the runs in each of `evidence.HOSTS`."""
    speeds = {run: run.speed_us for run in runs}
    by_host: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_host[run.host].append(run)
    found: dict[str, list[float]] = {name: [] for name in evidence.HOSTS}
    server_us = hosts.get("server").operator_us
    for run in runs:
        found["unknown"].append(run.ratio(server_us))
        here = [one for one in by_host[run.host] if one is not run and speeds[one] is not None]
        models = [speeds[one] for one in here if one.program != run.program]
        if models:
            found["its other models"].append(run.ratio(statistics.median(models)))
        for one in here:
            same = one.program == run.program and (one.mode, one.format) == (run.mode, run.format)
            if same:
                found["one step of this program"].append(run.ratio(speeds[one]))
            elif one.program != run.program and one.mode == run.mode:
                found["one step of another program"].append(run.ratio(speeds[one]))
    return found


def figure(ratios: list[float]) -> dict[str, Any]:
    """Return what is stored of a situation: how many predictions, their median error and bias, nine of ten within."""
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    median, bias = statistics.median(errors), statistics.median(ratios) - 1
    within = errors[math.ceil(0.9 * len(errors)) - 1]
    return {"predictions": len(ratios), "median": round(median, 3), "bias": round(bias, 3), "within": round(within, 3)}


def runs_of(stored: dict[str, Any]) -> list[Run]:
    return [Run(*row[:-1], tuple(row[-1])) for row in stored["hosts"]["rows"]]


def store_published() -> None:
    from benchmarks import published

    stored = json.loads(evidence.FILE.read_text(encoding="utf-8"))
    stored["hosts"] = {"speeds_us": list(SPEEDS_US), "rows": list(predicted(stored))}
    found = situations(runs_of(stored))
    stored["hosts"]["figures"] = {name: figure(ratios) for name, ratios in found.items()}
    published.store(stored)


def main() -> None:
    if sys.argv[1:] == ["published"]:
        store_published()
        print(evidence.error_bar().of_hosts)
        return
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SIMGPU_TRACES", "")
    if not folder or not Path(folder).is_dir():
        sys.exit("which traces? Give a folder: python -m benchmarks.hosts FOLDER, or SIMGPU_TRACES=FOLDER")
    show(read(Path(folder)))


if __name__ == "__main__":
    main()
