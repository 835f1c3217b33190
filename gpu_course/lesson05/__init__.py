"""Does the loop train, measure, cast, count and resume as it should? The exercises of lesson 05."""

import copy
import gc
import re
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, difference, edges, edit, lesson
from gpu_course.common.left_out import TRAINING
from gpu_course.common.probes import elsewhere, state_of, unchanged
from gpu_course.lesson05.gains import CHANGES, Loops, gains_of, live_rates, show_gains, simulated_rates
from gpu_course.lesson05.pictures import loss_curve
from gpu_course.lesson05.resumed import follow, start
from gpu_course.lesson05.resuming import resumes
from gpu_course.lesson05.training import PINNING, Classifier, Training, batches, follows, loader, models

__all__ = [
    "CHANGES", "Loops", "Progress", "amp_step", "evaluate", "follow", "gains_of", "live_rates", "loss_curve",
    "mean_loss", "show_gains", "simulated_rates", "start", "train_epoch", "train_step",
]  # fmt: skip

exercise = lesson("05")

# of a batch of float32 images, and a model all of whose parameters are trained, in the mode that its caller chose
_DATA = "scalar empty huge tiny not_finite bool complex default_type evaluation frozen all_frozen unchanged second_call"


@exercise(
    title="One training step",
    minutes=10,
    difficulty=1,
    hints=(
        'The six numbered lines under "The loop, line by line" are the step; the last line is what you return.',
        "F.cross_entropy takes logits and labels: no softmax before it. Both parts of the batch must be on the device.",
        "In this order: .to(device) twice, zero_grad of the optimizer, the loss of what the model gives, its backward, "
        "step of the optimizer. Then detach.",
    ),
)
def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Train `model` on one batch and return its loss, detached, still on `device`."""
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad(set_to_none=True)  # backward() adds to the gradients that it finds
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()  # without the graph, which would keep the batch alive


train_step.leaves_out(TRAINING, _DATA + " half bfloat16")


@train_step.checks
def _(case: Case) -> None:
    for device in dict.fromkeys((case.device, elsewhere(case.device))):
        training = Training(device)
        for parameter in training.model.parameters():  # "each step begins with `zero_grad`": somebody left these
            parameter.grad = torch.full_like(parameter, 0.5)
        for x, y in batches((5, 1), scale=20.0):  # long gradients: clipping would show
            given = [x.clone(), y.clone()]
            got, waits = training.call(case, x, y, device)
            case.instead(difference([x, y], given), "modifies the batch", "the next epoch sees it again")
            training.followed(case)
            _a_loss(case, got, training.expected(x, y)[0])
            training.equal(case)
            why = "a name outside holds the loss, and with it all that its backward pass needed: keep loss.detach()"
            case.instead(_keeps_a_graph(training.log.passes), "keeps the graph of the step", why)
            why = "print, .item(), .cpu() and synchronize() in every step keep the queue empty"
            case.instead(waits, "lets the host wait for the device", why)
    for model in models():  # "train `model`", whatever it is
        x = torch.randn(3, 6, dtype=next(model.parameters()).dtype)
        device = edges.supporting(case.device, model)
        model.to(device)
        follows(case, model, train_step, edges.permuted(x), torch.tensor([2, 0, 5]), device)
        follows(case, model, train_step, edges.sliced(x), torch.tensor([1, 1, 1]), device)
    pictures = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten(), nn.Linear(9, 6)).to(case.device)
    follows(case, pictures, train_step, torch.randn(3, 2, 3), torch.tensor([2, 0, 5]), case.device)


def _keeps_a_graph(passes: list) -> bool:
    """Return whether the graph of a pass is still there, also when all is freed that nobody refers to."""
    if any(step.graph() is not None for step in passes):
        gc.collect()
    return any(step.graph() is not None for step in passes)


def _a_loss(case: Case, got: Any, expected: torch.Tensor, rtol: float = 1e-4) -> None:
    """Fail unless `got` is this loss, a detached tensor."""
    why = "to read it, the host waits for the device at every step; return the tensor"
    case.instead(isinstance(got, int | float), "returns a Python number", why, got=got)
    holds = isinstance(got, torch.Tensor) and got.requires_grad
    why = "whoever keeps the loss then keeps all that its backward pass needs: return loss.detach()"
    case.instead(holds, "returns a loss that still holds its graph", why)
    case.equal(got, expected, rtol=rtol, why="it is the mean loss of the batch before the step")


@train_step.alternative("a closure: longer, but L-BFGS, which asks for the loss several times a step, needs one")
def _(model, optimizer, images, labels, device):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


@exercise(
    title="Evaluation",
    minutes=10,
    difficulty=2,
    hints=(
        "Two switches: model.eval() for dropout and batch norm, torch.inference_mode() for the graph.",
        "Right answers of a batch: (model(images).argmax(dim=1) == labels).sum(). Count the samples as well.",
        "Note model.training before the first switch, and give it to model.train(…) at the end. The share is one sum "
        "divided by the other, and .item() reads a tensor.",
    ),
)
def evaluate(model: nn.Module, loader: Iterable, device: torch.device) -> float:
    """Return the share (0 to 1) that `model` gets right, and leave its mode alone."""
    was = model.training
    model.eval()  # dropout off, batch norm uses its running averages
    right, total = torch.zeros((), device=device), 0
    with torch.inference_mode():  # no graph, no memory for it
        for images, labels in loader:
            logits = model(images.to(device))
            right += (logits.argmax(dim=1) == labels.to(device)).sum()
            total += len(labels)
    model.train(was)
    return right.item() / total


evaluate.leaves_out(
    "the loader holds data, which is given",
    "scalar empty permuted sliced huge tiny not_finite half bfloat16 bool complex default_type",
)
evaluate.leaves_out("of no samples there is no share", "no_entries")
evaluate.leaves_out(
    "only what the model answers counts, and it gets no optimizer",
    "shared two_groups scalar_parameter",
)
evaluate.leaves_out("dropout draws, and a model cannot be kept for later", "second_call unchanged random_state")


@evaluate.checks
def _(case: Case) -> None:
    here, there = case.device, elsewhere(case.device)
    for sizes, mode, device in (
        ((5, 3), True, here),
        ((4, 4, 2), True, there),
        ((5, 5, 3), False, here),
        ((66_000, 5), False, here),  # more than 16 bits, or float16, count
    ):
        model, data = Classifier(dropout=0.5).to(device).train(mode), batches(sizes)
        if sizes[0] > 10:
            data[0] = _nearly_all_right(model, data[0][0])
        before = copy.deepcopy(dict(model.state_dict()))
        given = loader(data) if mode else data  # a list of batches is a loader too
        got = case.call(model, given, device, modifies=True, draws=True)  # dropout draws
        passes, left = model.log.passes, {name: module.training for name, module in model.named_modules()}
        other = next((one.device for one in passes if one.device != device), None)
        part = next((name for name in left if left[name] != mode), None)
        came, went = ("training", "evaluation") if mode else ("evaluation", "training")
        changed = difference(dict(model.state_dict()), before, where="the model")
        trains, layers_train = any(one.training for one in passes), any(one.layers_training for one in passes)
        for when, name, why in (
            (not passes, "never calls the model that it is given", "its answers are to be counted"),
            (other, f"computes on {other}, expected on {device}", "the device would stand idle"),
            (passes and any(one.training for one in passes) > passes[0].training, "leaves evaluation mode too early",
             "the model goes back into its mode after the last batch, not between two of them"),
            (trains and not layers_train, "leaves the outer module in training mode",
             "a module may look at its own switch: model.eval() reaches it and all layers"),
            (trains, "evaluates in training mode", "dropout then blots out half of the values, and batch norm uses "
             "this batch and changes its running averages: call model.eval() first"),
            (layers_train, "puts the outer module alone into evaluation mode",
             "dropout and batch norm look at their own switch: model.eval() reaches all layers"),
            (any(one.records for one in passes), "builds a graph", "nobody will call backward, and the graph keeps "
             "every activation of the batch in memory: use torch.inference_mode()"),
            (part is not None, f"leaves {part or 'the model'} in {went} mode",
             f"it came in {came} mode; the caller goes on with that"),
            (not all(one.requires_grad for one in model.parameters()), "leaves parameters frozen",
             "the caller goes on training them"),
            (changed, f"changes the model: {changed}", "an evaluation changes no parameter"),
        ):  # fmt: skip
            case.instead(when, name, why)
        layers = model.layers.eval()
        right = sum((layers(x.to(device)).argmax(dim=1) == y.to(device)).sum().item() for x, y in data) / sum(sizes)
        case.instead(isinstance(got, torch.Tensor), "returns a tensor, expected a float", ".item() reads it", got=got)
        case.equal(got, right)
    _keeps_the_model(case)


def _nearly_all_right(model: Classifier, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x with the classes that the model gives it, but for the first row."""
    layers = copy.deepcopy(model.layers).cpu().eval()
    labels = layers(x).argmax(dim=1)
    labels[0] = (labels[0] + 1) % 3
    return x, labels


