"""Are gradients clipped when it helps: after the backward pass, not multiplied by a scale, before the step?"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.ground.replacements import Replacements
from simgpu.reports.calls import watched


class ClipWatch:
    """Watches `clip_grad_norm_`, `clip_grad_value_` and scalers; `note(code)` notes a habit of the line here."""

    def __init__(self, put: Replacements, note: Callable[[str], None]) -> None:
        self._note = note
        self._used = WeakIdKeyDictionary()  # one of each optimizer: the gradient that its last step used, its version
        self._scaled = False  # whether gradients are those of a loss that a scaler has multiplied
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            put.put(nn.utils, **{name: self._clipping(getattr(nn.utils, name))})
        scaler = torch.amp.GradScaler
        put.put(scaler, scale=watched(scaler.scale, self._on_scale))
        for name in ("unscale_", "get_scale", "step"):
            put.put(scaler, **{name: watched(getattr(scaler, name), self._on_unscale)})

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended: its gradients are used, until a backward pass adds to them."""
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        parameter = next((one for one in parameters if one.grad is not None), None)
        if parameter is not None:
            self._used[parameter] = TensorWeakRef(parameter.grad), parameter.grad._version

    def _on_scale(self, scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        self._scaled = scaler.is_enabled()

    def _on_unscale(self, *args: Any, **kwargs: Any) -> None:
        self._scaled = False

    def _clipping(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        told = watched(plain, self._look)

        def clips(parameters: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            return told([parameters] if isinstance(parameters, torch.Tensor) else list(parameters), *args, **kwargs)

        # what PyTorch's compiler looks into instead
        clips._torchdynamo_inline = plain  # pyright: ignore[reportFunctionMemberAccess]
        return clips

    def _look(self, parameters: list[torch.Tensor], limit: float = 0.0, *args: Any, **kwargs: Any) -> None:
        if math.isinf(limit):  # it only measures
            return
        samples = [one for one in parameters if one in self._used]
        if samples and (all(self._is_used(one) for one in samples) or all(one.grad is None for one in parameters)):
            self._note("gradients-clipped-too-late")
        elif self._scaled:
            self._note("gradients-clipped-while-scaled")

    def _is_used(self, parameter: torch.Tensor) -> bool:
        """Return whether a step has used the gradient that a parameter has."""
        gradient, version = self._used[parameter]
        return parameter.grad is not None and gradient() is parameter.grad and parameter.grad._version == version
