"""Does a lesson run on a face of the simulated GPU, cell by cell, with DEVICE cuda, mps or xpu, and which branches?

python -m tests.notebooks.on_face 06 07               a row for each lesson: its cells, those that failed, and why
python -m tests.notebooks.on_face --kind mps 00       the same with DEVICE mps
python -m tests.notebooks.on_face --kind mps --exercises 00    its exercises: references, right answers and mistakes
python -m tests.notebooks.on_face --kind cpu --exercises 00    the same where nothing knows of a simulated GPU
python -m tests.notebooks.on_face --write out 06      what the cells printed stands in out/06.log
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from tests.project import cuda_branches

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("course_utils", "gpu_course", "notebooks")
ENGINES = ("simgpu", "kernelcheck", "ranklaunch")
MEMORY = {"03": "1400 MiB"}  # of each GPU, so that the lesson's own rules leave out products of 8192
USUAL_MEMORY = "1 GiB"
GPUS = 2
NOT_REACHED = "was not reached"
_RESNET = "training ResNet-50 needs more memory than there is here, and takes a CPU minutes"
LEFT_OUT = {  # cells that are not run, by lesson, and why; on a real GPU they run
    "05": {"script-live": _RESNET},
    "06": {
        "cost-measured": "the simulated clock shows no cost of the profiler, and its products take ten minutes here"
    },
    "10": {"dtensor": "the face takes a generator's state apart in Python, and fake tensors refuse that"},
}


MAY_FAIL = {  # cells that run and may fail here, by lesson, and why; on a real GPU they must not
    "01": {"fits-for-real": "no driver takes memory for itself here"},
    "06": {"memory": "the profiler's rows count no memory of a simulated GPU"},
}
_COMPILED = "the face refuses what traces a program for its compiler"
LEFT_OUT["08"] = {"fused-compiled": _COMPILED, "opcheck-right": _COMPILED}
LAYER_NORM = ("08b:program: HAS_TRITON", "08b:program.forward: not HAS_TRITON else")
NOT_TAKEN = {  # branches that no run on the face can take, and why
    "05:script-live: not IS_REAL_GPU else": _RESNET,
    "02:overlap-time: HAS_ROOM": "products of 4096 need 4 GiB free, and take a CPU minutes",
    "09:step-ms: HAS_ROOM": "a step of 3.4 GiB takes a CPU minutes",
    "09:scaling: HAS_ROOM": "a step of 3.4 GiB takes a CPU minutes",
    "07:cure: HAS_EXPANDABLE else": "Windows alone",
    "08:triton-op: HAS_TRITON": "Triton's compiler needs a real GPU",
    **dict.fromkeys(LAYER_NORM, "without Triton; `cuda_callers.layer_norm` takes it"),
    "08b:program: HAS_TRITON #2": "without Triton: one line that says what was validated",
}


KINDS = ("cuda", "mps", "xpu")
_ROOFLINE = "roofline-here bounds-here layers-placed roofline-picture roofline-explorer"  # the first, and what needs it
_HOST = "a CPU computes here in place of the device, and the lesson times it"
OF_KIND = {  # the same of the other kinds: cells left out, cells that may fail, and branches that are not taken
    kind: (
        {
            "03": dict.fromkeys(_ROOFLINE.split(), "a CPU computes the roofline's products here, in twenty minutes"),
            "05": {"script-live": _RESNET},
            "06": LEFT_OUT["06"],
            "10": LEFT_OUT["10"],
        },
        {
            "01": {"latency-cell": _HOST},
            "02": {"plus-one": _HOST},
            "03": {"product-rates-here": _HOST},
            "05": {"bound": _HOST},
            "13": {"tests-run": "the child that runs the tests has this face already, and asks for CUDA's"},
        },
        {"05:script-live: not IS_REAL_GPU else": _RESNET},
    )
    for kind in ("mps", "xpu")
}
OF_KIND["xpu"][1]["06"] = MAY_FAIL["06"]


RIGHT_ELSEWHERE: dict[str, dict[tuple[str, str], str]] = {}  # right answers, wrong on a kind: exercise, style, why


def rules(kind: str, number: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return for a lesson and a kind which cells are left out, which may fail, and which branches are not taken."""
    if kind == "cuda":
        return LEFT_OUT.get(number, {}), MAY_FAIL.get(number, {}), NOT_TAKEN
    left_out, may_fail, not_taken = OF_KIND[kind]
    return left_out.get(number, {}), may_fail.get(number, {}), not_taken