def _keeps_the_model(case: Case) -> None:
    """Fail unless an evaluation leaves any model as it was; the loader is read once, in any order."""
    data = batches((1, 3, 2))
    for change in (lambda model: edges.frozen(model, "layers.0.weight"), edges.frozen, edges.with_old_gradients):
        model = change(Classifier()).to(case.device)
        before, gradients = state_of(model), [one.grad for one in model.parameters()]
        right = sum((model.layers(x.to(case.device)).argmax(dim=1) == y.to(case.device)).sum().item() for x, y in data)
        for given in (iter(data), data[::-1], data[:1] + data[1:]):
            case.equal(case.call(model, given, case.device, modifies=True, draws=True), right / 6)
        unchanged(case, before, model, "an evaluation leaves the model as it was")
        same = all(one.grad is old for one, old in zip(model.parameters(), gradients, strict=True))
        case.instead(not same, "changes the gradients of the model", "the caller may still use them")
    exact, (x, y) = Classifier().double(), data[1]
    device = edges.supporting(case.device, exact)
    right = (exact.to(device).layers(x.double().to(device)).argmax(dim=1) == y.to(device)).float().mean().item()
    case.equal(case.call(exact, [(x.double(), y)], device, modifies=True, draws=True), right)


@evaluate.alternative("a copy is evaluated, so nothing is to be put back; costs the model's memory once more")
def _(model, loader, device):
    twin = copy.deepcopy(model).eval()
    with torch.inference_mode():
        hits = [twin(images.to(device)).argmax(dim=1) == labels.to(device) for images, labels in loader]
    return torch.cat(hits).float().mean().item()


