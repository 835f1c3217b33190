"""What does each change of the given program bring? In the order of that, as hints.

A change is an edit of the given program's text. The edits show the answer: a reader sees names, numbers and hints.
"""

from dataclasses import dataclass

import torch

from course_utils import simulator
from course_utils.base import tables
from course_utils.exercises.lesson12.program import Program, Sizes, Task, given
from course_utils.exercises.lesson12.scoring import measured


@dataclass(frozen=True)
class Change:
    """A change of the given program: its name, a hint, and texts with what replaces them."""

    name: str
    hint: str
    edits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Gain:
    """What a change alone takes off a step of the given program on a simulated T4: ms, launches, waits, MiB at peak."""

    name: str
    ms: float
    launches: float
    waits: float
    peak_mib: float


@dataclass(frozen=True, repr=False)
class Gains(tables.Table):
    """What each change brings; prints as a table."""

    rows: tuple[Gain, ...]

    head, right = ("change, alone", "ms saved, T4 (simulated)", "launches", "waits", "MiB at peak"), ()

    def cells(self) -> list[tuple[str, ...]]:
        return [
            (row.name, f"{row.ms:.3f}", f"{row.launches:.1f}", f"{row.waits:.1f}", f"{round(row.peak_mib, 1) + 0:.1f}")
            for row in self.rows
        ]


CHANGES = (
    Change("all heads at once",
           "Attention runs Python's loop over the heads, and each slice of a weight costs a kernel on the way back. "
           "Compute q, k and v of all heads by one call of self.qkv, view them as (batch, time, 3, heads, size), and "
           "hand them to F.scaled_dot_product_attention, which needs no mask that you made.",
           (("""        time, size = x.shape[1], x.shape[2] // self.heads
        mixed = []
        for head in range(self.heads):
            rows = slice(head * size, (head + 1) * size)
            q, k, v = (F.linear(x, weight[rows]) for weight in self.qkv.weight.chunk(3))  # (batch, time, size)
            scores = q @ k.transpose(1, 2) / math.sqrt(size)
            mask = torch.tril(torch.ones(time, time)).to(x.device)
            scores = scores.masked_fill(mask == 0, -math.inf)  # no place sees a later one
            mixed.append(torch.softmax(scores, dim=-1) @ v)
        return self.out(torch.cat(mixed, dim=-1))
""", """        split = *x.shape[:2], 3, self.heads, x.shape[2] // self.heads
        q, k, v = self.qkv(x).view(split).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))
"""),)),
    Change("an evaluation of all windows at once",
           "evaluate feeds one window at a time, keeps a graph, and reads each loss. One batch, one read, and "
           "torch.inference_mode().",
           (("""    total = 0.0
    for start in starts.tolist():
        window = text[start : start + model.context + 1].long().to(device)
        logits = model(window[None, :-1])
        total += F.cross_entropy(logits[0], window[1:]).item()
    return total / len(starts)
""", """    windows = text[starts[:, None] + torch.arange(model.context + 1)].to(device).long()
    with torch.inference_mode():
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).item()
"""),)),
    Change("one kernel for the optimizer",
           "AdamW with foreach=False launches a dozen kernels for each parameter. Which option does them all at once?",
           (("foreach=False", "fused=True"),)),
    Change("no check that reads",
           "`if torch.isnan(…).any()` reads a number of each parameter, at each step. The losses are read anyhow, at "
           "the end: a loss that is not a number says the same.",
           (("""        for name, parameter in model.named_parameters():
            if torch.isnan(parameter.grad).any():
                raise ArithmeticError(f"the gradient of {name} is not a number")
""", ""),)),
    Change("one loss for all rows",
           "F.cross_entropy takes the logits of all rows at once: flatten(0, 1), and flatten() of the targets.",
           (("""        loss = 0
        for logits, targets in zip(model(x), y, strict=True):
            loss = loss + F.cross_entropy(logits, targets) / len(x)
""", "        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())\n"),)),
    Change("one copy for a batch",
           "Each window travels alone, as numbers of 8 bytes. Gather all windows of a row at once on the host, "
           "text[starts[:, None] + torch.arange(…)], and make them wide on the device.",
           (("""        xs, ys = [], []
        for start in row[rank::ranks].tolist():
            window = text[start : start + model.context + 1].long()
            xs.append(window[:-1].to(device))
            ys.append(window[1:].to(device))
        x, y = torch.stack(xs), torch.stack(ys)
""", """        windows = text[row[rank::ranks, None] + torch.arange(model.context + 1)].to(device).long()
        x, y = windows[:, :-1], windows[:, 1:]
"""),)),
    Change("positions by a view",
           "torch.arange makes the places on the host, and copies them, at each step. The rows of self.places.weight "
           "that are needed are a view.",
           (("self.places(torch.arange(tokens.shape[1]).to(tokens.device))",
             "self.places.weight[: tokens.shape[1]]"),)),
    Change("losses read at once",
           "[loss.item() for …] waits once for each step. torch.stack(losses).tolist() waits once.",
           (("[loss.item() for loss in losses]", "torch.stack(losses).tolist()"),)),
    Change("no graph kept",
           "retain_graph=True keeps what backward needed, and the list of losses the graphs of all steps. Detach.",
           (("retain_graph=True", ""), ("losses.append(loss)", "losses.append(loss.detach())"))),
    Change("one message for two ranks",
           "Each gradient is averaged by a message of its own. torch.cat of the flattened ones, one all_reduce, and "
           "split gives the parts back: the exercise `average` is that.",
           (("""            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
""", """            gradients = [parameter.grad for parameter in model.parameters()]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            parts = (flat / ranks).split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
"""),)),
)  # fmt: skip


def changed(*changes: Change) -> str:
    """Return the text of the given program with these changes."""
    source = given()
    for change in changes:
        for old, new in change.edits:
            if source.count(old) != 1:
                raise ValueError(f"{change.name}: the text to replace must occur once: {old!r}")
            source = source.replace(old, new)
    return source


def gains() -> Gains:
    """Return what each change alone brings, that of most time first."""
    return Gains(tuple(Gain(*row) for row in simulator.run_in_child(_gains)))


def _gains() -> list[tuple]:
    torch.set_num_threads(1)
    task, found = Task(Sizes(warm_up=1, steps=3, windows=8), seed=0), []
    for these in ((), *((change,) for change in CHANGES)):
        costs = measured(Program(changed(*these)), task, "T4").costs
        found.append([costs[part] for part in ("ms", "launches", "waits", "peak_mib")])
    naive, *others = found
    rows = [
        (change.name, *(a - b for a, b in zip(naive, other, strict=True)))
        for change, other in zip(CHANGES, others, strict=True)
    ]
    return sorted(rows, key=lambda row: -row[1])


_hinted = 0


def hint() -> None:
    """Print the next hint, of what brings most first; after the last one the first again."""
    global _hinted
    change = CHANGES[_hinted % len(CHANGES)]
    _hinted += 1
    print(f"Hint {CHANGES.index(change) + 1} of {len(CHANGES)}, {change.name}: {change.hint}")
