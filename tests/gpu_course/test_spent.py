"""Does time count that code had, and not time in which it waited for a core?"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import nbformat
import psutil
import pytest
import torch

from course_utils import devices
from gpu_course import lesson06, lesson10, lesson11, solved
from gpu_course.checks import Busy, exercise, limits, run_limited, sandbox, spent
from gpu_course.lesson12 import scoring
from gpu_course.lesson12.program import reference
from tests import kernels
from tests.waiting import HANG_S, until
from tools import notebooks

CPU = torch.device("cpu")


def seen(at_s, ran_s, waited_s=None, idle_s=0.0):
    """Return what a look at one thread gives."""
    return spent._Seen(at_s, {(1, 1): ran_s}, {} if waited_s is None else {(1, 1): waited_s}, idle_s)


@pytest.mark.parametrize(("looks", "had_s"), [
    ((seen(0, 0, 0), seen(2, 2, 0)), 2.0),  # it computed
    ((seen(0, 0, 0), seen(1, 0, 0), seen(2, 0, 0)), 2.0),  # it slept
    ((seen(0, 0, 0), seen(11, 2, 9)), 2.0),  # it had a core for two seconds of eleven
    ((seen(0, 0, 0), seen(1, 1, 0), seen(11, 2, 9)), 2.0),  # for the first one, and for one of ten
    ((seen(0, 0, 0), seen(11, 0, 9)), 2.0),  # it slept for two, and was ready for nine
    ((seen(0, 0), seen(1, 1), seen(11, 2)), 2.0),  # where the kernel does not say: no core was free
    ((seen(0, 0), seen(11, 1, idle_s=9)), 11.0),  # and one was, so that it slept
])  # fmt: skip
def test_time_counts_but_for_that_in_which_no_core_was_free(looks, had_s, monkeypatch):
    start, *later = looks
    monkeypatch.setattr(spent.time, "monotonic", lambda: start.at_s)
    monkeypatch.setattr(spent, "_look_at_one", lambda thread: start)
    found = spent.Spent()
    for look in later:
        monkeypatch.setattr(spent, "_look", lambda pid, look=look: look)
        found.look()
    assert found.seconds == pytest.approx(had_s)


@pytest.mark.parametrize("ran_s", [0.0, 4.0], ids=["sleeps", "computes"])
def test_a_look_that_comes_late_counts_as_twice_what_was_meant(ran_s, monkeypatch):
    """A virtual machine that stands still for four seconds ends no answer, which its kernel says has run or slept."""
    monkeypatch.setattr(spent.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(spent, "_look_at_one", lambda thread: seen(0, 0, 0))
    monkeypatch.setattr(spent, "_look", lambda pid: seen(4, ran_s, 0))
    assert spent.Spent().look(0.3) == 0.6 and spent.Spent().look(3.0) == spent.Spent().look() == 4.0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")
def test_an_answer_is_not_ended_by_one_stretch_without_a_look():
    """As where the machine stood still: no handler of Python runs while a lock of compiled code is waited for."""

    def answer():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(0.5)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        return 3

    outcome = sandbox.call(answer, (), {}, limit_s=0.4, device=CPU, draws=False)
    assert (outcome.value, outcome.timed_out) == (3, False)


def test_in_the_first_stretch_only_the_thread_of_the_code_counts(monkeypatch):
    """What others did before is not known: they were not looked at."""
    begin = spent._Seen(0, {(1, 1): 5.0}, {(1, 1): 7.0}, 0)
    now = spent._Seen(10, {(1, 1): 6.0, (1, 2): 90.0}, {(1, 1): 16.0, (1, 2): 80.0}, 0)
    monkeypatch.setattr(spent.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(spent, "_look_at_one", lambda thread: begin)
    monkeypatch.setattr(spent, "_look", lambda pid: now)
    assert spent.Spent().look() == 1.0


@pytest.mark.skipif(not spent.LINUX, reason="only Linux counts for each thread")
def test_the_thread_of_the_code_is_looked_at():
    one = spent._look_at_one(threading.get_native_id())
    assert list(one.ran_s) == list(one.waited_s) == [(os.getpid(), threading.get_native_id())]
    assert one.ran_s.keys() <= spent._look(os.getpid()).ran_s.keys()


def test_of_many_threads_that_wait_the_busiest_counts():
    before = spent._Seen(0, {(1, at): 0.0 for at in range(8)}, {(1, at): 0.0 for at in range(8)}, 0)
    now = spent._Seen(4, {(1, at): 0.5 for at in range(8)}, {(1, at): 3.5 for at in range(8)}, 0)
    assert spent._had_s(before, now, 4.0) == 0.5


@pytest.mark.parametrize("linux", [spent.LINUX, False])
def test_a_child_that_computes_is_seen_and_one_that_has_ended_is_no_error(linux, monkeypatch):
    monkeypatch.setattr(spent, "LINUX", linux)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        found = spent._look(psutil.Process().pid)
        assert {pid for pid, _ in found.ran_s} >= {process.pid, psutil.Process().pid}
        process.kill()
    spent.Spent(process.pid).look()


@pytest.fixture
def starved(monkeypatch):
    """A machine on which code gets nothing, and a last resort that is near."""
    monkeypatch.setattr(spent, "_had_s", lambda *given: 0.0)
    monkeypatch.setattr(limits, "last_resort_s", lambda limit_s: 0.3)
    monkeypatch.setattr(limits, "LOOK_S", 0.1)


def test_an_answer_that_a_busy_machine_did_not_let_run_is_not_called_endless(starved, capsys):
    @exercise(title="Wait", minutes=1, difficulty=1, hints=("h",), limit_s=0.4)
    def wait() -> None:
        """Wait."""

    @wait.checks
    def _(case):
        case.fail_if(case.call(), "returns something")

    def answer():
        time.sleep(600)

    assert wait.check(answer) is answer
    said = capsys.readouterr().out
    assert said.startswith("This machine is busy: wait could not be judged, in ") and "does not end" not in said
    with pytest.raises(Busy, match="This machine is busy: in"):
        run_limited(time.sleep, 600, limit_s=5)


def test_a_check_that_takes_long_says_what_it_is_doing(capfd, monkeypatch):
    from gpu_course.checks import engine

    monkeypatch.setattr(engine, "PATIENCE_S", 0.01)
    monkeypatch.setattr(solved, "change", lambda *names: None)

    @exercise(title="Halve", minutes=1, difficulty=1, hints=("h",))
    def halve(x: float) -> float:
        """Return half of `x`."""
        return x / 2

    @halve.checks
    def _(case):
        case.equal(case.call(3.0), 1.5)

    called, shown, show = threading.Event(), threading.Event(), engine.print_if_slow
    waiting = lambda words: (called.wait(HANG_S), words(), shown.set())[1]  # noqa: E731
    monkeypatch.setattr(engine, "print_if_slow", lambda s, words: show(s, lambda: waiting(words)))
    halve.check(lambda x: (called.set(), shown.wait(HANG_S), x / 2)[2])
    said = capfd.readouterr()
    assert said.err == f"halve: still checking. Now: halve(3.0) on {devices.check_devices()[0]}\n"
    assert "still" not in said.out
    monkeypatch.setattr(engine, "PATIENCE_S", HANG_S)
    halve.check(lambda x: x / 2)
    assert capfd.readouterr().err == ""


def test_in_a_notebook_the_line_goes_when_the_check_has_ended():
    """An output without content, which nbval and stored notebooks leave out, is filled and emptied."""
    source = """import threading
