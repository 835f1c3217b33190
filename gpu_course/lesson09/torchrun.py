"""Start of a program with torchrun on two processes, and its output."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["torchrun"]

_LIMIT_S = 800  # ends what hangs: a busy machine may take minutes for what it does in 10 s else
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}  # all ranks are on this machine


def torchrun(*arguments: str | Path) -> str | None:
    """Run `torchrun --standalone --nproc-per-node=2` with these arguments and return what the program printed.

    Each process computes with one thread. The variable for the store lets processes be started again: see
    `programs/train_ddp.py`. Returns None on Windows, where torchrun asks for libuv, which PyTorch's wheels lack.
    Raises RuntimeError with the end of what was printed to stderr where the program fails.
    """
    if os.name == "nt":
        return None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if sys.platform in _LOOPBACK:
        environment.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, *map(str, arguments)], env=environment, capture_output=True, text=True, encoding="utf-8",
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
