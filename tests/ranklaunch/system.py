"""Which processes, connections and files does a program leave behind? What Linux says, with nothing but Python.

Elsewhere there is less to ask: processes on macOS, nothing on Windows.
"""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

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


def abandoned_segments() -> list[str]:
    """Return the segments of shared memory whose maker, named by its process number, has ended."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    makers = {name: re.findall(r"\d{2,}", name) for name in names if not name.startswith("sem.")}
    return sorted(name for name, found in makers.items() if found and not any(exists(int(number)) for number in found))
