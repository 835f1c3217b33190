"""Is the capstone fast, and does it train as the given program does? Its score, and the exercises of lesson 12."""

import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import counting
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.gradients import averaged, check_average, odd, plain
from gpu_course.common.left_out import RANKS, TRAINING
from gpu_course.common.probes import elsewhere, same_parameters
from gpu_course.common.ranks import describe, on_ranks
from gpu_course.lesson12.cards import Card, Drawn, card, draw, export, score, start
from gpu_course.lesson12.changes import CHANGES, Gains, gains, hint
from gpu_course.lesson12.program import case_of, excerpt, given
from gpu_course.lesson12.scoring import LEVELS, SPECS, Costs, Score

__all__ = [
    "CHANGES", "LEVELS", "SPECS", "Card", "Costs", "Drawn", "Gains", "Score", "attend", "average", "card", "cut",
    "draw", "excerpt", "export", "gains", "hint", "model_flops", "score", "start", "train_steps",
]  # fmt: skip

exercise = lesson("12")


@exercise(
    title="Windows in one copy",
    minutes=8,
    difficulty=1,
    hints=(
        "Gather all windows on the host, while they are bytes. Then one copy carries them all.",
        "A tensor of places is an index: text[places] has the shape of places. Each window is its start and the next "
        "`context` places.",
        "starts[..., None] + torch.arange(context + 1) has a row of places for each start. Index, .to(device), and "
        "last .long().",
    ),
)
def cut(text: torch.Tensor, starts: torch.Tensor, context: int, device: torch.device) -> torch.Tensor:
    """Return the windows of `text` at `starts` (...): (..., context + 1), one copy."""
    windows = text[starts[..., None] + torch.arange(context + 1)]  # on the host, still bytes
    return windows.to(device).long()  # made wide where memory is fast


_TEXT = torch.tensor([7, 1, 9, 4, 250, 6, 3, 8, 2, 5, 11, 13], dtype=torch.uint8)


cut.leaves_out(
    TRAINING,
    "empty tiny not_finite negative half bfloat16 double bool complex default_type number_negative number_large limit",
)


@cut.checks
def _(case: Case) -> None:
    long = (torch.arange(70_000) % 251).to(torch.uint8)  # a place is more than 16 bits count
    for device, text, starts, context in (
        (case.device, _TEXT, torch.tensor([0]), 2),
        (case.device, _TEXT, torch.tensor(4), 0),  # `starts` may have any shape: no dimension, and `context` none more
        (case.device, _TEXT, torch.tensor([9, 1]), 2),  # the last byte of the text is the last of a window
        (elsewhere(case.device), _TEXT, torch.tensor([5, 0, 7]), 4),  # on `device`, whichever that is
        (torch.device("cpu"), _TEXT, torch.tensor([[2, 4], [6, 0]]), 3),
        (case.device, _TEXT[::2], torch.tensor([[2, 1, 0], [3, 1, 2]]).T, 2),  # neither has to be contiguous
        (case.device, long, torch.tensor([[[69_699], [3]]]), 300),  # a window is longer than 8 bits count
    ):
        got = case.call(text, starts, context, device)
        counts = case.counts
        expected = torch.stack([text[start : start + context + 1] for start in starts.flatten().tolist()]).long()
        case.equal(got, expected.view(*starts.shape, context + 1).to(device))
        # copy to the device once, and at most one byte for each element of the windows
        case.budget("copies to the device", counts.copies_h2d, 1, "each one has a latency, and makes the host wait")
        case.instead(
            counts.bytes_h2d > expected.numel(),
            f"the result is right, but {counts.bytes_h2d} bytes travel for {expected.numel()} of text",
            "a number of 8 bytes for each byte: make it wide on the device",
        )


cut.alternative(
    "no index tensor, and windows that are a view; but as_strided-like views of a whole text are easy to get wrong",
    edit("""
        -    windows = text[starts[..., None] + torch.arange(context + 1)]  # on the host, still bytes
        +    windows = text.unfold(0, context + 1, 1)[starts]  # on the host, still bytes
    """),
)


@exercise(
    title="All heads at once",
    minutes=12,
    difficulty=2,
    hints=(
        "One call of qkv gives q, k and v of all heads, side by side. Which dimensions is the last one made of?",
        "In the order of the weight's rows: 3, heads, size. Attention wants (batch, heads, time, size) for each.",
        "view to (batch, time, 3, heads, size), permute so that 3 comes first, unpack. is_causal=True is the mask. "
        "Then bring time and heads back with transpose(1, 2), and reshape.",
    ),
)
def attend(x: torch.Tensor, qkv: nn.Linear, heads: int) -> torch.Tensor:
    """Return what causal attention makes of `x` (batch, time, width), same shape."""
    batch, time, width = x.shape
    split = batch, time, 3, heads, width // heads
    q, k, v = qkv(x).view(split).permute(2, 0, 3, 1, 4)  # each (batch, heads, time, size)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # no mask in memory, no scores
    return mixed.transpose(1, 2).reshape(batch, time, width)