@exercise(
    title="The mean loss of uneven batches",
    minutes=5,
    difficulty=1,
    hints=(
        "A batch of 2 must count half as much as a batch of 4.",
        "Multiply each mean by the size of its batch, add, and divide by the number of all samples.",
        "zip(losses, sizes) gives what belongs together, sum(…) adds tensors too, and sum(sizes) are all samples.",
    ),
)
def mean_loss(losses: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """Return the mean over samples, on the device of the batches' mean losses."""
    total = sum(loss * size for loss, size in zip(losses, sizes, strict=True))  # back to sums, which may be added
    return total / sum(sizes)


mean_loss.leaves_out(
    "each loss is a number of shape (), in a tensor of its own",
    "empty single odd permuted sliced tied",
)
mean_loss.leaves_out(
    "of no batch there is no mean, and a batch has samples",
    "no_entries number_zero number_negative number_large limit",
)
mean_loss.leaves_out(
    "a loss is a floating-point number, whose sum 16 bits do not hold",
    "half bfloat16 whole bool complex not_finite",
)
mean_loss.leaves_out("the losses' own type is meant", "default_type")


@mean_loss.checks
def _(case: Case) -> None:
    for values, sizes in (
        ([3.0, 9.0], [4, 2]),
        ([1.5], [7]),
        ([0.5, 2.0, 4.0], [8, 8, 3]),
        ([2.0, 2.5], [3, 3]),
        ([1.0, 2.5, 4.0], [2, 5, 3]),
        ([4.0, 2.5, 1.0], [3, 5, 2]),
        ([4.0, 2.5, 1.0], [2, 5, 3]),
        ([-2.0, -1.0], [1, 3]),
        ([0.0, -2.0, 2e4, 1e-6, 0.0], [1, 1, 3, 100, 1]),
    ):
        losses = [torch.tensor(value, device=case.device) for value in values]
        got = case.call(losses, sizes)
        counts = case.counts
        right = sum(v * s for v, s in zip(values, sizes, strict=True)) / sum(sizes)
        case.instead(
            isinstance(got, int | float),
            "returns a Python number",
            "to read it, the host waits for the device: return the tensor",
            got=got,
        )
        why = "multiply and add on the device: the host does not need the numbers"
        case.instead(counts.host_reads or counts.copies_d2h, "lets the host read values", why)
        case.equal(got, torch.tensor(right, device=case.device))
    for device, dtype in (
        (elsewhere(case.device), torch.float32),
        (torch.device("cpu"), torch.float32),
        (edges.supporting(case.device, torch.float64), torch.float64),
    ):  # "on the device of the losses"
        losses = [torch.tensor(value, dtype=dtype, device=device) for value in (0.1, 0.7)]
        expected = torch.tensor((0.1 + 5 * 0.7) / 6, dtype=dtype, device=device)
        case.equal(case.call(losses, [1, 5]), expected, rtol=1e-12 if dtype == torch.float64 else 1e-5)


@mean_loss.alternative("one product of vectors, not two launches for each batch; the sizes are copied to the device")
def _(losses, sizes):
    weights = torch.tensor(sizes, dtype=losses[0].dtype, device=losses[0].device)
    return torch.stack(losses) @ weights / sum(sizes)


@exercise(
    title="An epoch with one host read",
    minutes=15,
    difficulty=2,
    hints=(
        "Keep two sums on the device. The host can count the samples by itself, without a read.",
        "Each batch adds its detached loss times its size to one sum, and its number of right answers to the other.",
        "torch.zeros(2, device=device) holds both sums. After the loop divide it by the number of samples; .tolist() "
        "of that is the one read.",
    ),
)
def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable, device: torch.device
) -> tuple[float, float]:
    """Train one epoch; return its mean loss and share of right answers, read once."""
    sums, samples = torch.zeros(2, device=device), 0
    can_pin = device.type in ("cuda", "xpu", "sim")  # elsewhere a copy must be done before its source goes
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=can_pin), labels.to(device, non_blocking=can_pin)
        optimizer.zero_grad(set_to_none=True)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)  # the device adds, the host only asks it to
        sums[1] += (logits.argmax(dim=1) == labels).sum()
        samples += len(labels)
    mean, share = (sums / samples).tolist()  # the one read
    return mean, share


