"""Right answers of lesson 05 that are no edits of the reference."""

import torch
import torch.nn.functional as F
from torch import nn


def names_every_value(model, optimizer, images, labels, device):
    x = images.to(device)
    y = labels.to(device)
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(x)
    probabilities = F.log_softmax(logits, dim=1)
    loss = F.nll_loss(probabilities, y)
    result = loss.detach().clone()
    loss.backward()
    optimizer.step()
    return result


def uses_the_loss_as_a_module(model, optimizer, images, labels, device):
    criterion = nn.CrossEntropyLoss()
    model.zero_grad()
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.data


def counts_by_hand(model, loader, device):
    mode = model.training
    model.train(False)
    right = 0
    samples = 0
    with torch.no_grad():
        for batch in loader:
            images, labels = (part.to(device) for part in batch)
            _, best = model(images).max(1)
            right += int((best == labels).sum())
            samples += labels.shape[0]
    if mode:
        model.train()
    return right / samples


@torch.no_grad()
def puts_it_back_in_any_case(model, loader, device):
    def hits(images, labels):
        return model(images.to(device)).argmax(-1).eq(labels.to(device))

    before = model.training
    model.eval()
    try:
        found = [hits(images, labels) for images, labels in loader]
    finally:
        model.train(before)
    return torch.cat(found).double().mean().item()


def adds_in_a_loop(losses, sizes):
    total, samples = torch.zeros_like(losses[0]), 0
    for at in range(len(sizes)):
        total = total + losses[at] * sizes[at]
        samples += sizes[at]
    return total / samples


def weighs_each_loss(losses, sizes):
    everything = sum(sizes)
    return sum([loss * (size / everything) for loss, size in zip(losses, sizes, strict=True)])


def keeps_two_tensors(model, optimizer, loader, device):
    total = torch.tensor(0.0, device=device)
    right = torch.tensor(0, device=device)
    samples = 0
    for batch in loader:
        images, labels = [part.to(device, non_blocking=True) for part in batch]
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        optimizer.zero_grad()
        (loss / len(labels)).backward()
        optimizer.step()
        with torch.no_grad():
            total += loss
            right += torch.sum(logits.argmax(1) == labels)
        samples += images.size(0)
    both = torch.stack([total, right.to(total.dtype)])
    numbers = both.tolist()
    return numbers[0] / samples, numbers[1] / samples


def calls_a_step_of_its_own(model, optimizer, loader, device):
    def step(images, labels):
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        return torch.stack((loss.detach() * len(labels), (logits.detach().argmax(dim=1) == labels).sum()))

    found, sizes = [], []
    for images, labels in loader:
        found.append(step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True)))
        sizes.append(len(labels))
    loss, share = (torch.stack(found).sum(dim=0) / sum(sizes)).tolist()
    return loss, share


def names_the_context(model, optimizer, scaler, images, labels, dtype, max_norm):
    kind = images.device.type
    autocast = torch.autocast(device_type=kind, dtype=dtype)
    optimizer.zero_grad()
    with autocast:
        logits = model(images)
        scores = logits.float()
        loss = F.cross_entropy(scores, labels)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nn.utils.clip_grad_norm_(parameters, max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def computes_the_loss_in_a_helper(model, optimizer, scaler, images, labels, dtype, max_norm):
    @torch.autocast(images.device.type, dtype=dtype)
    def loss_of():
        return nn.CrossEntropyLoss()(model(images).to(torch.float32), labels)

    model.zero_grad()
    loss = loss_of()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([*model.parameters()], max_norm)
    scaler.step(optimizer), scaler.update()
    return loss.detach()


class Progress:
    def __init__(self, model, optimizer, scheduler):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.step = 0

    def _device(self):
        return next(self.model.parameters()).device

    def state_dict(self):
        device = self._device()
        on_device = None
        if device.type != "cpu":
            on_device = torch.get_device_module(device).get_rng_state(device)
        return dict(
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler.state_dict(),
            step=self.step,
            cpu=torch.get_rng_state(),
            device=on_device,
        )

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]
        torch.random.set_rng_state(state["cpu"])
        device = self._device()
        if state["device"] is not None:
            torch.get_device_module(device).set_rng_state(state["device"], device)


WithNames = Progress


class Progress:
    step = 0

    def __init__(self, *parts):
        self.parts = list(parts)

    def state_dict(self):
        device = next(self.parts[0].parameters()).device
        random = [torch.get_rng_state()]
        if device.type != "cpu":
            random += [torch.get_device_module(device.type).get_rng_state(device)]
        return {"parts": [part.state_dict() for part in self.parts], "step": self.step, "random": random}

    def load_state_dict(self, state):
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.step, (cpu, *others) = state["step"], state["random"]
        torch.set_rng_state(cpu)
        for other in others:
            device = next(self.parts[0].parameters()).device
            torch.get_device_module(device).set_rng_state(other, device)


RIGHT = {
    "train_step": [names_every_value, uses_the_loss_as_a_module],
    "evaluate": [counts_by_hand, puts_it_back_in_any_case],
    "mean_loss": [adds_in_a_loop, weighs_each_loss],
    "train_epoch": [keeps_two_tensors, calls_a_step_of_its_own],
    "amp_step": [names_the_context, computes_the_loss_in_a_helper],
    "Progress": [WithNames, Progress],
}
