"""Comparison of a capstone program's training with that of the given one.

A program is the text of a file with the functions in `FUNCTIONS`. Whatever it reports is compared with what the given
program makes of the same first weights and the same windows, which are drawn anew each time. The check of a program
that differs fails, as every check does, with a name that says what was seen.
"""

import ast
import copy
import functools
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from course_utils import data, programs
from gpu_course.checks import ProgramCase, Task, WrongAnswer, edit
from simgpu import composite

FUNCTIONS = {"make_model": 4, "make_optimizer": 1, "train": 5, "evaluate": 4, "save": 4, "load": 3}
TRAINING_BYTES, HELD_OUT_BYTES = 2**18, 2**15  # less than any version of Python has, so that counts are the same
CPU = torch.device("cpu")
# Largest difference of a loss in nats, and of all updates together as a share of the given program's
TOLERANCES = {"in float32": (5e-4, 2e-3), "with products in 16 bits": (5e-3, 6e-2)}


def kind(coarse: bool) -> str:
    """Return which of `TOLERANCES` holds for a program whose products are `coarse`."""
    return "with products in 16 bits" if coarse else "in float32"


@dataclass(frozen=True)
class Sizes:
    """How large the model and the run are with which a program is tried."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 64
    batch: int = 16
    warm_up: int = 2
    steps: int = 6
    windows: int = 16
    kind: str = "gpt"

    @property
    def model(self) -> dict[str, int]:
        """What `make_model` is called with."""
        names = ("width", "layers") if self.kind == "images" else ("width", "heads", "layers", "context")
        return {name: getattr(self, name) for name in names}


SCORED = Sizes()
SMALL = Sizes(width=16, heads=2, context=8, batch=4, warm_up=1, steps=3, windows=5)
_TASK = Task("12", "capstone", "The capstone", minutes=60, difficulty=3, hints=())


def case_of(source: str, file: str = "capstone.py", kind: str = "gpt") -> ProgramCase:
    """Return the case that judges the program with this text, of a kind."""
    return ProgramCase(_TASK, source, file, FUNCTIONS | {"make_model": len(Sizes(kind=kind).model)})


@dataclass(frozen=True)
class Kind:
    """A program of the capstone: which files, how large it is tried, and what its data are."""

    name: str
    file: str  # beside it stands the reference
    scored: Sizes
    small: Sizes
    rows: str  # what the numbers of a step stand for
    missing: str  # how a program is called that looks at fewer of them
    model: Callable[["Trial", ProgramCase, nn.Module, nn.Module], None]  # fails for another model
    data: Callable[["Trial", torch.Generator], tuple[Any, Any]]  # for training and for evaluation
    most: Callable[["Trial", Any], int]  # one more than the largest number of a row
    first: Callable[[str, Any], torch.Tensor | None]  # of an operator: the data that enter the model, a row for each
    wanted: Callable[["Trial"], Counter]  # the rows that a training run is to see
    strange: Callable[["Trial", Counter, ProgramCase], None]  # fails for rows of which it can be said what they are

    @property
    def given(self) -> str:
        """The text of the program that is given."""
        return programs.path(self.file).read_text(encoding="utf-8")

    @property
    def reference(self) -> str:
        """The text of a program that reaches level three: edits of the given one, or a program beside it."""
        edits = Path(__file__).with_name(self.file.replace(".py", "_reference.edits"))
        if edits.exists():
            return edit(edits.read_text(encoding="utf-8")).applied(self.given, self.file)
        return programs.path(self.file.replace(".py", "_reference.py")).read_text(encoding="utf-8")


def given() -> str:
    """Return the text of the program that is given."""
    return GPT.given


def reference() -> str:
    """Return the text of a program that reaches level three."""
    return GPT.reference


def excerpt(path: Path, *names: str) -> str:
    """Return the source of functions, classes or methods ("Class.method") of the program at `path`, in its order."""
    text = path.read_text(encoding="utf-8")
    nodes = [node for name, node in _definitions(ast.parse(text)) if name in names]
    first = [min(one.lineno for one in (node, *node.decorator_list)) for node in nodes]
    lines = text.splitlines()
    return "\n\n".join(
        textwrap.dedent("\n".join(lines[begin - 1 : node.end_lineno])) for begin, node in zip(first, nodes, strict=True)
    )


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Yield each function and class of a program with its name, and each method as "Class.method"."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{one.name}", one) for one in node.body if isinstance(one, ast.FunctionDef))


@dataclass(frozen=True)
class Right:
    """What the given program makes of a trial, its FLOPs, and the settings of its optimizer."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    flops: int
    groups: list[dict[str, Any]]