train_epoch.leaves_out(TRAINING, _DATA + " sliced half bfloat16")
train_epoch.leaves_out("of no samples there is no mean", "no_entries")


@train_epoch.checks
def _(case: Case) -> None:
    for sizes, device in (((4, 3), case.device), ((5, 5, 5, 3), elsewhere(case.device))):
        training, data = Training(device), batches(sizes, scale=20.0)
        given = loader(data) if len(data) == 2 else data  # a list of batches is a loader too
        got, waits = training.call(case, given, device)
        expected, sent = [training.expected(x, y) for x, y in data], {part.nbytes for batch in data for part in batch}
        loss = sum(one.item() * size for (one, _), size in zip(expected, sizes, strict=True)) / sum(sizes)
        right = loss, sum(hits.sum().item() for _, hits in expected) / sum(sizes)
        copies = [one for one in case.counts.copies if one.direction == "h2d" and one.bytes in sent]
        name = "copies with non_blocking=True from memory that is not pinned"
        why = "this device reads the batch later, when another one may stand in its memory: non_blocking=CAN_PIN"
        case.instead(device.type not in PINNING and any(one.non_blocking for one in copies), name, why)
        training.followed(case, len(data))
        training.equal(case)
        case.instead(
            max((one.graphs_kept for one in training.log.passes), default=0) > 2,
            "keeps the graph of every batch",
            "a sum of losses that are not detached holds all of them: add loss.detach()",
        )
        got = tuple(got) if isinstance(got, list) else got
        tensors = isinstance(got, tuple) and any(isinstance(value, torch.Tensor) for value in got)
        case.instead(tensors, "returns tensors, expected two floats", "one .tolist() at the end reads both", got=got)
        case.equal(got, right, rtol=1e-4, atol=1e-5)
        case.budget(
            "synchronisations an epoch",
            waits,
            1,
            "synchronize(), .item(), print, float() and an `if` on a tensor make the host wait for all that is "
            "queued: add up on the device and read once, at the end",
        )
        held = device.type in PINNING and not all(one.non_blocking for one in copies)
        case.instead(held, "copies batches without non_blocking=CAN_PIN", "from pinned memory the host need not wait")
    for model in models():
        dtype = next(model.parameters()).dtype
        rows = edges.permuted(torch.randn(4, 6, dtype=dtype)), edges.sliced(torch.randn(1, 6, dtype=dtype))
        data = list(zip(rows, (torch.tensor([2, 0, 5, 5]), torch.tensor([1])), strict=True))
        device = edges.supporting(case.device, model)
        for given in (data, data[::-1], data[:1], iter(data)):
            follows(case, model.to(device), train_epoch, given, device)


