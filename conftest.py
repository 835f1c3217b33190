"""Runs of pytest: start, order of the tests, and the summary at the end.

At the root, to reach notebooks/ too. What a cell's failure means for the cells after it stands in tests/cells.py.
"""

import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests import cells, machine
from tools import notebooks

LIMIT_S = 45  # of each notebook, on two quiet cores; it is said, and no verdict
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()

os.environ.setdefault("COURSE_DEVICE", "sim")
# Threads that wait for one another on busy cores cost more than they bring. Another number works as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run in another order: none may need what another one did."""
    parser.addoption("--order-seed", type=int, help="shuffle the files and the tests of each, but no notebook's cells")


def pytest_configure(config: pytest.Config) -> None:
    """Give this process and its kernels a progress file of their own and torch's deprecations as errors."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    temporary = tempfile.TemporaryDirectory(prefix="course-tests-", ignore_cleanup_errors=True)
    config.stash[_FOLDER] = temporary
    os.environ.update(notebooks.kernel_environment(Path(temporary.name), os.environ["COURSE_DEVICE"]))
    sanitize = getattr(config.option, "nbval_sanitize_with", None)
    if sanitize and not Path(sanitize).exists():
        config.option.nbval_sanitize_with = str(config.rootpath / sanitize)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the tests wrote."""
    config.stash[_FOLDER].cleanup()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in one line when stored outputs are not compared."""
    reason = notebooks.not_reference()
    return f"notebooks: executed, stored outputs not compared ({reason})" if reason else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with notebooks, then with the largest files, since a worker takes a file at a time; or shuffle."""
    if config.option.order_seed is not None:
        items[:] = _shuffled(items, config.option.order_seed)
    elif hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not cells.is_cell(item), -item.path.stat().st_size, item.path))


def _shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests with their files, and the tests of each file, in an order that is the same for each seed."""
    order, files = random.Random(seed), {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        if not cells.is_cell(tests[0]):
            order.shuffle(tests)
    shuffled = list(files.values())
    order.shuffle(shuffled)
    return [item for tests in shuffled for item in tests]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start each notebook with no progress of its own."""
    if cells.is_cell(item) and item.parent.kernel is None:
        folder = Path(item.config.stash[_FOLDER].name)
        for kept in folder.glob(f"{item.path.stem}*"):
            kept.unlink()
        os.environ["COURSE_PROGRESS"] = str(folder / f"{item.path.stem}.json")


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print how long notebooks took, and after a failure the machine and the command that repeats it."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "duration")]
    seconds = Counter()
    for report in reports:
        seconds[report.nodeid.split("::")[0]] += report.duration
    lessons = sorted(name for name in seconds if name.endswith(".ipynb"))
    if lessons:
        terminalreporter.section("time of each notebook")
    for name in lessons:
        over = f"  over its {LIMIT_S} s" if seconds[name] > LIMIT_S else ""
        terminalreporter.line(f"{seconds[name]:6.1f} s  {name}{over}")
    failed = [report.nodeid for name in ("failed", "error") for report in terminalreporter.stats.get(name, [])]
    if failed:
        terminalreporter.section("this machine")
        seed = config.option.order_seed
        terminalreporter.line(f"{machine.description()}; order seed: {'none' if seed is None else seed}")
        terminalreporter.line(f"To repeat it: {machine.command(failed, config)}")
