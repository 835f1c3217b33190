"""CPU time of PyTorch's operators on named hosts, each with its source, and on hosts of one's own.

A host is described by one number: the CPU time of a library call (a product, a convolution, a norm, attention) in a
forward pass. Ratios give the cost of everything else (`CLASSES`). The launch itself is the smallest part: Python,
PyTorch's dispatcher, autograd and allocations are the rest. The same operator takes several times as long in a model as
by itself: there other code and other data lie between two calls, and caches are cold. Operator by operator, hosts
differ by two to four times, most of which cancels over a step. Left out: the limit of about 1,000 launches by which a
host can be ahead of its GPU.
"""

import functools
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import torch

from simgpu.ground import arguments
from simgpu.machine.profiles import Profile

__all__ = ["ALL", "CLASSES", "DEFAULT", "PARTS", "Host", "get"]

CLASSES = (
    "library",  # a product, convolution, norm or attention, in a forward pass; a message; an operator of others
    "light",  # any other operator that starts a kernel: element by element, reductions, indexing
    "cast",  # a copy within the memory of a GPU, such as autocast's
    "library backward",
    "light backward",
    "bare library",  # the same outside any nn.Module: see `ground.surroundings`
    "bare light",
    "optimizer",  # an operator in the step of an optimizer
    "fused",  # a fused operator of an optimizer, one for each of its groups
    "tensor of a list",  # each tensor of a foreach or fused operator, beside the operator itself
    "copy",  # over the bus
    "read",  # of a single number, such as `.item()`
    "launch",  # of a graph, or of a kernel without an operator around it
    "view",  # what changes only shape and strides
    "node",  # of autograd's backward pass, around its operators
    "accumulate",  # a gradient that is added to a parameter's
    "backward pass",  # the call of backward(), until its first node runs
    "graph",  # entering a compiled graph: Dynamo's lookup, the wrapper of its code
    "guard",  # each input of a compiled graph, parameters among them: what is checked of it
    "recorded graph",  # the node of autograd around a compiled graph, and entering its backward pass
    "graph tree",  # entering a compiled graph that is captured as a CUDA graph, besides
    "graph node",  # each kernel of a CUDA graph when it is launched
)
PARTS = {  # in which report and table tell of them
    "operators": (
        "library", "light", "cast", "library backward", "light backward", "bare library", "bare light", "copy", "read",
        "launch",
    ),
    "optimizer": ("optimizer", "fused", "tensor of a list"),
    "autograd": ("node", "accumulate", "backward pass"),
    "views": ("view",),
    "compiled graphs": ("graph", "guard", "recorded graph", "graph tree", "graph node"),
}  # fmt: skip
_RENAMED = {"launch call": "kernel launch"}  # what programs may still ask for
_SLOWEST_US = 5_000  # no host is as slow: those of traces take 35 to 230
_NUMBER_BYTES = 16  # of a complex128
_FEW = 100  # operators of a trace: a single step of a small model has as many
_LEAST_SHARE, _MOST_SHARE = 0.1, 1.5  # of a step under the profiler: what it may take without; 0.65 to 0.9 are usual
Steps: TypeAlias = "Any | Callable[[Host], float]"
KINDS = ("library", "light", "cast", "launch", "fused")  # of operators, whose class is another in another phase
_BARE = {"library": "bare library", "light": "bare light", "cast": "bare light"}
_BACKWARD = {"library": "library backward", "light": "light backward", "cast": "light backward"}
_IN_STEP = {"light": "optimizer", "cast": "optimizer"}


def class_of(kind: str, phase: str, bare: bool = False) -> str:
    """Return the class of an operator of a kind of `KINDS` in a phase of a training step."""
    if bare:
        return _BARE.get(kind, kind)
    if phase == "backward":
        return _BACKWARD.get(kind, kind)
    return _IN_STEP.get(kind, kind) if phase == "optimizer step" else kind


def kind_of_copy(direction: str, nbytes: int, pinned: bool) -> str:
    """Return the class of a copy over the bus: CUDA reads a number by way of pinned memory."""
    return "read" if pinned and direction == "D2H" and nbytes <= _NUMBER_BYTES else "copy"


@functools.cache
def _file() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _ratios(name: str) -> Mapping[str, float]:
    """Return a table of ratios of the file. Raises ValueError where it lacks a class, or has another."""
    table = _file()["ratios"][name]
    if set(table) != set(CLASSES):
        raise ValueError(f"ratios.{name} differs from the classes by {sorted(set(table) ^ set(CLASSES))}")
    return MappingProxyType(table)