train_epoch.alternative(
    "lists, added up at the end: a curve can be drawn of them; as many small tensors are kept",
    edit("""
        -    sums, samples = torch.zeros(2, device=device), 0
        +    losses, right, samples = [], [], 0
        ...
        -        sums[0] += loss.detach() * len(labels)  # the device adds, the host only asks it to
        -        sums[1] += (logits.argmax(dim=1) == labels).sum()
        +        losses.append(loss.detach() * len(labels))
        +        right.append((logits.argmax(dim=1) == labels).sum())
                 samples += len(labels)
        +    sums = torch.stack([torch.stack(losses).sum(), torch.stack(right).sum()])
    """),
)


@exercise(
    title="A step in mixed precision",
    minutes=15,
    difficulty=3,
    hints=(
        "The forward pass and the loss stand under torch.autocast(images.device.type, dtype=dtype), nothing else does.",
        "scaler.scale(loss).backward() gives gradients that are still multiplied by the factor. Unscale them first.",
        "After backward come the four words in italics, in their order: unscale_ and step are the scaler's and take "
        "the optimizer, update is the scaler's and takes nothing, clip_grad_norm_ takes the parameters and max_norm.",
    ),
)
def amp_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    images: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
    max_norm: float,
) -> torch.Tensor:
    """Take a step under autocast, with clipped gradients; return the detached loss."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=dtype):
        loss = F.cross_entropy(model(images).float(), labels)  # of 16 bits it would take the logarithm in 16 bits
    scaler.scale(loss).backward()  # the factor keeps small float16 gradients from becoming 0
    scaler.unscale_(optimizer)  # now their norm means something
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)  # leaves the step out if a gradient is inf or NaN
    scaler.update()  # and then makes the factor smaller
    return loss.detach()


amp_step.leaves_out(TRAINING, _DATA + " sliced double")
amp_step.leaves_out("autocast leaves double precision alone, which nobody mixes", "double_model")
amp_step.leaves_out("a norm is a length", "number_zero number_negative number_large limit")


@amp_step.checks
def _(case: Case) -> None:
    here = edges.scaling(case.device)
    for sizes, max_norm, scale, dtype in (
        ((8,), 1e6, 2.0**10, torch.float16),
        *[((1,), 1e6, 2.0**10, torch.float16)] * 4,  # "the loss of `logits.float()`": a mean would hide its digits
        ((8,), 0.05, 2.0**10, torch.float16),
        ((8, 6), 1e6, 1.0, torch.bfloat16),
    ):
        training = Training(here, scale)
        for parameter in training.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)  # somebody left them behind
        for batch in batches(sizes, scale=5.0):
            x, y = (part.to(here) for part in batch)
            # the scaler objects to a wrong order, in words that do not say what is wrong
            with case.rather(lambda log=training.log: _scaler_in_order(case, log.text)):
                got, waits = training.call(case, training.scaler, x, y, dtype, max_norm)
            _scaler_in_order(case, training.log.text)
            computed, text = training.log.passes[0].dtype if training.log.passes else dtype, training.log.text
            for when, name, why in (
                (computed != dtype, f"computes the forward pass in {computed}",
                 f"{dtype} is asked for: `with torch.autocast(images.device.type, dtype=dtype):` casts"),
                ("U" not in text, "never calls scaler.update()",
                 "it makes the scale smaller after an overflow, and larger when all goes well"),
                ("w" in text, "runs the backward pass under autocast",
                 "PyTorch advises against it: backward repeats the formats of the forward pass by itself"),
                ("W" in text, "leaves autocast on while it unscales, steps or updates",
                 "the forward pass and the loss stand under autocast, and nothing else"),
            ):  # fmt: skip
                case.instead(when, name, why)
            training.followed(case)
            # after a step the weights differ by what 16 bits round
            rtol = 1e-4 if sizes == (1,) else 1e-2
            _a_loss(case, got, training.expected(x, y, dtype=dtype, max_norm=max_norm)[0], rtol=rtol)
            training.equal(case, tolerance=0.05)
            case.budget("host reads", waits, 1, "scaler.step() looks once whether a gradient is inf; that is enough")
            left, why = training.scaler.get_scale(), "scaler.update() knows when to change it"
            case.instead(left != scale, "sets the scale itself", why, expected=scale, got=left)
    training = Training(here, scale=2.0**40)
    x, y = (part.to(here) for part in batches((4,))[0])
    training.call(case, training.scaler, x, y, torch.float16, 1.0)
    why = "scaler.step(optimizer) sees that they are inf and leaves the step out"
    case.instead(training.moved().any(), "steps where gradients overflow", why)
    why = "scaler.update() does: without it every step is left out"
    case.instead(training.scaler.get_scale() >= 2.0**40, "does not make the scale smaller after an overflow", why)
    for device in (case.device, elsewhere(case.device), torch.device("cpu")):  # "`images.device.type` names the device"
        for model in models():
            if next(model.parameters()).dtype == torch.float32:
                _follows_a_mixed_step(case, model.to(device), device)


def _follows_a_mixed_step(case: Case, model: nn.Module, device: torch.device) -> None:
    """Fail unless the answer takes the step with a scaler that is disabled, as it is for bfloat16."""
    x, y = edges.permuted(torch.randn(3, 6)), torch.tensor([2, 0, 5])
    images, scaler = edges.on(x, device), torch.amp.GradScaler(device.type, enabled=False)
    formats: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, logits: formats.append(logits.dtype))
    follows(case, model, amp_step, scaler, images, y.to(device), torch.bfloat16, 0.5, tolerance=1e-3)
    name = f"computes the forward pass in {formats[-1]}, with images on {device}"
    case.instead(formats[-1] != torch.bfloat16, name, "`images.device.type` names the device to autocast")
    case.equal(images, edges.on(x, device), why="the batch is the caller's")


_DISORDER = (  # what the log shows of the scaler, as patterns: see `training.Log`
    ("^[^csuU]*[AB][^csuU]*$", "never uses the scaler that it is given",
     "small float16 gradients become 0 without it: scaler.scale(loss).backward()"),
    ("^[^s]*[SE]", "steps without the scaler", "scaler.step(optimizer) divides by the scale and leaves the step out "
     "where a gradient is inf; optimizer.step() does neither"),
    ("U.*U", "calls scaler.update() twice", "it ends the step, once"),
    ("U.*s", "updates the scaler before the step",
     "update() ends the step: the scaler then no longer knows that the gradients are unscaled"),
    ("^[^s]*[ABu][^sABuZ]*Z", "clears the gradients before the step has used them",
     "the order is zero_grad, backward, step"),
    ("^[^ABSE]*[us]", "unscales or steps without a backward pass before it",
     "scaler.scale(loss).backward() fills the gradients, the step uses them"),
)  # fmt: skip


def _scaler_in_order(case: Case, text: str) -> None:
    """Fail with what the log shows of the scaler to be wrong, also where an error has ended the step."""
    for pattern, name, why in _DISORDER:
        case.instead(re.search(pattern, text), name, why)


amp_step.alternative(
    "the loss outside of autocast, in float32 all the same: whatever a loss of your own consists of, nothing is cast",
    edit("""
