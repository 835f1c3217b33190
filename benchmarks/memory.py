"""Are `memory.measure` and `simgpu.forecast` right? The figures that they are held to.

    python -m benchmarks.memory            # on DEVICE; with COURSE_RECORD=1 on a CUDA GPU the table is recorded

Prints four tables: `measure` against ten sums by hand; the forecast against `measure` on twelve training programs, part
by part; what the forecast of a Transformer of 1.5 billion parameters takes, in a process of its own; the explorer's
formulas against the forecast. Exits with 1 where a target is missed: exact, within 5 % of the peak, below 60 s and
2 GiB, within 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

import simgpu
from course_utils import devices, memory, models, plots, recorded
from tests.course_utils.training_programs import CASES, CONFIGURATIONS, PROGRAMS, adamw, compared, estimated, program_of

ROOT = Path(__file__).parents[1]
MIB = 2**20
PEAK_TOLERANCE, EXPLORER_TOLERANCE, LARGE_LIMIT_S, LARGE_LIMIT_BYTES = 0.05, 0.10, 60.0, 2 * 2**30


# ---- the tables -----------------------------------------------------------------------------------------------------
def print_cases(device: torch.device) -> bool:
    """Print what was measured beside what was added up; return whether all are equal (on CUDA: within 512 each)."""
    print(f"measure, {device}: bytes at the peak against the sum of storages, by hand")
    right = True
    for name, (case, expected) in CASES.items():
        measured = memory.measure(partial(case, device), device).parts.total_bytes
        right &= measured == expected
        print(f"  {name:26} {measured:>8,}  {expected:>8,}  {'equal' if measured == expected else 'NOT EQUAL'}")
    return right


def print_programs(device: torch.device) -> bool:
    """Print estimate and measurement of each program, by part; return whether each peak is within 5 %."""
    label = "simulated" if device.type == "sim" else "live"
    print(f"\nestimate against measure ({label} on {device}), MiB estimated / measured; ratio of the peaks")
    owners = [*memory.OWNERS, "other"]
    print(f"  {'':34}" + "".join(f"{owner:>17}" for owner in [*owners, "peak"]) + "   ratio")
    found = {name: compared(program, device) for name, program in PROGRAMS.items()}
    for name, both in found.items():
        mine, real = both.estimated.by_owner() | {"other": 0}, both.measured.by_owner() | {"other": both.other_bytes}
        pairs = [(mine[o], real[o]) for o in owners] + [(both.estimated_peak_bytes, both.measured_peak_bytes)]
        cells = "".join(f"{a / MIB:>8.2f} /{b / MIB:>7.2f}" for a, b in pairs)
        print(f"  {name:34}{cells}   {both.ratio:.3f}{'' if _within(both) else '  NOT WITHIN 5 %'}")
    if device.type == "cuda":
        curves = {
            "estimate": [both.estimated_peak_bytes / MIB for both in found.values()],
            "max_memory_allocated": [both.measured_peak_bytes / MIB for both in found.values()],
        }
        places = list(range(1, len(found) + 1))
        recorded.compare("07.estimate", places, curves, xlabel="program", ylabel="MiB at the peak")
    return all(map(_within, found.values()))


def _within(both: memory.Reconciled) -> bool:
    return abs(both.ratio - 1) <= PEAK_TOLERANCE


def large() -> None:
    """Estimate a step of a Transformer of GPT-2's largest size, and print what that took as JSON."""
    torch.set_num_threads(min(2, torch.get_num_threads()))
    make_model = partial(models.TransformerLM, 50_257, width=1600, heads=25, layers=48, context=1024)
    make_batch = lambda: tuple(torch.randint(0, 50_257, (8, 1024)) for _ in range(2))  # noqa: E731
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    estimate = simgpu.forecast(make_model, make_batch, adamw, device=devices.pick()).memory
    figures = {
        "parameters": estimate.parameters, "peak_bytes": estimate.peak_bytes,
        "wall_s": time.perf_counter() - start_s, "cpu_s": time.process_time() - start_cpu_s,
        "process_bytes": _most_resident_bytes(),
    }  # fmt: skip
    print(json.dumps(figures))


def _most_resident_bytes() -> int:
    """Return the most memory that this process ever had resident, imports included."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return psutil.Process().memory_info().peak_wset
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 2**10


def print_large(device: torch.device) -> bool:
    """Print what the estimate of a large model takes in its own process; return whether that is within the limits."""
    command = [sys.executable, "-m", "benchmarks.memory", "--large"]
    environment = os.environ | {"COURSE_DEVICE": device.type, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return False
    found = json.loads(done.stdout.splitlines()[-1])
    right = found["wall_s"] < LARGE_LIMIT_S and found["process_bytes"] < LARGE_LIMIT_BYTES
    size = plots.bytes_text
    print(
        f"\nestimate of a training step, {found['parameters']:,} parameters: peak {size(found['peak_bytes'])}\n"
        f"  {found['wall_s']:.1f} s (below {LARGE_LIMIT_S:.0f}), of them {found['cpu_s']:.1f} s on processors; "
        f"{size(found['process_bytes'])} of process memory (below {size(LARGE_LIMIT_BYTES)})"
        f"{'' if right else '  NOT WITHIN THE LIMITS'}"
    )
    return right


def print_explorer(device: torch.device) -> bool:
    """Print the explorer's peak beside the estimate's; return whether each is within 10 %."""
    from gpu_course.lesson07.explorers.will_it_fit import will_it_fit

    print("\nwill-it-fit explorer against estimate, GiB at the peak")
    right = True
    for name, setting in CONFIGURATIONS.items():
        estimate = estimated(program_of(setting), device).peak_bytes
        formula = will_it_fit(**setting).peak_bytes
        near = abs(formula / estimate - 1) <= EXPLORER_TOLERANCE
        right &= near
        sizes = f"{formula / 2**30:>7.3f} / {estimate / 2**30:>7.3f}   {formula / estimate:.3f}"
        print(f"  {name:34} {sizes}{'' if near else '  NOT WITHIN 10 %'}")
    return right


def main(arguments: list[str] | None = None) -> int:
    """Print the four tables and return 0 if all targets are reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="only estimate the large model, in this process")
    if parser.parse_args(arguments).large:
        large()
        return 0
    device = devices.pick()
    tables = (print_cases, print_programs, print_large, print_explorer)
    return int(not all([table(device) for table in tables]))


if __name__ == "__main__":
    raise SystemExit(main())
