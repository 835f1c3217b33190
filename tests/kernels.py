"""How does the kernel of a notebook start at once? From a process that has imported what its first cell imports.

2 seconds of a processor for each notebook. Linux only; elsewhere, and outside of tests, a kernel is a fresh Python. Its
environment, its folder and its path for imports are those of a fresh one.
"""

import functools
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from tests import children, pythons

# What a kernel imports and the first picture, beside what programs import.
_LOADED = "ipykernel.kernelapp", "ipykernel.ipkernel", "matplotlib.pyplot", "ipywidgets"
_START_S = 300.0  # the first one waits for the server's imports


def server() -> children.Server:
    """Return the process that forks kernels. It begins with its imports when it is first asked for."""
    return children.server("tests.kernels", None, folder().name)


@functools.cache
def folder() -> tempfile.TemporaryDirectory:
    """Return the folder where kernels find what stands for Python (`pythons`)."""
    return tempfile.TemporaryDirectory(prefix="course-python-", ignore_cleanup_errors=True)


class Forked(KernelManager):
    """Starts kernels as forked copies of one process."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
        parent, where = server(), self.provisioner
        environment = options["env"] | {"JPY_PARENT_PID": str(parent.process.pid)}
        # said once more, as the kernel's program has read its environment before: it ends when its parent does
        command = [*kernel_cmd[1:], f"--IPKernelApp.parent_handle={parent.process.pid}"]
        request = [command, str(options.get("cwd") or Path.cwd()), environment, [os.devnull] * 3]
        process = _Kernel(parent.ask(request, _START_S))
        where.process, where.pid, where.pgid = process, process.pid, process.pid
        self._reconcile_connection_info(where.connection_info)


def client(notebook: Any, **options: Any) -> Any:
    """Return the `NotebookClient` that runs a notebook in a kernel that is forked, where that can be."""
    from nbclient.client import NotebookClient  # here: where `nbclient` itself is made to give this function

    if sys.platform == "linux":
        options["kernel_manager_class"] = Forked
    return NotebookClient(notebook, **{"kernel_name": "python3", **options})


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


@children.as_python
def serve(number: int, folder: str) -> None:
    """Fork a kernel for each request that comes through the connection with this descriptor, and wait for none."""
    sys.path.remove("")  # this folder, from which this module came
    for name in children.LOADED:
        importlib.import_module(name)
    programs = pythons.begin(folder)
    if programs and os.fork() == 0:
        pythons.serve(programs)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as kernels set it before they import
    with children.requests(number, _LOADED) as (connection, asked):
        usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a kernel ended
        for request in asked:
            if (pid := os.fork()) == 0:
                connection.close()
                os.setsid()
                signal.signal(signal.SIGCHLD, usual)
                children.become(*request)
            connection.sendall(f"{pid}\n".encode())
