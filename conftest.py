"""How do notebooks take part in a run of pytest? Glue for nbval; at the root, to reach notebooks/ too."""

import contextlib
import gc
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from tools import notebooks

os.environ.setdefault("COURSE_DEVICE", "sim")
_PART = 50  # tests of a file that a worker takes at a time
_CORES = 2  # workers beyond these many take what the others leave of the processors
# Of each notebook on two quiet cores; others: 30.
_LIMITS_S = dict.fromkeys(("03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13"), 45)
_CACHE = re.compile(r"(^|/)(__pycache__|\.\w+_cache|\.ipynb_checkpoints)/$")
_STOPPED_AT = pytest.StashKey[str]()
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()
_WRITTEN = pytest.StashKey[set[str]]()  # what git does not keep, at the start; then what has come since
_MODULES = pytest.StashKey[int]()  # how many there were at the last look


def _is_cell(item: pytest.Item) -> bool:
    return type(item).__name__ == "IPyNbCell"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run in another order: none may need what another one did."""
    parser.addoption("--order-seed", type=int, help="shuffle the files and the tests of each, but no notebook's cells")


def pytest_configure(config: pytest.Config) -> None:
    """Give this process and its kernels a progress file of their own and torch's deprecations as errors."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_further(_worker()):
        _give_way()
    temporary = tempfile.TemporaryDirectory(prefix="course-tests-", ignore_cleanup_errors=True)
    config.stash[_FOLDER] = temporary
    config.stash[_WRITTEN] = unkept()
    if sys.platform == "linux" and config.pluginmanager.has_plugin("nbval"):
        from nbval import kernel

        from tests import kernels

        kernel.KernelManager = kernels.Forked
    config.option.loadscopereorder = False  # xdist would start the groups with the fewest tests last
    os.environ.update(notebooks.kernel_environment(Path(temporary.name), os.environ["COURSE_DEVICE"]))
    sanitize = getattr(config.option, "nbval_sanitize_with", None)
    if sanitize and not Path(sanitize).exists():
        config.option.nbval_sanitize_with = str(config.rootpath / sanitize)


