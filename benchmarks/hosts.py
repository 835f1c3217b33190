"""What does the host pay for PyTorch's operators, and how far is that known? Traces of real GPUs, each by the others.

    python -m benchmarks.hosts FOLDER     # or SIMGPU_TRACES=FOLDER python -m benchmarks.hosts

FOLDER has files of `torch.profiler`, such as those that HTA tests itself with (MIT License):
https://github.com/facebookresearch/HolisticTraceAnalysis/tree/f4d0062/tests/data

First table: µs of each class of `simgpu.hosts`, the mean without the longest hundredth. Second: what hosts.toml has as
`ratios.measured` beside what the traces give, the geometric mean over hosts of a class beside "library". Third: the
error of the host's own time in the later steps of each trace, with prices from all others. Traces of less than three
steps, sampled ones and odd builds are left out of the fit; the last are tried all the same.

Found on 25 November 2026 with HTA's traces, error of the host's own time in later steps, each trace by the others:

    trace              launch call  others' mean  speed by its first step
    a100_80gb_rank0           -86%          -15%                      -3%
    a100_nccl                 -98%          -80%                      -1%  an odd build
    diff_control_a100         -90%          +23%                      -3%
    diff_test_v100            -88%          -27%                      -4%
    v100_rank0                -86%          +48%                      +1%
"""

import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from course_utils import tables
from simgpu.machine import hosts
from simgpu.machine.profiles import OTHER, Profile, Unit

STEPS = 3  # of the profiler that a trace must have: the first sets up
STARTING = ("library", "light", "cast", "library backward", "light backward", "optimizer", "copy")


def read(folder: Path) -> list[Profile]:
    """Return the traces of a folder, in order of their names."""
    return [Profile(path) for path in sorted(folder.glob("*.json*"))]


def whole(found: Iterable[Profile]) -> list[Profile]:
    """Return those with enough steps, in which the host's operators are all there."""
    return [profile for profile in found if len(profile.steps) >= STEPS and profile.by_class.get("library")]


def ratios(found: Iterable[Profile]) -> dict[str, float]:
    """Return what each class takes beside "library": the geometric mean over hosts that have both."""
    kept: dict[str, list[float]] = {}
    for profile in found:
        means = profile.means_us
        for name in means:
            if name != OTHER and means[name] > 0:
                kept.setdefault(name, []).append(means[name] / means["library"])
    return {name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in kept.items()}


def left_out(profile: Profile, others: list[Profile]) -> tuple[float, float, float]:
    """Return the errors of the host's own time in the later steps: launches alone, others' mean, its own first step."""
    known = ratios(others)
    mean_us = math.exp(sum(math.log(other.speed_us(known)) for other in others) / len(others))
    end = profile.steps[0][1]
    first = [unit for unit in profile.units if unit.call.start < end]
    later = [unit for unit in profile.units if unit.call.start >= end]
    real, launch_us = sum(unit.own_us for unit in later), hosts.DEFAULT.operator_us
    launches = launch_us * sum(name in STARTING for unit in later for name, _, _ in unit.parts)
    priced = _priced(later, known)
    own_us = profile.speed_us(known, first)
    return launches / real - 1, mean_us * priced / real - 1, own_us * priced / real - 1


def _priced(units: list[Unit], known: dict[str, float]) -> float:
    return sum(known.get(name, 0.0) for unit in units for name, _, _ in unit.parts)


def show(found: list[Profile]) -> None:
    classes = [name for name in (*hosts.CLASSES, OTHER) if any(name in profile.by_class for profile in found)]
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
    head = ("trace", "launch call", "others' mean", "speed by its first step", "")
    print(tables.text(rows, head, right=(1, 2, 3)))
    print("\nSpeed of each host by hosts.toml, µs of a library operator under the profiler")
    for profile in whole(found):
        print(f"  {profile.name}: {profile.speed_us(table):.0f}; its launching call {profile.launch_us:.1f}")


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SIMGPU_TRACES", "")
    if not folder or not Path(folder).is_dir():
        sys.exit("which traces? Give a folder: python -m benchmarks.hosts FOLDER, or SIMGPU_TRACES=FOLDER")
    show(read(Path(folder)))


if __name__ == "__main__":
    main()
