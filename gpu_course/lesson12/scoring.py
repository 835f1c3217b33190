"""Scores of a capstone program on simulated GPUs: cost, correctness, level.

score = lesson12.score("my_capstone.py")
print(score)
"""

import functools
import gc
import html
import secrets
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

import simgpu
from course_utils import tables
from gpu_course.checks import ProgramCase, WrongAnswer, run_forked
from gpu_course.lesson12 import program as programs
from gpu_course.lesson12.program import Kind, Sizes, Trial
from ranklaunch import RankError, rank_device

SPECS = {"t4_ms": "T4", "h200_ms": "H200"}
LIMIT_S = 120.0
# What a level asks for: by what factor each of these must be smaller than in the given program
LEVELS = {
    "t4_ms": ("ms a step, T4", (2, 5, 5)),
    "h200_ms": ("ms a step, H200", (2, 5, 5)),
    "waits": ("waits a step", (10, 50, 50)),
    "copies": ("copies a step", (10, 50, 50)),
    "copied_bytes": ("bytes copied a step", (50, 200, 200)),
    "launches": ("launches a step", (2, 4, 4)),
    "peak_mib": ("peak memory, MiB", (2, 12, 12)),
    "messages": ("messages a step, 2 ranks", (0, 0, 8)),
    "kept_mib": ("kept on each of 2 ranks, MiB", (0, 0, 1.5)),
}
# What is asked of the second program: its pictures have to travel, it has fewer tensors, and its activations are more
OTHER = {
    "images": {
        "t4_ms": (2, 6, 6),
        "h200_ms": (2, 6, 6),
        "copied_bytes": (4, 7, 7),
        "peak_mib": (2, 18, 18),
        "messages": (0, 0, 6),
    }
}
RIGHT = "resume", "ranks"
_RIGHT = "resume, to the last bit", "2 ranks equal 1"
IDEAS = (
    "the host waits for nothing inside the loop, and many small operators become a few large ones",
    "the GPU keeps less until the backward pass: some of it is computed again, or a batch comes in parts",
    "two ranks divide between them what both keep: each has the optimizer's state of one half of the weights",
)
CLUSTER = simgpu.Cluster("T4", per_machine=2)


def asked(part: str, kind: str) -> tuple[float, ...]:
    """Return by what factor each level wants a part to be smaller, for a kind of program."""
    return OTHER.get(kind, {}).get(part, LEVELS[part][1])


@dataclass(frozen=True)
class Costs:
    """What a program costs: a training step, with its share of one evaluation after all steps; on two simulated GPUs.

    Times are milliseconds of the virtual clock, whose `regimes` are those of `simgpu.evidence`; for `waited_ms` of
    `h200_ms` the host waits. `flops` are those that the GPU computed. Of two ranks each sends `messages` a step, and
    keeps `kept_mib` from one step to the next. `resume` and `ranks` say what is wrong with them, nothing where they are
    right.
    """

    t4_ms: float
    h200_ms: float
    waits: float
    copies: float
    copied_bytes: float
    launches: float
    peak_mib: float
    messages: float = 0.0
    kept_mib: float = 0.0
    flops: float = 0.0
    waited_ms: float = 0.0
    regimes: tuple[str, ...] = ()  # of `SPECS`
    resume: str = ""
    ranks: str = ""


