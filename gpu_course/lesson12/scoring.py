"""What does a capstone program cost on simulated GPUs, is it right there too, and which level has it reached?

score = lesson12.score("my_capstone.py")
print(score)
"""

import functools
import gc
import html
import secrets
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

import simgpu
from course_utils import gpus, tables
from gpu_course.checks import Program, WrongAnswer, run_forked
from gpu_course.lesson12 import program as programs
from gpu_course.lesson12.program import SCORED, SMALL, Sizes, Trial
from ranklaunch import RankError, launch

# fmt: off
SPECS = {"t4_ms": "T4", "h200_ms": "H200"}
LIMIT_S = 120.0
# What a level asks for: how many times less than the given program, of each of these
LEVELS = {
    "t4_ms": ("ms a step, T4", (2, 5, 10)),
    "h200_ms": ("ms a step, H200", (2, 5, 10)),
    "waits": ("waits a step", (2, 10, 50)),
    "copies": ("copies a step", (2, 10, 50)),
    "copied_bytes": ("bytes copied a step", (2, 50, 200)),
    "launches": ("launches a step", (2, 4, 8)),
    "peak_mib": ("peak memory, MiB", (2, 4, 5)),
    "messages": ("messages a step, 2 ranks", (1, 2, 8)),
}
RIGHT = "resume", "ranks"


@dataclass(frozen=True)
class Costs:
    """What a program costs: a training step, with its share of one evaluation after all steps; on two simulated GPUs.

    Times are milliseconds of the virtual clock, whose `regimes` are those of `simgpu.evidence`; `flops` are those that
    the GPU computed. `resume` and `ranks` say what is wrong with them, nothing where they are right.
    """

    t4_ms: float
    h200_ms: float
    waits: float
    copies: float
    copied_bytes: float
    launches: float
    peak_mib: float
    messages: float = 0.0
    flops: float = 0.0
    regimes: tuple[str, ...] = ()  # of `SPECS`
    resume: str = ""
    ranks: str = ""


