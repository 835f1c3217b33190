"""What does `sys.executable` start in the kernels of tests: a Python that need not import torch anew?

A program of a lesson, each of torchrun's ranks and the server of `launch` take 3 to 4 seconds of a processor before
their first line. Here they are forked from a process that has imported torch, as kernels are. In place of Python a
small program is started, this file: it hands its arguments, environment and files to that process, passes signals on,
and ends as the fork does. Where torch would be imported otherwise, in another environment say, it becomes Python.
Linux only. `python -m tests.machine` starts every Python afresh, and CI runs that, too.
"""

import json
import os
import select
import shlex
import signal
import socket
import sys
from pathlib import Path

# How names of variables begin that Python and libraries read when they start; all others may be others in a fork.
_READ_AT_START = (
    "PYTHON", "LD_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "ONEDNN_", "DNNL_", "TORCH", "PYTORCH_", "TRITON_",
)  # fmt: skip
_READ_LATER = (  # the caches are set by PyTorch's compiler, for its own processes
    "PYTHONPATH", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_DISABLE_SHARE_", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
)  # fmt: skip
_PASSED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip
_STARTED = dict(os.environ)  # before libraries add their own
_FLAGS = "-u", "-P"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_LONGEST = 107  # letters of a socket's path, unix(7)
_HIGH = 200  # descriptors below it are those of programs


def begin(folder: str) -> socket.socket | None:
    """Let this process and its forks start programs by the one that serves the socket which this returns.

    None where the path of `folder` is too long for a socket, or the kernel is too old: then they start Python.
    """
    address = os.path.join(folder, "programs")
    if len(address) > _LONGEST or not can_wait():
        return None
    Path(address).unlink(missing_ok=True)  # of a process that was before this one
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    executable = Path(folder, "python")
    words = [sys.executable, "-I", "-S", __file__, address]
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    executable.chmod(0o700)
    sys.executable = str(executable)
    from tests import children  # here, and so below: what only this process needs takes longer than the small program

    for function in (serve, _mind, _become):
        children.as_python(function)
    return listener


def can_wait() -> bool:
    """Return whether Linux tells by a file that a process has ended, which older ones and some sandboxes do not."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def serve(listener: socket.socket) -> None:
    """Fork for each program a process that minds it, until the process that began this one ends."""
    _die_with_parent()
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _mind(connection)
        connection.close()


def _reap(*_: object) -> None:
    """Collect processes that ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _mind(connection: socket.socket) -> None:
    """Fork a program, say how it ended, and kill it where who asked for it has been killed."""
    data, files, *_ = socket.recv_fds(connection, 65536, 250)
    while not data.endswith(b"\n"):
        data += connection.recv(65536)
    words, cwd, environment, numbers = json.loads(data)
    if _at_start(environment) != _at_start(_STARTED):
        connection.sendall(b"0\n")
        os._exit(0)
    if (pid := os.fork()) == 0:
        _die_with_parent()
        os.setsid()
        connection.close()
        _take(files, numbers)
        _become(words, cwd, environment)
    for file in files:
        os.close(file)
    connection.sendall(f"{pid}\n".encode())
    left = connection in select.select([connection, os.pidfd_open(pid)], [], [])[0]
    if left:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not left:
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
    }


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _take(files: list[int], numbers: list[int]) -> None:
    """Give descriptors that came from another process the numbers that they have there."""
    import fcntl

    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number)
    for file in {*files, *high} - set(numbers):
        os.close(file)


def _searched(environment: dict[str, str]) -> list[str]:
    return [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]


def _become(words: list[str], cwd: str, environment: dict[str, str]) -> None:
    import io

    from tests import children

    flags = [word for word in words[: len(_FLAGS)] if word in _FLAGS]
    sys.orig_argv = [sys.executable, *words]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        usual = getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        at_once = "-u" in flags and number > 0
        stream = io.TextIOWrapper(
            raw if at_once else (io.BufferedWriter if number else io.BufferedReader)(raw), usual.encoding, usual.errors,
            write_through=at_once, line_buffering=number == 2 or raw.isatty(),
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    before, first = (_searched(variables) for variables in (_STARTED, environment))
    sys.path[:] = [*first, *(one for one in sys.path if one not in {*before, *first})]
    children.become(words[len(flags) :], cwd, environment, safe="-P" in flags)


def main(address: str, *words: str) -> None:
    """Be the program that was asked for: its process is elsewhere, its signals, its output and its end are here."""
    python = [sys.executable, *words]
    connection = socket.socket(socket.AF_UNIX)
    ours = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        pid = _asked(connection, address, words) if _can(words) else 0
    except OSError:  # the process that forks is gone
        pid = 0
    if not pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(python[0], python)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, ours)
    status = connection.recv(64)
    code = os.waitstatus_to_exitcode(int(status)) if status else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _can(words: tuple[str, ...]) -> bool:
    """Return whether the words are a program, behind no other flags than those that are known here."""
    first = [word for word in words if word not in _FLAGS][:1]
    return bool(first) and (first[0] in ("-c", "-m") or not first[0].startswith("-"))


def _asked(connection: socket.socket, address: str, words: tuple[str, ...]) -> int:
    """Ask for a fork with the files of this process, and return its number; 0 where Python must start afresh."""
    connection.connect(address)
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if int(name) != connection.fileno()]
    files = []
    for number in numbers:
        try:
            os.fstat(number)
        except OSError:  # it listed the folder
            continue
        files.append(number)
    request = json.dumps([words, os.getcwd(), dict(os.environ), files]).encode() + b"\n"
    sent = socket.send_fds(connection, [request], files)
    connection.sendall(request[sent:])
    reply = connection.makefile("rb", buffering=0).readline()
    return int(reply or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
