"""Answers to lesson 05 that people give, each with what the message must say."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


# ---- train_step
def _no_zero_grad(model, optimizer, images, labels, device):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    optimizer.step()
    return loss.detach()


def _zero_grad_after_backward(model, optimizer, images, labels, device):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss.detach()


def _step_before_backward(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.step()
    loss.backward()
    return loss.detach()


def _step_of_the_batch_before(model, optimizer, images, labels, device):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    return loss.detach()


def _no_step(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    return loss.detach()


def _keeps_the_graph(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    optimizer.step()
    return loss


def _item(model, optimizer, images, labels, device):
    return _keeps_the_graph(model, optimizer, images, labels, device).item()


def _prints(model, optimizer, images, labels, device):
    loss = _keeps_the_graph(model, optimizer, images, labels, device).detach()
    print(f"loss {loss:.3f}")
    return loss


def _softmax(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images.to(device)).softmax(dim=1), labels.to(device))
    loss.backward()
    optimizer.step()
    return loss.detach()


def _sum(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images.to(device)), labels.to(device), reduction="sum")
    loss.backward()
    optimizer.step()
    return loss.detach()


def _loss_on_the_cpu(model, optimizer, images, labels, device):
    return _keeps_the_graph(model, optimizer, images, labels, device).detach().cpu()


def _forgets_the_batch(model, optimizer, images, labels, device):
    return _keeps_the_graph(model, optimizer, images, labels, images.device).detach()


def _an_optimizer_of_its_own(model, optimizer, images, labels, device):
    return _keeps_the_graph(model, torch.optim.SGD(model.parameters(), lr=0.1), images, labels, device).detach()


def _first_gpu(model, optimizer, images, labels, device):
    place = torch.device("sim:0") if device.type == "sim" else device
    return _keeps_the_graph(model, optimizer, images, labels, place).detach()


def _in_evaluation_mode(model, optimizer, images, labels, device):
    return _keeps_the_graph(model.eval(), optimizer, images, labels, device).detach()


def _on_the_cpu(model, optimizer, images, labels, device):
    loss = _keeps_the_graph(model.cpu(), optimizer, images, labels, "cpu").detach()
    model.to(device)
    return loss.to(device)


def _two_steps(model, optimizer, images, labels, device):
    loss = _keeps_the_graph(model, optimizer, images, labels, device).detach()
    optimizer.step()
    return loss


def _each_sample(model, optimizer, images, labels, device):
    optimizer.zero_grad()
    losses = [
        F.cross_entropy(model(x.to(device)[None]), y.to(device)[None]) for x, y in zip(images, labels, strict=True)
    ]
    for loss in losses:
        loss.backward()
    optimizer.step()
    return torch.stack(losses).mean().detach()


def _normalises_in_place(model, optimizer, images, labels, device):
    return _keeps_the_graph(model, optimizer, images.sub_(images.mean()), labels, device).detach()


def _model_cleared_after_backward(model, optimizer, images, labels, device):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    loss.backward()
    model.zero_grad()
    optimizer.step()
    return loss.detach()


def _trains_a_copy(model, optimizer, images, labels, device):
    return _keeps_the_graph(copy.deepcopy(model), optimizer, images, labels, device).detach()


def _trains_twice(model, optimizer, images, labels, device):
    _keeps_the_graph(model, optimizer, images, labels, device)
    return _keeps_the_graph(model, optimizer, images, labels, device).detach()


def _cleared_by_hand(clear):
    def answer(model, optimizer, images, labels, device):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        for parameter in model.parameters():
            clear(parameter)
        optimizer.step()
        return loss.detach()

    return answer


def _set_to_none(parameter):
    parameter.grad = None


def _waits(model, optimizer, images, labels, device):
    loss = _keeps_the_graph(model, optimizer, images, labels, device).detach()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return loss


def _freezes_a_layer(model, optimizer, images, labels, device):
    next(model.parameters()).requires_grad_(False)
    return _keeps_the_graph(model, optimizer, images, labels, device).detach()


# ---- evaluate
def _in_training_mode(model, loader, device):
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
            total += len(labels)
    return right / total


def _with_a_graph(model, loader, device):
    was, right, total = model.training, 0, 0
    model.eval()
    for images, labels in loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
        total += len(labels)
    model.train(was)
    return right / total


def _stays_in_evaluation_mode(model, loader, device):
    model.eval()
    return _in_training_mode(model, loader, device)


def _always_back_to_training(model, loader, device):
    model.eval()
    share = _in_training_mode(model, loader, device)
    model.train()
    return share


def _mean_of_shares(model, loader, device):
    was, shares = model.training, []
    model.eval()
    with torch.inference_mode():
        for images, labels in loader:
            shares.append((model(images.to(device)).argmax(dim=1) == labels.to(device)).float().mean().item())
    model.train(was)
    return sum(shares) / len(shares)


def _restored(share):
    def answer(model, loader, device):
        was = model.training
        model.eval()
        value = share(model, loader, device)
        model.train(was)
        return value

    return answer


def _per_cent(model, loader, device):
    return 100 * _restored(_in_training_mode)(model, loader, device)


def _number_right(model, loader, device):
    total = sum(len(labels) for _, labels in loader)
    return _restored(_in_training_mode)(model, loader, device) * total


def _a_tensor(model, loader, device):
    return torch.tensor(_restored(_in_training_mode)(model, loader, device))


def _evaluates_on_the_first_gpu(model, loader, device):
    return _restored(_in_training_mode)(model, loader, "sim:0" if device.type == "sim" else device)


def _top_flag_alone(model, loader, device):
    was = model.training
    model.eval()
    share = _in_training_mode(model, loader, device)
    model.training = was
    return share


def _freezes(model, loader, device):
    share = _restored(_in_training_mode)(model, loader, device)
    model.requires_grad_(False)
    return share


def _evaluates_on_the_cpu(model, loader, device):
    model.cpu()
    share = _restored(_in_training_mode)(model, loader, torch.device("cpu"))
    model.to(device)
    return share


def _by_number_of_batches(model, loader, device):
    return _number_right(model, loader, device) / len(loader)


@torch.inference_mode()
def _of_the_data_set(model, loader, device):
    was = model.training
    model.eval()
    right = sum((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item() for images, labels in loader)
    model.train(was)
    return right / len(loader.dataset)


@torch.inference_mode()
def _first_batch(model, loader, device):
    was = model.training
    model.eval()
    images, labels = next(iter(loader))
    share = (model(images.to(device)).argmax(dim=1) == labels.to(device)).float().mean().item()
    model.train(was)
    return share


def _wrong_ones(model, loader, device):
    return 1 - _restored(_in_training_mode)(model, loader, device)


def _without_graph_by_freezing(model, loader, device):
    model.requires_grad_(False)
    return _restored(_with_a_graph)(model, loader, device)


def _halves_the_model(model, loader, device):
    share = _restored(_in_training_mode)(model, loader, device)
    model.half()
    return share


def _a_complex_share(model, loader, device):
    return complex(_restored(_in_training_mode)(model, loader, device))


def _no_share(model, loader, device):
    _restored(_in_training_mode)(model, loader, device)
    return 10**400


def _outer_mode_alone(model, loader, device):
    was, model.training = model.training, False
    with torch.inference_mode():
        hits = [(model(x.to(device)).argmax(dim=1) == y.to(device)).float() for x, y in loader]
    model.training = was
    return torch.cat(hits).mean().item()


# ---- mean_loss
def _mean_of_means(losses, sizes):
    return torch.stack(losses).mean()


def _repeated(losses, sizes):
    return torch.stack(losses).repeat_interleave(torch.tensor(sizes, device=losses[0].device)).mean()


def _by_batches(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / len(sizes)


def _not_divided(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes, strict=True))


def _read_each(losses, sizes):
    total = sum(loss.item() * size for loss, size in zip(losses, sizes, strict=True))
    return torch.tensor(total / sum(sizes), device=losses[0].device)


def _a_number(losses, sizes):
    return (sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)).item()


def _not_weighed(losses, sizes):
    return sum(losses) / sum(sizes)


def _all_like_the_first(losses, sizes):
    total = sum(loss * sizes[0] for loss in losses[:-1]) + losses[-1] * sizes[-1]
    return total / (sizes[0] * (len(sizes) - 1) + sizes[-1])


# ---- train_epoch
def _epoch(model, optimizer, loader, device, each=lambda loss: None):
    sums, samples, means = torch.zeros(2, device=device), 0, []
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        each(loss)
        hits = (logits.argmax(dim=1) == labels).sum()
        sums += torch.stack((loss.detach() * len(labels), hits))
        means.append(torch.stack((loss.detach(), hits / len(labels))))
        samples += len(labels)
    return sums / samples, torch.stack(means).mean(dim=0)


def _item_each_batch(model, optimizer, loader, device):
    return tuple(_epoch(model, optimizer, loader, device, lambda loss: loss.item())[0].tolist())


def _prints_each_batch(model, optimizer, loader, device):
    return tuple(_epoch(model, optimizer, loader, device, lambda loss: print(f"{loss:.3f}"))[0].tolist())


def _if_each_batch(model, optimizer, loader, device):
    def guard(loss):
        if not torch.isfinite(loss):
            raise ValueError("the loss is not finite")

    return tuple(_epoch(model, optimizer, loader, device, guard)[0].tolist())


def _cpu_each_batch(model, optimizer, loader, device):
    return tuple(_epoch(model, optimizer, loader, device, lambda loss: loss.detach().cpu())[0].tolist())


def _two_reads(model, optimizer, loader, device):
    mean, share = _epoch(model, optimizer, loader, device)[0]
    return mean.item(), share.item()


def _means_of_batches(model, optimizer, loader, device):
    return tuple(_epoch(model, optimizer, loader, device)[1].tolist())


def _epoch_without_zero_grad(model, optimizer, loader, device):
    optimizer.zero_grad = lambda *_: None
    return tuple(_epoch(model, optimizer, loader, device)[0].tolist())


def _tensors(model, optimizer, loader, device):
    return tuple(_epoch(model, optimizer, loader, device)[0])


def _keeps_every_graph(model, optimizer, loader, device):
    sums, samples = torch.zeros(2, device=device), 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        sums += torch.stack((loss * len(labels), (logits.argmax(dim=1) == labels).sum()))
        samples += len(labels)
    return tuple((sums / samples).tolist())


def _epoch_in_evaluation_mode(model, optimizer, loader, device):
    return tuple(_epoch(model.eval(), optimizer, loader, device)[0].tolist())


def _evaluation_mode_afterwards(model, optimizer, loader, device):
    result = tuple(_epoch(model, optimizer, loader, device)[0].tolist())
    model.eval()
    return result


def _its_own_optimizer(model, optimizer, loader, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return tuple(_epoch(model, optimizer, loader, device)[0].tolist())


def _cleared_once(model, optimizer, loader, device):
    optimizer.zero_grad()
    clear, optimizer.zero_grad = optimizer.zero_grad, lambda *_: None
    result = tuple(_epoch(model, optimizer, loader, device)[0].tolist())
    optimizer.zero_grad = clear
    return result


def _one_step_an_epoch(model, optimizer, loader, device):
    step, optimizer.step = optimizer.step, lambda *_: None
    result = _cleared_once(model, optimizer, loader, device)
    step()
    return result


def _waits_each_batch(model, optimizer, loader, device):
    wait = torch.get_device_module(device).synchronize if device.type != "cpu" else int
    return tuple(_epoch(model, optimizer, loader, device, lambda loss: wait())[0].tolist())


def _waits_for_events(model, optimizer, loader, device):
    def wait(loss):
        if device.type != "cpu":
            event = torch.get_device_module(device).Event()
            event.record()
            event.synchronize()
            torch.get_device_module(device).current_stream().synchronize()
            torch.accelerator.synchronize(device=device)

    return tuple(_epoch(model, optimizer, loader, device, wait)[0].tolist())


def _second_pass(model, optimizer, loader, device):
    mean, _ = _epoch(model, optimizer, loader, device)[0]
    model.eval()
    with torch.no_grad():
        hits = [(model(images.to(device)).argmax(dim=1) == labels.to(device)).float() for images, labels in loader]
    model.train()
    return tuple(torch.stack((mean, torch.cat(hits).mean())).tolist())


def _share_first(model, optimizer, loader, device):
    return tuple(reversed(_epoch(model, optimizer, loader, device)[0].tolist()))


def _samples_of_the_data_set(model, optimizer, loader, device):
    sums, samples = _epoch(model, optimizer, loader, device)[0], len(loader.dataset)
    return tuple((sums * samples / samples).tolist())


def _sums_the_loss(model, optimizer, loader, device):
    sums, samples = torch.zeros(2, device=device), 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        loss.backward()
        optimizer.step()
        sums += torch.stack((loss.detach(), (logits.argmax(dim=1) == labels).sum()))
        samples += len(labels)
    return tuple((sums / samples).tolist())


def _lowers_the_rate(model, optimizer, loader, device):
    result = tuple(_epoch(model, optimizer, loader, device)[0].tolist())
    optimizer.param_groups[0]["lr"] *= 0.5
    return result


# ---- amp_step
def _forward(model, optimizer, images, labels, dtype):
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype):
        return F.cross_entropy(model(images), labels)


def _end(model, optimizer, scaler, loss, max_norm):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _backward_in_autocast(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype):
        loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _never_scaled(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    loss.backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _clips_scaled(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _without_the_scaler(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return loss.detach()


def _scaled_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.detach()


def _unscaled_loss(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    loss.backward()
    scaler.scale(loss.detach())
    return _end(model, optimizer, scaler, loss, max_norm)


def _no_update(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return loss.detach()


def _no_clipping(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _clips_scaled(model, optimizer, scaler, images, labels, dtype, 1e9)


def _no_autocast(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _scaled_loss_returned(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype):
        loss = scaler.scale(F.cross_entropy(model(images), labels))
    loss.backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _bfloat16(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _clips_scaled(model, optimizer, scaler, images, labels, torch.bfloat16, max_norm)


def _amp_without_zero_grad(model, optimizer, scaler, images, labels, dtype, max_norm):
    with torch.autocast(images.device.type, dtype=dtype):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _always_float16(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, torch.float16)
    scaler.scale(loss).backward()
    return _end(model, optimizer, scaler, loss, max_norm)


def _no_scaler_at_all(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.detach()


def _scaler_of_its_own(model, optimizer, scaler, images, labels, dtype, max_norm):
    scaler = torch.amp.GradScaler(images.device.type)
    return _always_float16(model, optimizer, scaler, images, labels, dtype, max_norm)


def _amp(model, optimizer, scaler, images, labels, dtype, *steps):
    """A step in mixed precision whose last steps are given."""
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(loss).backward()
    for step in steps:
        step()
    return loss.detach()


def _updates_first(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _amp(
        model,
        optimizer,
        scaler,
        images,
        labels,
        dtype,
        lambda: scaler.unscale_(optimizer),
        lambda: nn.utils.clip_grad_norm_(model.parameters(), max_norm),
        scaler.update,
        lambda: scaler.step(optimizer),
    )


def _cleared_before_the_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _amp(
        model,
        optimizer,
        scaler,
        images,
        labels,
        dtype,
        optimizer.zero_grad,
        lambda: scaler.unscale_(optimizer),
        lambda: scaler.step(optimizer),
        scaler.update,
    )


def _clips_to_twice(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _amp(
        model,
        optimizer,
        scaler,
        images,
        labels,
        dtype,
        lambda: scaler.unscale_(optimizer),
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 2 * max_norm),
        lambda: scaler.step(optimizer),
        scaler.update,
    )


def _clips_values(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _amp(
        model,
        optimizer,
        scaler,
        images,
        labels,
        dtype,
        lambda: scaler.unscale_(optimizer),
        lambda: nn.utils.clip_grad_value_(model.parameters(), max_norm),
        lambda: scaler.step(optimizer),
        scaler.update,
    )


def _scaled_twice(model, optimizer, scaler, images, labels, dtype, max_norm):
    loss = _forward(model, optimizer, images, labels, dtype)
    scaler.scale(scaler.scale(loss)).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _clips_to_the_scale(model, optimizer, scaler, images, labels, dtype, max_norm):
    return _clips_scaled(model, optimizer, scaler, images, labels, dtype, max_norm / scaler.get_scale())


# ---- Progress
class _Progress:
    """All but what `left_out` names."""

    left_out = ()

    def __init__(self, model, optimizer, scheduler):
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self.parts = {name: part for name, part in parts.items() if name not in self.left_out}
        self.step = 0

    def state_dict(self):
        state = {name: part.state_dict() for name, part in self.parts.items()}
        return {**state, "step": self.step, "random": torch.get_rng_state()}

    def load_state_dict(self, state):
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        if "step" not in self.left_out:
            self.step = state["step"]
        if "random" not in self.left_out:
            torch.set_rng_state(state["random"])


class _NoOptimizer(_Progress):
    left_out = ("optimizer",)


class _NoScheduler(_Progress):
    left_out = ("scheduler",)


class _NoRandomState(_Progress):
    left_out = ("random",)


class _NoStep(_Progress):
    left_out = ("step",)


class _NoModel(_Progress):
    left_out = ("model",)


class _SavesObjects(_Progress):
    def state_dict(self):
        return {**self.parts, "step": self.step, "random": torch.get_rng_state()}


class _SeedsAnew(_Progress):
    left_out = ("random",)

    def load_state_dict(self, state):
        super().load_state_dict(state)
        torch.manual_seed(0)


class _OneStepOn(_Progress):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.step += 1


class _NoDeviceState(_Progress):
    """Saves the random state of the CPU alone."""


class _StateOfTheCurrentDevice(_Progress):
    def __init__(self, model, optimizer, scheduler):
        super().__init__(model, optimizer, scheduler)
        device = next(model.parameters()).device
        self.module = None if device.type == "cpu" else torch.get_device_module(device)

    def state_dict(self):
        return super().state_dict() | ({"device": self.module.get_rng_state()} if self.module else {})

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.module:
            self.module.set_rng_state(state["device"])


class _ParametersAlone(_StateOfTheCurrentDevice):
    def state_dict(self):
        return super().state_dict() | {"model": dict(self.parts["model"].named_parameters())}

    def load_state_dict(self, state):
        model = self.parts["model"]
        super().load_state_dict(state | {"model": {**model.state_dict(), **state["model"]}})


class _StartsAtOne(_Progress):
    def __init__(self, model, optimizer, scheduler):
        super().__init__(model, optimizer, scheduler)
        self.step = 1


class _NoStepAtFirst(_Progress):
    def __init__(self, model, optimizer, scheduler):
        super().__init__(model, optimizer, scheduler)
        del self.step


class _TensorStep(_Progress):
    def state_dict(self):
        return super().state_dict() | {"step": torch.tensor(self.step)}


class _KeptInTheClass(_Progress):
    kept = None

    def state_dict(self):
        _KeptInTheClass.kept = copy.deepcopy(super().state_dict())
        return {"step": self.step}

    def load_state_dict(self, state):
        super().load_state_dict(_KeptInTheClass.kept)


class _NothingReturned(_Progress):
    def state_dict(self):
        self.state = super().state_dict()


class _OtherMethods:
    def __init__(self, model, optimizer, scheduler):
        self.step = 0

    def save(self):
        return {}


class _AssignsTheModel(_Progress):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.parts["model"].load_state_dict(state["model"], assign=True)


class _AsksAnyDevice(_Progress):
    """Asks for the random state of the device, whatever the device is."""

    def state_dict(self):
        backend = torch.get_device_module(next(self.parts["model"].parameters()).device)
        return super().state_dict() | {"device": backend.get_rng_state()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        torch.get_device_module(next(self.parts["model"].parameters()).device).set_rng_state(state["device"])


class _StepsTheScheduler(_Progress):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.parts["scheduler"].step()


WRONG = {
    "train_step": [
        ("never clears the gradients", _no_zero_grad),
        ("clears the gradients before the step has used them", _zero_grad_after_backward),
        ("steps before the backward pass", _step_before_backward),
        ("steps before the backward pass", _step_of_the_batch_before),
        ("never calls optimizer.step()", _no_step),
        ("still holds its graph", _keeps_the_graph),
        ("returns a Python number", _item),
        ("lets the host read a value", _prints),
        ("applies softmax before cross_entropy", _softmax),
        ("sums the loss over the batch", _sum),
        ("on cpu, expected on sim", _loss_on_the_cpu),
        ("same device", _forgets_the_batch),
        ("takes the step without the optimizer that it is given", _an_optimizer_of_its_own),
        ("trains in evaluation mode", _in_evaluation_mode),
        ("computes on cpu, expected on sim", _on_the_cpu),
        ("calls step() 2 time(s), not 1", _two_steps),
        ("calls step() 2 time(s), not 1", _trains_twice),
        ("never calls the model that it is given", _trains_a_copy),
        ("clears the gradients before the step has used them", _model_cleared_after_backward),
        ("calls backward() 5 time(s), not 1", _each_sample),
        ("modifies the batch", _normalises_in_place),
        ("same device", _first_gpu),
        ("clears the gradients before the step", _cleared_by_hand(_set_to_none)),
        ("clears the gradients before the step", _cleared_by_hand(lambda parameter: parameter.grad.zero_())),
        ("lets the host wait", _waits),
        ("freezes layers.0.weight", _freezes_a_layer),
    ],
    "evaluate": [
        ("evaluates in training mode", _in_training_mode),
        ("builds a graph", _with_a_graph),
        ("leaves the model in evaluation mode", _stays_in_evaluation_mode),
        ("leaves the model in training mode", _always_back_to_training),
        ("takes the mean of the batches' means", _mean_of_shares),
        ("returns per cent", _per_cent),
        ("does not divide by the number of samples", _number_right),
        ("returns a tensor, expected a float", _a_tensor),
        ("leaves layers in evaluation mode", _top_flag_alone),
        ("puts the outer module alone into evaluation mode", _outer_mode_alone),
        ("leaves parameters frozen", _freezes),
        ("leaves parameters frozen", _without_graph_by_freezing),
        ("in line 7 of your function:  return right / len(loader.dataset)", _of_the_data_set),
        ("gives the first batch alone", _first_batch),
        ("gives the share of wrong answers", _wrong_ones),
        ("computes on cpu, expected on sim", _evaluates_on_the_cpu),
        ("divides by the number of batches", _by_number_of_batches),
        ("same device", _evaluates_on_the_first_gpu),
        ("changes the model", _halves_the_model),
        ("of type complex, expected float", _a_complex_share),
        ("expected 0.", _no_share),
    ],
    "mean_loss": [
        ("takes the mean of the batches' means", _mean_of_means),
        ("divides by the number of batches", _by_batches),
        ("does not weigh each batch by its size", _not_weighed),
        ("takes all batches but the last for equally large", _all_like_the_first),
        ("does not divide", _not_divided),
        ("lets the host read values", _read_each),
        ("lets the host read values", _repeated),
        ("returns a Python number", _a_number),
    ],
    "train_epoch": [
        ("synchronisations an epoch and the limit is 1", _item_each_batch),
        ("your code printed", _prints_each_batch),
        ("the result is right, but it takes", _if_each_batch),
        ("takes 3 synchronisations an epoch", _cpu_each_batch),
        ("takes 2 synchronisations", _two_reads),
        ("takes 3 synchronisations an epoch", _waits_each_batch),
        ("takes 7 synchronisations an epoch", _waits_for_events),
        ("runs the model 4 times for 2 batches", _second_pass),
        ("swaps loss and share", _share_first),
        ("sums the loss over the batch", _sums_the_loss),
        ("no attribute 'dataset'", _samples_of_the_data_set),
        ("takes the mean of the batches' means", _means_of_batches),
        ("never clears the gradients", _epoch_without_zero_grad),
        ("returns tensors, expected two floats", _tensors),
        ("keeps the graph of every batch", _keeps_every_graph),
        ("trains in evaluation mode", _epoch_in_evaluation_mode),
        ("leaves the model in evaluation mode", _evaluation_mode_afterwards),
        ("takes the step without the optimizer", _its_own_optimizer),
        ("clears the gradients once", _cleared_once),
        ("changes the learning rate", _lowers_the_rate),
        ("calls step() 1 time(s), not 2", _one_step_an_epoch),
    ],
    "amp_step": [
        ("clips the scaled gradients", _clips_scaled),
        ("steps without the scaler", _without_the_scaler),
        ("steps with gradients that are still scaled", _scaled_step),
        ("divides by a scale that it never multiplied by", _unscaled_loss),
        ("never calls scaler.update()", _no_update),
        ("times as long as gradients of norm 0.05 give", _no_clipping),
        ("takes a step 2 times as long", _clips_to_twice),
        ("times as long as gradients of norm 0.05 give", _clips_values),
        ("updates the scaler before the step", _updates_first),
        ("so that the scaler leaves the step out", _scaled_twice),
        ("clears the gradients before the step has used them", _cleared_before_the_step),
        ("computes the forward pass in float32", _no_autocast),
        ("computes the forward pass in bfloat16", _bfloat16),
        ("returns the scaled loss", _scaled_loss_returned),
        ("never clears the gradients", _amp_without_zero_grad),
        ("computes the forward pass in float16", _always_float16),
        ("the caller asks for torch.bfloat16: give autocast `dtype=dtype`", _always_float16),
        ("runs the backward pass under autocast", _backward_in_autocast),
        ("never scales the loss", _never_scaled),
        ("never uses the scaler", _no_scaler_at_all),
        ("never uses the scaler", _scaler_of_its_own),
        ("clips the scaled gradients", _clips_to_the_scale),
    ],
    "Progress": [
        ("the optimizer is not what it was", _NoOptimizer),
        ("the scheduler is not what it was", _NoScheduler),
        ("the random state is not what it was", _NoRandomState),
        ("the step is not what it was", _NoStep),
        ("the model is not what it was", _NoModel),
        ("gives the model new parameters", _AssignsTheModel),
        ("has no attribute 'get_rng_state'", _AsksAnyDevice),
        ("the scheduler is not what it was", _StepsTheScheduler),
        ("do not take this state", _SavesObjects),
        ("the random s", _SeedsAnew),
        ("the position in the data follows from it", _OneStepOn),
        ("the random state of the device is not what it was", _NoDeviceState),
        ("generator of the model's device: get_rng_state(device)", _StateOfTheCurrentDevice),
        ("the running average of batch norm is not what it was", _ParametersAlone),
        ("`step` is not 0 at first", _StartsAtOne),
        ("has no `step`", _NoStepAtFirst),
        ("the step is not what it was", _TensorStep),
        ("is not what it was", _KeptInTheClass),
        ("returns NoneType, expected a dict", _NothingReturned),
        ("has no method state_dict", _OtherMethods),
    ],
}
