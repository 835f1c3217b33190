"""Cases that look alike: losses that stay flat, ranks that hang, compiled steps.

case = draw()  # shows what a person sees, and what can be looked at
case.look("gradient")  # one instrument
case.because("the learning rate is 0")  # right, or what speaks against it
"""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gpu_course.lesson11.silent import Features
from gpu_course.lesson11.slow import SLOW, slow
from gpu_course.lesson11.unknown import Unknown
from ranklaunch import RankError, launch

__all__ = ["FLAT", "HANGS", "Unknown", "draw", "flat", "hang", "swing", "three_flat", "three_hangs"]

LACKS, CLEARED, ZERO = FLAT = (
    "the optimizer lacks the head", "gradients are cleared before the step", "the learning rate is 0",
)  # fmt: skip
FEWER, OTHERS, WAITS = HANGS = (
    "one rank has fewer batches", "the ranks call different collectives", "one rank waits for its data",
)  # fmt: skip
_STEPS, _HANGS_AFTER_S = 6, 1.0


def draw(seed: int | None = None) -> Unknown:
    """Return a case, another one each time, or for a `seed` always the same one."""
    dice = random.Random(seed)
    cause = dice.choice(FLAT + HANGS + SLOW)
    kind = flat if cause in FLAT else hang if cause in HANGS else slow
    return kind(cause, seed=dice.randrange(1000))


def three_flat() -> dict[str, Unknown]:
    """Return a case for each cause of `FLAT`, in another order, by the letters A, B and C."""
    return {letter: flat(cause, seed=8) for letter, cause in zip("ABC", (ZERO, LACKS, CLEARED), strict=True)}


def three_hangs() -> dict[str, Unknown]:
    """Return a case for each cause of `HANGS`, in another order, by the letters A, B and C; all hang at once."""
    with ThreadPoolExecutor(len(HANGS)) as pool:
        cases = pool.map(partial(hang, seed=1), (WAITS, OTHERS, FEWER))
        return dict(zip("ABC", cases, strict=True))


def flat(cause: str, seed: int = 0) -> Unknown:
    """Return a training on one batch whose loss stays flat, for the `cause`, one of `FLAT`.

    A trained model gets a new head, which alone is to be trained.
    """
    torch.manual_seed(seed)
    model, head = Features().requires_grad_(False), nn.Linear(16, 2)
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    rate = 0.0 if cause == ZERO else random.Random(seed).randrange(2, 7) / 10
    trained = model.head if cause == LACKS else head
    optimizer = torch.optim.SGD(trained.requires_grad_().parameters(), lr=rate)
    model.head = head
    before, losses = head.weight.detach().clone(), []
    for _ in range(_STEPS):
        head.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if cause == CLEARED:
            optimizer.zero_grad()
        gradient = "none" if head.weight.grad is None else f"norm {head.weight.grad.norm():.3f}"
        optimizer.step()
        losses.append(f"{loss.item():.4f}")
    held = "no" if cause == LACKS else "yes"
    seen = {
        "change": f"the weights of the head have changed by at most {(head.weight - before).abs().max().item()}",
        "gradient": f"the gradient of the head when step() is called: {gradient}",
        "optimizer": f"does the optimizer hold the head? {held}",
        "rate": f"the learning rate is {rate}",
    }
    against = {LACKS: seen["optimizer"], CLEARED: seen["gradient"], ZERO: seen["rate"]}
    return Unknown(f"The loss of {_STEPS} steps on one batch: {', '.join(losses)}", FLAT, seen, against, cause)


def hang(cause: str, seed: int = 0) -> Unknown:
    """Return a training on two ranks that hangs, for the `cause`, one of `HANGS`."""
    dice = random.Random(seed)
    faulty, batches = dice.randrange(2), [dice.randrange(3, 7)] * 2
    batches[faulty] -= cause == FEWER
    try:
        launch(_train, cause, faulty, batches, nprocs=2, devices=["cpu", "cpu"], timeout_s=_HANGS_AFTER_S)
    except RankError as error:
        report, states = error.message, error.states
    seen = {"report": report, "batches": f"rank 0 has {batches[0]} batches, rank 1 has {batches[1]}"}
    where = "; ".join(f"rank {rank} {states[rank].partition(' (')[0]}" for rank in (0, 1))
    against = {FEWER: seen["batches"], OTHERS: where, WAITS: where}
    return Unknown("Two ranks train. Nothing is printed, and nothing happens.", HANGS, seen, against, cause)


def _train(cause: str, faulty: int, batches: list[int]) -> None:
    """Train on a rank; in a real program a thread of the loader fills the queue."""
    is_faulty, loaded = dist.get_rank() == faulty, Queue()
    n_batches = batches[dist.get_rank()]
    for _ in range(n_batches - (cause == WAITS and is_faulty)):
        loaded.put(torch.ones(2))
    for _ in range(n_batches):
        gradient = loaded.get()
        if cause == OTHERS and is_faulty:
            dist.broadcast(gradient, src=0)
        dist.all_reduce(gradient)


def swing(device: torch.device, clear: bool = False) -> tuple[list[float], list[float]]:
    """Return the loss and the norm of the gradient in twenty steps of a model that learns to add up four numbers.

    With `clear`, gradients are cleared before each step.
    """
    torch.manual_seed(0)
    x = torch.randn(64, 4, device=device)
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    for _ in range(20):
        if clear:
            optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 3))
        norms.append(round(model.weight.grad.norm().item(), 2))
    return losses, norms
