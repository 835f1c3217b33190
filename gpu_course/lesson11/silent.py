"""Which repair makes a program that runs, and gives wrong numbers, right? The middle exercises of lesson 11."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.common.left_out import PROGRAM
from gpu_course.lesson11.watched import Batches, Layers, Passes, lets_errors_out, stepped, trained

exercise = lesson("11")


@exercise(
    title="A flat loss",
    minutes=3,
    difficulty=1,
    draws=True,
    hints=(
        "The head has a gradient. Which object uses this gradient to change the head, and does it know the head?",
        "An optimizer holds the tensors that it got when it was made. Which head did the model have at that moment?",
        "Move one line: make the optimizer after the model has got the parameters that you want to train.",
    ),
)
def fine_tune(model: nn.Module, head: nn.Linear, batches: list, device: torch.device) -> list[float]:
    """Put `head` on `model`, train it alone, and return the loss of each step."""
    model.requires_grad_(False)  # the rest keeps what it knows
    model.head = head
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


fine_tune.broken(
    '''
         """Put `head` on `model`, train it alone, and return the loss of each step."""
    +    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ...
    -    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    '''
)


class Features(nn.Module):
    """A body of one layer, which somebody has trained, and a head for three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 16), nn.Tanh()), nn.Linear(16, 3)

    __repr__ = Layers.__repr__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def features() -> tuple[Features, nn.Linear]:
    """Return the trained model, and a new head for two classes, always the same."""
    torch.manual_seed(8)
    return Features(), nn.Linear(16, 2)


