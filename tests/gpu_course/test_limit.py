"""When is a call that takes too long ended, and when not?"""

import sys
import threading

import pytest

from gpu_course.checks import limits, spent

SECONDS = 0.2
SLOW = "from tests.gpu_course import test_limit\ntest_limit.over.wait()\nloaded = True\n"
over = threading.Event()  # the time that the import has


def on_this_thread(work):
    work()


def on_another_thread(work):
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    """A module that is loaded until it has been looked at often, with the time over; after it the clock begins anew."""

    class Loading(limits._Loading):
        looks = 0

        def now(self, frame):
            found = super().now(frame)
            Loading.looks += found
            if Loading.looks == 3:
                over.set()
            return found

    class Spent(spent.Spent):
        first = None

        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            Spent.first = Spent.first or self

        def look(self, *meant_s):
            return 2 * SECONDS if self is Spent.first and Loading.looks else super().look(*meant_s)

    over.clear()
    monkeypatch.setattr(limits, "Spent", Spent)
    monkeypatch.setattr(limits, "_Loading", Loading)
    (tmp_path / "loads_slowly.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("loads_slowly", None)


@pytest.mark.parametrize("place", [on_this_thread, on_another_thread])
def test_a_module_is_loaded_to_its_end(place, slow_module):
    def work():
        with limits.time_limit(SECONDS) as current:
            import loads_slowly
        assert loads_slowly.loaded and current.fired == 0

    place(work)


@pytest.mark.parametrize("place", [on_this_thread, on_another_thread])
def test_after_an_import_the_time_counts_again(place, slow_module):
    def work():
        with limits.time_limit(SECONDS):
            import loads_slowly  # noqa: F401

            while True:
                pass

    with pytest.raises(limits.TimeUp):
        place(work)
    assert "loads_slowly" in sys.modules


@pytest.mark.parametrize("place", [on_this_thread, on_another_thread])
def test_an_import_without_an_end_is_ended(place, slow_module, tmp_path, monkeypatch):
    (tmp_path / "loads_slowly.py").write_text("while True: pass", encoding="utf-8")
    monkeypatch.setattr(limits, "LOADING_S", 2 * SECONDS)

    def work():
        with limits.time_limit(SECONDS):
            import loads_slowly  # noqa: F401

    with pytest.raises(limits.TimeUp):
        place(work)
