"""How do ranks start where no process can be forked: as fresh interpreters that find their way to the launch?"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time

from course_utils.launch import wire
from course_utils.launch.processes import START_S, Processes, Put, command

__all__ = ["Spawned"]


class Spawned(Processes):
    """Ranks in fresh interpreters, which connect to a port of the loopback interface and show a secret."""

    def __init__(self, nprocs: int, put: Put) -> None:
        super().__init__(put)
        self.processes: list[subprocess.Popen] = []
        own_group = {"start_new_session": True} if os.name == "posix" else {"creationflags": _NEW_GROUP}
        secret = [secrets.token_bytes(32) for _ in range(nprocs)]
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for rank in range(nprocs):
                    process = subprocess.Popen(
                        command("worker", "main", listener.getsockname()[1]),
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **own_group,
                    )  # fmt: skip
                    self.processes.append(process)
                    self.pids[rank] = process.pid
                    process.stdin.write(secret[rank])
                    process.stdin.close()
                self.channels = self._accept(listener, secret)
        except BaseException:
            self.kill()
            self.close()
            raise
        for rank, process in enumerate(self.processes):
            for stream, pipe in (("out", process.stdout), ("err", process.stderr)):
                self.read_output(rank, stream, os.dup(pipe.fileno()))
                pipe.close()
            self.listen(rank)
            self.run(lambda rank=rank: self._watch(rank))

    def _accept(self, listener: socket.socket, secret: list[bytes]) -> list[wire.Channel]:
        """Return a channel to each rank, in whatever order they connect. Raises RuntimeError if one does not."""
        found: dict[int, wire.Channel] = {}
        deadline = time.monotonic() + START_S
        listener.settimeout(0.1)
        while len(found) < len(secret):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._check_alive(deadline)
                continue
            connection.settimeout(5.0)
            with contextlib.suppress(OSError, EOFError):
                shown = wire.Channel(connection).exactly(32)
                for rank, own in enumerate(secret):
                    if secrets.compare_digest(own, shown) and rank not in found:
                        connection.settimeout(None)
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        found[rank] = wire.Channel(connection)
            if all(channel.connection is not connection for channel in found.values()):
                connection.close()
        return [found[rank] for rank in range(len(secret))]

    def _check_alive(self, deadline: float) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                words = process.stderr.read().decode(errors="replace").strip()
                raise RuntimeError(f"the process of rank {rank} could not start:\n{words}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the processes of the ranks have not started within {START_S:.0f} s")

    def _watch(self, rank: int) -> None:
        code = self.processes[rank].wait()
        at_s = time.perf_counter()
        _end_group(self.pids[rank])
        self.put(rank, "ended", code, at_s)

    def kill(self) -> None:
        import psutil

        nested = []
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    nested += psutil.Process(process.pid).children(recursive=True)
                process.kill()
        for one in nested:
            with contextlib.suppress(psutil.Error):
                one.kill()

    def close(self) -> None:
        super().close()
        for process in self.processes:
            process.stdout.close()
            process.stderr.close()


_NEW_GROUP = 0x00000200  # CREATE_NEW_PROCESS_GROUP of Windows: Ctrl-C of a console is not for the ranks


def _end_group(pid: int) -> None:
    """End what a rank left behind in its process group: ask, then force; nothing where there are no groups."""
    if os.name != "posix":
        return
    deadline = time.monotonic() + 0.5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
