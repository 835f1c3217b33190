"""Device faults of public projects that the simulated GPU finds and a machine without a GPU does not.

    python -m benchmarks.device_faults                       # the chosen rows of device_faults.diff
    python -m benchmarks.device_faults --held-out            # those that were set aside
    python -m benchmarks.device_faults --first-contact       # rows of eleven more projects, written before any was run
    python -m benchmarks.device_faults --second-contact      # and of 23 more, in the same way
    python -m benchmarks.device_faults --mps             # repairs for a Mac's GPU, of 2025 and 2026
    python -m benchmarks.device_faults --only "fork|race" --show  # rows in whose name this is found, with their errors
    python -m benchmarks.device_faults --clones FOLDER       # runs none: is each commit in FOLDER/owner/name?

Each row has a small program of before and of after a repair. Both run on the CPU, as in CI without a GPU, where "cuda"
says "cpu" and "nccl" says "gloo" (a program that needs more of `torch.cuda` is skipped there), and on two simulated
GPUs with CUDA's face. `told` counts programs that end with the row's error before the repair, `quiet after` those that
end well after it.

The rows that were set aside, run once, on 26 November 2026, after the simulated GPU had been mended by the others:

    kind          rows  told by a CPU  told, of those that CUDA's rules decide  quiet after
    determinism      2              0                                   0 of 0       2 of 2
    distributed      7              2                                   6 of 6       7 of 7
    dtype            4              3                                   4 of 4       4 of 4
    fork             4              0                                   4 of 4       4 of 4
    race             5              0                                   3 of 3       5 of 5
    waits            2              0                                   2 of 2       2 of 2
    wrong device    41              0                                 36 of 37     41 of 41
    wrong index      1              0                                   1 of 1       1 of 1
    all             66              5                                 56 of 57     66 of 66

Of the 180 chosen ones a CPU told 9 that day, the simulated GPUs 159 of the 159 that CUDA's rules decide, and no
repaired program failed.

The 65 rows of eleven more projects were written before the first of them was run, later on that day. When they were
run, a CPU told 5, the simulated GPUs 58 of the 60 that CUDA's rules decide, and no repaired program failed. (Until then
one row more was taken for decided.) The two that were missed, lengths of sequences on the GPU and a rank that leaves
while another waits for it, failed in words that a GPU does not say, and have been mended.

The 71 rows of 23 more projects were written before the first of them was run, on 27 November 2026. When they were run,
a CPU told 1, the simulated GPUs 67 of the 69 that CUDA's rules decide, and no repaired program failed. The other two
failed as well, in the words of PyTorch's convolution ("should be the same"), which their rows had not foreseen. One
row had wrongly said that CUDA's rules decide nothing. These three rows were corrected afterwards.
"""

import argparse
import collections
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed.tensor

import simgpu
from course_utils import tables

TABLE = Path(__file__).with_suffix(".diff")
HELD_OUT = "01234"  # how the commits of rows begin that are held out
PARTS = {
    "held-out": "the rows that were set aside, not the chosen ones",
    "first-contact": "rows of eleven more projects, written before any was run",
    "second-contact": "rows of 23 more projects, written before any was run",
    "mps": "repairs of 2025 and 2026 of what goes wrong on a Mac's GPU, on the face of MPS",
}
LIMIT_S = 40
SKIPPED = "skipped: it needs torch.cuda"


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    repository: str
    commit: str
    kind: str
    wrong: str
    part: str  # chosen, held-out, first-contact, second-contact or mps
    repair: tuple[str, ...]  # the lines of the program, as those of a diff
    says: str = "same device"
    undecided: str = ""
    ranks: int = 1

    def program(self, *, repaired: bool) -> str:
        """Return the program as it was before or after the repair."""
        return "\n".join(line[1:] for line in self.repair if line[0] in (" +" if repaired else " -"))


def read() -> list[Fault]:
    """Return the rows of the table, whose head says what stands where."""
    found, place = [], {"part": "", "from": ""}
    for paragraph in TABLE.read_text(encoding="utf-8").split("\n\n")[1:]:
        about, *lines = paragraph.splitlines()
        name, _, rest = about.partition(" ")
        if name in place:
            place[name] = rest
            continue
        kind, _, wrong = rest.partition(": ")
        part = place["part"] or ("held-out" if name[0] in HELD_OUT else "chosen")
        fields: dict[str, str] = dict(line.split(" ", 1) for line in lines if line[0] not in " -+")
        ranks = int(fields.pop("ranks", 1))
        repair = tuple(line for line in lines if line[0] in " -+")
        found.append(Fault(place["from"], name, kind, wrong, part, repair, ranks=ranks, **fields))
    return found


def for_cpu(program: str) -> str:
    """Return a program as CI without a GPU runs it, or an empty text if it needs CUDA."""
    program = re.sub(r'"(cuda(:\d)?|mps)"', '"cpu"', program).replace(".cuda()", ".cpu()").replace('"nccl"', '"gloo"')
    return "" if re.search(r"torch\.(cuda|mps)(?!\.is_available)|pin_memory", program) else program


class Run:
    """A program in processes of its own, one for each rank."""

    def __init__(self, program: str, *, face: str, ranks: int = 1) -> None:
        """Start it, on the CPU ("") or on simulated GPUs with a face, "cuda" or "mps"."""
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / f"rank{rank}" for rank in range(ranks)]
        self._children = []
        for rank, output in enumerate(self._outputs):
            if (child := os.fork()) == 0:
                _become(program, face, rank, ranks, output)
            self._children.append(child)

    def result(self) -> str:
        """Wait for its end; return the first error of a rank, or an empty text."""
        for child in self._children:
            os.waitpid(child, 0)
        with self._folder:
            return next(filter(None, map(_text, self._outputs)), "")