@dataclass(frozen=True)
class Seen:
    """How one lesson did on the face."""

    cells: int  # code cells
    failed: dict[str, str]  # the name of a cell, and its error
    seconds: dict[str, float]  # of each cell that ended, on the machine's clock
    wanted: list[str]  # the lesson's branches for CUDA
    taken: set[str]  # those that ran, of the packages and programs too
    log: str  # what the cells printed
    not_taken: dict[str, str]  # branches that no run can take, and why

    @property
    def missing(self) -> list[str]:
        """The lesson's own branches that did not run."""
        return [name for name in self.wanted if name not in self.taken and name not in self.not_taken]

    def row(self) -> str:
        """Return the row of a table: cells, time, and what is wrong."""
        slowest = max(self.seconds, key=self.seconds.get)
        text = f"{self.cells - len(self.failed)} of {self.cells} code cells, {sum(self.seconds.values()):.0f} s"
        text += f", {self.seconds[slowest]:.0f} s of them in {slowest}"
        text += "".join(f"\n    {name}: {error}" for name, error in self.failed.items())
        return text + "".join(f"\n    {name}: this branch did not run" for name in self.missing)


def run(number: str, folder: Path, memory: str | None = None, kind: str = "cuda") -> Seen:
    """Return how lesson `number` did, in a copy of the course in the empty `folder`, on GPUs that say `kind`."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (path,) = (folder / "notebooks").glob(f"{number}_*.ipynb")
    wanted, ran, found = cuda_branches.mark_notebook(path, kind), folder / "ran", folder / "found.json"
    cuda_branches.mark_tree(folder, kind)
    ran.touch()
    size = memory or MEMORY.get(number, USUAL_MEMORY)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-u", "-m", "tests.notebooks.on_face", "--inside", str(path), size, str(found), kind]
        subprocess.run(
            command, cwd=path.parent, env={**os.environ, **environment(folder, ran, kind)}, stdout=log, stderr=log
        )
    seen = json.loads(found.read_text(encoding="utf-8"))
    taken = set(ran.read_text(encoding="utf-8").splitlines())
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    return Seen(**seen, wanted=wanted, taken=taken, log=log, not_taken=rules(kind, number)[2])


def environment(folder: Path, ran: Path, kind: str = "cuda") -> dict[str, str]:
    """Return the variables with which Python uses the copy in `folder`, whose branches write their names to `ran`."""
    places = [folder, *(ROOT / "engines" / name for name in ENGINES), ROOT]
    return {
        cuda_branches.FILE: str(ran),
        "COURSE_DEVICE": kind,
        "COURSE_PROGRESS": str(folder / "progress.json"),
        "MPLBACKEND": "agg",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
    }


def inside(path: Path, memory: str, found: Path, kind: str) -> None:
    """Switch the face on and run all code cells of a notebook; write to `found` after each what is known so far."""
    face(kind, memory)
    run_cells(path, found, *rules(kind, path.stem.partition("_")[0])[:2])


def face(kind: str, memory: str) -> None:
    """Switch the face of a kind on for the life of this process; there is none of `cpu`, a machine without a GPU."""
    import simgpu

    if kind == "mps":
        simgpu.mps(memory=memory)
    elif kind != "cpu":
        {"cuda": simgpu.cuda, "xpu": simgpu.xpu}[kind](gpus=GPUS, memory=memory)


def exercises(number: str, kind: str, memory: str | None = None) -> tuple[int, int, int, list[str]]:
    """Return how many answers to the exercises of a lesson were right, wrong and left out, and what went otherwise.

    On a device of the kind, in a process of its own. Right are references and right answers in other styles, wrong the
    named mistakes; those of exercises that ask for `sim` itself are left out, since they see no other device.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        size = memory or MEMORY.get(number, USUAL_MEMORY)
        command = [sys.executable, "-m", "tests.notebooks.on_face", "--examine", number, size, str(found), kind]
        place = environment(ROOT, found, kind) | {"COURSE_PROGRESS": str(found.with_suffix(".progress"))}
        done = subprocess.run(command, cwd=ROOT, env=os.environ | place, capture_output=True, text=True, check=False)
        if not found.exists():
            return 0, 0, 0, [done.stderr[-2000:]]
        return tuple(json.loads(found.read_text(encoding="utf-8")))


