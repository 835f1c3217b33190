"""Sandbox for foreign code: whatever it does, this process stays usable."""

import asyncio
import builtins
import contextlib
import io
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import is_
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gpu_course import settings
from gpu_course.checks import limits

KEPT_CHARACTERS = 2_000
SEED = "the random seed"
BEHAVES = "code after it would behave differently; leave it as it was"
RANDOM = "the random state", "the random state of Python", "the random state of NumPy"


@dataclass
class Outcome:
    """What one call did: its value or its error, what it printed, and what it left changed."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False
    busy: str = ""  # instead, where the machine had too little time for it: in words
    printed: str = ""
    changed: list[str] = field(default_factory=list)


def call(fn: Callable, args: tuple, kwargs: dict, *, limit_s: float, device: torch.device, draws: bool) -> Outcome:
    """Call `fn` and return its Outcome; everything that `State` knows is put back afterwards.

    `draws` says whether `fn` may take random numbers. The call is ended when it has had `limit_s` seconds (`limits`
    says how).
    A Ctrl-C of the user is passed on; a KeyboardInterrupt that `fn` raises itself is an error like any other.
    """
    outcome, output = Outcome(), _Bounded()
    state = State.capture(device)
    streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = output
    limit, interrupt = limits.Limit(), threading.Event()
    try:
        with limits.user_interrupt() as interrupt, limits.time_limit(limit_s) as limit:
            try:
                outcome.value = fn(*args, **kwargs)
            finally:
                limit.over = True
    except limits.TimeUp:
        pass
    except BaseException as error:
        outcome.error = error
    finally:
        if sys.stdout is not output or sys.stderr is not output:
            outcome.changed.append("sys.stdout or sys.stderr")
        sys.stdout, sys.stderr = streams
    outcome.changed += state.restore(draws=draws)
    if interrupt.is_set():
        raise KeyboardInterrupt
    outcome.timed_out, outcome.printed = limit.fired > 0 and not limit.busy, output.text()
    if limit.busy:
        outcome.busy = f"in {limit.wall_s:.0f} s it had {limit.had_s:.1f} s of the {limit_s:g} s that it may take"
    if asyncio.iscoroutine(outcome.value):
        outcome.value.close()
    return outcome


class _Bounded(io.TextIOBase):
    """A text stream that keeps the first KEPT_CHARACTERS and counts the rest."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kept = self._total = 0

    def write(self, text: str) -> int:
        self._total += len(text)
        if self._kept < KEPT_CHARACTERS:
            part = text[: KEPT_CHARACTERS - self._kept]
            self._parts.append(part)
            self._kept += len(part)
        return len(text)

    def text(self) -> str:
        more = self._total - self._kept
        return "".join(self._parts) + (f"\n… and {more:,} more characters" if more else "")


_MODULES: tuple[ModuleType, ...] = (
    builtins, time, torch, torch.autograd, torch.linalg, torch.nn, torch.nn.functional, torch.nn.init, torch.optim,
)  # fmt: skip
_CLASSES = {
    value
    for module in (torch.nn, torch.optim)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, torch.nn.Module | torch.optim.Optimizer)
}
# Whose names code may not leave changed: functions and classes of PyTorch, and the methods of its tensors and modules
_PATCHABLE: tuple[Any, ...] = *_MODULES, torch.Tensor, *sorted(_CLASSES, key=lambda kind: kind.__qualname__)


# Variables that CUDA, OpenMP, PyTorch's profiler and compiler, and matplotlib set for themselves when they start.
_OF_LIBRARIES = (
    "CUDA_MODULE_LOADING", "DISABLE_CUPTI_", "KMP_", "MPLCONFIGDIR", "TEARDOWN_CUPTI", "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_", "TORCH_WARM_POOL", "TRITON_",
)  # fmt: skip