class Trial:
    """One run with which a program is tried: first weights and windows, drawn from `seed`, and what is right."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.kind = KINDS[sizes.kind]
        self.sizes, self.seed, self.naive = sizes, seed, case_of(self.kind.given, self.kind.file, self.kind.name).load()
        draw = torch.Generator().manual_seed(seed)
        self.text, self.held_out = self.kind.data(self, draw)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.naive.run("make_model", **sizes.model)
        with torch.no_grad():  # no weight is 0 or 1: each must be used
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=draw)
        self.weights = copy.deepcopy(model.state_dict())

        def starts(text: Any, *shape: int) -> torch.Tensor:
            return torch.randint(self.kind.most(self, text), shape, generator=draw)

        self.warm_up, self.starts = (starts(self.text, number, sizes.batch) for number in (sizes.warm_up, sizes.steps))
        self.tested = starts(self.held_out, sizes.windows)

    def made(self, case: ProgramCase, device: torch.device) -> tuple[nn.Module, Any]:
        """Return the program's model with the first weights, on `device`, and its optimizer."""
        model = case.run("make_model", **self.sizes.model)
        case.fail_if(not isinstance(model, nn.Module), "make_model returns no module")
        state = model.state_dict()
        wanted, shapes = ({name: tuple(value.shape) for name, value in one.items()} for one in (self.weights, state))
        if wanted != shapes:
            count = [sum(value.numel() for value in one.values()) for one in (self.weights, state)]
            other = next(name for name in {**wanted, **shapes} if wanted.get(name) != shapes.get(name))
            name = "a smaller model" if count[1] < count[0] else "another model"
            why = "parameters keep names and shapes"
            case.fail(f"{name}: {other} has the shape {shapes.get(other)}, expected {wanted.get(other)}", why)
        model.load_state_dict(self.weights)
        model = model.to(device)
        return model, case.run("make_optimizer", model)

    def right(self) -> Right:
        """Return what the given program makes of this trial, on the CPU."""
        return _right(self.sizes, self.seed)


@functools.lru_cache(maxsize=8)  # several programs are tried on the same weights and windows
def _right(sizes: Sizes, seed: int) -> Right:
    trial = Trial(sizes, seed)
    model, optimizer = trial.made(trial.naive, CPU)
    trial.naive.run("train", model, optimizer, trial.text, trial.warm_up, CPU)
    losses = trial.naive.counted("train", model, optimizer, trial.text, trial.starts, CPU)
    return Right(losses, weights_of(model), trial.naive.counts.flops, optimizer.param_groups)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the model's parameters on the CPU, as they are now, whatever its own methods say."""
    state = nn.Module.state_dict(model)
    return {name: value.detach().float().cpu().clone() for name, value in state.items()}


