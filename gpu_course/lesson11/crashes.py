"""Which repair of a program that crashes is a cure? The first exercises of lesson 11."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import simgpu
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.budgets import Floor, over_budget, spend
from gpu_course.common.left_out import PROGRAM
from gpu_course.lesson11.photos import LENGTH, LIMIT_BYTES, SIZE, Archive, Samples, archive, brightness
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained

exercise = lesson("11")


@exercise(
    title="An index out of range",
    minutes=4,
    difficulty=2,
    simulated=True,
    hints=(
        "The error names the line in which the host waits. Which lines before it use whole numbers as indices?",
        "For cross_entropy each tag is the number of a class. Which tags are in the batches, and which classes exist?",
        "The padding must count neither in the loss nor in its mean. cross_entropy has an argument for the one target "
        "that does not count.",
    ),
)
def train_tagger(model: nn.Module, batches: list, device: torch.device) -> list[float]:
    """Take a step on each batch, padding left out; return the mean loss of each."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for words, tags in batches:  # (texts, length) each; tag -1: no word
        words, tags = words.to(device), tags.to(device)
        logits = model(words)  # (texts, length, 3): three classes
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


train_tagger.broken(
    """
    -        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
    +        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
    """
)


def crash(errors: str) -> list[str]:
    """Return what the broken `train_tagger` raises on the simulated GPU, in which line, and what works afterwards.

    `errors` says when errors of kernels are reported: "asynchronous" as on CUDA, or "blocking": each launch waits.
    """
    simgpu.configure(errors=errors)
    said = []
    try:
        train_tagger.given(tagger(), texts(), torch.device("sim"))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.line for frame in frames if "train_tagger" in frame.filename)
        said += [f"{type(error).__name__}: {str(error).splitlines()[0]}", f"  in the line: {line}"]
    try:
        torch.ones(1, device="sim")
    except RuntimeError as again:
        said.append(f"  torch.ones(1) afterwards: {str(again).splitlines()[0]}")
    simgpu.reset()  # out of the error: a real GPU needs a new process
    return said


def tagger() -> nn.Module:
    """Return a model that gives each word of a text, a number below 9, the logits of three classes."""
    torch.manual_seed(1)
    return Layers(nn.Embedding(9, 6), nn.Tanh(), nn.Linear(6, 3))


def texts() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of words and tags, (3, 5) each: texts of 5, 3 and 2 words, then of 5, 4 and 1, then of 5."""
    made, batches = torch.Generator().manual_seed(2), Batches()
    for lengths in ((5, 3, 2), (5, 4, 1), (5, 5, 5)):
        words, tags = (torch.randint(0, most, (3, 5), generator=made) for most in (9, 3))
        behind = torch.arange(5) >= torch.tensor(lengths)[:, None]
        batches.append((words.masked_fill(behind, 0), tags.masked_fill(behind, -1)))
    return batches


def _tag_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    """Return the mean loss word by word."""
    logits = model(batch[0]).flatten(0, 1).log_softmax(dim=1)
    return torch.stack([-row[tag] for row, tag in zip(logits, batch[1].flatten(), strict=True) if tag >= 0]).mean()


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Let errors of kernels come later, as on CUDA, and go back out of them."""
    simgpu.configure(errors="asynchronous")
    try:
        yield
    finally:
        simgpu.forgive()
        simgpu.configure(errors="immediate")


train_tagger.leaves_out(
    PROGRAM,
    "scalar empty single permuted sliced huge tiny not_finite negative half bfloat16 double bool complex",
    "elsewhere default_type models lists second_call unchanged",
)


