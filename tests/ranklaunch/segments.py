"""Which shared memory has its maker left behind?"""

import os
import re
from pathlib import Path

import psutil

__all__ = ["abandoned_segments"]


def abandoned_segments() -> list[str]:
    """Return the segments of shared memory whose maker, named by its process number, has ended."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    makers = {name: re.findall(r"\d{2,}", name) for name in names if not name.startswith("sem.")}
    return sorted(name for name, found in makers.items() if found and not any(psutil.pid_exists(int(n)) for n in found))
