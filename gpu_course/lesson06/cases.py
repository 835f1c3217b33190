"""Cases of lesson 06: seven programs that keep their GPU waiting, and their traces.

Each case trains on all batches once and returns the mean loss. `source` is what a reader opens and repairs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import tables
from gpu_course.common.probes import named

HOST = "kernel launch"  # of the cases: for tensors so small as theirs, any other host would keep each GPU waiting

# What may keep a GPU waiting, and what its gaps in a timeline are then put down to
CAUSES = {
    "loader": ("load a batch", "wait for a batch"),
    "synchronisation": ("wait for copy D2H", "synchronize"),
    "tiny operators": ("launches",),
    "copies": ("wait for copy H2D", "needs copy H2D on sim:0"),
    "host work": ("NumPy",),
    "none": (),
}


class Photos:
    """Images, uint8 of shape (3, size, size), and labels 0 to 9; to load a batch takes `load_ms` on the virtual clock.

    Loading is an input of the simulation, as `simgpu.host_work` says.
    """

    def __init__(self, batches: int = 8, batch: int = 64, size: int = 32, load_ms: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (batches * batch, 3, size, size), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(10, (batches * batch,), generator=generator)
        self.batch, self.load_ms, self.loaded = batch, load_ms, 0

    def __repr__(self) -> str:
        return "photos"

    def loader(self, num_workers: int = 0, pin_memory: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each batch once, as a DataLoader with these options does; workers begin at once and share the work."""
        begin_ms = simgpu.clock_ms()
        images, labels = (part.pin_memory() if pin_memory else part for part in (self.images, self.labels))
        for number, batch in enumerate(zip(images.split(self.batch), labels.split(self.batch), strict=True)):
            ready_ms = begin_ms + (number // max(num_workers, 1) + 1) * self.load_ms
            left_ms = ready_ms - simgpu.clock_ms() if num_workers else self.load_ms
            if left_ms > 0:
                simgpu.host_work("wait for a batch" if num_workers else "load a batch", left_ms)
            self.loaded += 1
            yield batch


def with_numpy(function: Callable[[np.ndarray], np.ndarray], x: torch.Tensor) -> torch.Tensor:
    """Return `function` of `x` as an array, on the host; the virtual clock is told 0.5 ns a byte of the result."""
    made = np.ascontiguousarray(function(x.cpu().numpy()))
    simgpu.host_work("NumPy", made.nbytes * 0.5e-6)
    return torch.from_numpy(made)


def case_1(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader(pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x = torch.stack([(image - image.mean()) / image.std() for image in x / 255])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def case_2(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader(pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        norm = sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5
        for p in model.parameters():
            p.grad.mul_(min(1.0, 0.12 / (norm + 1e-6)))  # clips gradients to a norm of 0.12
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def case_3(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader():
        x, y = (x.float() / 255).to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def case_4(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader(num_workers=0, pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def case_5(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader(pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x = with_numpy(lambda images: images[..., ::-1], x / 255).to(device)  # mirrored
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def case_6(model, optimizer, photos, device):
    losses, largest = [], 0.0
    for x, y in photos.loader(num_workers=0, pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        for p in model.parameters():
            largest = max(largest, p.grad.abs().max().item())  # of all gradients and steps
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses), largest


def case_7(model, optimizer, photos, device):
    losses = []
    for x, y in photos.loader(pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


# of each case: its causes, the width and number of hidden layers, and what `Photos` takes
CASES = {
    1: ({"tiny operators"}, 512, 2, {}),
    2: ({"synchronisation"}, 256, 7, {}),
    3: ({"copies"}, 512, 2, {"size": 128}),
    4: ({"loader"}, 512, 2, {"load_ms": 1.0}),
    5: ({"host work"}, 512, 2, {}),
    6: ({"loader", "synchronisation"}, 256, 7, {"load_ms": 0.8}),
    7: ({"none"}, 1024, 3, {}),
}


def program(number: int) -> Callable:
    """Return the program of a case as it is given."""
    return globals()[f"case_{number}"]


_Model, _SGD = named(nn.Sequential, "model"), named(torch.optim.SGD, "optimizer")


class CaseRun:
    """A fresh model, optimizer and data of a case, and what a program did with them."""

    def __init__(self, number: int, device: torch.device) -> None:
        _, width, hidden, data = CASES[number]
        self.device, self.photos = device, Photos(**data)
        torch.manual_seed(0)
        layers = [nn.AvgPool2d(data.get("size", 32) // 32), nn.Flatten(), nn.Linear(3072, width), nn.ReLU()]
        for _ in range(hidden - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.model = _Model(*layers, nn.Linear(width, 10)).to(device)
        self.optimizer = _SGD(self.model.parameters(), lr=0.01)
        self.samples, self.backwards, self.steps = [], 0, []
        self.hooks = (
            self.model.register_forward_hook(lambda model, args, out: self.samples.append(len(args[0]))),
            self.model[-1].bias.register_post_accumulate_grad_hook(self._backward),
            self.optimizer.register_step_post_hook(self._stepped),
        )
        self.begin = self._parameters()
        self.got: Any = None
        self.timeline: simgpu.Timeline  # of the last call of `do`

    def _backward(self, parameter: torch.Tensor) -> None:
        self.backwards += 1

    def _stepped(self, *args) -> None:
        self.steps.append(torch.get_device_module("sim").Event(enable_timing=True))
        self.steps[-1].record()

    def do(self, call: Callable) -> "CaseRun":
        """Let `call(model, optimizer, photos, device)` run on HOST, from an empty queue until the GPU is done."""
        torch.get_device_module("sim").synchronize()
        before = simgpu.settings().host
        simgpu.configure(host=HOST)
        try:
            with simgpu.timeline() as self.timeline:
                self.got = call(self.model, self.optimizer, self.photos, self.device)
                torch.get_device_module("sim").synchronize()
        finally:
            simgpu.configure(host=before)
            for hook in self.hooks:  # a hook of a parameter leads back here by a way that no collector sees
                hook.remove()
        return self

    def learned(self) -> torch.Tensor:
        """Return what the parameters were changed by, in one vector, on the CPU."""
        return self._parameters() - self.begin

    def _parameters(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(p.detach().cpu() for p in self.model.parameters())


@functools.cache
def original(number: int) -> CaseRun:
    """Return the run of a case as it is given, on the first simulated GPU."""
    return CaseRun(number, torch.device("sim", 0)).do(program(number))


def lost_ms(timeline: simgpu.Timeline) -> dict[str, float]:
    """Return for how long the GPU computed nothing, in ms, by cause."""
    gaps = timeline.gaps()
    return {cause: sum(gap.duration_ns for gap in gaps if gap.cause in CAUSES[cause]) / 1e6 for cause in CAUSES}


def evidence(number: int, cause: str) -> str:
    """Return what the trace of a case says of a cause."""
    timeline = original(number).timeline
    total, lost = timeline.total_ms, lost_ms(timeline)[cause]
    if cause == "none":
        return f"the GPU computes for {timeline.utilisation():.0%} of the {total:.2f} ms: something keeps it waiting"
    number_of = {"tiny operators": "launch", "synchronisation": "wait", "copies": "copy"}.get(cause)
    events = len(timeline.select(number_of)) if number_of else 0
    counted = f", with {events} event{'s' * (events != 1)} of the kind `{number_of}`" if number_of else ""
    return (
        f"this cause keeps the GPU idle for {lost:.2f} of {total:.2f} ms{counted}: "
        f"without it at most {total / (total - lost):.2f} times as fast"
    )


def table(timeline: simgpu.Timeline, rows: int = 5) -> str:
    """Return what took longest on the host and on the GPU, by name as `key_averages` does, simulated."""
    times_us: dict[str, list[float]] = {}
    for record in timeline.records:
        name = {"launch": "launch", "wait": "wait for the GPU", "work": "work of its own"}.get(record.kind, record.name)
        if record.kind != "range":
            where = "host" if record.row == "host" else "GPU"
            times_us.setdefault(f"{where}: {name}", []).append(record.duration_ns / 1e3)
    order = sorted(times_us.items(), key=lambda item: -sum(item[1]))[:rows]
    cells = [(name, f"{len(us):,}", f"{sum(us):,.0f}", f"{sum(us) / len(us):,.1f}") for name, us in order]
    share = f"the GPU computes for {timeline.utilisation():.0%} of {timeline.total_ms:.2f} ms (simulated)"
    return f"{tables.text(cells, ('name', '# of calls', 'total µs', 'mean µs'), right=(1, 2, 3))}\n{share}"