@dataclass(frozen=True)
class Score:
    """A program beside the given one: `costs` of both, or why it does not count, `rejected`."""

    naive: Costs
    costs: Costs | None = None
    rejected: str = ""

    def ratio(self, part: str) -> float:
        """Return how many times less than the given program it takes of `part`, one of `LEVELS`."""
        mine, naive = getattr(self.costs, part), getattr(self.naive, part)
        return naive / mine if mine else float("inf") if naive else 1.0

    def level_of(self, part: str) -> int:
        """Return the level, 0 to 3, that `part` alone has reached."""
        if part in RIGHT:
            return 0 if getattr(self.costs, part) else 3
        if part == "messages" and self.costs.ranks:
            return 0
        ratio = self.ratio(part)
        return sum(ratio >= least for least in LEVELS[part][1])

    @property
    def level(self) -> int:
        """The level that every part has reached, 0 to 3."""
        return 0 if self.costs is None else min(map(self.level_of, (*LEVELS, *RIGHT)))

    @property
    def credit(self) -> tuple[int, int]:
        """Sum of the levels of the parts, and how many there are at most."""
        parts = (*LEVELS, *RIGHT)
        return (sum(map(self.level_of, parts)) if self.costs else 0), 3 * len(parts)

    def utilisation(self, part: str) -> float:
        """Return the model's FLOPs a second as a share of the peak of the GPU of `part`, "t4_ms" or "h200_ms"."""
        peak = gpus.get(SPECS[part]).peak_tflops["fp32"] * 1e12
        return self.naive.flops / (getattr(self.costs, part) / 1e3) / peak

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for part, (name, least) in LEVELS.items():
            ratio, level = self.ratio(part), self.level_of(part)
            more = f"{least[level]:g} for level {level + 1}" if level < 3 else ""
            more = "2 ranks equal 1" if part == "messages" and self.costs.ranks else more
            values = (f"{getattr(one, part):,.4g}" for one in (self.naive, self.costs))
            rows.append((name, *values, f"{ratio:.4g}", str(level), more))
        for part, name in zip(RIGHT, ("resume, to the last bit", "2 ranks equal 1"), strict=True):
            wrong = getattr(self.costs, part)
            rows.append((name, "right", "wrong" if wrong else "right", "", str(self.level_of(part)), wrong))
        return rows

    def _head(self) -> tuple[str, ...]:
        return "", "given", "yours", "times less", "level", "next"

    def _verdict(self) -> str:
        if self.costs is None:
            return f"It does not count: {self.rejected}"
        credit, of = self.credit
        return f"Level {self.level} of 3, credit {credit} of {of}. Counted, but for the times: {self._labels()}."

    def _labels(self) -> str:
        """Return how far the clock may be off, once where both GPUs have one label. A card keeps no regimes."""
        if not self.costs.regimes:
            return "simulated"
        regimes = dict(zip(SPECS.values(), self.costs.regimes, strict=True))
        labels = {gpu: str(simgpu.evidence.of_regime(regime, gpu)) for gpu, regime in regimes.items()}
        if len(set(regimes.values())) == 1:
            return next(iter(labels.values()))
        return "; ".join(f"on a {gpu} {label}" for gpu, label in labels.items())

    def __str__(self) -> str:
        table = [tables.text(self._rows(), self._head())] if self.costs else []
        return "\n".join([*table, self._verdict()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = tables.to_html(self._rows(), self._head()) if self.costs else ""
        return f"{table}<p>{html.escape(self._verdict())}</p>"


def score(source: str, file: str) -> Score:
    """Try the program with this text, and return what it costs beside the given one; see `lesson12.score`."""
    ours = programs.given(), programs.reference()
    try:
        naive, reference = _tried(*((text, "capstone.py") for text in ours))
    except Untried as error:
        raise RuntimeError(f"the given program could not be tried: {error}") from error
    try:
        found = {ours[0]: naive, ours[1]: reference}.get(source) or _tried((source, file))[0]
    except Untried as error:
        found = str(error)
    return Score(naive, found) if isinstance(found, Costs) else Score(naive, rejected=found)


class Untried(Exception):
    """Programs that ended their process, or took too long: the message says it in a sentence."""


def sentence(wrong: WrongAnswer) -> str:
    """Return in words why a program does not count."""
    name, why = wrong.finding.name, wrong.finding.why
    return f"{name}. {why[:1].upper()}{why[1:]}".strip() if why else f"{name}."


@functools.lru_cache(maxsize=32)
def _tried(*sources: tuple[str, str]) -> list[Costs | str]:
    """Return for programs, pairs of text and file name, the costs, or why one does not count.

    Raises `Untried`, which is not remembered, where they end the process or take too long.
    """
    try:
        found = run_forked(_in_child, sources, secrets.randbits(32), limit_s=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Untried(f"does not end: it was stopped after {LIMIT_S:g} s.") from None
    except simgpu.Unavailable:
        raise
    except RuntimeError as error:
        raise Untried(f"cannot be tried. {str(error).strip().splitlines()[-1]}") from None
    except EOFError:
        raise Untried("ends the process. A function is to return") from None
    right = [place for place, one in enumerate(found) if isinstance(one, Costs)]
    for place, ranks in zip(right, _on_ranks([sources[place] for place in right]), strict=True):
        found[place] = replace(found[place], **ranks)
    return found


def _in_child(sources: tuple[tuple[str, str], ...], seed: int) -> list[Costs | str]:
    torch.set_num_threads(1)
    found = []
    for source, file in sources:
        try:
            found.append(examine(source, file, seed, SCORED))
        except WrongAnswer as wrong:
            found.append(sentence(wrong))
    return found


def examine(source: str, file: str, seed: int, sizes: Sizes) -> Costs:
    """Return what a program costs, where there is a simulated GPU; raises `WrongAnswer`. `seed` draws weights, windows.

    What it does on two ranks is not looked at here.
    """
    case = programs.case_of(source, file)
    with programs.untouched(case):
        coarse = programs.check_on_cpu(case.load(), Trial(sizes, seed))
    found = {}
    for number, (part, spec) in enumerate(SPECS.items()):
        measured = _on_gpu(case, Trial(sizes, seed + 1 + number), spec, coarse)
        regimes = (*found.get("regimes", ()), measured.pop("regime"))
        found |= measured | {part: measured["ms"], "regimes": regimes}
    found.pop("ms")
    device = torch.device("sim", 0)
    with tempfile.TemporaryDirectory() as folder:
        wrong = programs.resumes(case, Trial(SMALL, seed + 3), device, Path(folder) / "run.pt")
    return Costs(**found, resume=wrong)


def _on_gpu(case: Program, trial: Trial, spec: str, coarse: bool) -> dict[str, Any]:
    """Return what the program costs on a simulated GPU, of which it must use the first alone; raises `WrongAnswer`."""
    right = trial.right()
    run = measured(case, trial, spec)
    work = [record.name for record in run.reading.select("kernel")]
    case.instead(work, f"works after the clock: {len(work)} kernels run when the weights are read",
                 "train returns when all is done")
    flops = sum(record.flops for record in run.training.select("kernel", "sim:0"))
    case.instead(run.training.select("kernel", "sim:1"), "uses a second GPU", "its memory and its time are not counted")
    share = flops / right.flops
    case.instead(share < 0.05, "loss from a cache, or computed elsewhere than on the GPU", "there it does nothing")
    case.instead(share < 0.95, f"computes less on the GPU, or elsewhere: {share:.0%} of the floating-point operations")
    try:
        programs.check_training(case, run.losses, run.weights, right, trial, coarse)
    except WrongAnswer as wrong:
        case.fail(f"on the GPU it {wrong.finding.name}", f"on the CPU it does not. {wrong.finding.why}")
    expected = programs.held_out_loss(run.weights, trial)
    case.instead(type(run.loss) is not float or not abs(run.loss - expected) < 5e-3,
                 f"on the GPU it evaluates something else: {run.loss!r}, expected {expected:.4f}")
    return run.costs | {"flops": right.flops / trial.sizes.steps}


@dataclass(frozen=True)
class Run:
    """What a program returned and left on a simulated GPU, and what that cost for each step."""

    losses: Any
    weights: dict[str, torch.Tensor]
    loss: Any
    training: simgpu.Timeline
    reading: simgpu.Timeline  # of the weights, when all should be done
    costs: dict[str, Any]


def measured(case: Program, trial: Trial, spec: str) -> Run:
    """Let the program train and evaluate on a simulated GPU."""
    device, steps = torch.device("sim", 0), trial.sizes.steps
    gc.collect()
    gc.freeze()  # the next collection does not look again at all that was imported
    simgpu.reset()
    simgpu.configure(spec=spec)
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
        "launches": sum(len(one.select("launch")) for one in both) / steps,
        "copies": len(copies) / steps,
        "copied_bytes": sum(record.nbytes for record in copies) / steps,
        "peak_mib": torch.get_device_module("sim").max_memory_allocated(device) / 2**20,
        "regime": simgpu.evidence.regime(record for one in both for record in one.records),
    }
    return Run(losses, weights, loss, training, reading, costs)


def _on_ranks(sources: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return for programs what is wrong on two ranks, `ranks`, and how many `messages` a step are sent there."""
    if not sources:
        return []
    try:
        both = launch(on_ranks, sources, secrets.randbits(32), nprocs=2, timeout_s=30, devices=["cpu", "cpu"])
    except RankError as error:
        if error.busy:
            raise Untried(f"cannot be tried. {error.busy}") from None
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return [{"ranks": first[:200]}] * len(sources)
    wrong = [next(filter(None, (wrong for wrong, _ in ranks)), "") for ranks in zip(*both, strict=True)]
    number = [max(number for _, number in ranks) for ranks in zip(*both, strict=True)]
    return [{"ranks": a, "messages": b} for a, b in zip(wrong, number, strict=True)]


def on_ranks(sources: list[tuple[str, str]], seed: int) -> list[tuple[str, float]]:
    """Return on a rank what is wrong with each of the programs there, and how many messages a step it sent."""
    torch.set_num_threads(1)
    return [_on_rank(source, file, seed) for source, file in sources]


def _on_rank(source: str, file: str, seed: int) -> tuple[str, float]:
    trial = Trial(SMALL, seed)
    try:
        case = programs.case_of(source, file).load()
        model, optimizer = trial.made(case, programs.CPU)
        losses = case.counted("train", model, optimizer, trial.text, trial.starts, programs.CPU)
        weights, counts = programs.weights_of(model), case.counts
        # as if it were alone
        watch = programs.Watch()
        with mock.patch.object(dist, "is_initialized", lambda: False), watch:
            twin, its = trial.made(case, programs.CPU)
            right = case.counted("train", twin, its, trial.text, trial.starts, programs.CPU)
            wanted, alone = programs.weights_of(twin), case.counts
    except WrongAnswer as wrong:
        return sentence(wrong), 0.0
    number = (sum(counts.collectives.values()) + counts.messages) / len(trial.starts)
    loss_within, update_within = programs.TOLERANCES[programs.kind(watch.coarse)]
    if programs.off(weights, wanted, trial.weights) > update_within:
        return "the weights are not those of one process", number
    # AdamW hardly sees a factor in its gradients: its state does
    kept, meant = (dict(enumerate(_tensors(one.state_dict()))) for one in (optimizer, its))
    if kept.keys() != meant.keys() or programs.off(kept, meant) > 2e-2:
        return "the gradients are not the mean over the ranks", number
    within = max(1e-3, loss_within)
    if len(losses) != len(right) or any(abs(a - b) > within for a, b in zip(losses, right, strict=True)):
        return "the losses are not those of one process: each is the mean over all ranks", number
    if counts.flops > 0.75 * alone.flops:
        return "each rank computes all rows", number
    return "", number


def _tensors(state: Any) -> list[torch.Tensor]:
    return [leaf.float() for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