@dataclass(frozen=True)
class Score:
    """A program beside the given one: `costs` of both, or why it does not count, `rejected`."""

    naive: Costs
    costs: Costs | None = None
    rejected: str = ""
    kind: str = "gpt"

    def ratio(self, part: str) -> float:
        """Return by what factor `part`, one of `LEVELS`, is smaller than in the given program."""
        mine, naive = getattr(self.costs, part), getattr(self.naive, part)
        return naive / mine if mine else float("inf") if naive else 1.0

    def level_of(self, part: str) -> int:
        """Return the level, 0 to 3, that `part` alone has reached."""
        if part in RIGHT:
            return 0 if getattr(self.costs, part) else 3
        if part in ("messages", "kept_mib") and self.costs.ranks:
            return 0
        ratio = self.ratio(part)
        return sum(ratio >= least for least in asked(part, self.kind))

    @property
    def level(self) -> int:
        """The level that every part has reached, 0 to 3."""
        return 0 if self.costs is None else min(map(self.level_of, (*LEVELS, *RIGHT)))

    @property
    def credit(self) -> tuple[int, int]:
        """Sum of the levels of the parts, each at most one above the program's own, and how many there can be."""
        parts = (*LEVELS, *RIGHT)
        most = self.level + 1
        return (sum(min(self.level_of(part), most) for part in parts) if self.costs else 0), 3 * len(parts)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for part, (name, _) in LEVELS.items():
            least = asked(part, self.kind)
            ratio, level = self.ratio(part), self.level_of(part)
            more = f"{least[level]:g} for level {level + 1}" if level < 3 else ""
            more = "2 ranks equal 1" if part in ("messages", "kept_mib") and self.costs.ranks else more
            values = (f"{getattr(one, part):,.4g}" for one in (self.naive, self.costs))
            rows.append((name, *values, f"{ratio:.4g}", str(level), more))
        for part, name in zip(RIGHT, _RIGHT, strict=True):
            wrong = getattr(self.costs, part)
            rows.append((name, "right", "wrong" if wrong else "right", "", str(self.level_of(part)), wrong))
        return rows

    def _head(self) -> tuple[str, ...]:
        return "", "given", "yours", "given / yours", "level", "next"

    def _verdict(self) -> list[str]:
        """Return what the table does not say, a sentence or two a line."""
        if self.costs is None:
            return [f"It does not count: {self.rejected}"]
        credit, of = self.credit
        return [f"Level {self.level} of 3, credit {credit} of {of}.", *self._missing(), *self._labels()]

    def _missing(self) -> list[str]:
        """Return how many rows keep the program from the next level, and the idea that this level needs."""
        if self.level == 3:
            return []
        rows = sum(self.level_of(part) == self.level for part in (*LEVELS, *RIGHT))
        needed = "the row that has" if rows == 1 else f"the {rows} rows that have"
        return [f"Level {self.level + 1} still needs {needed} level {self.level}.", f"Its idea: {IDEAS[self.level]}."]

    def _labels(self) -> list[str]:
        """Return how far the clock may be off, once where both GPUs have one label. A card keeps no regimes."""
        rest = "All other numbers are counted."
        if not self.costs.regimes:
            return [f"Times are simulated. {rest}"]
        regimes = dict(zip(SPECS.values(), self.costs.regimes, strict=True))
        labels = {gpu: str(simgpu.evidence.of_regime(regime, gpu)) for gpu, regime in regimes.items()}
        if len(set(regimes.values())) == 1:
            return [f"Times are {next(iter(labels.values()))}.", rest]
        return [*(f"Times on a {gpu} are {label}." for gpu, label in labels.items()), rest]

    def __str__(self) -> str:
        if self.costs is None:
            return "\n".join(self._verdict())
        below = [textwrap.fill(line, 88) for line in self._verdict()]
        return "\n".join([tables.text(self._rows(), self._head()), *below])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = tables.to_html(self._rows(), self._head()) if self.costs else ""
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._verdict())


def score(source: str, file: str, kind: Kind = programs.GPT) -> Score:
    """Try the program with this text, and return what it costs beside the given one; see `lesson12.score`."""
    ours = kind.given, kind.reference
    try:
        naive, reference = _tried(*((text, kind.file) for text in ours), kind=kind.name)
    except Untried as error:
        raise RuntimeError(f"the given program could not be tried: {error}") from error
    try:
        outcome = {ours[0]: naive, ours[1]: reference}.get(source) or _tried((source, file), kind=kind.name)[0]
    except Untried as error:
        outcome = str(error)
    right = isinstance(outcome, Costs)
    return Score(naive, outcome if right else None, "" if right else outcome, kind.name)


