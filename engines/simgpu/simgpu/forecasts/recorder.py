"""Recorder of a program on fake tensors: a log that any GPU can replay."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from simgpu.device.operator_log import OperatorLog
from simgpu.forecasts.whatif import Optimizer
from simgpu.ground import places


class Recorder(OperatorLog):
    """Logs the operators of a program while it is entered, and whose step they are; streams and messages add theirs."""

    def __init__(self, capability: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.optimizer = Optimizer()  # the one that this thread stepped last
        self.capability = capability  # compute capability whose kernels are chosen; None: 8.0 or newer
        self.by_capability = False  # whether an older GPU would choose another kernel than a newer one

    @contextmanager
    def optimizers(self) -> Generator[None]:
        """Record the steps of this thread's optimizers, and the optimizers, in the block."""
        thread = threading.get_ident()

        def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == thread:
                self.log.stepping, self.log.closure = True, places.has_closure(args, kwargs)

        def after(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            if threading.get_ident() == thread:
                self.log.stepping, self.optimizer = False, Optimizer.of(optimizer)

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            self.log.stepping = False
            for handle in handles:
                handle.remove()
