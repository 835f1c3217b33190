"""What does Python do and print, in a process of its own, that is told to run this program, package or text?

On Linux the process is forked from one that has imported what nearly all such programs need, torch first of all:
2.5 seconds of a processor for each child. What depends on the imports themselves starts a fresh Python instead.
"""

import atexit
import builtins
import contextlib
import functools
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The beginning of a program that is asked to end, as by `kill`, when it has printed a line that begins with `at`.
ASKED = """import builtins, os, signal
shown = print
def said(*words, **options):
    shown(*words, **options)
    if str(words[0]).startswith({at!r}): os.kill(os.getpid(), signal.SIGTERM)
builtins.print = said
"""
LOADED = ("torch.distributed.tensor", "torch._dynamo")  # the second by the first step of an optimizer


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
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
        Path(files[0]).write_text(given, encoding="utf-8")
        try:
            code = server("tests.children", sys.path).ask(
                [words, str(cwd or Path.cwd()), environment, files], timeout_s
            )
        except TimeoutError:
            raise subprocess.TimeoutExpired(words, timeout_s) from None
        printed = [Path(file).read_text(encoding="utf-8") for file in files[1:]]
    return subprocess.CompletedProcess([sys.executable, *words], code, *printed)


class Server:
    """A process that forks others, by the function `serve` of a module; it ends with this one."""

    def __init__(self, module: str, path: list[str] | None = None, *arguments: str) -> None:
        self.owner = os.getpid()
        self.connection, theirs = socket.socketpair()
        code = "" if path is None else f"import sys; sys.path[:] = {path!r}; "
        code += f"from {module} import serve; serve{(theirs.fileno(), *arguments)}"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.answers = self.connection.makefile("r", encoding="utf-8")
        atexit.register(self.stop)

    def ask(self, request: list[Any], timeout_s: float) -> int:
        """Return the number that answers a request. Raises TimeoutError after `timeout_s`, and the server is ended."""
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        self.connection.settimeout(timeout_s)
        try:
            return int(self.answers.readline())
        except TimeoutError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server with the child that it may have."""
        if self.owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.connection.close()


_servers: dict[str, Server] = {}


def server(module: str, path: list[str] | None = None, *arguments: str) -> Server:
    """Return this process's server of a module, started with the `path` for imports, or with that of a fresh Python.

    Its function `serve` gets the `arguments`, behind its descriptor.
    """
    found = _servers.get(module)
    if found is None or found.process.poll() is not None or found.owner != os.getpid():
        found = _servers[module] = Server(module, path, *arguments)
    return found


@contextlib.contextmanager
def requests(number: int, modules: tuple[str, ...]) -> Iterator[tuple[socket.socket, Iterator[list[Any]]]]:
    """Import the modules; yield the connection with this descriptor and what is asked through it."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # measurements of memory collect garbage often, and need not look at all that was imported
    with socket.socket(fileno=number) as connection:
        yield connection, map(json.loads, connection.makefile("r", encoding="utf-8"))


def serve(number: int) -> None:
    """Fork a child for each request that comes through the connection with this descriptor, one after the other."""
    with requests(number, ("tests.unneeded", *LOADED)) as (connection, asked):
        for request in asked:
            if (pid := os.fork()) == 0:
                connection.close()
                become(*request)
            _, status = os.waitpid(pid, 0)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def as_python(function: Callable) -> Callable:
    """Let stacks show a function as a part of Python itself: of a program nothing of ours stands above it."""
    function.__code__ = function.__code__.replace(co_filename="<frozen tests>")
    return function


@as_python
def become(
    words: list[str], cwd: str, environment: dict[str, str], files: Sequence[str] = (), *, safe: bool = False
) -> None:  # fmt: skip
    """Do in this process what Python does with these words, and end it; `safe`: with its flag -P."""
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.modules["__main__"] = types.ModuleType("__main__", None)
    vars(sys.modules["__main__"])["__builtins__"] = builtins
    code = 1
    try:
        run, path = _program(words)
        sys.path[:0] = [] if safe else [path]
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error.with_traceback(_own(error.__traceback__)), None)
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program has closed it
                stream.flush()
        os._exit(code)


def _own(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return the part of a traceback that begins in the program, as Python shows it."""
    while traceback and traceback.tb_next and traceback.tb_frame.f_code.co_filename.startswith("<frozen"):
        traceback = traceback.tb_next
    return traceback


def _program(words: list[str]) -> tuple[Callable[[], object], str]:
    """Return what runs `-c text`, `-m module` or `file`, each with its arguments, and where it looks for imports."""
    first, *rest = words
    sys.argv = [first, *rest[1:]] if first in ("-c", "-m") else words
    if first == "-c":
        return functools.partial(exec, compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"])), ""
    if first == "-m":
        return functools.partial(runpy.run_module, rest[0], run_name="__main__", alter_sys=True), os.getcwd()
    return functools.partial(runpy.run_path, first, run_name="__main__"), str(Path(first).resolve().parent)