from gpu_course.checks.engine import print_if_slow
print("before")
shown = threading.Event()
with print_if_slow(0.01, lambda: (shown.set(), "still checking")[1]):
    shown.wait()
with print_if_slow(600, lambda: "still checking"):
    pass
print("after")"""
    cell = nbformat.v4.new_code_cell(source)
    sent = []
    client = kernels.client(nbformat.v4.new_notebook(cells=[cell]))
    process = client.process_message
    client.process_message = lambda message, *rest: (sent.append(message), process(message, *rest))[1]
    client.execute()
    shown = [message["content"]["data"] for message in sent if "display_data" in message["msg_type"]]
    assert shown == [{}, {"text/plain": "still checking"}, {}]
    assert [output.get("text", output.get("data")) for output in cell.outputs] == ["before\n", {}, "after\n"]
    assert "".join(output.text for output in notebooks.clean_outputs(cell)) == "before\nafter\n"


def on_another_thread():
    def work():
        with contextlib.suppress(limits.TimeUp), limits.time_limit(0.1):
            while True:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("before", [lambda: None, on_another_thread], ids=["alone", "after one on another thread"])
def test_the_first_interruption_comes_at_a_line_of_the_answer(before, monkeypatch):
    before()
    monkeypatch.setattr(limits, "PATIENCE_S", HANG_S)
    files = set()

    def answer():
        x = torch.ones(2)
        try:
            while True:
                torch.nn.functional.gaussian_nll_loss(x, x, x)  # many lines of PyTorch
        except BaseException as error:
            files.update(frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
            raise

    for _ in range(2):
        assert sandbox.call(answer, (), {}, limit_s=0.3, device=CPU, draws=False).timed_out
    assert files == {__file__, limits.__file__}


def test_an_interruption_is_not_lost_in_what_is_destroyed(monkeypatch):
    made, destroyed, limit = [], [], limits.Limit
    monkeypatch.setattr(limits, "Limit", lambda: made.append(limit()) or made[-1])

    class Left:
        def __del__(self):
            destroyed.append("in time")

    def due(held):
        limits._arm_tracer(type("Up", (limits.TimeUp,), {"limit": made[-1]}), skip=0), held.clear()

    def answer():
        due([Left()])
        destroyed.append("too late")

    sandbox.call(answer, (), {}, limit_s=HANG_S, device=CPU, draws=False)
    assert destroyed == ["in time"] and made[-1].fired == 1


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")
def test_an_alarm_that_comes_while_the_last_one_is_looked_at_is_passed_over(monkeypatch):
    depths = []

    def look(self, meant_s):
        depths.append(len(traceback.extract_stack()))
        signal.raise_signal(signal.SIGALRM)  # as on a machine that gives the look itself no core
        return 0.0

    def answer():
        until(lambda: len(depths) > 2)

    monkeypatch.setattr(spent.Spent, "look", look)
    monkeypatch.setattr(limits, "LOOK_S", 0.02)
    monkeypatch.setattr(limits, "_LEAST_S", 0.02)
    outcome = sandbox.call(answer, (), {}, limit_s=0.1, device=CPU, draws=False)
    assert outcome.error is None and not outcome.timed_out and len(set(depths)) == 1


@pytest.fixture
def load():
    """Twenty programs that compute beside the test."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(20)]
    yield
    for process in processes:
        process.kill()
        process.wait()


SLOWEST = [lesson06.repair_reads, lesson10.train_sharded, lesson11.train_pairs, lesson11.train_and_validate]


@pytest.mark.slow
@pytest.mark.parametrize("slow", SLOWEST, ids=lambda one: one.name)
def test_a_right_answer_is_accepted_on_a_busy_machine(slow, load):
    slow.examine(slow.reference, devices.check_devices())


@pytest.mark.slow
def test_the_capstone_is_scored_on_a_busy_machine(load):
    scoring._tried.cache_clear()
    score = scoring.score(reference(), "capstone_reference.py")
    assert score.rejected == "" and score.costs.t4_ms == pytest.approx(1.131, rel=0.01)
