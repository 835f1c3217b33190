"""What does this function do on several processes at once, and what does each of them return?

    def total(x):
        dist.all_reduce(x)
        return x

    launch(total, torch.ones(2), nprocs=2)      # [tensor([2., 2.]), tensor([2., 2.])]

The ranks are real processes with `torch.distributed` set up, as torchrun would: gloo on the CPU, NCCL where each rank
has a GPU of its own. The notebook's process is never forked. What the function refers to is copied to the ranks, and
what they change stays there; only the returned values come back.
"""

import inspect
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ranklaunch import arguments, forked, worker
from ranklaunch.report import Interrupted, NoRanks, RankError
from ranklaunch.run import LaunchRun
from ranklaunch.wire import dumps_call, dumps_start

__all__ = ["NoRanks", "RankError", "launch", "needs_distributed", "preload", "rank_device", "use_device"]

MAX_RANKS = 64


def launch(
    fn: Callable[..., Any],
    /,
    *args: Any,
    nprocs: int = 2,
    timeout_s: float = 60.0,
    devices: Sequence[Any] | None = None,
    start: Callable[[], Any] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Run `fn(*args, **kwargs)` on `nprocs` processes and return the list of the ranks' results.

    `devices` names the device of each rank ("cpu", "cuda:1", …); by default each rank has a GPU of its own where there
    are enough, else all compute on the CPU. Tensors, in arguments and results, arrive on the CPU, each with memory of
    its own and without its `.grad`. Random numbers of torch, NumPy and Python are seeded with the rank: other numbers
    in each rank, the same in each launch. Environment, folder, `sys.path` and filters of warnings are this process's;
    settings of PyTorch, such as its default dtype, are not: make them in the function.

    `start()` is called first in each rank, before the process group exists and before the function arrives: for seeds,
    logging, or a device of its own (see `use_device`). `os.environ` tells it RANK and WORLD_SIZE. When it returns a
    function, that one calls yours when the process group is there, `wrapper(fn, *args, **kwargs)`, and the rank returns
    what it returns; anything else that `start` returns is ignored.

    `timeout_s` counts from when all ranks were there. It is wall clock, less the time in which other programs kept the
    ranks from running (`pace` says how that is known), and is over in any case after 20 times its seconds.

    Raises RankError when a rank raises, dies, returns what cannot be pickled, or when not all have returned in time;
    all ranks are stopped then. They are also stopped where the launch is interrupted, which raises KeyboardInterrupt.
    Raises TypeError for a function or arguments that cannot be sent and for arguments that do not fit the function, and
    NoRanks where this PyTorch has no `torch.distributed`.
    """
    needs_distributed()
    _check_call(fn, args, kwargs)
    nprocs, timeout_s = arguments.whole("nprocs", nprocs), arguments.positive("timeout_s", timeout_s)
    if nprocs > MAX_RANKS:
        raise ValueError(f"nprocs is {nprocs}, it may be at most {MAX_RANKS}")
    if start is not None and not callable(start):
        raise TypeError(f"start is {start!r}, it must be a function that takes no arguments")
    places = _places(devices, nprocs)
    run = LaunchRun(places, _backend(places), dumps_start(start), dumps_call(fn, args, kwargs), timeout_s)
    try:
        results = run.results()
    except KeyboardInterrupt:
        raise Interrupted from None
    return [_loaded(rank, data) for rank, data in enumerate(results)]


def needs_distributed() -> None:
    """Raise NoRanks, which says what to do, where this build of PyTorch has no `torch.distributed`."""
    if not dist.is_available():
        raise NoRanks


def preload(*modules: str) -> None:
    """Import these modules before ranks are forked, so that they start sooner; no effect where ranks are not forked.

    For modules of libraries, by name: they are imported once, before the function and its environment are there, in a
    process that all ranks come from. So their import must start no thread, touch no GPU and do nothing that depends on
    the rank, and what changes in their files afterwards is not seen.
    """
    forked.preload(*modules)


def rank_device() -> torch.device:
    """Return the device of this rank, to be called in a function that `launch` runs. Raises RuntimeError elsewhere."""
    if worker.device is None:
        raise RuntimeError("rank_device() was called in a process that launch did not start; call it in the function")
    return worker.device


def use_device(device: torch.device) -> None:
    """Set the device that `rank_device()` returns in this rank: for a `start` that gives the rank a device of its own.

    Raises RuntimeError in a process that `launch` did not start.
    """
    rank_device()
    worker.device = device


def _check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError for what every rank would fail with, before one is started."""
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}, it must be a function")
    if inspect.iscoroutinefunction(fn):
        raise TypeError("fn is an async function, ranks call plain ones: launch(lambda: asyncio.run(fn()))")
    try:
        call = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions in C say nothing about their arguments
        return
    try:
        call.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"the arguments do not fit fn: {error} (nprocs, timeout_s, devices and start are launch's own)"
        ) from None


def _places(devices: Sequence[Any] | None, nprocs: int) -> tuple[str, ...]:
    """Return the device of each rank."""
    if devices is None:
        wanted = os.environ.get("RANKLAUNCH_DEVICE", "cuda").lower()
        enough = wanted.startswith("cuda") and torch.cuda.is_available() and torch.cuda.device_count() >= nprocs
        return tuple(f"cuda:{rank}" if enough else "cpu" for rank in range(nprocs))
    if isinstance(devices, str | torch.device) or not isinstance(devices, Sequence):
        raise TypeError(f"devices is {devices!r}, it must be a list with the device of each rank")
    if len(devices) != nprocs:
        raise ValueError(f"devices has {len(devices)} entries, it must have one for each of the {nprocs} ranks")
    places = [arguments.device(f"devices[{rank}]", device) for rank, device in enumerate(devices)]
    for rank, device in enumerate(places):
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"devices[{rank}] is {device}, ranks compute on 'cpu' or on a GPU such as 'cuda:0'")
        if device.type == "cuda" and not (
            torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
        ):
            raise ValueError(f"devices[{rank}] is {device}, and this machine has no such GPU")
    return tuple(f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu" for device in places)


def _backend(places: tuple[str, ...]) -> str:
    """Return the backend: NCCL refuses two ranks on one GPU, and gloo carries tensors of GPUs too."""
    own_gpu = len(set(places)) == len(places) and "cpu" not in places
    return "cpu:gloo,cuda:nccl" if own_gpu and dist.is_nccl_available() else "gloo"


def _loaded(rank: int, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        message = (
            f"what rank {rank} returned cannot be rebuilt in this process: {type(error).__name__}: {error}\n"
            "Return tensors, numbers, or a state_dict; of a DistributedDataParallel return its .module."
        )
        raise RankError(message, rank, "result", type(error).__name__) from None


__tracebackhide__ = True  # for stacks this package is a library, wherever it is installed