def unkept(root: Path = notebooks.ROOT) -> set[str]:
    """Return the files and folders in the source tree that git does not keep, but for caches; none without git."""
    with contextlib.suppress(OSError):  # no git
        command = ["git", "status", "--porcelain", "--ignored"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", check=False)
        found = {line[3:] for line in done.stdout.splitlines() if line[:2] in ("??", "!!")}
        return {name for name in found if not _CACHE.search(name)}
    return set()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that leaves something among the sources, whichever test it was."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_WRITTEN] = unkept() - session.config.stash[_WRITTEN]
        if session.config.stash[_WRITTEN]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the tests wrote."""
    config.stash[_FOLDER].cleanup()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in one line when stored outputs are not compared."""
    reason = notebooks.not_reference()
    return f"notebooks: executed, stored outputs not compared ({reason})" if reason else None


def exercise_of(nodeid: str) -> str:
    """Return the exercise of a test of wrong answers: all of one exercise share what its check was seen to do."""
    found = re.search(r"test_wrong_answers.py::\w+\[(\d\db?-\w+)", nodeid)
    return found[1] if found else ""


def _worker() -> str:
    """Return the name of this process among the workers; where it is the only one, that of the first."""
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0")


def _is_further(worker: str) -> bool:
    """Return whether this worker, such as "gw2", is one more than there are cores for."""
    return int(worker.removeprefix("gw")) >= _CORES


def _give_way() -> None:
    """Let this process run only while the others wait.

    Linux shares a processor among sessions first. So this process gets a session of its own, and that is nice as well.
    """
    with contextlib.suppress(AttributeError, OSError):  # not on Windows; this is a session's first process
        os.setsid()
    with contextlib.suppress(AttributeError, OSError):
        os.nice(19)
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


class _Groups(LoadScopeScheduling):
    """Gives a worker a notebook, the tests of an exercise, or some tests of a file, at a time.

    xdist's own groups do nothing in pytest 9.2.
    """

    def add_node_collection(self, node, collection) -> None:
        """Take the tests that a worker found, which are the same for all."""
        count, self._group = Counter(), {}
        for nodeid in collection:
            file = nodeid.split("::")[0]
            part = exercise_of(nodeid) or str(count[file] // _PART)
            self._group[nodeid] = file if file.endswith(".ipynb") else f"{file} {part}"
            count[file] += 1
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        return self._group[nodeid]

    def _assign_work_unit(self, node) -> None:
        """Take the next group; for a further worker, which may stand still at any time, the tests of an exercise."""
        if _is_further(node.gateway.id):
            groups = self.workqueue.items()
            of_exercise = next((group for group, tests in groups if exercise_of(next(iter(tests)))), None)
            if of_exercise is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(of_exercise, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> _Groups:
    """Tell xdist which tests stay together."""
    return _Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Never compare stderr; compare nothing outside the reference environment; workers begin with the longest files."""
    compare = notebooks.not_reference() is None
    for cell in filter(_is_cell, items):
        if "stderr" not in cell.parent.skip_compare:
            cell.parent.skip_compare = (*cell.parent.skip_compare, "stderr")
        if not compare:
            cell.options["check"] = False
    if config.option.order_seed is not None:
        items[:] = _shuffled(items, config.option.order_seed)
    elif hasattr(config, "workerinput"):
        _put_longest_first(items)


def _put_longest_first(items: list[pytest.Item]) -> None:
    """Sort into notebooks, other tests and those of exercises, each by the size of the file: always the same order."""

    def place(item: pytest.Item) -> tuple:
        exercise = exercise_of(item.nodeid)
        return not _is_cell(item), exercise != "", -item.path.stat().st_size, item.path, exercise

    items.sort(key=place)


def _shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests with their files, and the tests of each file, in an order that is the same for each seed."""
    order, files = random.Random(seed), {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        if not _is_cell(tests[0]):
            order.shuffle(tests)
    shuffled = list(files.values())
    order.shuffle(shuffled)
    return [item for tests in shuffled for item in tests]


def _freeze(config: pytest.Config) -> None:
    """Keep what exists by now out of garbage collections: budgets and measurements of memory make many of them.

    Collecting all of torch and all tests takes a quarter of a second; half of the time of those tests was that.
    """
    gc.collect()
    gc.freeze()
    config.stash[_MODULES] = len(sys.modules)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Start what kernels are forked from at the first cell, so that it imports while tests are collected.

    Not where cells are collected, and likely not run.
    """
    option = item.config.option
    some = option.collectonly or option.keyword or _is_further(_worker())
    if sys.platform == "linux" and _is_cell(item) and not some:
        from tests import kernels

        kernels.server()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """Look for no garbage while tests are collected: what is made then stays, and each look takes longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with what the collection of tests made."""
    _freeze(session.config)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Go on with what a test imported: torch's compiler alone has half a million objects."""
    if len(sys.modules) > item.config.stash[_MODULES] + 50:
        _freeze(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the rest of a notebook after its first failure; start each notebook with no progress of its own."""
    if not _is_cell(item):
        return
    failed = item.parent.stash.get(_STOPPED_AT, None)
    if failed is not None:
        pytest.skip(f"{failed} of this notebook failed")
    if item.parent.kernel is None:
        progress = Path(item.config.stash[_FOLDER].name) / f"{item.path.stem}.json"
        for kept in progress.parent.glob(f"{item.path.stem}*"):
            kept.unlink()
        os.environ["COURSE_PROGRESS"] = str(progress)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Fail a cell that writes to standard error, a warning say: JupyterLab shows a red block for it.

    Stored outputs do not have it, so that comparing them would not tell. What processes that a cell starts write there
    themselves is not seen here.
    """
    result = yield
    if _is_cell(item):
        streams = [output for output in item.test_outputs or () if output["output_type"] == "stream"]
        said = "".join(output["text"] for output in streams if output["name"] == "stderr")
        if said:
            pytest.fail(f"{item.name} writes to standard error, a red block in JupyterLab:\n{said}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Remember the first cell of a notebook that failed."""
    report = yield
    if report.failed and _is_cell(item):
        item.parent.stash.setdefault(_STOPPED_AT, item.name)
    return report


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print how long notebooks took, with the start of their kernels, and how many wrong answers were rejected."""
    files = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                files[report.nodeid.split("::")[0]] += report.duration
    rejected = "::test_a_wrong_answer_is_rejected_with_its_phrase["
    passed = [report for report in terminalreporter.stats.get("passed", []) if rejected in report.nodeid]
    if passed:
        terminalreporter.section("wrong answers")
        terminalreporter.line(f"{len(passed)} stored wrong answers rejected, each with its phrase")
    if written := config.stash[_WRITTEN]:
        terminalreporter.section("left among the sources")
        terminalreporter.line(f"This run fails: it wrote {', '.join(sorted(written))}", red=True)
    lessons = sorted(name for name in files if name.endswith(".ipynb"))
    if lessons:
        terminalreporter.section("time of each notebook")
    for name in lessons:
        limit_s = _LIMITS_S.get(notebooks.number(Path(name)), 30)
        over = f"  over its limit of {limit_s} s" if files[name] > limit_s else ""  # said, as machines may be busy
        terminalreporter.line(f"{files[name]:6.1f} s of {limit_s} s  {name}{over}")