def examine(number: str, memory: str, found: Path, kind: str) -> None:
    """Try all answers to the exercises of a lesson on a device of the kind; write to `found` what came of them."""
    face(kind, memory)
    import torch

    import simgpu
    from gpu_course import catalogue
    from gpu_course.checks import WrongAnswer

    place, right, wrong, left_out, otherwise = torch.device(kind if kind == "cpu" else f"{kind}:0"), 0, 0, 0, []
    keep(found, [0, 0, 0, []])  # of a lesson without exercises
    for exercise in catalogue.registry():
        if exercise.lesson != number:
            continue
        if exercise.task.simulated:
            left_out += 1
            continue
        answers = [("reference", exercise.reference, True)]
        answers += [(one.cost, one.answer, True) for one in exercise.alternatives]
        answers += [(row.name, one, True) for row, one in exercise.stored("right")]
        if kind != "cpu":  # where some mistakes are none: nothing has to be copied
            answers += [(one.name, one.answer, False) for one in exercise.mistakes]
        here = RIGHT_ELSEWHERE.get(kind, {})
        for name, answer, is_right in [one for one in answers if (exercise.name, one[0]) not in here]:
            try:
                exercise.examine(answer, place)
                ended = None
            except WrongAnswer as error:
                ended = error
            except Exception as error:
                otherwise.append(f"{exercise.name}, {name}: {type(error).__name__}: {error}")
                continue
            finally:
                if simgpu.enabled():
                    simgpu.forgive()  # what a wrong answer's kernel met is not the next answer's fault
            right += is_right and ended is None
            wrong += not is_right and ended is not None
            if is_right != (ended is None):
                otherwise.append(f"{exercise.name}, {name}: {'is accepted' if ended is None else ended}")
        keep(found, [right, wrong, left_out, otherwise])


def run_cells(path: Path, found: Path, left_out: Container[str] = (), may_fail: Container[str] = ()) -> None:
    """Run the code cells of the notebook at `path` in this process, without Jupyter; write the results to `found`.

    The file holds what is known so far after each cell: the number of cells, the errors and the seconds by cell. Cells
    in `left_out` are skipped, and an error of one in `may_fail` does not count.
    """
    from IPython.core.interactiveshell import InteractiveShell

    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    cells = [cell for cell in cells if cell["id"] not in left_out]
    seen = {"cells": len(cells), "failed": {cell["id"]: NOT_REACHED for cell in cells}, "seconds": {}}
    sys.path[0], sys.argv = "", [path.name]
    shell = InteractiveShell.instance()
    for cell in cells:
        print(f"\n== {cell['id']}", flush=True)
        began = time.monotonic()
        result = shell.run_cell("".join(cell["source"]), store_history=True)
        seen["seconds"][cell["id"]] = time.monotonic() - began
        del seen["failed"][cell["id"]]
        if not result.success and cell["id"] not in may_fail:
            error = result.error_before_exec or result.error_in_exec
            seen["failed"][cell["id"]] = f"{type(error).__name__}: {error}"
        keep(found, seen)


def keep(found: Path, seen: object) -> None:
    """Write `seen` to `found` at once: who ends this process meanwhile finds what was written before."""
    found.with_suffix(".part").write_text(json.dumps(seen, indent=1), encoding="utf-8")
    found.with_suffix(".part").replace(found)


def main() -> int:
    """Run the lessons that the command line names; return 1 where a cell failed or a branch did not run."""
    reads = argparse.ArgumentParser("python -m tests.notebooks.on_face", description=__doc__.splitlines()[0])
    reads.add_argument("--memory", help='of each simulated GPU (default: "1 GiB", less where a lesson needs that)')
    reads.add_argument("--kind", default="cuda", choices=(*KINDS, "cpu"), help="of the device (default: cuda)")
    reads.add_argument("--write", type=Path, metavar="FOLDER", help="write what the cells printed to FOLDER/NN.log")
    reads.add_argument("numbers", nargs="+", metavar="NN", help="the numbers of lessons, such as 06 or 08b")
    reads.add_argument("--exercises", action="store_true", help="the exercises in place of the cells")
    given, wrong = reads.parse_args(), 0
    for number in given.numbers if given.exercises else ():
        right, refused, left_out, otherwise = exercises(number, given.kind, given.memory)
        print(f"{number}: {right} right answers accepted, {refused} mistakes refused, {left_out} exercises left out")
        print("".join(f"    {one}\n" for one in otherwise), end="", flush=True)
        wrong += bool(otherwise)
    for number in () if given.exercises else given.numbers:
        with tempfile.TemporaryDirectory() as folder:
            seen = run(number, Path(folder), given.memory, given.kind)
        if given.write:
            given.write.mkdir(parents=True, exist_ok=True)
            (given.write / f"{number}.log").write_text(seen.log, encoding="utf-8")
        print(f"{number}: {seen.row()}", flush=True)
        wrong += bool(seen.failed or seen.missing)
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5])
    elif sys.argv[1:2] == ["--examine"]:
        examine(sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
