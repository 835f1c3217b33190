"""Which processes, connections and files does a program leave behind? What Linux says.

Elsewhere there is less to ask: processes on macOS, nothing on Windows.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from ranklaunch import run

LINUX = sys.platform == "linux"
_LISTENING = "0A"  # a state in /proc/net/tcp, proc(5)


def exists(pid: int) -> bool:
    """Return whether there is such a process, one that has ended and was not waited for included."""
    if os.name != "posix":
        return str(pid) in subprocess.run(["tasklist"], capture_output=True, text=True, check=True).stdout.split()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def descendants() -> dict[int, tuple[int, str]]:
    """Return the processes that this one started, and those that they started: parent and command line of each."""
    if os.name != "posix":
        return {}
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    everything = {int(pid): (int(parent), "".join(words)) for pid, parent, *words in rows}
    found, grown = {}, {os.getpid()}
    while grown := {pid for pid, (parent, _) in everything.items() if parent in grown and pid not in found}:
        found |= {pid: everything[pid] for pid in grown}
    return {pid: (parent, words) for pid, (parent, words) in found.items() if not words.startswith("ps ")}


def descriptors() -> list[str]:
    """Return what each open descriptor of this process refers to, on Linux."""
    found = []
    for one in os.listdir("/proc/self/fd") if LINUX else []:
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return found


def listening() -> list[str]:
    """Return the addresses and ports on which this process waits for connections, on Linux."""
    own = {name[8:-1] for name in descriptors() if name.startswith("socket:[")}
    files = [Path(name) for name in ("/proc/self/net/tcp", "/proc/self/net/tcp6") if Path(name).exists()]
    rows = [line.split() for file in files for line in file.read_text(encoding="ascii").splitlines()[1:]]
    return [row[1] for row in rows if row[3] == _LISTENING and row[9] in own]


@contextlib.contextmanager
def pids_of_ranks() -> Iterator[set[int]]:
    """Collect the process numbers of all ranks that this process starts meanwhile."""
    found, handle = set(), run.LaunchRun._handle

    def noting(self: run.LaunchRun, rank: int, kind: str, value: Any) -> None:
        if kind == "pid":
            found.add(value)
        handle(self, rank, kind, value)

    with mock.patch.object(run.LaunchRun, "_handle", noting):
        yield found


def abandoned_segments(pids: set[int]) -> list[str]:
    """Return the segments of shared memory that one of these processes made, which has ended; its number names it.

    Other programs, and the same tests in another folder, make and leave some at any time.
    """
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    ended = {pid for pid in pids if not exists(pid)}
    return sorted(name for name in names if ended.intersection(map(int, re.findall(r"\d+", name))))