@train_tagger.checks
def _(case: Case) -> None:
    model, right, batches = tagger(), tagger(), texts()
    passes = Passes(model)
    with _as_on_cuda():
        got = case.call(model, batches, case.device, modifies=True)
        copies = case.counts.copies_d2h
        passes.check(case, rows=9)
        case.equal(
            got,
            stepped(right, batches, _tag_loss, 0.5),
            rtol=1e-3,
            why="expected is the mean loss over the words of each batch, before its step",
        )
        trained(case, model, right)
        passes.once(case, rows=9)
        case.instead(
            not torch.equal(batches[0][1], texts()[0][1]),
            "changes the tags that it is given",
            "the caller still needs them: change a copy",
        )
        case.instead(copies > 1, "takes the loss to the CPU", "the host would wait for it at each step")
        lets_errors_out(case, tagger(), [batches[2], (torch.zeros(2, 2), torch.zeros(2, 2).long())], case.device)


train_tagger.alternative(
    "the words alone, chosen by a mask; its length is a value, so the host waits at each step",
    edit("""
        -        logits = model(words)  # (texts, length, 3): three classes
        -        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
        +        there = tags >= 0
        +        loss = F.cross_entropy(model(words)[there], tags[there])
    """),
)


@exercise(
    title="Backward a second time",
    minutes=3,
    difficulty=2,
    hints=(
        "The first piece trains, the second one fails. What does the second get that was computed in the first?",
        "The state carries its numbers, and also the graph that computed them. backward has already used up that "
        "graph.",
        "The next piece needs the numbers, and not the graph. Which method of a tensor returns its numbers without a "
        "graph?",
    ),
)
def train_on_stream(model: nn.Module, pieces: list, device: torch.device) -> list[float]:
    """Take a step on each piece; the state goes on, gradients stay in one piece."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    state, losses = None, []  # None: the model begins with zeros
    for x, y in pieces:  # (signals, time) each
        output, state = model(x.to(device), state)
        state = state.detach()  # the numbers go on, their history ends
        loss = F.mse_loss(output, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


train_on_stream.broken(
    """
    -        state = state.detach()  # the numbers go on, their history ends
    """
)


class Echo(nn.Module):
    """A small recurrent network: from signals (signals, time) and a state (signals, 4) to outputs and the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.onward, self.out = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    __repr__ = Layers.__repr__

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        state = x.new_zeros(len(x), 4) if state is None else state
        outputs = []
        for column in x.split(1, dim=1):
            state = torch.tanh(self.inward(column) + self.onward(state))
            outputs.append(self.out(state))
        return torch.cat(outputs, dim=1), state


def echo() -> nn.Module:
    """Return an `Echo`, always the same."""
    torch.manual_seed(3)
    return Echo()


def signals() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return four pieces of two signals, (2, 3) each, and as targets the sums of what came so far."""
    x = torch.randn(2, 12, generator=torch.Generator().manual_seed(4))
    return Batches(zip(x.split(3, dim=1), x.cumsum(dim=1).tanh().split(3, dim=1), strict=True))


train_on_stream.leaves_out(
    PROGRAM,
    "scalar empty single permuted huge tiny not_finite zero half bfloat16 double bool complex",
    "elsewhere default_type models lists second_call unchanged",
)


@train_on_stream.checks
def _(case: Case) -> None:
    model, right, pieces = echo(), echo(), signals()
    passes, memory = Passes(model), {}

    def loss_of(net: nn.Module, piece: tuple) -> torch.Tensor:
        with torch.no_grad():  # the numbers of the state that the next piece begins with
            after = net(piece[0], memory.get("state"))[1]
        output, memory["state"] = net(piece[0], memory.get("state"))[0], after
        return F.mse_loss(output, piece[1])

    got = case.call(model, pieces, case.device, modifies=True)
    passes.check(case, rows=8)
    case.equal(
        got, stepped(right, pieces, loss_of, 0.2), rtol=1e-3, why="expected is the loss of each piece, before its step"
    )
    trained(case, model, right)
    passes.once(case, rows=8)
    lets_errors_out(case, echo(), [pieces[0], (torch.ones(2, 3).long(), torch.ones(2, 3))], case.device)


train_on_stream.alternative(
    "the state is cut where it enters: also right where the caller hands a state over",
    edit("""
        -        output, state = model(x.to(device), state)
        -        state = state.detach()  # the numbers go on, their history ends
        +        before = None if state is None else state.detach()
        +        output, state = model(x.to(device), before)
    """),
)


BUDGET_BYTES = 640 * 2**10


@exercise(
    title="Out of memory in validation",
    minutes=4,
    difficulty=2,
    simulated=True,
    hints=(
        "Training uses batches of the same size, and fits. What does validation keep that training frees at each step?",
        "Each loss in the list keeps its graph, and the graph keeps the activations of its batch. Who needs this "
        "graph?",
        "Validation needs no graph at all: compute its losses where none is recorded.",
    ),
)
def train_and_validate(model: nn.Module, batches: list, held_out: list, device: torch.device) -> list[float]:
    """Take a step on each batch, then return the loss of each held-out sample."""
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    losses = []
    with torch.no_grad():  # else each loss keeps the activations of its batch
        for x, y in held_out:
            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
    return torch.cat(losses).tolist()


train_and_validate.broken(
    """
    -    with torch.no_grad():  # else each loss keeps the activations of its batch
    -        for x, y in held_out:
    -            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
    +    for x, y in held_out:
    +        losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
    """
)


def classifier() -> nn.Module:
    """Return a model of three layers, for 16 numbers and 4 classes."""
    torch.manual_seed(5)
    return Layers(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def points(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return `count` batches of 128 points, (128, 16), and their classes."""
    made = torch.Generator().manual_seed(seed)
    x = [torch.randn(128, 16, generator=made) for _ in range(count)]
    return Batches((one, one[:, :4].argmax(dim=1)) for one in x)