def _text(output: Path) -> str:
    return output.read_text(encoding="utf-8") if output.exists() else f"ended or stopped after {LIMIT_S} s"


def _become(program: str, face: str, rank: int, ranks: int, output: Path) -> None:
    """Run a program in this forked process, write how it ended, and end."""
    signal.alarm(LIMIT_S)
    here = os.getpid()
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    error = ""
    try:
        if face == "mps":
            simgpu.mps()
        elif face:
            simgpu.cuda(gpus=2, races="error")
        store = torch.distributed.FileStore(str(output.parent / "store"), ranks)
        names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "rank": rank, "store": store}
        exec(compile(program, "<program>", "exec"), names)
        if face == "mps" or (face and torch.cuda.is_initialized()):
            torch.accelerator.synchronize()
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    if os.getpid() != here:  # a process that the program has forked
        os._exit(1)
    output.write_text(error, encoding="utf-8")
    os._exit(0)


@dataclass(frozen=True)
class Ended:
    """How the four programs of a row ended: an error, or an empty text."""

    fault: Fault
    cpu_before: str
    cpu_after: str
    before: str
    after: str

    @property
    def cpu_tells(self) -> bool:
        """Whether a CPU tells the fault: the program fails there before the repair, and not after it."""
        return self.cpu_before not in ("", SKIPPED) and self.cpu_after == ""

    @property
    def told(self) -> bool:
        """Whether the simulated GPU gives the error that a GPU gives."""
        return re.search(self.fault.says, self.before) is not None

    @property
    def quiet(self) -> bool:
        """Whether the repaired program ends well on the simulated GPU."""
        return self.after == ""


def try_out(fault: Fault) -> Ended:
    """Run the four programs of a row, at the same time."""
    programs = [fault.program(repaired=repaired) for repaired in (False, True)]
    on_cpu = [for_cpu(program) for program in programs]
    running = [Run(program, face="", ranks=fault.ranks) if program else None for program in on_cpu]
    face = "mps" if fault.part == "mps" else "cuda"
    running += [Run(program, face=face, ranks=fault.ranks) for program in programs]
    return Ended(fault, *(SKIPPED if run is None else run.result() for run in running))


def counted(name: str, ended: Iterable[Ended]) -> list[str]:
    """Return a line of the table: how many rows there are, and how many are told."""
    rows = list(ended)
    decided = [row for row in rows if not row.fault.undecided]
    numbers = (sum(row.cpu_tells for row in rows), sum(row.told for row in decided), sum(row.quiet for row in rows))
    cpu, told, quiet = (str(number) for number in numbers)
    return [name, str(len(rows)), cpu, f"{told} of {len(decided)}", f"{quiet} of {len(rows)}"]


def table(ended: list[Ended]) -> str:
    """Return the figures by kind, and of all kinds together."""
    kinds = collections.defaultdict(list)
    for row in ended:
        kinds[row.fault.kind].append(row)
    lines = [counted(kind, rows) for kind, rows in sorted(kinds.items())]
    head = ("kind", "rows", "told by a CPU", "told, of those that CUDA's rules decide", "quiet after")
    return tables.text([*lines, counted("all", ended)], head, right=(1, 2, 3, 4))


def missed(ended: Iterable[Ended]) -> list[str]:
    """Return a line for each row that is not told, or not quiet after the repair."""
    lines = []
    for row in ended:
        name = f"{row.fault.repository} {row.fault.commit[:9]} ({row.fault.kind})"
        if not row.told:
            lines.append(f"{name}: not told; {row.fault.undecided or row.before or 'no error'}")
        if not row.quiet:
            lines.append(f"{name}: not quiet after; {row.after}")
    return lines


def absent(faults: Iterable[Fault], clones: Path) -> list[str]:
    """Return the commits that the clones do not have."""
    looked_up = {
        fault: subprocess.run(
            ["git", "-C", clones / fault.repository, "cat-file", "-e", f"{fault.commit}^{{commit}}"],
            capture_output=True, check=False,
        ) for fault in faults
    }  # fmt: skip
    return [f"{fault.repository} {fault.commit}" for fault, done in looked_up.items() if done.returncode]


def main(arguments: list[str] | None = None) -> bool:
    """Print the table; return whether each decided fault was told and each repaired program quiet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    for part, what in PARTS.items():
        which.add_argument(f"--{part}", action="store_const", dest="part", const=part, default="chosen", help=what)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows in whose repository, kind or commit this is")
    parser.add_argument("--show", action="store_true", help="also print the errors of each row")
    parser.add_argument("--clones", type=Path, metavar="FOLDER", help="look each commit up in FOLDER/owner/name")
    given = parser.parse_args(arguments)
    faults = [
        fault for fault in read()
        if fault.part == given.part
        and re.search(given.only, f"{fault.repository} {fault.kind} {fault.commit}")
    ]  # fmt: skip
    if given.clones is not None:
        print("\n".join(absent(faults, given.clones)) or f"all {len(faults)} commits are there")
        return True
    ended = []
    for fault in faults:
        ended.append(try_out(fault))
        if given.show:
            print(f"{fault.repository} {fault.commit[:9]}", *(f"    {name}: {text}" for name, text in (
                ("CPU before", ended[-1].cpu_before), ("CPU after", ended[-1].cpu_after),
                ("before", ended[-1].before), ("after", ended[-1].after))), sep="\n", flush=True)  # fmt: skip
    print(table(ended))
    print(*missed(ended), sep="\n")
    return all(row.told or row.fault.undecided for row in ended) and all(row.quiet for row in ended)


if __name__ == "__main__":
    raise SystemExit(not main())
