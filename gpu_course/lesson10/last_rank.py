"""The exercise “The last rank's line”."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edit, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.probes import named


@exercise(
    title="The last rank's line",
    minutes=10,
    difficulty=2,
    hints=(
        "Keep what F makes in a dictionary, by the number of its micro-batch: the input and the loss.",
        "The input must require a gradient. I asks for that gradient alone, and W still needs the graph afterwards: "
        "retain_graph=True.",
        "torch.autograd.grad(loss, x, …) returns a tuple and adds to no .grad. loss.backward(inputs=[…]) adds to the "
        ".grad of everything in the list; a frozen parameter must not be in it, and the list must not be empty. The "
        "loss of a micro-batch is a mean over a part of the batch only.",
    ),
)
def last_rank(
    line: str, stage: nn.Module, inputs: list[torch.Tensor], targets: list[torch.Tensor], loss_fn: Callable
) -> list[torch.Tensor]:
    """Do a line of F, I and W; return the inputs' gradients in the order of I."""
    held, sent = {}, []
    for action in line.split():
        kind, number = action[0], int(action[1:])
        if kind == "F":
            x = inputs[number].detach().requires_grad_()
            held[number] = (
                x,
                loss_fn(stage(x), targets[number]) / len(inputs),
            )  # so that the sum is the mean over the batch
        elif kind == "I":
            x, loss = held[number]
            sent += torch.autograd.grad(loss, x, retain_graph=True)  # W goes through the graph again
        else:
            loss = held.pop(number)[1]
            weights = [p for p in stage.parameters() if p.requires_grad]
            if weights:  # backward refuses an empty list
                loss.backward(inputs=weights)
    return sent


def _leaning(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a mean loss that is another one where its two arguments are swapped."""
    return F.mse_loss(prediction, target) + prediction.mean()


last_rank.exempt(
    RANKS,
    "scalar empty odd permuted sliced huge tiny not_finite zero tied formats default_type no_entries order unchanged",
)
last_rank.exempt("it works where the stage is", "cpu elsewhere")
last_rank.exempt(
    "a stage is called as it is, whatever its parameters",
    "evaluation shared old_gradients two_groups double_model scalar_parameter",
)
last_rank.exempt("it adds to the gradients of the stage that it is handed", "second_call")


@last_rank.checks
def _(case: Case) -> None:
    eleven = " ".join(f"F{at} I{at} W{at}" for at in range(11))
    lines = ("F0 I0 W0", "F0 I0 W0 F1 I1 W1", "F0 F1 F2 I1 I0 F3 W1 W0 I2 I3 W3 W2", eleven)
    for line, frozen in (*((line, False) for line in lines), (lines[1], True)):
        micro = line.count("F")
        torch.manual_seed(micro)
        stage = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Linear(2, 1)).to(case.device)
        (stage if frozen else stage[2]).requires_grad_(False)
        stage.__class__ = named(nn.Sequential, "stage with all parameters frozen" if frozen else "stage")
        x, y = torch.randn(2 * micro, 2, device=case.device), torch.randn(2 * micro, 1, device=case.device)
        for loss_fn in (_leaning, F.l1_loss):
            stage.zero_grad()
            whole = x.clone().requires_grad_()
            loss_fn(stage(whole), y).backward()
            wanted = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
            stage.zero_grad()
            seen: dict[int, tuple[bool, int]] = {}  # at each F: had weights a gradient, how many inputs had
            came: set[int] = set()  # inputs whose gradient was computed
            parts = x.chunk(micro)

            def note(_, args, stage=stage, parts=parts, seen=seen, came=came):
                index = next((index for index, part in enumerate(parts) if torch.equal(args[0], part)), None)
                gradient = stage[0].weight.grad
                if index is not None and index not in seen:  # I and W may go forward again
                    seen[index] = gradient is not None and bool(gradient.any()), len(came)
                if args[0].requires_grad:
                    args[0].register_hook(lambda _: came.add(index))

            hook = stage.register_forward_pre_hook(note)
            got = case.call(line, stage, list(parts), list(y.chunk(micro)), loss_fn, modifies=True)
            hook.remove()
            what = ", all parameters frozen," if frozen else ""
            case.about(f"last_rank({line!r}, …, {loss_fn.__name__}){what}", case.device)
            gradients = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
            without = ", ".join(sorted(wanted.keys() - gradients.keys()))
            case.fail_if(without, f"no gradient in {without}", "the W actions must add to it")
            case.equal(gradients, wanted, why="gradients of the weights: those of the mean loss over the whole batch")
            order = [int(word[1:]) for word in line.split() if word[0] == "I"]
            case.equal(
                got, [whole.grad.chunk(micro)[at] for at in order], why="gradients of the inputs, in the order of I"
            )
            missing = sorted({*range(micro)} - seen.keys())
            case.fail_if(
                missing,
                f"micro-batch {missing[0] if missing else ''} does not go through the stage by itself",
                "F0 is the forward pass of micro-batch 0: do what the line says, one micro-batch after the other",
            )
            for index, (added, inputs) in seen.items():
                before = line.split()[: line.split().index(f"F{index}")]
                due = any(word[0] == "W" for word in before)
                case.fail_if(
                    added and not due,
                    f"weights have gradients when micro-batch {index} goes forward, and no W stands before F{index}",
                    "do each action where the line has it: F goes forward, and W alone adds to these gradients",
                )
                case.fail_if(
                    due and not added and not frozen,
                    "goes forward before W is done",
                    "W stands before that F in the line: with it a micro-batch's activations are free",
                )
                case.fail_if(
                    inputs < sum(word[0] == "I" for word in before),
                    "goes forward before I is done",
                    "the rank before waits for that gradient: I stands before that F in the line",
                )


last_rank.alternative(
    "the same through `.grad` of the input; it must be a leaf of the graph",
    edit("""
        -            sent += torch.autograd.grad(loss, x, retain_graph=True)  # W goes through the graph again
        +            loss.backward(inputs=[x], retain_graph=True)
        +            sent.append(x.grad)  # W goes through the graph again
    """),
)
