"""What a reader may do wrong, each in a process of its own: `python -m tests.simulator_misuse NAME`; prints `alive`."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from course_utils import simulator


def expect(kind, words, action):
    """Run `action` and check the error; end the process if there is none or another."""
    try:
        action()
    except kind as error:
        assert words in str(error), f"{words!r} not in {error}"
        return
    raise SystemExit(f"no {kind} from {action}")


class Faulty(torch.autograd.Function):
    """Raises in its backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("mine")


def operations():
    """Two devices, an invalid index, numpy, an exception in an operator, use after reset."""
    x = torch.ones(2, 2, device="sim")
    for _ in range(3):
        expect(RuntimeError, "same device", lambda: x + torch.ones(2, 2, device="sim:1"))
        expect(torch.AcceleratorError, "invalid device ordinal", lambda: torch.ones(2, device="sim:9"))
        expect(RuntimeError, "cannot be multiplied", lambda: x @ torch.ones(3, 3, device="sim"))
        expect(IndexError, "", lambda: x[torch.tensor([5])])
        expect(RuntimeError, "positive-definite", lambda: torch.linalg.cholesky(-x))
        expect(torch.OutOfMemoryError, "sim out of memory", lambda: torch.empty(2**30, device="sim"))
    simulator.reset()
    assert (x + 1).sum().item() == 8


def backward():
    """A reader's error, a failing hook and out of memory in a backward pass, in this thread and in others."""
    simulator.configure(capacity="16 KiB")
    w = torch.ones(1024, device="sim", requires_grad=True)

    def attempts():
        expect(
            ValueError, "mine", lambda: Faulty.apply(torch.ones(2, device="sim", requires_grad=True)).sum().backward()
        )
        hooked = torch.ones(2, device="sim", requires_grad=True)
        hooked.register_hook(lambda gradient: 1 / 0)
        expect(ZeroDivisionError, "", lambda: (hooked * 2).sum().backward())

    attempts()
    expect(torch.OutOfMemoryError, "sim out of memory", lambda: w.sin().cos().sum().backward())
    simulator.configure(capacity="1 GiB")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: attempts(), range(4))) == [None] * 4
    w.grad = None
    gc.collect()
    assert torch.sim.memory_allocated() == 4096, torch.sim.memory_allocated()


class OnSim(torch.utils.data.Dataset):
    """Items on the simulated GPU: wrong in a worker; also those that were put there before the workers started."""

    def __init__(self, stored=None):
        self.stored = stored

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(2, device="sim") * index if self.stored is None else self.stored[index]


def workers():
    """Loader workers that make or return tensors of the device, forked and spawned."""
    loader = torch.utils.data.DataLoader
    if hasattr(__import__("os"), "fork"):
        for data in (OnSim(), OnSim(torch.ones(4, 2, device="sim"))):
            expect(
                RuntimeError,
                "Cannot re-initialize sim in forked subprocess",
                lambda data=data: list(loader(data, num_workers=1, multiprocessing_context="fork")),
            )
    expect(RuntimeError, "", lambda: list(loader(OnSim(), num_workers=1, multiprocessing_context="spawn")))
    assert len(list(loader(OnSim()))) == 4


def files():
    """Loading to the device, to one that is not there, and a broken file."""
    import io

    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    for where in ("sim", "sim:1", torch.device("sim")):
        file.seek(0)
        assert torch.load(file, map_location=where).device.type == "sim"
    file.seek(0)
    expect(torch.AcceleratorError, "invalid device ordinal", lambda: torch.load(file, map_location="sim:5"))
    expect(Exception, "", lambda: torch.load(io.BytesIO(file.getvalue()[:100]), map_location="sim"))


def settings():
    """Arguments of enable() that cannot be."""
    expect(ValueError, "gpus is 2 already", lambda: simulator.enable(gpus=3))
    expect(ValueError, "gpus must be", lambda: simulator.enable(gpus=0))
    expect(ValueError, "capacity must be", lambda: simulator.enable(capacity="much"))
    expect(ValueError, "", lambda: simulator.enable(spec="Z80"))
    expect(TypeError, "costs must be", lambda: simulator.configure(costs=3))


def taken():
    """Another backend has PyTorch's extension point."""
    torch.utils.rename_privateuse1_backend("other")
    expect(RuntimeError, "another package has taken", simulator.enable)
    expect(RuntimeError, "call simulator.enable", simulator.reset)
    assert not simulator.enabled()


def nothing():
    """Importing the course registers nothing."""
    import course_utils.devices  # noqa: F401

    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert not hasattr(torch, "sim") and not simulator.enabled()
    assert torch.Generator is torch._C.Generator and torch.Tensor.pin_memory is torch._C.TensorBase.pin_memory
    expect(RuntimeError, "", lambda: torch.ones(1, device="sim"))


ALONE = {"taken": taken, "nothing": nothing}
TOGETHER = {f.__name__: f for f in (operations, backward, files, settings, workers)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1]
    if chosen in ALONE:
        ALONE[chosen]()
    else:
        simulator.enable()
        for misuse in TOGETHER.values() if chosen == "all" else [TOGETHER[chosen]]:
            misuse()
            simulator.reset()
            print("done", misuse.__name__, flush=True)
        gc.collect()
        assert torch.sim.memory_allocated() == torch.sim.memory_allocated(1) == 0
    print("alive", flush=True)
