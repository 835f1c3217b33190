"""How much slower is the simulated GPU than the CPU that computes its values?

    python -m benchmarks.simulator

Prints the overhead of a small addition, also on CUDA's face, and of a Transformer training step of 10 M parameters on
1,024 tokens; and how much of this processor's time the classes of the default host add to one that only launches. CPU
and simulated GPU take turns in short rounds, and the shortest are compared: other work on the machine only adds.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

import simgpu

ADDITION_LIMIT, FACE_LIMIT, TRANSFORMER_LIMIT, HOST_LIMIT = 10.0, 14.0, 1.2, 1.1


def addition(simulated: str = "sim", rounds: int = 300, repeats: int = 100) -> float:
    """Return how many times longer `x + x` of four numbers takes on a simulated device than on the CPU."""
    found = {"cpu": [], simulated: []}
    for _ in range(rounds):
        for device, times in found.items():
            x = torch.ones(4, device=device)
            start = time.perf_counter()
            for _ in range(repeats):
                x + x
            times.append(time.perf_counter() - start)
    return min(found[simulated]) / min(found["cpu"])


def transformer(rounds: int = 10) -> float:
    """Return how many times longer a training step of a Transformer takes on `sim` than on the CPU."""
    steps = {device: _training_step(device) for device in ("cpu", "sim")}
    found = {device: [] for device in steps}
    for _ in range(rounds):
        for device, step in steps.items():
            start = time.perf_counter()
            step()
            found[device].append(time.perf_counter() - start)
    return min(found["sim"]) / min(found["cpu"])


def priced_host(rounds: int = 200) -> dict[str, float]:
    """Return how many times longer an addition, a view and a training step take this processor on the default host
    than on one that only launches."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))]
    model, x = nn.Sequential(*layers).to("sim"), torch.ones(8, 8, device="sim")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    ratios = {}
    for name, work, repeats in (("addition", lambda: x + x, 100), ("view", x.t, 100), ("training step", step, 2)):
        found: dict[str, list[float]] = {"launch call": [], simgpu.hosts.DEFAULT.name: []}
        for _ in range(rounds):
            for host, times in found.items():
                simgpu.configure(host=host)
                start = time.thread_time()
                for _ in range(repeats):
                    work()
                times.append(time.thread_time() - start)
        launches, default = map(min, found.values())
        ratios[name] = default / launches
    return ratios


def _training_step(device: str):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(1000, 384), encoder, nn.Linear(384, 1000)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 1000, (8, 128)).to(device)
    assert 9e6 < sum(p.numel() for p in model.parameters()) < 11e6

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main() -> int:
    """Print the figures and return 0 if they are within their limits."""
    simgpu.enable(capacity="4 GiB")
    small, large, hosts = addition(), transformer(), priced_host()
    with simgpu.cuda():
        face = addition("cuda")
    print(f"small addition: {small:.1f} times the CPU's time (at most {ADDITION_LIMIT:.0f})")
    print(f"the same on CUDA's face: {face:.1f} times the CPU's time (at most {FACE_LIMIT:.0f})")
    print(f"Transformer training step: {large:.2f} times the CPU's time (at most {TRANSFORMER_LIMIT})")
    for name, ratio in hosts.items():
        print(f"pricing the host, {name}: {ratio:.2f} times the time of one that only launches (at most {HOST_LIMIT})")
    return int(
        max(hosts.values()) > HOST_LIMIT or small > ADDITION_LIMIT or face > FACE_LIMIT or large > TRANSFORMER_LIMIT
    )


if __name__ == "__main__":
    raise SystemExit(main())
