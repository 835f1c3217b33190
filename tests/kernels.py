"""How does the kernel of a notebook start at once? From a process that has imported what its first cell imports.

2 seconds of a processor for each notebook. Linux only; elsewhere, and outside of tests, a kernel is a fresh Python. Its
environment, its folder and its path for imports are those of a fresh one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from tests import children

ROOT = Path(__file__).parents[1]
# What a kernel imports, and `devices.pick()`: the last one by the first operator on the simulated GPU.
_LOADED = ("ipykernel.kernelapp", "ipykernel.ipkernel", "torch", "torch.distributed.tensor")


class Forked(KernelManager):
    """Starts kernels as forked copies of one process."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
        if not _servers or _servers[0].process.poll() is not None:
            _servers[:] = [_Server()]
        process, where = _servers[0].start(kernel_cmd[1:], options["env"], options.get("cwd")), self.provisioner
        where.process, where.pid, where.pgid = process, process.pid, process.pid
        self._reconcile_connection_info(where.connection_info)


class _Kernel:
    """What a kernel manager asks of a process, which is a child of the server: that waits for it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Return None while the process is there."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    wait = poll  # which managers call when the process is gone

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process that kernels are forked from; it ends with this one."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        code = f"from tests import kernels; kernels.serve({theirs.fileno()})"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self.answers = self.connection.makefile("r", encoding="utf-8")
        atexit.register(self.stop)

    def start(self, words: list[str], environment: dict[str, str], folder: str | None) -> _Kernel:
        environment = environment | {"JPY_PARENT_PID": str(self.process.pid)}
        request = [words, str(folder or Path.cwd()), environment, [os.devnull] * 3]
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        return _Kernel(int(self.answers.readline()))

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.answers.close()
            self.connection.close()
            self.process.wait(5)


_servers: list[_Server] = []


def serve(number: int) -> None:
    """Fork a kernel for each request that comes through the connection with this descriptor, and wait for none."""
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # measurements of memory collect garbage often, and need not look at all that was imported
    sys.path.remove("")  # this folder, from which this module came
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a kernel ended
    with socket.socket(fileno=number) as connection:
        for line in connection.makefile("r", encoding="utf-8"):
            if (pid := os.fork()) == 0:
                connection.close()
                os.setsid()
                signal.signal(signal.SIGCHLD, usual)
                children.become(*json.loads(line))
            connection.sendall(f"{pid}\n".encode())
