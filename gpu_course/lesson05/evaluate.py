"""The exercise “Evaluation”."""

import copy
from collections.abc import Iterable

import torch
from torch import nn

from gpu_course.checks import Case, difference, edges, exercise
from gpu_course.common.probes import elsewhere, state_of, unchanged
from gpu_course.lesson05.training import Classifier, batches, loader


@exercise(
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


evaluate.exempt(
    "the loader holds data, which is given",
    "scalar empty permuted sliced huge tiny not_finite half bfloat16 bool complex default_type",
)
evaluate.exempt("of no samples there is no share", "no_entries")
evaluate.exempt("only what the model answers counts, and it gets no optimizer", "shared two_groups scalar_parameter")
evaluate.exempt("a model cannot be kept for later", "second_call unchanged")


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
        got = case.call(model, given, device, modifies="nothing")
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
            case.fail_if(when, name, why)
        layers = model.layers.eval()
        right = sum((layers(x.to(device)).argmax(dim=1) == y.to(device)).sum().item() for x, y in data) / sum(sizes)
        case.fail_if(isinstance(got, torch.Tensor), "returns a tensor, expected a float", ".item() reads it", got=got)
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
        sure = [(x, model.layers(x.to(case.device)).argmax(dim=1)) for x, _ in data]
        for given, share in ((iter(data), right / 6), (data[::-1], right / 6), (data[:], right / 6), (sure, 1.0)):
            case.equal(case.call(model, given, case.device, modifies="nothing"), share)
        unchanged(case, before, model, "an evaluation leaves the model as it was")
        same = all(one.grad is old for one, old in zip(model.parameters(), gradients, strict=True))
        case.fail_if(not same, "changes the gradients of the model", "the caller may still use them")
    exact, (x, y) = Classifier().double(), data[1]
    device = edges.supporting(case.device, exact)
    right = (exact.to(device).layers(x.double().to(device)).argmax(dim=1) == y.to(device)).float().mean().item()
    case.equal(case.call(exact, [(x.double(), y)], device, modifies="nothing"), right)
