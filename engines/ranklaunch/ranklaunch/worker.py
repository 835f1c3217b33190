"""Life of one rank from start to end.

It is told its place, joins the process group, calls the function, and sends what that returned or raised. Then it waits
until all ranks are done: a rank that left early would close connections that others still use.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import io
import logging
import os
import pickle
import queue
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist

from ranklaunch import wire

_dist: Any = dist  # its stubs leave out what C++ defines
SLOW = ("torch._dynamo", "torch.distributed.fsdp")  # imports that take about a second
device: torch.device | None = None  # the device of this rank; None in a process that is none


@dataclass(frozen=True)
class Job:
    """What every rank is told: where it runs, and what. `payload` is the function with its arguments, pickled."""

    devices: tuple[str, ...]
    backend: str
    store_port: int
    environment: dict[str, str]
    path: list[str]
    arguments: list[str]  # of the command line
    folder: str
    threads: int
    filters: list[tuple[Any, ...]]  # of warnings
    start: bytes  # what to call first, pickled, or None
    payload: bytes


def main(number: int) -> None:
    """Be a rank in a process that was started afresh: its channel is this descriptor, or on Windows comes in stdin."""
    run(socket.socket(fileno=number) if os.name == "posix" else socket.fromshare(sys.stdin.buffer.read()))


def run(connection: socket.socket) -> None:
    """Do all that a rank does, and end the process."""
    channel, requests, code, own_pid = wire.Channel(connection), queue.SimpleQueue(), 1, os.getpid()
    try:
        rank, job = channel.receive()
        _enter(rank, job)
        threading.Thread(target=_listen, args=(channel, requests), daemon=True, name="launch").start()
        kind, value = _outcome(channel, requests, rank, job)
        _flush()
        code = int(kind != "returned")
        if os.getpid() == own_pid:
            channel.send(kind, value)
            requests.get()  # a rank that failed waits too, until it is killed: others would fail for the lack of it
            _leave()
        elif kind == "failed" and value.kind != "SystemExit":  # a copy that the function forked: only the rank answers
            print(value.words, file=sys.stderr)
    except (EOFError, OSError):  # the parent is gone
        pass
    finally:
        _flush()
        os._exit(code)


def _enter(rank: int, job: Job) -> None:
    """Make this process look like a process of torchrun: environment, path, folder, output, random numbers, device."""
    global device
    atexit._clear()  # what imported modules do when an interpreter ends; this process ends without that
    atexit.register(cast(Any, importlib.import_module("multiprocessing.util"))._exit_function)
    world_size = str(len(job.devices))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")] if os.name == "posix" else []
    gloo = {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}  # else gloo asks what address this host's name has
    os.environ.clear()
    os.environ.update(gloo | job.environment)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job.store_port),
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",  # rank 0 of a new group makes no store
    )  # fmt: skip
    _dist.set_debug_level_from_env()  # TORCH_DISTRIBUTED_DEBUG was read when torch was imported, before this job
    sys.path[:], sys.argv[:] = job.path, job.arguments
    with contextlib.suppress(OSError):
        os.chdir(job.folder)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    faulthandler.enable(file=2)  # when C++ ends this process, its threads are written there, and the parent reads them
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    warnings.resetwarnings()
    cast(list[Any], warnings.filters).extend(job.filters)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it says what no rank can change
    random.seed(rank)
    with contextlib.suppress(ImportError):  # PyTorch does without NumPy
        importlib.import_module("numpy").random.seed(rank)
    torch.manual_seed(rank)
    torch.set_num_threads(job.threads)
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _listen(channel: wire.Channel, requests: queue.SimpleQueue[str]) -> None:
    """Answer the parent while the function runs, and pass on when to go and when to leave; end with the parent."""
    main_thread = threading.main_thread().ident or 0
    with contextlib.suppress(EOFError, OSError):
        while True:
            (request,) = channel.receive()
            if request == "look":
                channel.send("look", wire.Look(wire.frames(sys._current_frames()[main_thread]), _cpu_s()))
            else:
                requests.put(request)
    os._exit(1)


def _cpu_s() -> float | None:
    """Return the seconds that this process has computed, with the processes that it started and that have ended.

    None where a GPU computes: while the host waits for it, CUDA may keep a core busy.
    """
    if device is not None and device.type == "cuda":
        return None
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _outcome(channel: wire.Channel, requests: queue.SimpleQueue[str], rank: int, job: Job) -> tuple[str, Any]:
    """Join the process group, call the function when all have joined, and return the message for the parent."""
    modules = set(sys.modules)
    try:
        wrapper = _started(job.start)
        store = _dist.TCPStore(
            "127.0.0.1", job.store_port, is_master=False, timeout=wire.MEET, use_libuv=os.name != "nt"
        )
        options: dict[str, Any] = {"device_id": device} if "nccl" in job.backend else {}
        dist.init_process_group(job.backend, store=store, rank=rank, world_size=len(job.devices), **options)
        fn, args, kwargs = pickle.loads(job.payload)
        known = wire.known_classes()
        wire.name_in_main(known)
        channel.send("ready", None)
        requests.get()  # a function that leaves the group at once would cut off those that still join
        returned = _Returned(fn)
        value = returned(*args, **kwargs) if wrapper is None else wrapper(returned, *args, **kwargs)
    except BaseException as error:
        return "failed", wire.failure(error)
    try:
        data = wire.dumps(value, known)
    except BaseException as error:
        return "unsendable", (type(returned.value).__name__, wire.failure(error))
    return "returned", (data, [name for name in SLOW if name in sys.modules and name not in modules])


def _started(pickled: bytes) -> Callable[..., Any] | None:
    """Call `start` and return the function in which it wants to call the reader's, if any."""
    start = pickle.loads(pickled)
    wrapper = start() if start is not None else None
    return wrapper if callable(wrapper) else None


class _Returned:
    """A function that keeps what it returned: messages name that, and not what `start` makes of it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.value = fn, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.value = self.fn(*args, **kwargs)
        return self.value


def _leave() -> None:
    """Do what an exiting interpreter does; gloo's group needs no farewell, since all ranks are done."""
    with contextlib.suppress(Exception):
        cast(Any, threading)._shutdown()  # waits for threads that are no daemons: they may still print
    with contextlib.suppress(Exception):
        if device is not None and device.type == "cuda":
            dist.destroy_process_group()
    atexit._run_exitfuncs()


def _flush() -> None:
    """Write out what Python and the C library still hold: the process ends without doing so."""
    for flush in (lambda: sys.stdout.flush(), lambda: sys.stderr.flush(), lambda: ctypes.CDLL(None).fflush(None)):
        with contextlib.suppress(Exception):  # there may be no such stream
            flush()