attend.leaves_out(
    TRAINING,
    "scalar empty sliced huge tiny not_finite zero tied formats places default_type models numbers second_call",
)


@attend.checks
def _(case: Case) -> None:
    operators = {}
    for shape, heads, scale, permuted in (
        ((1, 1, 4), 4, 1, False),  # one place, and heads of one number
        ((1, 2, 4), 1, 1, False),
        ((2, 3, 4), 2, 1, False),
        ((2, 5, 12), 3, 1, True),  # x need not be contiguous
        ((3, 7, 6), 3, 9, False),  # scores of some hundreds, whose exp is no number of float32
        ((2, 3, 16), 8, 1, False),
    ):
        x = torch.randn(shape)
        qkv = nn.Linear(shape[2], 3 * shape[2], bias=False)
        nn.init.normal_(qkv.weight, std=scale)
        slow = x.clone().requires_grad_(), qkv.weight.detach().clone().requires_grad_()
        x = x.to(case.device)
        x = (x.transpose(0, 1).contiguous().transpose(0, 1) if permuted else x).requires_grad_()
        got = case.call(x, qkv.to(case.device), heads)
        counts = case.counts
        expected = _slowly(*slow, heads)
        case.equal(got, expected.detach().to(case.device), rtol=1e-4, atol=1e-4 * scale)
        case.instead(counts.copies_h2d, "copies something to the device", "a mask, say: is_causal=True needs none")
        operators[heads] = counts.operators
        if scale == 1:  # gradients of sharp maxima are too small to compare
            case.backward(got)
            expected.sum().backward()
            _gradients(case, (x.grad, qkv.weight.grad), [one.grad for one in slow])
    more = max(operators[8] - operators[2], 0)  # for 6 heads more: a loop launches at least one kernel for each
    case.budget("operators more for 8 heads than for 2", more, 5, "a loop over the heads launches kernels for each")


def _gradients(case: Case, got: tuple[torch.Tensor | None, ...], wanted: list[torch.Tensor]) -> None:
    """Fail unless the gradients of x and of the weight are the right ones: also those of q, k and v, each for itself.

    Of one place alone nothing depends on q and k: their right gradients may be 0.
    """
    for name, value in zip(("the weight", "x"), got[::-1], strict=True):
        case.instead(value is None, f"cuts the graph: no gradient reaches {name}", "what is before it never trains")
    for name, part, right in zip("qkv", got[1].chunk(3), wanted[1].chunk(3), strict=True):
        case.instead(
            right.abs().max() > 1e-5 and not part.any(),
            f"cuts the graph: no gradient reaches {name}",
            f"the rows of the weight that make {name} would never train: no detach() on the way",
        )
    for name, value, right in zip(("x", "the weight"), got, wanted, strict=True):
        case.equal(value, right.to(case.device), rtol=1e-3, atol=1e-4, what=f"the gradient of {name}")


