"""Does the simulated GPU work in this process? Enabled, and proven by one small layer."""

from __future__ import annotations

import torch

from course_utils.simulator import control

__all__ = ["ready"]


def ready() -> tuple[torch.device | None, str]:
    """Enable the simulated GPU and return it, or None and the reason why it cannot be or does not work."""
    try:
        reason = control.unavailable()
        if reason is not None:
            return None, reason
        if not control.enabled():
            control.enable()
        device = torch.device("sim", 0)
        reason = _self_test(device)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return (device, "") if reason is None else (None, reason)


def _self_test(device: torch.device) -> str | None:
    """Train one small layer on `device` and on the CPU; return what is wrong, or None."""
    weight = torch.linspace(-1, 1, 12).view(4, 3)
    gradients = []
    for place in (device, torch.device("cpu")):
        leaf = weight.to(place).requires_grad_()
        loss = (torch.ones(2, 4, device=place) @ leaf).relu().square().mean()
        loss.backward()
        if leaf.grad.device != place:
            return f"its self-test failed: a gradient is on {leaf.grad.device} instead of {place}"
        gradients.append(leaf.grad.cpu())
    return None if torch.equal(*gradients) else "its self-test failed: a gradient differs from that of the CPU"