train_and_validate.leaves_out(
    PROGRAM,
    "scalar empty single permuted sliced huge tiny not_finite half bfloat16 double bool complex",
    "elsewhere default_type models one_entry order second_call unchanged",
)


@train_and_validate.checks
def _(case: Case) -> None:
    model, right, floor = classifier(), classifier(), Floor()
    batches, held_out, passes = points(3, seed=6), points(8, seed=7), Passes(model)
    backwards = []
    model[-1].bias.register_post_accumulate_grad_hook(backwards.append)
    spent = spend(floor, lambda: case.call(model, batches, held_out, case.device, modifies=True))
    passes.check(case, rows=11 * 128)
    stepped(right, batches, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), 0.1)
    with torch.no_grad():
        wanted = torch.cat([F.cross_entropy(right(x), y, reduction="none") for x, y in held_out]).tolist()
    case.equal(spent.value, wanted, rtol=1e-4, why="expected is the loss of each held-out sample after training")
    case.instead(
        len(backwards) > len(batches),
        "calls backward for held-out batches",
        "that frees the graphs, but it "
        "costs the time of a training step, and adds to the gradients: record no graph instead",
    )
    passes.once(case, rows=11 * 128)
    passes.modes(case, training=len(batches))
    over_budget(
        case,
        floor,
        spent,
        BUDGET_BYTES,
        lambda: case.call(classifier(), batches, held_out, case.device, modifies=True),
        "a list of losses keeps their graphs, and these the activations of each batch",
    )
    trained(case, model, right)
    case.instead(
        not all(one.requires_grad for one in model.parameters()),
        "leaves the model frozen",
        "the next training step would fail: record no graph instead",
    )
    lets_errors_out(case, classifier(), [], [held_out[0], (torch.ones(2, 3), torch.ones(2).long())], case.device)


train_and_validate.alternative(
    "this makes the graph of one batch and drops it: it takes more time and memory than no_grad",
    edit("""
        -    with torch.no_grad():  # else each loss keeps the activations of its batch
        +    if True:  # else each loss keeps the activations of its batch
                 for x, y in held_out:
        -            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
        +            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none").detach())
    """),
)
train_and_validate.alternative(
    "the list holds Python numbers: the host waits for the device at each batch",
    edit("""
        -    with torch.no_grad():  # else each loss keeps the activations of its batch
        +    with torch.inference_mode():  # else each loss keeps the activations of its batch
                 for x, y in held_out:
        -            losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
        -    return torch.cat(losses).tolist()
        +            losses.extend(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none").tolist())
        +    return losses
    """),
)


