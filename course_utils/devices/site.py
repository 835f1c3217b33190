"""Check of a site before a course, on the login node of a cluster for instance.

python -m course_utils.devices --site
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finding", "site"]

_GIB = 2**30
_LOGIN = "login nodes are limited: work in a job, for instance `srun --cpus-per-task=4 --mem=8G --pty bash`"


@dataclass(frozen=True)
class Finding:
    """One thing that lessons need, what was found, and the cure where it is too little ("" where it is enough)."""

    needed: str
    found: str
    cure: str = ""

    def __str__(self) -> str:
        verdict = "TOO LITTLE" if self.cure else "ok"
        lines = [f"{verdict:11}{self.needed}: {self.found}"]
        if self.cure:
            lines.append(f"{'':11}{self.cure}")
        return "\n".join(lines)


def site() -> list[Finding]:
    """Look at processors, limits, memory, folders, network and compiler of this machine, and change nothing."""
    return [*_limits(), *_folders(), _name(), _compiler(), _gpus()]


def _finding(needed: str, found: object, enough: bool, cure: str) -> Finding:
    return Finding(needed, str(found), "" if enough else cure)


def _limits() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [_finding("processors, one for each rank", cores, cores >= 2, _LOGIN)]
    with contextlib.suppress(ImportError):  # Windows has no limits of this kind
        import resource

        for needed, limit, least, unit in (
            ("seconds of processor time for a process", resource.RLIMIT_CPU, 3600, 1),
            ("processes and threads of one user", resource.RLIMIT_NPROC, 512, 1),
            ("GiB of addresses for a process", resource.RLIMIT_AS, 32, _GIB),
        ):
            soft = resource.getrlimit(limit)[0]
            unlimited = soft == resource.RLIM_INFINITY
            found.append(
                _finding(needed, "unlimited" if unlimited else soft // unit, unlimited or soft >= least * unit, _LOGIN)
            )
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024 / _GIB
            found.append(_finding("GiB of free memory", f"{free:.1f}", free >= 4, _LOGIN))
    return found


def _folders() -> list[Finding]:
    home = shutil.disk_usage(Path.home()).free / _GIB  # a quota may be lower: the site's own command shows it
    found = [
        _finding("GiB free in the home folder", f"{home:.1f}", home >= 5, "install into another one: `python -m venv`")
    ]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program"
        script.write_text(f"#!{sys.executable}\n", encoding="utf-8")
        script.chmod(0o700)
        runs = os.name == "nt" or _runs(script)
    where = tempfile.gettempdir()
    cure = "set TMPDIR to a folder that is not mounted with noexec: kernels in C++ are compiled there"
    found.append(_finding("programs run in the temporary folder", where, runs, cure))
    if Path("/dev/shm").is_dir():
        shared = shutil.disk_usage("/dev/shm").total / 2**20
        cure = "start the container with --shm-size=1g: workers of a DataLoader hand over their batches there"
        found.append(_finding("MiB of shared memory", f"{shared:.0f}", shared > 64, cure))
    return found


def _name() -> Finding:
    known = True
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        known = False
    cure = "set GLOO_SOCKET_IFNAME=lo, or add the name to /etc/hosts: gloo looks up its own name"
    return _finding("the machine's own name has an address", "yes" if known else "no", known, cure)


def _compiler() -> Finding:
    name = next(filter(shutil.which, ("g++", "clang++", "cl")), "")
    cure = "`module load gcc`, or `pip install ziglang`: CUDA C++ and torch.compile on the CPU need a compiler"
    return _finding("a C++ compiler", name or "none", bool(name), cure)


def _gpus() -> Finding:
    import torch  # slow, and only needed here

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    here = torch.accelerator.device_count() if accelerator and accelerator.type != "sim" else 0
    slurm = shutil.which("sbatch") is not None
    cure = "ask Slurm for one: `srun --gpus=1 --pty bash`. Without it the lessons use the simulated GPU."
    return _finding("GPUs", here, bool(here) or not slurm, cure)


def _runs(script: Path) -> bool:
    try:
        return subprocess.run([script], check=False, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