class Watch(composite.Mode):
    """Notes, on the CPU, which rows of data enter a model, and how coarse the numbers are that are multiplied."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.windows: list[torch.Tensor] = []
        self.coarse = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__
        rows = self.kind.first(name, args)
        if rows is not None and torch._C._current_graph_task_id() == -1:  # on the way back it is computed again
            self.windows.append(rows.clone())
        if name in ("mm", "addmm", "bmm", "baddbmm", "convolution"):
            self.coarse |= any(one.dtype in (torch.float16, torch.bfloat16) for one in args if hasattr(one, "dtype"))
        return func(*args, **(kwargs or {}))


def check_on_cpu(case: ProgramCase, trial: Trial) -> bool:
    """Let the program train on the CPU, where it can be seen what it reads and does; raises `WrongAnswer`.

    Returns whether products are computed in 16 bits.
    """
    right = trial.right()
    model, optimizer = trial.made(case, CPU)
    _same_model(case, model, trial)
    case.run("train", model, optimizer, trial.text, trial.warm_up, CPU)
    watch, steps = Watch(trial.kind), Counter()
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.register_step_post_hook(lambda *_: steps.update(["step"]))
    with watch:
        losses = case.counted("train", model, optimizer, trial.text, trial.starts, CPU)
    flops = case.counts.flops
    try:
        check_training(case, losses, weights_of(model), right, trial, watch.coarse)
    except WrongAnswer:
        _blame(case, watch, flops, steps["step"], model, optimizer, right, trial)
        raise
    _same_settings(case, optimizer, right.groups)
    _evaluates(case, model, trial, CPU)
    return watch.coarse


def off(
    got: dict[Any, torch.Tensor], wanted: dict[Any, torch.Tensor], first: dict[Any, torch.Tensor] | None = None
) -> float:
    """Return how far `got` is from `wanted`, as a share of the way from `first`, or from 0, to `wanted`."""
    way = [value - first[name] if first else value for name, value in wanted.items()]
    missed = [got[name] - value for name, value in wanted.items()]
    return (sum(one.square().sum() for one in missed) / sum(one.square().sum() for one in way)).sqrt().item()


def check_training(
    case: ProgramCase, losses: Any, weights: dict[str, torch.Tensor], right: Right, trial: Trial, coarse: bool
) -> None:
    """Fail unless the losses that were returned, and the weights that training left, are the right ones."""
    case.fail_if(
        type(losses) is not list or not all(type(loss) is float for loss in losses),
        "train returns no list of floats",
        "what still has to be read or computed is work after the clock",
    )
    case.fail_if(
        len(losses) != len(trial.starts),
        f"another number of steps: {len(losses)} losses for {len(trial.starts)} rows",
        "one step is asked for each row of starts",
    )
    words = kind(coarse)
    loss_within, update_within = TOLERANCES[words]
    share = off(weights, right.weights, trial.weights)
    case.fail_if(
        not share <= update_within,
        f"trains another way: the weights are off by {share:.1%} of their way, {update_within:.1%} are allowed {words}",
    )
    worst = max((abs(a - b) for a, b in zip(losses, right.losses, strict=True)), default=0.0)
    case.fail_if(
        not worst <= loss_within,
        f"reports losses that are not those of its steps: one is off by "
        f"{worst:.4f} nats, {loss_within} are allowed {words}",
        "the loss of a step is the mean over all of its windows",
    )


def _same_model(case: ProgramCase, model: nn.Module, trial: Trial) -> None:
    """Fail unless the model with the first weights says what the given one says."""
    twin, _ = trial.made(trial.naive, CPU)
    with torch.no_grad():
        trial.kind.model(trial, case, model, twin)


def _same_outputs(case: ProgramCase, got: Any, expected: torch.Tensor) -> None:
    """Fail unless a model's logits are those of the given one."""
    shape, wanted = tuple(getattr(got, "shape", ())), tuple(expected.shape)
    case.fail_if(shape != wanted, f"the model returns the shape {shape}, expected {wanted}")
    off = ((got.float() - expected).norm() / expected.norm()).item()
    why = "each layer is to be used as in the given program"
    case.fail_if(not off < 0.02, f"another model: with the same weights its logits are off by {off:.0%}", why)


def _same_gpt(trial: Trial, case: ProgramCase, model: nn.Module, twin: nn.Module) -> None:
    tokens = trial.text[: 3 * trial.sizes.context].view(3, -1).long()
    got, expected = model(tokens), twin(tokens)
    if tuple(getattr(got, "shape", ())) == tuple(expected.shape):
        later = tokens.clone()
        later[:, -1] = (later[:, -1] + 1) % 256
        sees = (model(later)[:, :-1] - got[:, :-1]).abs().max() > 1e-3 * expected.std()
        why = "attention must be causal"
        case.fail_if(sees, "sees the future: the last byte changes what is predicted before it", why)
    _same_outputs(case, got, expected)


def _same_net(trial: Trial, case: ProgramCase, model: nn.Module, twin: nn.Module) -> None:
    x = torch.rand(3, 1, trial.sizes.context, trial.sizes.context) - 0.5
    _same_outputs(case, model(x), twin(x))


def _blame(
    case: ProgramCase, watch: Watch, flops: int, steps: int, model: nn.Module, optimizer, right: Right, trial: Trial
) -> None:
    """Fail with the name of what a program does that trains another way, where it has one."""
    kind, flat = trial.kind, trial.starts.flatten()
    wanted = kind.wanted(trial)
    seen = Counter(tuple(row) for windows in watch.windows for row in windows.tolist())
    number = sum((wanted & seen).values())
    if seen:
        kind.strange(trial, seen, case)
        why = "each number says which"
        case.fail_if(
            any(row not in wanted for row in seen), f"trains on other {kind.rows} than those that it is given", why
        )
        case.fail_if(
            number < len(flat), f"fewer {kind.missing}: {number} of {len(flat)} {kind.rows} go through the model"
        )
        why = "that is other work"
        case.fail_if(sum(seen.values()) > len(flat), f"{kind.rows} go through the model more than once", why)
    share = flops / right.flops
    case.fail_if(share < 0.05, "loss from a cache, or from nowhere: the model is not computed")
    still = [name for name, value in weights_of(model).items() if torch.equal(value, trial.weights[name])]
    why = "every parameter is to be trained"
    case.fail_if(0 < len(still) < len(trial.weights), f"never trains {still[0] if still else ''}", why)
    name = "the backward pass is left out, for some steps, rows or layers" if seen else f"fewer {kind.missing}"
    case.fail_if(share < 0.9, f"{name}: {share:.0%} of the floating-point operations")
    if isinstance(optimizer, torch.optim.Optimizer):
        case.fail_if(steps < len(trial.starts), f"skips the optimizer's step: {steps} of {len(trial.starts)}")
        case.fail_if(steps > len(trial.starts), f"another number of steps: {steps} for {len(trial.starts)} rows")
        _same_settings(case, optimizer, right.groups)


