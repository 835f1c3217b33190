"""A plugin of pytest, loaded before all others: what takes long, and no test needs.

nbval imports jsonschema, and that a grammar of international addresses for formats that no schema of notebooks names:
1.7 of the 1.9 CPU seconds that this takes, in each process that runs tests. Budgets and measurements of memory collect
garbage often: each time half of the test's seconds went to all of torch and all tests, which stay.
"""

import gc
import sys

import pytest

sys.modules.setdefault("rfc3987_syntax", None)  # jsonschema then does as where it is not installed
_MODULES = pytest.StashKey[int]()  # how many there were at the last look


def _freeze(config: pytest.Config) -> None:
    """Keep what exists by now out of garbage collections."""
    gc.collect()
    gc.freeze()
    config.stash[_MODULES] = len(sys.modules)


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
