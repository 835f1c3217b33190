"""What does Python do and print, in a process of its own, that is told to run this program, package or text?

On Linux the process is forked from one that has imported what nearly all such programs need, torch first of all:
2.5 seconds of a processor for each child. What depends on the imports themselves starts a fresh Python instead.
"""

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LOADED = ("torch.distributed.tensor", "torch._dynamo")  # the second by the first step of an optimizer


def run(
    *command: object, cwd: Path | None = None, env: dict[str, str] | None = None, given: str = "",
    timeout_s: float = 300.0,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Return how Python ended and what it printed, started as `python *command`, with the text `given` to read.

    Raises TimeoutExpired after `timeout_s`, and the process is killed.
    """
    words = [str(word) for word in command]
    environment = dict(os.environ) if env is None else env
    if sys.platform != "linux":
        return subprocess.run(
            [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8",
            input=given, timeout=timeout_s, check=False,
        )  # fmt: skip
    if not _servers or _servers[0].process.poll() is not None or _servers[0].owner != os.getpid():
        _servers[:] = [_Server()]
    return _servers[0].run(words, str(cwd or Path.cwd()), environment, given, timeout_s)


class _Server:
    """The process that children are forked from; it ends with this one."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.connection, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from tests import children; children.serve({theirs.fileno()})"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.answers = self.connection.makefile("r", encoding="utf-8")
        atexit.register(self.stop)

    def run(
        self, words: list[str], cwd: str, environment: dict[str, str], given: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
            Path(files[0]).write_text(given, encoding="utf-8")
            self.connection.sendall(json.dumps([words, cwd, environment, files]).encode() + b"\n")
            self.connection.settimeout(timeout_s)
            try:
                code = int(self.answers.readline())
            except TimeoutError:
                self.stop()
                raise subprocess.TimeoutExpired(words, timeout_s) from None
            printed = [Path(file).read_text(encoding="utf-8") for file in files[1:]]
        return subprocess.CompletedProcess([sys.executable, *words], code, *printed)

    def stop(self) -> None:
        """End the server with the child that it may have."""
        if self.owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.connection.close()


_servers: list[_Server] = []


def serve(number: int) -> None:
    """Fork a child for each request that comes through the connection with this descriptor, one after the other."""
    for name in ("tests.unneeded", *_LOADED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as connection:
        for line in connection.makefile("r", encoding="utf-8"):
            if (pid := os.fork()) == 0:
                connection.close()
                become(*json.loads(line))
            _, status = os.waitpid(pid, 0)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(words: list[str], cwd: str, environment: dict[str, str], files: list[str]) -> None:
    """Do in this process what Python does with these words, and end it."""
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.modules["__main__"] = types.ModuleType("__main__", None)
    vars(sys.modules["__main__"])["__builtins__"] = builtins
    code = 1
    try:
        _program(words)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _program(words: list[str]) -> Callable[[], object]:
    """Return what runs `-c text`, `-m module` or `file`, each with its arguments."""
    first, *rest = words
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        return lambda: exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    if first == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd()]
        return lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    sys.argv, sys.path[:0] = words, [str(Path(first).resolve().parent)]
    return lambda: runpy.run_path(first, run_name="__main__")
