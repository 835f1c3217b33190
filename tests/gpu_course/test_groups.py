"""Does a worker get a notebook, or a part of a file, at a time, does each test run once, and the largest file first?"""

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

    def __init__(self, number):
        self.given, self.waiting, self.gateway = [], [], SimpleNamespace(id=f"gw{number}")

    def send_runtest_some(self, indices):
        self.given.append([TESTS[at] for at in indices])
        self.waiting += self.given[-1]

    def shutdown(self):
        self.shutting_down = True


def test_a_notebook_stays_together_and_a_file_comes_in_parts(ours, monkeypatch):
    monkeypatch.setattr(ours, "_PART", 2)
    config = SimpleNamespace(getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False))
    scheduler, workers = ours._Groups(config, None), [Worker(0), Worker(1)]
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


def test_a_worker_more_than_there_are_cores_for_takes_nothing_but_tests_of_exercises(ours, monkeypatch):
    answers = [
        f"tests/test_wrong_answers.py::test_one[05-{name}-{at}]" for name in ("first", "last") for at in range(3)
    ]
    monkeypatch.setattr("tests.gpu_course.test_groups.TESTS", [*TESTS, *answers])
    config = SimpleNamespace(getvalue=lambda name: ["3*popen"], option=SimpleNamespace(loadscopereorder=False))
    scheduler, further = ours._Groups(config, None), Worker(ours._CORES)
    scheduler.add_node(further)
    scheduler.numnodes = 1
    scheduler.add_node_collection(further, TESTS)
    scheduler.schedule()
    while further.waiting:
        scheduler.mark_test_complete(further, TESTS.index(further.waiting.pop(0)))
    assert further.given == [answers[:3], answers[3:]] and further.shutting_down


class IPyNbCell(SimpleNamespace):
    """Named as nbval names its own, by which cells are known."""


def collected(tmp_path, *names):
    """Return tests, or cells where a name ends in .ipynb: one of each file, in this order."""
    made = []
    for name in names:
        path = tmp_path / name
        path.write_text("1")
        cell = path.suffix == ".ipynb"
        made.append((IPyNbCell if cell else SimpleNamespace)(path=path, nodeid=f"{name}::{len(made)}"))
        made[-1].parent, made[-1].options = SimpleNamespace(skip_compare=()), {}
    return made


def ordered(ours, items, *, seed=None, **attributes):
    items = list(items)
    ours.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed), **attributes), items)
    return items


def test_notebooks_come_first_and_then_the_largest_files_whatever_the_last_run_was(ours, tmp_path):
    items = collected(tmp_path, "test_small.py", "test_large.py", "lesson.ipynb")
    items[1].path.write_text("1" * 9)
    for order in (items, items[::-1]):
        found = ordered(ours, order, workerinput={})
        assert [item.path.name for item in found] == ["lesson.ipynb", "test_large.py", "test_small.py"]


def test_a_seed_gives_an_order_in_which_the_cells_of_a_notebook_stay(ours, tmp_path):
    items = collected(tmp_path, *["lesson.ipynb"] * 9, *["test_a.py"] * 9, *["test_b.py"] * 9)
    orders = [[item.nodeid for item in ordered(ours, items, seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == sorted(item.nodeid for item in items)
    for order in orders[1:]:
        files = [nodeid.partition("::")[0] for nodeid in order]
        assert all(len({*files[at : at + 9]}) == 1 for at in (0, 9, 18))  # each file in one piece
        assert [one for one in order if "ipynb" in one] == [item.nodeid for item in items[:9]]
        assert [one for one in order if "test_a" in one] != [item.nodeid for item in items[9:18]]