class Untried(Exception):
    """Programs that ended their process, or took too long: the message says it in a sentence."""


def sentence(wrong: WrongAnswer) -> str:
    """Return in words why a program does not count."""
    name, why = wrong.finding.name, wrong.finding.why
    return f"{name}. {why[:1].upper()}{why[1:]}".strip() if why else f"{name}."


@functools.lru_cache(maxsize=32)
def _tried(*sources: tuple[str, str], kind: str = "gpt") -> list[Costs | str]:
    """Return for programs, pairs of text and file name, the costs, or why one does not count.

    Raises `Untried`, which is not remembered, where they end the process or take too long.
    """
    try:
        outcomes = run_forked(_in_child, sources, secrets.randbits(32), kind, limit_s=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Untried(f"does not end: it was stopped after {LIMIT_S:g} s.") from None
    except simgpu.Unavailable:
        raise
    except RuntimeError as error:
        raise Untried(f"cannot be tried. {str(error).strip().splitlines()[-1]}") from None
    except EOFError:
        raise Untried("ends the process. A function is to return") from None
    right = [place for place, one in enumerate(outcomes) if isinstance(one, Costs)]
    for index, ranks in zip(right, _on_ranks([sources[index] for index in right], kind), strict=True):
        outcomes[index] = replace(outcomes[index], **ranks)
    return outcomes


def _in_child(sources: tuple[tuple[str, str], ...], seed: int, kind: str) -> list[Costs | str]:
    torch.set_num_threads(1)
    outcomes = []
    for source, file in sources:
        try:
            outcomes.append(examine(source, file, seed, programs.KINDS[kind].scored))
        except WrongAnswer as wrong:
            outcomes.append(sentence(wrong))
    return outcomes


def examine(source: str, file: str, seed: int, sizes: Sizes) -> Costs:
    """Return what a program costs, where there is a simulated GPU; raises `WrongAnswer`. `seed` draws weights, windows.

    What it does on two ranks is not looked at here.
    """
    case = programs.case_of(source, file, sizes.kind)
    with programs.untouched(case):
        coarse = programs.check_on_cpu(case.load(), Trial(sizes, seed))
    costs = {}
    for number, (part, spec) in enumerate(SPECS.items()):
        measured = _on_gpu(case, Trial(sizes, seed + 1 + number), spec, coarse)
        regimes = (*costs.get("regimes", ()), measured.pop("regime"))
        costs |= measured | {part: measured["ms"], "regimes": regimes}
    costs.pop("ms")
    small = Trial(programs.KINDS[sizes.kind].small, seed + 3)
    with tempfile.TemporaryDirectory() as folder:
        wrong = programs.resumes(case, small, torch.device("sim", 0), Path(folder) / "run.pt")
    return Costs(**costs, resume=wrong)


def _on_gpu(case: ProgramCase, trial: Trial, spec: str, coarse: bool) -> dict[str, Any]:
    """Return what the program costs on a simulated GPU, of which it must use the first alone; raises `WrongAnswer`."""
    right = trial.right()
    run = measured(case, trial, spec)
    work = [record.name for record in run.reading.select("kernel")]
    why = "train ends when all is done"
    case.fail_if(work, f"works after the clock: {len(work)} kernels run when the weights are read", why)
    flops = sum(record.flops for record in run.training.select("kernel", "sim:0"))
    case.fail_if(run.training.select("kernel", "sim:1"), "uses a second GPU", "its memory and its time are not counted")
    share = flops / right.flops
    case.fail_if(share < 0.05, "loss from a cache, or computed elsewhere than on the GPU", "there it does nothing")
    case.fail_if(share < 0.95, f"computes less on the GPU, or elsewhere: {share:.0%} of the floating-point operations")
    try:
        programs.check_training(case, run.losses, run.weights, right, trial, coarse)
    except WrongAnswer as wrong:
        case.fail(f"on the GPU it {wrong.finding.name}", f"on the CPU it does not. {wrong.finding.why}")
    expected = programs.held_out_loss(run.weights, trial)
    case.fail_if(
        type(run.loss) is not float or not abs(run.loss - expected) < 5e-3,
        f"on the GPU it evaluates something else: {run.loss!r}, expected {expected:.4f}",
    )
    return run.costs | {"flops": right.flops / trial.sizes.steps}


@dataclass(frozen=True)
class ScoredRun:
    """What a program returned and left on a simulated GPU, and what that cost for each step."""

    losses: Any
    weights: dict[str, torch.Tensor]
    loss: Any
    training: simgpu.Timeline
    reading: simgpu.Timeline  # of the weights, when all should be done
    costs: dict[str, Any]


def measured(case: ProgramCase, trial: Trial, spec: str) -> ScoredRun:
    """Let the program train and evaluate on a simulated GPU."""
    device, steps = torch.device("sim", 0), trial.sizes.steps
    gc.collect()
    gc.freeze()  # the next collection does not look again at all that was imported
    simgpu.reset()
    simgpu.configure(spec=spec, host="kernel launch")  # so that times follow from the counts beside them
    with programs.untouched(case):
        model, optimizer = trial.made(case, device)
        case.run("train", model, optimizer, trial.text, trial.warm_up, device)
    torch.get_device_module("sim").reset_peak_memory_stats(device)
    with programs.untouched(case), simgpu.timeline() as training:
        losses = case.run("train", model, optimizer, trial.text, trial.starts, device)
    with simgpu.timeline() as reading:
        weights = programs.weights_of(model)
    with programs.untouched(case), simgpu.timeline() as testing:
        loss = case.run("evaluate", model, trial.held_out, trial.tested, device)
    both = training, testing
    copies = [record for one in both for record in one.select("copy")]
    costs = {
        "ms": sum(one.total_ns for one in both) / 1e6 / steps,
        "waits": sum(len(one.select("wait")) for one in both) / steps,
        "waited_ms": sum(one.waited_ms for one in both) / steps,
        "launches": sum(len(one.select("launch")) for one in both) / steps,
        "copies": len(copies) / steps,
        "copied_bytes": sum(record.nbytes for record in copies) / steps,
        "peak_mib": torch.get_device_module("sim").max_memory_allocated(device) / 2**20,
        "regime": simgpu.evidence.of([record for one in both for record in one.records], training.machine).regime,
    }
    return ScoredRun(losses, weights, loss, training, reading, costs)


def _on_ranks(sources: list[tuple[str, str]], kind: str = "gpt") -> list[dict[str, Any]]:
    """Return for programs what is wrong on two ranks, `ranks`, how many `messages` a step, and `kept_mib`."""
    if not sources:
        return []
    try:
        both = simgpu.launch(on_ranks, sources, secrets.randbits(32), kind, cluster=CLUSTER, timeout_s=30)
    except RankError as error:
        if error.busy:
            raise Untried(f"cannot be tried. {error.busy}") from None
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return [{"ranks": first[:200]}] * len(sources)
    return [
        {
            "ranks": next(filter(None, (wrong for wrong, _, _ in ranks)), ""),
            "messages": max(number for _, number, _ in ranks),
            "kept_mib": max(kept for _, _, kept in ranks),
        }
        for ranks in zip(*both, strict=True)
    ]


def on_ranks(sources: list[tuple[str, str]], seed: int, kind: str) -> list[tuple[str, float, float]]:
    """Return on a rank, for each of the programs, what is wrong there, its messages a step, and what it keeps, MiB."""
    torch.set_num_threads(1)
    return [_on_rank(source, file, seed, programs.KINDS[kind]) for source, file in sources]


def _on_rank(source: str, file: str, seed: int, kind: Kind) -> tuple[str, float, float]:
    trial = Trial(kind.small, seed)
    try:
        case = programs.case_of(source, file, kind.name).load()
        model, optimizer = trial.made(case, rank_device())
        losses = case.counted("train", model, optimizer, trial.text, trial.starts, rank_device())
        weights, counts = programs.weights_of(model), case.counts
        # as if it were alone
        watch = programs.Watch(kind)
        with mock.patch.object(dist, "is_initialized", lambda: False), watch:
            twin, its = trial.made(case, programs.CPU)
            right = case.counted("train", twin, its, trial.text, trial.starts, programs.CPU)
            wanted, alone = programs.weights_of(twin), case.counts
        number = (sum(counts.collectives.values()) + counts.messages) / len(trial.starts)
        loss_within, update_within = programs.TOLERANCES[programs.kind(watch.coarse)]
        if programs.off(weights, wanted, trial.weights) > update_within:
            return "the weights are not those of one process", number, 0.0
        if wrong := _other_state(optimizer, its):
            return wrong, number, 0.0
        within = 2 * loss_within  # both runs may be off
        if len(losses) != len(right) or any(abs(a - b) > within for a, b in zip(losses, right, strict=True)):
            return "the losses are not those of one process: each is the mean over all ranks", number, 0.0
        if counts.flops > 0.75 * alone.flops:
            return "each rank computes all rows", number, 0.0
        with tempfile.TemporaryDirectory() as folder:
            if wrong := programs.resumes(case, trial, rank_device(), Path(folder) / "run.pt"):
                return f"on two ranks {wrong}", number, 0.0
        kept_mib = _kept(case, seed, kind)
    except WrongAnswer as wrong:
        return sentence(wrong), 0.0, 0.0
    return "", number, kept_mib


def _kept(case: ProgramCase, seed: int, kind: Kind) -> float:
    """Return the MiB that this rank keeps after a step; raises `WrongAnswer` where some of it is with the host."""
    trial, device = Trial(replace(kind.scored, warm_up=1, steps=1), seed), rank_device()
    gc.collect()
    before_bytes = torch.get_device_module("sim").memory_allocated(device)
    model, optimizer = trial.made(case, device)
    case.run("train", model, optimizer, trial.text, trial.warm_up, device)
    case.counted("train", model, optimizer, trial.text, trial.starts, device)
    moved, weights = case.counts.bytes_d2h, sum(parameter.nbytes for parameter in model.parameters())
    case.fail_if(moved > weights / 4, f"keeps on the host what the GPU needs: {moved:,} bytes leave it in a step")
    gc.collect()
    return (torch.get_device_module("sim").memory_allocated(device) - before_bytes) / 2**20


def _other_state(optimizer: Any, alone: Any) -> str:
    """Return what is wrong with an optimizer's state beside that of one process, whole on each rank or divided.

    AdamW hardly sees a factor in its gradients: its state does.
    """
    kept, meant = (_tensors(one.state_dict()) for one in (optimizer, alone))
    if any(value.itemsize < 4 for value in kept):
        return "the optimizer's state is kept in 16 bits"
    if [value.shape for value in kept] == [value.shape for value in meant]:
        within = programs.off(dict(enumerate(kept)), dict(enumerate(meant))) <= 2e-2
        return "" if within else _NO_MEAN
    sums, wanted = (torch.tensor([[value.numel(), value.abs().sum()] for value in some if value.numel() > 1]).sum(0)
                     for some in (kept, meant))  # fmt: skip
    dist.all_reduce(sums)
    copies = round((sums[0] / wanted[0]).item())
    within = copies and abs(sums[1] / copies / wanted[1] - 1) <= 2e-2
    return "" if within else _NO_MEAN


_NO_MEAN = "the gradients are not the mean over the ranks"


def _tensors(state: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    return [leaf.cpu().float() if leaf.itemsize >= 4 else leaf.cpu() for leaf in leaves]