def _same_settings(case: ProgramCase, optimizer: Any, wanted: list[dict]) -> None:
    """Fail where the optimizer has another learning rate, decay or the like than the given one."""
    for group in getattr(optimizer, "param_groups", ()):
        for name in ("lr", "betas", "eps", "weight_decay", "amsgrad"):
            got = group.get(name, wanted[0][name])
            case.fail_if(got != wanted[0][name], f"another optimizer: {name} is {got}, expected {wanted[0][name]}")


def _evaluates(case: ProgramCase, model: nn.Module, trial: Trial, device: torch.device) -> None:
    """Fail unless the program's `evaluate` returns the model's loss on all of the windows, and keeps it."""
    before = weights_of(model)
    got = case.run("evaluate", model, trial.held_out, trial.tested, device)
    expected = held_out_loss(before, trial)
    case.fail_if(type(got) is not float, f"evaluate returns {type(got).__name__}, expected float")
    why = "the mean over every byte of every window, with the weights as they are"
    case.fail_if(
        not abs(got - expected) < 5e-3, f"evaluates something else: {got:.4f} nats, expected {expected:.4f}", why
    )
    after = weights_of(model)
    why = "it would train on the evaluation text"
    case.fail_if(any(not torch.equal(after[name], before[name]) for name in before), "evaluate changes the model", why)


def held_out_loss(weights: dict[str, torch.Tensor], trial: Trial) -> float:
    """Return the loss of the given model with `weights` on the data that are tested."""
    model, _ = trial.made(trial.naive, CPU)
    model.load_state_dict(weights)
    with torch.no_grad():
        return trial.naive.run("evaluate", model, trial.held_out, trial.tested, CPU)


