"""How do ranks start where no process can be forked: as fresh interpreters that are given their channel?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any

import psutil

from course_utils.launch import interrupts
from course_utils.launch.processes import Processes, Put, command

__all__ = ["Spawned"]

_NEW_GROUP = 0x00000200  # CREATE_NEW_PROCESS_GROUP of Windows: Ctrl-C of a console is not for the ranks


class Spawned(Processes):
    """Ranks in fresh interpreters."""

    def __init__(self, nprocs: int, put: Put) -> None:
        self.processes: list[subprocess.Popen] = []
        super().__init__(nprocs, put)

    def start(self, theirs: list[list[Any]]) -> None:
        for rank, (control, out, err) in enumerate(theirs):
            interrupts.check()
            number, posix = control.fileno(), os.name == "posix"
            own = {"start_new_session": True, "pass_fds": [number]} if posix else {"creationflags": _NEW_GROUP}
            process = subprocess.Popen(
                command("worker", "main", number), stdin=subprocess.PIPE, stdout=out, stderr=err, **own
            )
            self.processes.append(process)
            self.put(rank, "pid", process.pid)
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
        nested = []
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    nested += psutil.Process(process.pid).children(recursive=True)
                process.kill()
        for one in nested:
            with contextlib.suppress(psutil.Error):
                one.kill()
