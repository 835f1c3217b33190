"""What does one rank do, from its start to its end?

It is told its place, joins the process group, calls the function, and sends what that returned or raised. Then it waits
until all ranks are done: a rank that left early would close connections that others still use.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import faulthandler
import io
import multiprocessing.util
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from course_utils.launch import wire

__all__ = ["Job", "device", "main", "run"]

device: torch.device | None = None  # the device of this rank; None in a process that is none


@dataclass(frozen=True)
class Job:
    """What every rank is told: where it runs, and what. `payload` is the pickled function with its arguments."""

    world_size: int
    devices: tuple[str, ...]
    backend: str
    store_port: int
    environment: dict[str, str]
    path: tuple[str, ...]
    arguments: tuple[str, ...]  # of the command line
    folder: str
    threads: int
    filters: tuple[tuple, ...]  # of warnings
    payload: bytes


def main(port: int) -> None:
    """Be a rank in a process that was started afresh: connect to the parent, which wrote a secret to stdin."""
    secret = sys.stdin.buffer.read(32)
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(secret)
    run(connection)


def run(connection: socket.socket) -> None:
    """Do all that a rank does, and end the process."""
    channel, code = wire.Channel(connection), 1
    try:
        rank, job = channel.receive()
        _enter(rank, job)
        go, leave = threading.Event(), threading.Event()
        threading.Thread(target=_listen, args=(channel, go, leave), daemon=True, name="launch").start()
        outcome = _outcome(channel, go, rank, job)
        _flush()
        channel.send(*outcome)
        leave.wait()  # a rank that failed waits too, until it is killed: others would fail for the lack of it
        _leave()
        code = 0
    except (EOFError, OSError):  # the parent is gone
        pass
    finally:
        _flush()
        os._exit(code)


def _enter(rank: int, job: Job) -> None:
    """Make this process look like a process of torchrun: environment, path, folder, output, random numbers, device."""
    global device
    atexit._clear()  # what imported modules do when an interpreter ends; this process ends without that
    atexit.register(multiprocessing.util._exit_function)
    os.environ.clear()
    os.environ.update(job.environment)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world_size), LOCAL_WORLD_SIZE=str(job.world_size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job.store_port),
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",  # rank 0 of a new group makes no store
    )  # fmt: skip
    if job.environment.get("GLOO_SOCKET_IFNAME") is None and hasattr(socket, "if_nameindex"):
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        if loopback and os.name == "posix":  # else gloo asks what address the name of this host has
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    sys.path[:], sys.argv[:] = job.path, job.arguments
    with contextlib.suppress(OSError):
        os.chdir(job.folder)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    faulthandler.disable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    warnings.resetwarnings()
    warnings.filters.extend(job.filters)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    torch.set_num_threads(job.threads)
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _listen(channel: wire.Channel, go: threading.Event, leave: threading.Event) -> None:
    """Answer the parent while the function runs; end with it."""
    main_thread = threading.main_thread().ident
    try:
        while True:
            (request,) = channel.receive()
            if request == "stack":
                channel.send("stack", wire.frames(sys._current_frames()[main_thread]))
            elif request == "go":
                go.set()
            elif request == "leave":
                leave.set()
    except (EOFError, OSError):
        if not leave.is_set():
            os._exit(1)


def _outcome(channel: wire.Channel, go: threading.Event, rank: int, job: Job) -> tuple[Any, ...]:
    """Join the process group, call the function when all have joined, and return the message for the parent."""
    modules = set(sys.modules)
    try:
        _join(rank, job)
        fn, args, kwargs = pickle.loads(job.payload)
        known = wire.known_classes()
        wire.name_in_main(known)
        channel.send("ready")
        go.wait()  # a function that leaves the group at once would cut off those that still join
        value = fn(*args, **kwargs)
    except BaseException as error:
        return "failed", wire.failure(error, time.perf_counter())
    try:
        data = wire.dumps(value, known)
    except BaseException as error:
        return "unsendable", type(value).__name__, wire.failure(error, time.perf_counter())
    return "returned", data, "torch._dynamo" in set(sys.modules) - modules


def _join(rank: int, job: Job) -> None:
    wait = datetime.timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", job.store_port, is_master=False, timeout=wait, use_libuv=os.name != "nt")
    options = {"device_id": device} if "nccl" in job.backend else {}
    dist.init_process_group(job.backend, store=store, rank=rank, world_size=job.world_size, **options)


def _leave() -> None:
    """Do what an exiting interpreter does; gloo's group needs no farewell, since all ranks are done."""
    with contextlib.suppress(Exception):
        threading._shutdown()  # waits for threads that are no daemons: they may still print
    with contextlib.suppress(Exception):
        if dist.is_initialized() and device is not None and device.type == "cuda":
            dist.destroy_process_group()
    atexit._run_exitfuncs()


def _flush() -> None:
    """Write out what Python and the C library still hold: the process ends without doing so."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if os.name == "posix":
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).fflush(None)
