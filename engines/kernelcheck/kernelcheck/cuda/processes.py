"""Child processes with a time limit, which leave nothing running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A shell sets both limits before the command begins: at the first it gets SIGXCPU, at the second it is killed.
_LIMITED = "/bin/sh", "-c", 'ulimit -S -t "$1"; ulimit -H -t "$2"; shift 2; exec "$@"', "sh"


@dataclass(frozen=True)
class Done:
    """What a command left; `late` says that it had not ended when the last limit, which is one of wall clock, came."""

    code: int
    stdout: bytes
    stderr: str
    late: bool

    @property
    def out_of_time(self) -> bool:
        """Return whether the command, or one that it started, had used up its time on the CPU."""
        return self.code == -signal.SIGXCPU or "CPU time limit exceeded" in self.stderr


def run(
    command: Sequence[str | Path], *, cpu_s: float, wall_s: float, environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command, and end with it all processes that it started.

    Each of them may use `cpu_s` seconds of the CPU, however busy the machine is; `wall_s` is far above that.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # not pipes, which a child would hold open
        process = subprocess.Popen(
            [*_LIMITED, str(int(cpu_s) + 1), str(int(cpu_s) + 6), *command], stdin=subprocess.DEVNULL, stdout=out,
            stderr=err, env=environment, start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            process.wait(wall_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return Done(process.returncode, out.read(), err.read().decode(errors="replace"), late)