-        loss = F.cross_entropy(model(images).float(), labels)  # of 16 bits it would take the logarithm in 16 bits
+        logits = model(images)
+    loss = F.cross_entropy(logits.float(), labels)  # of 16 bits it would take the logarithm in 16 bits
    """),
)


@exercise(
    title="Resume",
    minutes=15,
    difficulty=3,
    hints=(
        "Model, optimizer and scheduler have state_dict and load_state_dict. Random numbers: torch.get_rng_state().",
        "The step is a number. Keep it in self.step, which is 0 at the start.",
        "Keep the three parts in __init__. state_dict() has an entry for the state_dict() of each part, for the step "
        "and for torch.get_rng_state(). If the model is on a device, "
        "torch.get_device_module(device).get_rng_state(device) is one more. load_state_dict puts each entry back, with "
        "the part's load_state_dict or with set_rng_state.",
    ),
)
class Progress:
    """All that a run needs to go on; `step` counts the steps that are done."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self.device = next(model.parameters()).device
        self.step = 0  # the position in the data follows from it

    def state_dict(self) -> dict:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "random": torch.get_rng_state()}
        if self.device.type != "cpu":  # dropout on the device draws from the device's generator
            state["device_random"] = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def load_state_dict(self, state: dict) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["random"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["device_random"], self.device)


Progress.leaves_out(
    "each part knows its own state, whatever model and optimizer it belongs to",
    "evaluation frozen all_frozen shared old_gradients two_groups double_model scalar_parameter",
)
Progress.leaves_out("a state is what state_dict() made", "no_entries order default_type")
Progress.leaves_out("it is handed a model, which cannot be kept for later", "second_call")


@Progress.checks
def _(case: Case) -> None:
    resumes(case)


Progress.alternative(
    "asks its own attributes: what is added later is saved as well, whether you wanted it or not",
    edit("""
        -        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        +        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        ...
        -        state = {name: part.state_dict() for name, part in self.parts.items()}
        +        state = {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, "state_dict")}
        ...
        -        for name, part in self.parts.items():
        -            part.load_state_dict(state[name])
        +        for name, part in vars(self).items():
        +            if hasattr(part, "state_dict"):
        +                part.load_state_dict(state[name])
    """),
)
