"""Does a worker get a notebook, or a part of a file, at a time, does each test run once, and the longest file first?"""

from types import SimpleNamespace

import pytest

TESTS = [f"notebooks/a.ipynb::Cell {at}" for at in range(5)] + [f"tests/test_b.py::test_{at}" for at in range(5)]


@pytest.fixture
def ours(pytestconfig):
    """The conftest.py at the root."""
    (found,) = [plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "_Groups")]
    return found


class Worker:
    shutting_down = False

    def __init__(self):
        self.given, self.waiting, self.gateway = [], [], SimpleNamespace(id="a worker")

    def send_runtest_some(self, indices):
        self.given.append([TESTS[at] for at in indices])
        self.waiting += self.given[-1]

    def shutdown(self):
        self.shutting_down = True


def test_a_notebook_stays_together_and_a_file_comes_in_parts(ours, monkeypatch):
    monkeypatch.setattr(ours, "_PART", 2)
    config = SimpleNamespace(getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False))
    scheduler, workers = ours._Groups(config, None), [Worker(), Worker()]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, TESTS)
    scheduler.schedule()
    assert workers[0].given[0] == TESTS[:5] and workers[1].given[0] == TESTS[5:7]
    ran = []
    while len(ran) < len(TESTS):
        worker = max(workers, key=lambda worker: len(worker.waiting))
        ran.append(worker.waiting.pop(0))
        scheduler.mark_test_complete(worker, TESTS.index(ran[-1]))
    assert sorted(ran) == sorted(TESTS) and not any(worker.waiting for worker in workers)
    assert {len(part) for worker in workers for part in worker.given} == {5, 2, 1} and scheduler.tests_finished


def test_notebooks_come_first_and_then_what_took_longest(ours, tmp_path):
    class IPyNbCell(SimpleNamespace):
        """Named as nbval names its own, by which cells are known."""

    names = "test_quick.py", "test_slow.py", "lesson.ipynb"
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text("1")
    cell = IPyNbCell(path=paths[2], nodeid="cell", parent=SimpleNamespace(skip_compare=()), options={})
    items = [SimpleNamespace(path=path, nodeid=path.name) for path in paths[:2]] + [cell]
    config = SimpleNamespace(workerinput={"measured": {"test_quick.py": 1.0, "test_slow.py": 2.0}})
    ours.pytest_collection_modifyitems(config, items)
    assert [item.path.name for item in items] == ["lesson.ipynb", "test_slow.py", "test_quick.py"]