def _slowly(x: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return causal attention, place by place."""
    mixed, size = torch.zeros(x.shape), x.shape[2] // heads
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (x @ part[rows].T for part in weight.chunk(3))
        for position in range(x.shape[1]):
            scores = (q[:, position, None] * k[:, : position + 1]).sum(-1) / size**0.5
            mixed[:, position, rows] = (scores.softmax(-1)[..., None] * v[:, : position + 1]).sum(1)
    return mixed


@attend.alternative("each step in sight, but scores and mask, (time × time) for each head, are in memory")
def _(x, qkv, heads):
    batch, time, width = x.shape
    q, k, v = (part.view(batch, time, heads, -1).transpose(1, 2) for part in qkv(x).chunk(3, dim=2))
    scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
    later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
    mixed = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
    return mixed.transpose(1, 2).flatten(2)


@exercise(
    title="Steps with one read",
    minutes=12,
    difficulty=2,
    hints=(
        "Nothing in the loop may need a value: no .item(), no print, no `if` on a tensor.",
        "One cross_entropy over all places of all rows: flatten logits (rows, time, 256) to two dimensions.",
        "Inputs: window[:, :-1], targets: window[:, 1:]. Collect loss.detach(); after the loop torch.stack, tolist.",
    ),
)
def train_steps(model: nn.Module, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> list[float]:
    """Take one step for each of `windows`; return the losses, with one read in all."""
    losses = []
    for window in windows:
        optimizer.zero_grad()
        logits = model(window[:, :-1])  # (rows, time, 256)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # on the device, without its graph
    return torch.stack(losses).tolist()  # the one read


train_steps.leaves_out(
    TRAINING,
    "scalar empty permuted sliced huge tiny not_finite negative half bfloat16 double bool complex",
    "places default_type evaluation frozen all_frozen shared double_model scalar_parameter",
    "second_call unchanged",
)


@train_steps.checks
def _(case: Case) -> None:
    sgd = partial(torch.optim.SGD, lr=0.5, momentum=0.9)  # `optimizer` is the caller's, whichever that is
    adamw = partial(torch.optim.AdamW, lr=0.05)
    for device, shape, kind in (
        (case.device, (1, 1, 2), adamw),
        (elsewhere(case.device), (3, 2, 4), sgd),
        (case.device, (5, 3, 6), adamw),
    ):
        windows, case.device = torch.randint(256, shape), device
        windows[:, 0, 1] = 0  # a target as any other
        model, twin = _model().to(device), _model()
        optimizer, its = kind(_groups(model)), kind(_groups(twin))
        for parameter in model.parameters():  # gradients left from before do not count
            parameter.grad = torch.ones_like(parameter)
        got = case.call(model, optimizer, windows.to(device), modifies=True)
        counts = case.counts
        # the model is in training mode, and stays so
        case.instead(not all(model.modes), "trains in evaluation mode", "the model came in training mode")
        case.instead(not model.training, "leaves the model in evaluation mode", "it came in training mode")
        case.instead(isinstance(got, torch.Tensor), "returns a tensor, expected a list of floats", ".tolist() reads it")
        case.instead(  # inputs are all bytes of a window except the last
            model.times - {shape[-1] - 1},
            f"gives the model {max(model.times)} bytes of a window of {shape[-1]}",
            "inputs are all bytes of a window except the last, which is a target alone",
        )
        case.equal(
            got, _one_by_one(twin, its, windows), rtol=1e-4, atol=1e-5, why="this is the loss of each step, before it"
        )
        same_parameters(case, model, twin)
        reads = counts.host_reads + counts.copies_d2h  # let the host read only once
        case.budget("reads of the host", reads, 1, "at each one the host waits, and the queue runs empty")
        case.instead(  # keep no graph after its step
            model.kept > 2,
            "keeps the graph of every step",
            "what holds a loss holds all that its backward pass needed: keep loss.detach()",
        )


class _Watched(nn.Sequential):
    """A model of one byte that notes at each pass its mode, the bytes of a row, and how many earlier graphs are left.

    Those stand in `modes`, `times` and `kept`.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.modes: list[bool] = []
        self.times: set[int] = set()
        self.kept, self._graphs = 0, []

    def __repr__(self) -> str:
        return "model"

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits, graph = super().forward(tokens), set()  # sets have weak references
        self.modes.append(self.training)
        self.times.add(tokens.shape[-1])
        self.kept = max(self.kept, sum(one() is not None for one in self._graphs))
        if logits.grad_fn is not None:
            logits.grad_fn.metadata["watched"] = graph  # it lives as long as the graph
            self._graphs.append(weakref.ref(graph))
        return logits


def _model() -> _Watched:
    torch.manual_seed(3)
    return _Watched(nn.Embedding(256, 8), nn.Linear(8, 256))


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups, for an optimizer."""
    first, *rest = model.parameters()
    return [{"params": [first]}, {"params": rest, "weight_decay": 0.1}]


def _one_by_one(model: nn.Module, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> list[float]:
    """Train place by place, and return the losses."""
    losses = []
    for window in windows:
        places = [
            -model(row[None, at : at + 1]).log_softmax(-1)[0, 0, row[at + 1]]
            for row in window
            for at in range(len(row) - 1)
        ]
        optimizer.zero_grad()
        loss = sum(places) / len(places)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


train_steps.alternative(
    "one kernel more a step, which writes into a tensor made before; nothing is collected",
    edit("""
        -    losses = []
        -    for window in windows:
        +    losses = torch.zeros(len(windows), device=windows.device)
        +    for step, window in enumerate(windows):
        ...
        -        losses.append(loss.detach())  # on the device, without its graph
        -    return torch.stack(losses).tolist()  # the one read
        +        losses[step] = loss.detach()  # on the device, without its graph
        +    return losses.tolist()  # the one read
    """),
)


@exercise(
    title="One message for all gradients",
    where="real ranks on the CPU",
    minutes=12,
    difficulty=2,
    hints=(
        "Every message has a latency, however small it is. So send all gradients in one tensor.",
        "torch.cat of the flattened gradients, one dist.all_reduce, which adds, and one division.",
        "split by each gradient's numel() gives the parts back; copy_ and view_as write one into its place.",
    ),
)
def average(model: nn.Module) -> None:
    """Replace each gradient of `model` by its mean over all ranks, with one message."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


average.leaves_out(RANKS, "default_type unchanged random_state four_ranks part")
average.leaves_out("the text says which model and which optimizer it is", "evaluation frozen all_frozen two_groups")
average.leaves_out("it changes what it is handed, or gets a function or a model", "second_call")
average.leaves_out("all ranks have the same model", "uneven")


@average.checks
def _(case: Case) -> None:
    for nprocs, kinds in ((3, _KINDS), (2, _KINDS[:1])):
        ranks = on_ranks(
            case, averaged, kinds, nprocs=nprocs, called="average(model)", known=average.mistakes if nprocs == 3 else ()
        )
        for index, words in enumerate(_WORDS[: len(kinds)]):
            describe(case, f"average(model), {words}", nprocs)
            check_average(case, [rank[index] for rank in ranks])
            for rank, seen in enumerate(rank[index] for rank in ranks):
                # in place: the tensors that were the gradients hold the mean
                for name, value in seen["after"].items():
                    case.equal(
                        seen["held"][name],
                        value,
                        what=f"the tensor that was the gradient of {name} on rank {rank}",
                        why="in place: the mean belongs into that tensor",
                    )
                counts = seen["call"].counts  # send one message in all, by one dist.all_reduce
                case.budget("messages", counts.collectives.total() + counts.messages, 1, "each one has a latency")
                others = ", ".join(name for name in counts.collectives if name != "all_reduce")
                others = others or "all_reduce_coalesced" * seen["listed"]
                case.instead(others, f"calls {others}, expected all_reduce", "it takes one tensor, and gives the sum")


_KINDS = partial(nn.Linear, 3, 2), plain, odd
_WORDS = "one layer", "three layers", "a layer used twice, a transposed weight, and a number of 64 bits"
average.alternative(
    "keeps no second copy: the gradients themselves become views of one vector, as DDP's buckets do",
    edit("""
        -        gradient.copy_(part.view_as(gradient))
        +        gradient.set_(part.view_as(gradient))
    """),
)


@exercise(
    title="The FLOPs of a step",
    minutes=10,
    difficulty=2,
    hints=(
        "A linear layer from a to b numbers takes 2 a b operations for a token: a product and a sum for each weight.",
        "A block has W × 3W, W × W, W × 4W and 4W × W, the last layer W × 256. Attention multiplies, for each token "
        "and block, with all places of the context, twice: for the scores, and for the mixture.",
        "The backward pass takes twice what the forward pass takes: one product for the gradient of the input, and one "
        "for the gradient of the weight.",
    ),
)
def model_flops(width: int, layers: int, context: int, rows: int) -> int:
    """Return the operations in matrix products of one step on (rows, context)."""
    weights = layers * 12 * width**2 + 256 * width
    attention = layers * 2 * context * width  # scores and mixture, for each token
    return 3 * 2 * rows * context * (weights + attention)


model_flops.leaves_out("sizes are small numbers above 0", "number_zero number_negative number_large limit")


@model_flops.checks
def _(case: Case) -> None:
    program = case_of(given()).load()
    for width, layers, context, rows in ((4, 1, 3, 1), (2, 1, 1, 1), (8, 2, 5, 3), (16, 3, 4, 2), (12, 1, 7, 2)):
        got = case.call(width, layers, context, rows)
        model = program.run("make_model", width, 2, layers, context)
        with counting.count() as counts:
            model(torch.zeros(rows, context, dtype=torch.int64)).sum().backward()
        case.equal(got, counts.flops, why="this is what PyTorch counts in a step of the given program")
    wide, long = 12_289, 8_191  # products that no float holds to the last digit
    forward = [2 * long * wide * each for each in (3 * wide, wide, 4 * wide, 4 * wide, long, long)] * 96
    expected = 64 * 3 * sum([*forward, 2 * long * wide * 256])
    case.equal(case.call(wide, 96, long, 64), expected, rtol=0, atol=0, why="integers in Python are exact")


model_flops.alternative(
    "layer by layer: longer, but it shows where they are",
    edit("""
-    weights = layers * 12 * width**2 + 256 * width
+    weights = layers * sum(a * b for a, b in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))) + 256 * width
    """),  # noqa: E501,
)
