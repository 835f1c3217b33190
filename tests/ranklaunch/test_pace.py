"""Ranks that are slow are told from ranks that hang, also where other programs have the machine."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from ranklaunch import RankError, launch, pace, run
from ranklaunch.pace import Pace, Work
from tests.waiting import HANG_S, compute

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says for how long a thread was held up")


def failed(fn, **options):
    with pytest.raises(RankError) as caught:
        launch(fn, **options)
    return caught.value


@pytest.mark.parametrize(("ranks", "given_s"), [
    ([Work(0.0, 0.0), Work(0.0, 0.0)], 10),  # they wait for each other: nobody holds them up
    ([Work(1.0, 9.0), Work(0.0, 0.0)], 1),  # one computes when it is let, the other waits for it
    ([Work(0.5, 4.5), Work(0.5, 4.5)], 1),  # they take turns, and are held up in turn
    ([Work(5.0, 5.0)] * 4, 10),  # on two cores: nothing but the ranks themselves holds them up
    ([Work(1.0, 9.0)] * 4, 2),
    ([Work(0.0, 10.0), None], 0),
])  # fmt: skip
def test_time_counts_unless_something_else_had_the_cores(ranks, given_s):
    assert pace.given(10.0, ranks, 2) == pytest.approx(given_s)


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="Windows has no load average")
def test_where_the_system_says_nothing_of_a_thread_the_load_of_the_machine_counts(monkeypatch):
    for load, given_s in ((0.0, 10), (2.0, 10), (20.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        assert pace.given(10.0, [None, None], 2) == pytest.approx(given_s)
    monkeypatch.delattr(os, "getloadavg")
    assert pace.given(10.0, [None], 2) == 10


def test_a_limit_is_over_after_its_seconds_or_as_the_last_resort(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pace, "work", lambda pid: Work(now[0] * 0.02, now[0] * 0.98))
    limit = Pace(2.0, {0: 1, 1: 2}, lambda: [0, 1])
    assert limit.left_s() == 2.0 and limit.busy() == ""
    now[0] = 30.0
    assert limit.left_s() == pytest.approx(1.4)
    assert limit.busy() == "This machine is busy: in 30 s the ranks got 1.2 s of CPU time."
    now[0] = 40.0
    assert limit.left_s() == 0 and limit.cut_short()


@pytest.mark.parametrize("limited", [False, True])
def test_time_in_which_the_machine_stood_still_does_not_count(monkeypatch, limited):
    now, waits = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pace, "work", lambda pid: Work(0.0, 0.0))

    def event(wait_s):
        waits.append(wait_s)
        now[0] += wait_s + (30.0 if len(waits) == 5 else 0.9)

    launched = run.LaunchRun(("cpu",), "gloo", b"", b"", 10.0)
    monkeypatch.setattr(launched, "_event", event)
    assert not launched._pump(lambda: False, Pace(10.0, {0: 1}, lambda: [0]) if limited else 10.0)
    assert sum(waits) + 0.9 * (len(waits) - 1) == pytest.approx(10, abs=1) and now[0] > 39


@linux
def test_what_a_process_and_its_children_compute_is_seen():
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    before = pace.work(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        after = pace.work(os.getpid())
        child.kill()
    assert after.cpu_s - before.cpu_s >= 0.45 and after.held_s >= 0
    assert pace.work(child.pid) is None


def endless():
    while dist.get_rank() == 1:
        pass
    dist.barrier()


def test_a_rank_at_work_is_slow_and_no_hang():
    error = failed(endless, timeout_s=0.5)
    assert (error.kind, error.rank) == ("slow", 1)
    head, at_work, *rest = str(error).splitlines()
    assert head == "2 of 2 ranks had not returned after 0.5 s; all were stopped."
    assert at_work == "rank 1 was still at work. If it only needs more time, raise timeout_s."
    assert error.busy == "" and len([line for line in rest if not line.startswith("This machine is busy")]) == 4
    assert "in barrier, called at" in error.states[0] and "in endless" in error.states[1]


@linux
def test_a_rank_whose_child_computes_or_which_computes_in_c_is_at_work(monkeypatch):
    monkeypatch.setattr(run, "_ANSWER_S", 0.3)
    monkeypatch.setattr(run, "_SIGNAL_S", HANG_S)

    def starts_a_program():
        subprocess.run([sys.executable, "-c", "while True: pass"])

    def computes_in_c():  # and holds Python's lock
        return len(str(sum(range(10**12))))

    for work in (starts_a_program, computes_in_c):
        error = failed(work, nprocs=1, timeout_s=0.5)
        assert error.kind == "slow" and f"in {work.__name__}" in str(error)


def test_a_rank_that_gets_on_without_computing_is_at_work():
    def deeper():
        time.sleep(0.05)
        deeper()

    assert failed(deeper, nprocs=1, timeout_s=0.5).kind == "slow"


@contextlib.contextmanager
def busy(loops=20):
    """Have so many other programs compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


@linux
@pytest.mark.slow
def test_verdicts_are_the_same_on_a_busy_machine():
    def computes(seconds):
        compute(seconds)
        dist.barrier()
        return dist.get_rank()

    def leaves_early():
        computes(0.1)
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    def dies():
        dist.all_reduce(torch.ones(1, dtype=torch.float64 if dist.get_rank() else torch.float32))

    def raises():
        if dist.get_rank() == 1:
            raise ValueError("on purpose")
        dist.barrier()

    launch(computes, 0.1)
    with busy():
        for nprocs in (2, 4):
            assert launch(computes, 0.8, nprocs=nprocs, timeout_s=1.5 * nprocs / 2) == list(range(nprocs))
        for _ in range(3):
            error = failed(leaves_early, timeout_s=1.0)
            assert (error.kind, error.rank) == ("hang", 0) and error.states[1] == "had returned"
            error = failed(dies)
            assert error.kind == "died" and "in all_reduce, called at" in error.states[error.rank]
            error = failed(raises)
            assert (error.kind, error.rank) == ("raised", 1)
        error = failed(endless, timeout_s=0.5)
        assert (error.kind, error.rank) == ("slow", 1) and "This machine is busy" in str(error)