def _device_random(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return how to get and set the random state of an accelerator, None where there is none."""
    module: Any = None if device.type in ("cpu", "meta") else getattr(torch, device.type, None)
    if not (hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state")):
        return None
    if device.type == "mps":
        return module.get_rng_state, module.set_rng_state
    return (lambda: module.get_rng_state(device)), (lambda state: module.set_rng_state(state, device))


@dataclass(frozen=True)
class State:
    """What a call may not leave changed: settings, random states, the environment, the names of builtins and torch."""

    device: torch.device
    settings: dict[str, Any]
    randoms: tuple[Any, ...]
    device_random: Any
    seed: int
    names: tuple[dict[str, Any], ...]
    environment: dict[str, str]

    @classmethod
    def capture(cls, device: torch.device) -> "State":
        """Return the state of now."""
        access = _device_random(device)
        return cls(
            device,
            settings.read(),
            (torch.get_rng_state(), random.getstate(), np.random.get_state()),
            access[0]() if access else None,
            torch.initial_seed(),
            tuple(dict(vars(owner)) for owner in _PATCHABLE),
            dict(os.environ),
        )

    def restore(self, *, draws: bool = True) -> list[str]:
        """Put everything back and return the names of what had changed.

        With `draws`, torch's random numbers may have been drawn, but not seeded, nor Python's and NumPy's touched.
        """
        changed = self._restore_names() + self._restore_environment() + settings.put_back(self.settings)
        random_states = [SEED] * (torch.initial_seed() != self.seed) or [*self._drew(draws)]
        if random_states:
            self.restore_random()
        return changed + random_states

    def restore_random(self) -> None:
        """Put the random states of torch, Python, NumPy and the device back."""
        torch.set_rng_state(self.randoms[0])
        random.setstate(self.randoms[1])
        np.random.set_state(self.randoms[2])
        access = _device_random(self.device)
        if access and self.device_random is not None:
            access[1](self.device_random)

    def _drew(self, draws: bool) -> Iterator[str]:
        """Yield the random states that are no longer those of before; with `draws`, but for torch's."""
        numpy_state: Any = np.random.get_state()
        before = None if draws else self.device_random
        access = None if before is None else _device_random(self.device)
        same = draws or torch.equal(torch.get_rng_state(), self.randoms[0])
        if not same or (access and before is not None and not torch.equal(access[0](), before)):
            yield RANDOM[0]
        if random.getstate() != self.randoms[1]:
            yield RANDOM[1]
        if numpy_state[2] != self.randoms[2][2] or bool((numpy_state[1] != self.randoms[2][1]).any()):
            yield RANDOM[2]

    def _restore_names(self) -> list[str]:
        changed = []
        for owner, before in zip(_PATCHABLE, self.names, strict=True):
            now = vars(owner)
            if now.keys() == before.keys() and all(map(is_, now.values(), before.values())):
                continue
            now = dict(now)  # which changes below
            for name in before | now:
                new, value = now.get(name, _GONE), before.get(name, _GONE)
                if new is value or _of_torch(name, new, added=value is _GONE):
                    continue
                delattr(owner, name) if value is _GONE else setattr(owner, name, value)
                changed.append(f"{owner.__name__}.{name}")
        return changed

    def _restore_environment(self) -> list[str]:
        """Put the variables of the environment back; those that libraries add when they start may stay."""
        changed = []
        for name in sorted(os.environ.keys() | self.environment.keys()):
            before = self.environment.get(name)
            if os.environ.get(name) == before or (before is None and name.startswith(_OF_LIBRARIES)):
                continue
            changed.append(f"os.environ[{name!r}]")
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
        return changed


_GONE = object()


def _of_torch(name: str, value: Any, *, added: bool) -> bool:
    """Return whether PyTorch or Python itself may have put `value` under this name, as they do at first need.

    PyTorch replaces some of its functions when it first uses its compiler, and a module appears where it is imported.
    """
    if str(getattr(value, "__module__", None)).startswith("torch"):
        return True
    hidden = name.startswith("_") and not callable(value)
    return added and (hidden or isinstance(value, ModuleType))


@contextlib.contextmanager
def isolated(device: torch.device, seed: int) -> Iterator[None]:
    """Run the block with usual settings and seeded random numbers; the caller's come back afterwards."""
    state = State.capture(device)
    try:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        state.restore()
        state.restore_random()