@exercise(
    title="A killed worker",
    minutes=6,
    difficulty=2,
    draws=True,
    limit_s=30.0,
    hints=(
        "No line of Python raised an error: the system ended the process. Of what does a worker hold more after each "
        "sample?",
        "A photograph is large, but the program needs only one number from it.",
        "Each worker keeps every photograph in its own `read`. Keep the number instead, or nothing: each is read once.",
    ),
)
def photo_means(archive: Archive, workers: int) -> torch.Tensor:
    """Return the mean brightness of each photograph, in order, read by `workers`."""

    def mean_of(index: int) -> float:
        return archive.decode(index).float().mean().item()  # the photograph is gone when this returns

    loader = DataLoader(Samples(len(archive), mean_of), batch_size=None, num_workers=workers)
    return torch.tensor(list(loader))


photo_means.broken(
    '''
         """Return the mean brightness of each photograph, in order, read by `workers`."""
    +    read = {}
    ...
    -        return archive.decode(index).float().mean().item()  # the photograph is gone when this returns
    +        if index not in read:
    +            read[index] = archive.decode(index)
    +        return read[index].float().mean().item()
    '''
)


photo_means.leaves_out("counts are small numbers, from 0 on", "number_negative number_large limit")
photo_means.leaves_out(PROGRAM, "second_call unchanged random_state")


@photo_means.checks
def _(case: Case) -> None:
    chosen = "the caller has chosen how many workers read"
    with archive() as given:
        got = case.call(given, 2, modifies=True)
        decoded, processes, here, held = given.log()
    case.instead(
        here,
        "reads in its own process",
        "then the memory is taken by your own process: when the system ends that one, all is lost",
    )
    case.instead(
        len(set(decoded)) < LENGTH,
        f"leaves data out: {len(set(decoded))} of {LENGTH} photographs are read",
        "the mean of each was asked for",
    )
    case.instead(min(held) < SIZE, "changes what the archive counts", "the memory is no larger for that")
    case.instead(
        max(held) > LIMIT_BYTES,
        f"holds {max(held) / 2**20:.0f} MiB of photographs in a worker, where {LIMIT_BYTES / 2**20:.0f} are allowed",
        "such a worker is killed; to start again only hides it",
    )
    case.equal(
        got,
        torch.tensor([brightness(index) for index in range(LENGTH)]),
        rtol=1e-4,
        why="expected is the mean over all pixels of each photograph, in order",
    )
    case.instead(processes != 2, f"reads in {processes} processes, not in 2", chosen)
    case.budget("photographs read", len(decoded), LENGTH, "decoding is what takes the time")
    with archive() as given:  # without workers all is in this process, and its memory is seen too
        case.call(given, 0, modifies=True)
        *_, held = given.log()
    case.instead(
        max(held) > LIMIT_BYTES,
        f"holds {max(held) / 2**20:.0f} MiB of photographs where it collects what the workers send",
        "a program that keeps all of them is killed as a worker is: keep a number of each",
    )
    with archive(damaged=5) as given:
        error = case.error_of(given, 1)
        processes = given.log()[1]
        traceback.clear_frames(error.__traceback__ if error else None)  # who holds the loader holds its workers
        case.instead(
            error is None,
            "swallows errors",
            "a damaged photograph no longer reaches the caller: repair the cause instead",
        )
    case.instead(processes != 1, f"reads in {processes} processes, not in 1", chosen)


@photo_means.alternative("what is kept is a number for each photograph: worth it where they are asked for again")
def _(archive, workers):
    read = {}

    def mean_of(index):
        if index not in read:
            read[index] = archive.decode(index).float().mean().item()
        return read[index]

    return torch.tensor(list(DataLoader(Samples(len(archive), mean_of), batch_size=None, num_workers=workers)))
