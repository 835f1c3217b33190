"""Start of ranks as fresh interpreters, and what all ways of starting share."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from io import FileIO
from typing import Any

from ranklaunch.wire import Channel

_NEW_GROUP = 0x00000200  # CREATE_NEW_PROCESS_GROUP of Windows: Ctrl-C of a console is not for the ranks
Put = Callable[[int, str, Any], None]  # gives (rank, kind, value) to the launch; called from threads
_kept: list[Any] = []  # handlers of interrupts that came while they were held


@contextlib.contextmanager
def interrupts_held() -> Generator[None]:
    """Hold interrupts back until `check_interrupt` or the end, so that none is lost or hits a process half made."""
    before = signal.getsignal(signal.SIGINT) if _in_main() else None
    if not callable(before):  # only the main thread is interrupted, and only if Python handles it
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: _kept.append(before))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        check_interrupt()


def check_interrupt() -> None:
    """Deliver a pending interrupt, mostly as KeyboardInterrupt."""
    if _kept and _in_main():
        handler = _kept.pop()
        _kept.clear()
        handler(signal.SIGINT, None)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class Processes:
    """The processes of one launch. What happens to them is put as events, see `report.Seen`; "out" and "err" too."""

    def __init__(self, nprocs: int, put: Put) -> None:
        self.put = put
        self.channels: list[Channel] = []
        self.outputs: list[FileIO] = []  # of each rank two
        self.threads: list[threading.Thread] = []
        with contextlib.ExitStack() as passed:
            theirs = []
            try:
                for _ in range(nprocs):
                    ours, control = socket.socketpair()
                    self.channels.append(Channel(ours))
                    theirs.append([passed.enter_context(control)])
                    for _ in range(2):
                        end, other = os.pipe()
                        self.outputs.append(FileIO(end))
                        theirs[-1].append(passed.enter_context(FileIO(other, "w")))
                self.start(theirs)
                for rank in range(nprocs):
                    self.run(self._listen, rank)
                    self.run(self._read, rank, "out")
                    self.run(self._read, rank, "err")
            except BaseException:
                self.kill()
                for output in self.outputs:
                    output.close()
                self.close()
                raise

    def start(self, theirs: list[list[Any]]) -> None:
        """Start a process for each rank with its ends of channel, stdout and stderr; `run` what watches it."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill all ranks that still run, and what they started."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections and end the threads."""
        for channel in self.channels:
            channel.close()
        deadline = time.monotonic() + 1.0
        for thread in self.threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def run(self, target: Callable[..., None], *args: Any) -> None:
        """Run `target(*args)` in a thread that `close` waits for."""
        thread = threading.Thread(target=target, args=args, daemon=True, name="launch")
        thread.start()
        self.threads.append(thread)

    def _listen(self, rank: int) -> None:
        try:
            while True:
                kind, value = self.channels[rank].receive()
                self.put(rank, kind, value)
        except (TypeError, ValueError):
            self.put(rank, "garbled", time.perf_counter())
        except (EOFError, OSError):
            pass

    def _read(self, rank: int, stream: str) -> None:
        """Put what a rank writes; the last event is empty."""
        with self.outputs[2 * rank + (stream == "err")] as output:
            while data := output.read(65536):
                self.put(rank, stream, data)
        self.put(rank, stream, b"")


class Spawned(Processes):
    """Ranks in fresh interpreters."""

    def __init__(self, nprocs: int, put: Put) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        super().__init__(nprocs, put)

    def start(self, theirs: list[list[Any]]) -> None:
        for rank, (control, out, err) in enumerate(theirs):
            check_interrupt()
            number, posix = control.fileno(), os.name == "posix"
            own = {"start_new_session": True, "pass_fds": [number]} if posix else {"creationflags": _NEW_GROUP}
            process = fresh(f"worker; worker.main({number})", stdin=subprocess.PIPE, stdout=out, stderr=err, **own)
            self.processes.append(process)
            self.put(rank, "pid", process.pid)
            assert process.stdin is not None, "it was started with a pipe"
            with contextlib.suppress(OSError), process.stdin as stdin:  # it has died, and that will be heard
                stdin.write(b"" if posix else control.share(process.pid))
            self.run(self._watch, rank)

    def _watch(self, rank: int) -> None:
        code = self.processes[rank].wait()
        at_s = time.perf_counter()
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):  # its group, if it left one: ask, then force
                os.killpg(self.processes[rank].pid, signal.SIGTERM)
                time.sleep(0.5)
                os.killpg(self.processes[rank].pid, signal.SIGKILL)
        self.put(rank, "ended", (code, at_s))

    def kill(self) -> None:
        running = [process for process in self.processes if process.poll() is None]
        if not running:
            return
        if os.name == "nt":  # with all that they started
            pids = [word for process in running for word in ("/PID", str(process.pid))]
            subprocess.run(["taskkill", "/F", "/T", *pids], capture_output=True, check=False)
        nested = _started_by({process.pid for process in running}) if os.name == "posix" else set()
        for process in running:
            process.kill()
        for pid in nested:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _started_by(pids: set[int]) -> set[int]:
    """Return the processes that these started, and those that were started by them, on Linux and macOS."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, timeout=5).stdout
        parents = {int(pid): int(parent) for pid, parent in (line.split() for line in listed.splitlines())}
        started, grown = set(), pids
        while grown := {pid for pid, parent in parents.items() if parent in grown} - started:
            started |= grown
        return started
    return set()  # there is no such program: their process groups end all the same


def fresh(call: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that makes a call in this room, with the same path for imports."""
    path = search_path()
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in path]
    code, environment = f"from ranklaunch import {call}", {"PYTHONPATH": os.pathsep.join([*given, *path])}
    return subprocess.Popen[bytes](
        [sys.executable, "-P", "-c", code], cwd=folder(), env=os.environ | environment, **options
    )


def folder() -> str:
    """Return the current folder; the home folder if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.expanduser("~")


def search_path() -> list[str]:
    """Return `sys.path` as it reads from any folder."""
    return [os.path.join(folder(), entry) for entry in sys.path]