def resumes(case: ProgramCase, trial: Trial, device: torch.device, path: Path) -> str:
    """Return what differs, to the last bit, between a run and one that is saved, loaded and goes on; "" if nothing."""
    half = max(1, len(trial.starts) // 2)
    try:
        whole, its = trial.made(case, device)
        parts = trial.starts[:half], trial.starts[half:]
        losses = [case.run("train", whole, its, trial.text, part, device) for part in parts]
        first, optimizer = trial.made(case, device)
        case.run("train", first, optimizer, trial.text, trial.starts[:half], device)
        case.run("save", path, first, optimizer, half)
        again = case.run("make_model", **trial.sizes.model).to(device)
        optimizer = case.run("make_optimizer", again)
        step = case.run("load", path, again, optimizer)
        left = case.run("train", again, optimizer, trial.text, trial.starts[half:], device)
    except WrongAnswer as wrong:
        return f"{wrong.finding.name} {wrong.finding.why}".strip()
    uninterrupted, resumed = weights_of(whole), weights_of(again)
    if step != half:
        return f"load returns the step {step!r}, expected {half}"
    if left != losses[1]:
        return "after a resume the losses are others"
    if any(not torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted):
        return "after a resume the weights are others"
    return ""


@contextmanager
def untouched(case: ProgramCase) -> Iterator[None]:
    """Fail where what runs inside touches the instruments: modules, settings, the peak, other threads."""
    import simgpu

    noted, threads, before = [], threading.active_count(), _instruments()

    def settings() -> Any:
        now = simgpu.settings()
        return now.spec, now.host, now.costs, now.capacity_bytes

    set_before, begin_ms = settings(), simgpu.clock_ms()
    try:
        module = torch.get_device_module("sim")
        with mock.patch.object(module, "reset_peak_memory_stats", lambda *_: noted.append("the peak of memory")):
            yield
    finally:  # also before an error that a changed instrument caused
        after = _instruments()
        noted += [name for name in before if after.get(name) != before[name]]
        noted += [] if settings() == set_before and simgpu.clock_ms() >= begin_ms else ["the simulated GPU"]
        why = "a number that the program itself makes says nothing"
        case.fail_if(noted, f"changes what measures it: {noted[0] if noted else ''}", why)
    case.fail_if(threading.active_count() > threads, "works after the clock: it leaves a thread running")


def _instruments() -> dict[str, int]:
    """Return the functions of the modules that measure, and the methods of their classes, by name."""
    instruments = {}
    names = [name for name in sys.modules if name.startswith(("simgpu", "course_utils.counting"))]
    for name in (*names, "torch.sim", "time"):
        module = torch.get_device_module("sim") if name == "torch.sim" else sys.modules[name]
        for key, value in vars(module).items():
            if callable(value):
                instruments[f"{name}.{key}"] = id(value)
            if isinstance(value, type):
                instruments |= {f"{name}.{key}.{one}": id(its) for one, its in vars(value).items() if callable(its)}
    return instruments


def _texts(trial: Trial, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    text = data.tokens(torch.uint8)
    return text[:TRAINING_BYTES].clone(), text[TRAINING_BYTES:][:HELD_OUT_BYTES].clone()


def _windows(trial: Trial) -> Counter:
    size = trial.sizes.context
    return Counter(tuple(trial.text[start : start + size].tolist()) for start in trial.starts.flatten().tolist())


def _embedded(name: str, args: Any) -> torch.Tensor | None:
    return args[1] if name == "embedding" and args[0].shape[0] == 256 and args[1].dim() == 2 else None


def _strange_windows(trial: Trial, seen: Counter, case: ProgramCase) -> None:
    size, wanted = trial.sizes.context, _windows(trial)
    strange = [bytes(row) for row in seen if row not in wanted]
    own, other = (bytes(text.tolist()) for text in (trial.text, trial.held_out))
    why = "its loss there then says nothing"
    case.fail_if(any(row in other and row not in own for row in strange), "trains on the evaluation text", why)
    case.fail_if(
        all(len(row) < size for row in seen), f"fewer tokens: windows of {max(map(len, seen))} bytes, not {size}"
    )


def _files(trial: Trial, draw: torch.Generator) -> tuple[list[bytes], list[bytes]]:
    side, sizes = trial.sizes.context, trial.sizes
    seeds = torch.randint(2**31, (2,), generator=draw).tolist()
    counts = 4 * sizes.batch, 2 * sizes.windows
    return tuple(trial.naive.run("make_files", *one) for one in zip(counts, (side, side), seeds, strict=True))


def _grey(name: str, args: Any) -> torch.Tensor | None:
    """Return the pictures that enter the first convolution, a row of grey levels for each."""
    if name != "convolution" or args[0].shape[1] != 1:
        return None
    return ((args[0].float() + 0.5) * 255 / 16).round().int().flatten(1)


def _pictures(trial: Trial, files: list[bytes], codes: list[int]) -> Counter:
    images = [trial.naive.run("picture", files[code // 32], code % 32, CPU)[0] for code in codes]
    return Counter(tuple(row) for row in _grey("convolution", (torch.stack(images),)).tolist())


def _strange_pictures(trial: Trial, seen: Counter, case: ProgramCase) -> None:
    other = _pictures(trial, trial.held_out, list(range(32 * len(trial.held_out))))
    why = "its loss there then says nothing"
    case.fail_if(any(row in other for row in seen), "trains on the evaluation pictures", why)
    still = _pictures(trial, trial.text, [code // 32 * 32 for code in trial.starts.flatten().tolist()])
    why = "the variant says how each is flipped and moved"
    case.fail_if(all(row in still for row in seen), "leaves the pictures where they are", why)


GPT = Kind(
    "gpt",
    "capstone.py",
    SCORED,
    SMALL,
    "windows",
    "tokens",
    _same_gpt,
    _texts,
    lambda trial, text: len(text) - trial.sizes.context - 1,
    _embedded,
    _windows,
    _strange_windows,
)
IMAGES = Kind(
    "images",
    "images.py",
    Sizes(width=16, layers=4, context=32, kind="images"),
    Sizes(width=8, layers=4, context=8, batch=4, warm_up=1, steps=3, windows=5, kind="images"),
    "pictures",
    "pictures",
    _same_net,
    _files,
    lambda trial, files: 32 * len(files),
    _grey,
    lambda trial: _pictures(trial, trial.text, trial.starts.flatten().tolist()),
    _strange_pictures,
)
KINDS = {kind.name: kind for kind in (GPT, IMAGES)}