def halves(count: int, different: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return `count` batches of points, (8, 4), and of which sign their first number is; or one batch `count` times."""
    made = torch.Generator().manual_seed(9)
    x = torch.randn(count if different else 1, 8, 4, generator=made).expand(count, 8, 4)
    return Batches((one.clone(), (one[:, 0] > 0).long()) for one in x)


fine_tune.leaves_out(
    PROGRAM,
    "scalar empty single permuted sliced huge tiny not_finite half bfloat16 double bool complex",
    "elsewhere default_type models lists second_call unchanged random_state",
)


@fine_tune.checks
def _(case: Case) -> None:
    (model, head), (right, other), batches = features(), features(), halves(4)
    passes, body, weight = Passes(model), dict(copy.deepcopy(model.body.state_dict())), head.weight.detach().clone()
    without: list[bool] = []  # of each step of an optimizer that holds a layer for two classes: has that no gradient?

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        held = [one for group in optimizer.param_groups for one in group["params"] if one.shape == weight.shape]
        without.append(bool(held) and held[0].grad is None)

    hook = register_optimizer_step_pre_hook(note)
    try:
        got = case.call(model, head, batches, case.device, modifies=True)
    finally:
        hook.remove()
    if torch.equal(head.weight.detach().cpu(), weight):
        case.instead(not without, "never calls step()", "backward fills the gradients, step uses them")
        name = "clears the gradients before the step has used them"
        case.instead(all(without), name, "the order is zero_grad, backward, step")
    right.requires_grad_(False)
    right.head = other
    losses = stepped(right, batches, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), 0.5)
    passes.check(case, rows=32)
    case.instead(
        model.head is not head, "trains another head than the one that it is given", "the caller goes on with that one"
    )
    passes.modes(case, training=len(batches))
    case.equal(got, losses, rtol=1e-3, why="expected is the loss of each batch, before its step")
    case.equal(
        {name: one.cpu() for name, one in model.body.state_dict().items()}, body, why="only the head was to be trained"
    )
    trained(case, model, right)
    passes.once(case, rows=32)
    lets_errors_out(case, *features(), [batches[0], (torch.ones(2, 3), torch.ones(2).long())], case.device)


fine_tune.alternative(
    "the optimizer gets only the head: shorter, and the order of the lines no longer matters",
    edit("""
        -    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        +    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    """),
)


@exercise(
    title="The best weights",
    minutes=3,
    difficulty=1,
    hints=(
        "When the loop ends, does `best` still hold what was kept?",
        "state_dict() returns the very tensors that hold the model's weights, and the next step writes into them.",
        "Keep a copy: copy.deepcopy copies a dictionary and its tensors, also the averages of batch norm.",
    ),
)
def fit(model: nn.Module, batches: list, held_out: tuple, device: torch.device) -> float:
    """Take a step on each batch, end with the best weights, and return their loss."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    best, best_loss = None, float("inf")
    for x, y in batches:
        model.train()
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = F.mse_loss(model(held_out[0].to(device)), held_out[1].to(device)).item()
        if loss < best_loss:
            best, best_loss = copy.deepcopy(model.state_dict()), loss
    model.load_state_dict(best)
    return best_loss


fit.broken(
    """
    -            best, best_loss = copy.deepcopy(model.state_dict()), loss
    +            best, best_loss = model.state_dict(), loss
    """
)


def regression() -> nn.Module:
    """Return a model with batch norm, for 3 numbers and one result."""
    torch.manual_seed(10)
    return Layers(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


_SIGNS = 1, 1, 0, 1, 1, 1, -3


def noisy(
    signs: tuple[int, ...] = _SIGNS,
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Return batches, of which the third and the last have wrong targets, and held-out data; or with other `signs`."""
    made = torch.Generator().manual_seed(11)
    x = torch.randn(8, 16, 3, generator=made)
    y = x.sum(dim=2, keepdim=True).tanh()
    *batches, held_out = zip(x, y * torch.tensor([*signs, 1])[:, None, None], strict=True)
    return Batches(batches), held_out


_BEST_LATE, _BEST_EARLY = (1, 0, 1, 1, 1, 1, 1), (1, -1, 1, -3, -3, -3, -3)


fit.leaves_out(
    PROGRAM,
    "scalar empty permuted sliced huge tiny not_finite zero formats",
    "elsewhere default_type models lists second_call unchanged",
)


@fit.checks
def _(case: Case) -> None:
    here, there = case.device, torch.device("cpu")  # where .cpu() is no copy
    for device, signs in dict.fromkeys(((here, _SIGNS), (there, _SIGNS), (here, _BEST_LATE), (here, _BEST_EARLY))):
        case.device = device
        model, right, (batches, held_out) = regression(), regression(), noisy(signs)
        passes, seen, states = Passes(model), [], []
        got = case.call(model, batches, held_out, device, modifies=True)
        for batch in batches:
            stepped(right.train(), [batch], lambda net, one: F.mse_loss(net(one[0]), one[1]), 0.3)
            states.append(copy.deepcopy(right.state_dict()))
            with torch.no_grad():
                seen.append(F.mse_loss(right.eval()(held_out[0]), held_out[1]).item())
        right.load_state_dict(states[seen.index(min(seen))])
        passes.check(case, rows=7 * 32)
        case.equal(got, min(seen), rtol=1e-3, why="expected is the smallest of the held-out losses")
        trained(case, model, right, tolerance=1e-4)
        passes.once(case, rows=7 * 32)
    lets_errors_out(case, regression(), [batches[0], (torch.ones(4, 2), torch.ones(4, 1))], held_out, case.device)


fit.alternative(
    "keep it in a file: this is slower, but the file is still there after a crash",
    edit('''
             """Take a step on each batch, end with the best weights, and return their loss."""
        +    import io
        +
        ...
        -            best, best_loss = copy.deepcopy(model.state_dict()), loss
        -    model.load_state_dict(best)
        +            best, best_loss = io.BytesIO(), loss
        +            torch.save(model.state_dict(), best)
        +    best.seek(0)
        +    model.load_state_dict(torch.load(best))
    '''),
)
fit.alternative(
    "a clone of each tensor, which is what deepcopy does",
    edit("""
        -            best, best_loss = copy.deepcopy(model.state_dict()), loss
        +            best, best_loss = {name: one.clone() for name, one in model.state_dict().items()}, loss
    """),
)


@exercise(
    title="A loss that is inf",
    minutes=5,
    difficulty=3,
    hints=(
        "Print scores.max(), and the largest numbers of float16 and float32. Which function makes a number that large?",
        "exp(100) is too large for float32, too. You can avoid large numbers: subtract the maximum of each row first.",
        "PyTorch has one function for the logarithm of a sum of exponentials, which does that. Leave the scores alone.",
    ),
)
def train_pairs(model: nn.Module, batches: list, device: torch.device) -> list[float]:
    """Take a step on each batch in float16, and return the mean loss of each step."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    losses = []
    for left, right in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            scores = model(left.to(device)) @ model(right.to(device)).T  # (pairs, pairs)
            own = scores.diagonal()  # of row i with row i
            loss = (torch.logsumexp(scores, dim=1) - own).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


train_pairs.broken(
    """
    -            loss = (torch.logsumexp(scores, dim=1) - own).mean()
    +            loss = (scores.exp().sum(dim=1).log() - own).mean()
    """
)


def embedding() -> nn.Module:
    """Return a model from 6 numbers to a vector of 8."""
    torch.manual_seed(12)
    return Layers(nn.Linear(6, 8))


def pairs(scale: float = 12.0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return three batches of pairs, (5, 6) each: the right one is the left one with noise."""
    made = torch.Generator().manual_seed(13)
    left = torch.randn(3, 5, 6, generator=made)
    right = left + torch.randn(3, 5, 6, generator=made)
    return Batches((scale * one, scale * other) for one, other in zip(left, right, strict=True))


def _pair_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    """Return the mean over rows of -log softmax, row by row in double precision, from scores in 16 bits."""
    with torch.autocast("cpu", dtype=torch.float16):
        scores = (model(batch[0]) @ model(batch[1]).T).double()
    most = scores.detach().amax(dim=1, keepdim=True)
    rows = zip((scores - most).exp(), scores - most, strict=True)
    return torch.stack([sum(part for part in exp).log() - row[at] for at, (exp, row) in enumerate(rows)]).mean()


train_pairs.leaves_out(
    PROGRAM,
    "scalar empty single permuted sliced huge tiny not_finite zero formats",
    "elsewhere default_type models lists second_call unchanged",
)


@train_pairs.checks
def _(case: Case) -> None:
    case.about("", edges.scaling(case.device))
    for scale in (4.0, 12.0, 20.0):
        model, right, batches = embedding(), embedding(), pairs(scale)
        passes = Passes(model)
        got = case.call(model, batches, case.device, modifies=True)
        passes.check(case, rows=30)
        formats = {one.dtype for one in passes.seen} - {torch.float16}
        case.instead(
            formats,
            f"computes the products in {next(iter(formats), None)}",
            "float16 was asked for: the products take the time, and it is not they that fail",
        )
        losses = stepped(right, batches, _pair_loss, 1e-4)
        case.equal(
            got, losses, rtol=0.02, atol=0.05, why="expected is the mean of log(sum(exp(scores))) - own over the rows"
        )
        trained(case, model, right, tolerance=0.05)
        passes.once(case, rows=30)
    lets_errors_out(case, embedding(), [batches[0], (torch.ones(2, 3), torch.ones(2, 3))], case.device)


train_pairs.alternative(
    "each row is a classification, and its class is the number of the row: this is its usual name",
    edit("""
        -            own = scores.diagonal()  # of row i with row i
        -            loss = (torch.logsumexp(scores, dim=1) - own).mean()
        +            loss = F.cross_entropy(scores, torch.arange(len(scores), device=device))
    """),
)
