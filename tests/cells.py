"""A plugin of pytest beside nbval: how are the cells of a notebook judged, and those after one that failed?

A cell whose output differs has run, so that all cells after it are judged. A cell that raised has not made what it
should have made. A later cell that fails too, and mentions a name that the first one mentions, is skipped with the
number of the first: one fault stays one failure. Every other cell is judged.
"""

import ast
import builtins
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import notebooks

__all__ = ["is_cell", "names"]

PATIENCE_S = 120  # for a message that a kernel has sent; nbval waits 5 s, which a busy machine needs now and then
_BROKEN = pytest.StashKey[dict[str, str]]()  # of a notebook: names that a cell should have made, and that cell
# COURSE_FORKED=no: each kernel, and each program that a cell starts, is a fresh Python, as readers have it
_FORKED = sys.platform == "linux" and os.environ.get("COURSE_FORKED") != "no"
_NOT_JUDGED = "not judged because of"


def is_cell(item: pytest.Item) -> bool:
    """Return whether a test is a cell of a notebook."""
    return type(item).__name__ == "IPyNbCell"


def names(source: str) -> set[str]:
    """Return the names that a cell makes or uses, but for what it imports, constants and Python's own."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the line that installs the course
        return set()
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in found if not name.isupper() and not hasattr(builtins, name)}


def imported(source: str) -> set[str]:
    """Return the names that a cell imports."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}


def pytest_configure(config: pytest.Config) -> None:
    """Fork the kernels of notebooks where that can be, from a process that has imported what they need."""
    if _FORKED and config.pluginmanager.has_plugin("nbval"):
        from nbval import kernel

        from tests import kernels

        kernel.KernelManager = kernels.Forked


def pytest_itemcollected(item: pytest.Item) -> None:
    """Compare stored outputs in the reference environment alone, and never what stands on standard error.

    What kernels are forked from starts at the first cell, so that it imports while tests are collected.
    """
    if not is_cell(item):
        return
    item.output_timeout = PATIENCE_S
    item.cell.execution_count = 1  # no notebook stores one, and nbval compares no outputs without
    if "stderr" not in item.parent.skip_compare:
        item.parent.skip_compare = (*item.parent.skip_compare, "stderr")
    if notebooks.not_reference() is not None:
        item.options["check"] = False
    option = item.config.option
    if _FORKED and not option.collectonly and not option.keyword:
        from tests import kernels

        kernels.server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Fail a cell that writes to standard error, a warning say: JupyterLab shows a red block for it.

    Stored outputs do not have it, so that comparing them would not tell. What processes that a cell starts write there
    themselves is not seen here.
    """
    result = yield
    if is_cell(item):
        streams = [output for output in item.test_outputs or () if output["output_type"] == "stream"]
        said = "".join(output["text"] for output in streams if output["name"] == "stderr")
        if said:
            pytest.fail(f"{item.name} writes to standard error, a red block in JupyterLab:\n{said}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Skip a cell that fails because of one before it; remember what a cell that raised should have made."""
    report = yield
    if not (is_cell(item) and report.failed):
        return report
    broken = item.parent.stash.setdefault(_BROKEN, {})
    modules = {name for cell in item.parent.nb.cells if cell.cell_type == "code" for name in imported(cell.source)}
    mentioned = names(item.cell.source) - modules
    kernel = item.parent.kernel
    dead = broken and (kernel is None or not kernel.is_alive())
    causes = list(broken.values()) if dead else [cause for name, cause in broken.items() if name in mentioned]
    cause = causes[0] if causes else item.name
    if causes:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"{_NOT_JUDGED} {cause}")
    if causes or not _has_run(call):
        broken.update(dict.fromkeys({item.name, *mentioned} - broken.keys(), cause))
    return report


def _has_run(call: pytest.CallInfo) -> bool:
    """Return whether a cell that failed ran to its end: its output differs, or stands on standard error."""
    return call.excinfo.errisinstance(pytest.fail.Exception) or "Cell outputs differ" in str(call.excinfo.value)


def pytest_terminal_summary(terminalreporter) -> None:
    """Say of each notebook which cell raised first, and how many others could not be judged because of it."""
    counts = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and _NOT_JUDGED in report.longrepr[2]:
            file, _, reason = report.longrepr
            counts[Path(file).name, reason.removeprefix(f"{_NOT_JUDGED} ")] += 1
    if counts:
        terminalreporter.section("cells that could not be judged")
    for (notebook, cell), count in counts.items():
        terminalreporter.line(f"{notebook}: {cell} raised, and {count} later cells need what it makes", red=True)
