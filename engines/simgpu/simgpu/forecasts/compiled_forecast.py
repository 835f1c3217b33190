"""Forecast of the compiled step: compiled kernels in the place of its operators."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from simgpu.clock.clock import Captured
from simgpu.clock.events import Kernel
from simgpu.device.compiled import Compiled, GraphPass, compiled
from simgpu.device.graph_passes import before_backward
from simgpu.forecasts.recorder import Recorder
from simgpu.ground import inductor
from simgpu.ground.composite import without_modes
from simgpu.ground.torch_internals import TORCH

MODES = (None, "default", "reduce-overhead")


class Compiler:
    """Lets calls of a model note in a log the kernels of its compiled graphs, and of its operators only those that stay
    uncompiled.

    `found` is what PyTorch's compiler made of the calls, one after the other.
    """

    def __init__(self, recorder: Recorder, mode: str | None) -> None:
        self._recorder, self._captured = recorder, mode == "reduce-overhead"
        self.found: list[Compiled] = []
        self._known: dict[Any, Compiled] = {}

    def compile(self, model: nn.Module) -> None:
        """Treat `model` as compiled from now on."""
        run = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            found = self._find(run, args, kwargs)
            if found.error or not found.graphs:
                return run(*args, **kwargs)
            self._note(found.forward)
            with self._recorder.charged():
                result = run(*args, **kwargs)
            if found.backward:
                before_backward(result, (args, kwargs), lambda: self._note(found.backward), self._recorder)
            return result

        model.forward = forward

    def _find(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled:
        leaves = tree_leaves((args, kwargs))
        likes = [(tuple(one.shape), one.dtype, one.requires_grad) for one in leaves if isinstance(one, torch.Tensor)]
        key = torch.is_grad_enabled(), str(likes)
        if key not in self._known:
            with _without_modes(), inductor.afresh():
                self._known[key] = compiled(run, *args, **kwargs)
        self.found.append(self._known[key])
        return self._known[key]

    def _note(self, order: Sequence[GraphPass | Kernel]) -> None:
        log, stream = self._recorder.log, self._recorder.stream
        for one in order:
            for kind, times in one.calls if isinstance(one, Kernel) else one.calls(self._captured):
                log.called(kind, times)
            if isinstance(one, Kernel):
                log.kernel(stream, one.name, one.cost)
            elif self._captured:
                log.graph(stream, [Captured(0, kernel.name, "compute", 0, kernel.cost, "") for kernel in one.kernels])
            else:
                for kernel in one.kernels:
                    log.kernel(stream, kernel.name, kernel.cost)


@contextmanager
def _without_modes() -> Generator[None]:
    """Inside, nothing is recorded, and PyTorch's compiler sees neither a mode nor a hook of ours around the program."""
    hooks = TORCH.nn.modules.module._global_forward_pre_hooks
    others = {key: hook for key, hook in hooks.items() if not hook.__module__.startswith("simgpu.")}
    with mock.patch.dict(hooks, others, clear=True), without_modes():
        yield
