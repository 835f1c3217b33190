"""A plugin of pytest: does a run leave anything among the sources, whichever test it was?"""

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from tools import notebooks

__all__ = ["unkept"]

_CACHE = re.compile(r"(^|/)(__pycache__|\.\w+_cache|\.ipynb_checkpoints)/$")
_WRITTEN = pytest.StashKey[set[str]]()  # what git does not keep, at the start; then what has come since


def unkept(root: Path = notebooks.ROOT) -> set[str]:
    """Return the files and folders in the source tree that git does not keep, but for caches; none without git."""
    with contextlib.suppress(OSError):  # no git
        command = ["git", "status", "--porcelain", "--ignored"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", check=False)
        found = {line[3:] for line in done.stdout.splitlines() if line[:2] in ("??", "!!")}
        return {name for name in found if not _CACHE.search(name)}
    return set()


def pytest_configure(config: pytest.Config) -> None:
    """Note what is there before the first test; workers leave that to the process that started them."""
    if not hasattr(config, "workerinput"):
        config.stash[_WRITTEN] = unkept()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that leaves something."""
    if _WRITTEN in session.config.stash:
        session.config.stash[_WRITTEN] = unkept() - session.config.stash[_WRITTEN]
        if session.config.stash[_WRITTEN]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Say what it leaves."""
    if written := config.stash[_WRITTEN]:
        terminalreporter.section("left among the sources")
        terminalreporter.line(f"This run fails: it wrote {', '.join(sorted(written))}", red=True)
