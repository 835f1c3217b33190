"""How do notebooks take part in a run of pytest? Glue for nbval; at the root, to reach notebooks/ too."""

import gc
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tools import notebooks

os.environ.setdefault("COURSE_DEVICE", "sim")
# The files that take longest, in that order: they start first, so that no worker waits at the end.
_LONGEST_FIRST = (
    "test_wrong_answers", "05_the_training_loop", "09_data_parallel", "test_launch", "test_programs", "test_memory",
    "test_training_program", "07_memory", "test_browser", "test_simulator_misuse", "test_explorers_memory",
    "test_explorers", "03_how_fast_and_why", "04_models_on_the_device", "test_exercise", "test_simulator_training",
    "test_simulator_memory", "test_repository", "test_operator_database", "test_devices", "test_messages",
)  # fmt: skip
_LIMITS_S = {"03": 45, "04": 45, "05": 45, "07": 60, "09": 60}  # of each notebook on two quiet cores; others: 30
_STOPPED_AT = pytest.StashKey[str]()
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def _is_cell(item: pytest.Item) -> bool:
    return type(item).__name__ == "IPyNbCell"


def _use_progress(folder: Path, name: str) -> None:
    progress = folder / name
    progress.unlink(missing_ok=True)
    os.environ["COURSE_PROGRESS"] = str(progress)


def pytest_configure(config: pytest.Config) -> None:
    """Give this process and its kernels a progress file of their own and torch's deprecations as errors."""
    temporary = tempfile.TemporaryDirectory(prefix="course-tests-", ignore_cleanup_errors=True)
    config.stash[_FOLDER] = temporary
    config.option.loadscopereorder = False  # xdist would start the files with the fewest tests last
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
    """Never compare stderr; compare nothing outside the reference environment; workers begin with the longest files."""
    if hasattr(config, "workerinput"):
        place = {name: number for number, name in enumerate(_LONGEST_FIRST)}
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    cells = [item for item in items if _is_cell(item)]
    compare = notebooks.not_reference() is None
    for cell in cells:
        if "stderr" not in cell.parent.skip_compare:
            cell.parent.skip_compare = (*cell.parent.skip_compare, "stderr")
        if not compare:
            cell.options["check"] = False


def pytest_collection_finish() -> None:
    """Keep what exists by now out of garbage collections: budgets and measurements of memory make many of them.

    Collecting all of torch and all tests takes a quarter of a second; half of the time of those tests was that.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the rest of a notebook after its first failure; start each notebook with no progress of its own."""
    if not _is_cell(item):
        return
    failed = item.parent.stash.get(_STOPPED_AT, None)
    if failed is not None:
        pytest.skip(f"{failed} of this notebook failed")
    if item.parent.kernel is None:
        _use_progress(Path(item.config.stash[_FOLDER].name), f"{item.path.stem}.json")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Remember the first cell of a notebook that failed."""
    report = yield
    if report.failed and _is_cell(item):
        item.parent.stash.setdefault(_STOPPED_AT, item.name)
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Print how long each notebook took, the start of its kernel included, and how many wrong answers were rejected."""
    seconds = Counter()
    rejected = "::test_a_wrong_answer_is_rejected_with_its_phrase["
    passed = [r for r in terminalreporter.stats.get("passed", []) if rejected in getattr(r, "nodeid", "")]
    if passed:
        terminalreporter.section("wrong answers")
        terminalreporter.line(f"{len(passed)} stored wrong answers rejected, each with its phrase")
    for reports in terminalreporter.stats.values():
        for report in reports:
            name = getattr(report, "nodeid", "").split("::")[0]
            if name.endswith(".ipynb"):
                seconds[name] += getattr(report, "duration", 0.0)
    if seconds:
        terminalreporter.section("time of each notebook")
    for name in sorted(seconds):
        limit_s = _LIMITS_S.get(Path(name).name[:2], 30)
        over = f"  over its limit of {limit_s} s" if seconds[name] > limit_s else ""  # said, as machines may be busy
        terminalreporter.line(f"{seconds[name]:6.1f} s of {limit_s} s  {name}{over}")
