"""The exercise “A model over two devices”."""

import copy

import torch
from torch import nn

from gpu_course.checks import Case, difference, edges, exercise
from gpu_course.common.probes import detached, elsewhere, left_changed, state_of


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "A module knows its device by its parameters: next(first.parameters()).device.",
        "Two moves: the input to the first half, the activations to the second half.",
        "Before each of the two calls move x with .to to the device of that half, found as in the first hint.",
    ),
)
def forward_on_two(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return `second(first(x))`; each half stays and computes on its own device."""
    x = first(x.to(next(first.parameters()).device))
    return second(x.to(next(second.parameters()).device))  # the activations cross once; gradients will cross back


forward_on_two.exempt(
    "the halves take what they take: which numbers travel plays no part",
    "scalar huge tiny not_finite half bfloat16 bool complex default_type",
)
forward_on_two.exempt("two halves share nothing, and need no optimizer", "shared two_groups")
forward_on_two.exempt("of a half only its place is asked", "scalar_parameter old_gradients")
forward_on_two.exempt("it is handed modules, which cannot be kept for later", "second_call unchanged")


@forward_on_two.checks
def _(case: Case) -> None:
    here, there, cpu = case.device, elsewhere(case.device), torch.device("cpu")
    long = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4))
    bare, inner = nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(3, 4), nn.Tanh())  # no first[0].weight
    words = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(12, 4))
    for a, b, start, first, x in (
        (here, there, cpu, long, torch.randn(5, 3)),
        (there, here, there, bare, torch.randn(5, 3)),
        (here, here, here, inner, torch.randn(5, 3)),
        (here, cpu, here, copy.deepcopy(long), torch.randn(5, 3)),
        (there, here, cpu, words, torch.randint(9, (5, 2))),
        (here, there, cpu, edges.frozen(long, "0.weight"), torch.randn(1, 3)),
        (here, there, here, edges.frozen(long), edges.sliced(torch.randn(2, 3))),
        (here, there, cpu, nn.Sequential(nn.Linear(3, 4), nn.Dropout()).eval(), edges.permuted(torch.randn(2, 3))),
        (here, there, cpu, copy.deepcopy(bare), torch.ones(0, 3)),
    ):
        halves = first.to(a), nn.Sequential(nn.Tanh(), nn.Linear(4, 8), nn.Linear(8, 2)).to(b)
        halves[1].train(halves[0].training)
        _two_halves(case, halves, (a, b), edges.on(x, start))
    exact = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    here, there = (edges.supporting(place, exact) for place in (here, there))
    _two_halves(case, (exact[0].to(here), exact[1].to(there)), (here, there), torch.randn(2, 3).double())


def _two_halves(
    case: Case, halves: tuple[nn.Module, nn.Module], places: tuple[torch.device, torch.device], x: torch.Tensor
) -> None:
    a, b = places
    with torch.no_grad():
        expected = halves[1](halves[0](x.to(a)).to(b))
    x.requires_grad_(x.is_floating_point())
    before, states, arrived = copy.deepcopy(halves), [state_of(half) for half in halves], [[], []]
    hooks = [
        half.register_forward_pre_hook(lambda _, given, seen=seen: seen.extend(one.device for one in given))
        for half, seen in zip(halves, arrived, strict=True)
    ]
    error = case.error_of(*copy.deepcopy(halves), x.detach())
    for name, seen, own in zip(("first", "second"), arrived, places, strict=True):
        wrong = next((device for device in seen[-1:] if device != own), None)
        why = f"its parameters are on {own}, and an operation runs on one device"
        case.fail_if(
            error and "same device" in str(error) and wrong, f"gives the {name} half its input on {wrong}", why
        )
    arrived[0].clear(), arrived[1].clear()
    got = case.call(*halves, x, modifies="nothing")
    for hook in hooks:
        hook.remove()
    why = "it may not fit on the other device: move the activations"
    case.fail_if(
        [{p.device for p in half.parameters()} for half in halves] != [{a}, {b}], "moves a half of the model", why
    )
    early = any(one.direction == "d2h" and one.non_blocking for one in case.counts.copies)
    why = "with non_blocking=True the CPU may compute with values that have not arrived"
    case.fail_if(early, "copies to the CPU without waiting", why)
    why = "second(first(x)) on the device of `second`: the loss is computed there"
    case.equal(detached(got), expected, atol=1e-5, why=why)
    why = "the caller does, on its loss: these gradients would be added"
    case.fail_if(any(p.grad is not None for half in halves for p in half.parameters()), "calls backward itself", why)
    used, needed = case.counts.copies, (x.device != a) + (a != b)
    case.fail_if(
        len(used) > needed and case.counts.copies_d2h and "cpu" not in (a.type, b.type),
        "takes the way through the host",
        "a copy between devices needs no stop there: x.to(other)",
    )
    case.budget("copies", len(used), needed, "one to the first half and one between the halves; each costs time")
    case.fail_if(
        max(map(len, arrived)) > 1,  # none: it called forward itself, which no hook sees
        f"calls the halves {len(arrived[0])} and {len(arrived[1])} times",
        "each call is the work of a half",
    )
    case.fail_if(difference(halves, before), "changes a half of the model", "it is only to be used")
    changed = next(filter(None, map(left_changed, states, map(state_of, halves))), "")
    case.fail_if(changed, f"changes a half of the model: {changed}", "it is only to be used")
    case.backward(got)
    for half, name in zip(halves, ("first", "second"), strict=True):
        learns = all(one.grad is not None or not one.requires_grad for one in half.parameters())
        case.fail_if(not learns, "cuts the gradient", f"the {name} half would never learn")
    case.fail_if(x.requires_grad and x.grad is None, "cuts the gradient", "what made `x` would never learn")