@dataclass(frozen=True)
class Host:
    """A host: what an operator of a library takes it in a forward pass, in µs, and its `ratios` for all else.

    `name` is its row in hosts.toml, `source` an address or how the number was got. Raises TypeError or ValueError that
    names the argument.
    """

    operator_us: float
    name: str = "given"
    source: str = "given by the program"
    ratios: Mapping[str, float] = field(default_factory=lambda: dict(_ratios("measured")), hash=False, repr=False)

    def __post_init__(self) -> None:
        if arguments.number("operator_us", self.operator_us) < 0:
            raise ValueError(f"operator_us must be a number of microseconds from 0, not {self.operator_us!r}")
        unknown = [name for name in self.ratios if name not in CLASSES]
        if unknown:
            raise ValueError(f"ratios has {unknown[0]!r}, it may have: {', '.join(CLASSES)}")
        object.__setattr__(self, "ratios", {name: float(self.ratios.get(name, 0.0)) for name in CLASSES})

    @classmethod
    def of_launches(cls, launch_us: float) -> "Host":
        """Return a host that takes so many µs for each operation it launches, and nothing for all else."""
        return cls(launch_us, "launches", ratios=_ratios("launches"))

    @classmethod
    def from_step(cls, seconds: float, program: "Steps", gpu: str = "T4") -> "Host":
        """Return the host on which one step of a program takes so many seconds, measured without a profiler.

            ahead = simgpu.forecast(make_model, make_batch, torch.optim.AdamW)
            host = simgpu.Host.from_step(0.031, ahead, "RTX 4090")

        `program` is a `simgpu.forecast` of the step, which ran on a `gpu`; or a function of a host that returns the
        seconds of its simulated step. Measure a small batch: the time of a step that waits for its GPU says nothing of
        the host. Raises ValueError where the GPU alone takes as long, and where no host would.
        """
        wanted = arguments.positive("seconds", seconds)
        on = getattr(program, "on", None)
        step = program if on is None else lambda host: on(gpu, host=host).total_s
        if not callable(step) or isinstance(program, torch.nn.Module):
            raise TypeError(f"program must be a simgpu.forecast or a function of a host, not {program!r}")
        takes = cast("Callable[[Host], float]", step)
        least = takes(cls(0.0))
        if wanted <= 1.05 * least:
            raise ValueError(
                f"seconds is {seconds!r}, and on any host the GPU takes {least:.3g} s of it: measure a smaller batch"
            )
        slowest = takes(cls(_SLOWEST_US))
        if wanted > slowest:
            raise ValueError(
                f"seconds is {seconds!r}, and on the slowest host the step takes {slowest:.3g} s: it must be seconds, "
                "of one step of this program"
            )
        low, high = 0.0, float(_SLOWEST_US)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if takes(cls(middle)) < wanted else (low, middle)
        return cls(float(f"{high:.4g}"), "calibrated", f"by a step that took {seconds:g} s")

    @classmethod
    def from_trace(cls, path: str | Path, *, step_s: float | None = None) -> "Host":
        """Return the host that wrote a trace of `torch.profiler` or Kineto, `.json` or `.json.gz`.

        The profiler makes steps 1.15 to 1.5 times longer. Where `step_s` is given, the seconds of such a step without
        it, the host is as much faster. Warns where the file is of an odd build, or has few operators. Raises ValueError
        for a file that is no trace of operators on a GPU, and for `step_s` where it marks no steps, or such that take
        another time.
        """
        profile = Profile(path)
        us, said = profile.speed_us(_ratios("measured")), "under the profiler"
        if step_s is not None:
            us, said = us * _without_profiler(profile, step_s), "scaled to a step without it"
        if profile.odd:
            warnings.warn(f"{Path(path).name} is of {profile.odd}; expect no other host to be so slow", stacklevel=2)
            said = f"{said}; {profile.odd}"
        if profile.operators < _FEW:
            few = f"{profile.operators} operators of a GPU, which are few to know a host by"
            warnings.warn(f"{Path(path).name} has {few}: record some steps", stacklevel=2)
        return cls(float(f"{us:.4g}"), "traced", f"by {Path(path).name}, {said}")

    def price_ns(self, of: str) -> int:
        """Return the time of one of a class of `CLASSES`, in ns."""
        return round(self.operator_us * 1000 * self.ratios[of])

    @property
    def launch_ns(self) -> int:
        """Launch time of a graph, or of a kernel without an operator around it, in ns."""
        return self.price_ns("launch")

    @property
    def only_launches(self) -> bool:
        """Whether every launch takes the same time, and everything else none."""
        return self.ratios == dict(_ratios("launches"))

    def __str__(self) -> str:
        per = "a launch" if self.only_launches else "an operator of a library"
        return f"{self.name}: {self.operator_us:g} µs for {per} ({self.source})"


def _without_profiler(profile: Profile, step_s: float) -> float:
    """Return which share of a traced step it takes without the profiler."""
    share = arguments.positive("step_s", step_s) * 1e6 / profile.step_us
    if not profile.steps:
        raise ValueError("step_s cannot be used, the trace marks no steps: call profiler.step() after each, or omit it")
    if not _LEAST_SHARE <= share <= _MOST_SHARE:
        took = f"under the profiler a step took {profile.step_us / 1e6:.3g} s"
        raise ValueError(f"step_s is {step_s!r}, and {took}: it must be the seconds of the same step without it")
    return share


def get(given: "str | Host | Mapping[str, Any]", argument: str = "host") -> Host:
    """Return the host that is meant: a row by its name, in upper or lower case; "45", of so many µs; a trace's by the
    name of its file. A `Host` is returned as it is, also as `dataclasses.asdict` has it.

    Raises TypeError for what is none of these, and ValueError that lists the names where none fits; `argument` is what
    the errors call it.
    """
    if isinstance(given, Host):
        return given
    if isinstance(given, Mapping):
        return Host(**given)
    if not isinstance(given, str):
        raise TypeError(f"{argument} must be a name or a simgpu.Host, such as simgpu.Host(25), not {given!r}")
    name = given.strip().lower()
    for host in ALL:
        if host.name == _RENAMED.get(name, name):
            return host
    if given.endswith((".json", ".json.gz")):
        return Host.from_trace(given)
    try:
        return Host(float(given))
    except ValueError:
        names = ", ".join(host.name for host in ALL)
        said = "which is not in the table; it may be a number of microseconds, a trace, or one of"
        raise ValueError(f"{argument} is {given!r}, {said}: {names}") from None


ALL: tuple[Host, ...] = tuple(Host(**row | {"ratios": _ratios(row["ratios"])}) for row in _file()["host"])
DEFAULT = ALL[0]
