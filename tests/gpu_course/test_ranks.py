"""What a check says of ranks that hang, die, are slow or share a busy machine is what was seen, and no more."""

import contextlib
import dataclasses
import re

import pytest
import torch
import torch.distributed as dist

import ranklaunch
from gpu_course import lesson09
from gpu_course.checks import Busy, WrongAnswer


def said_of(answer):
    for _ in range(3):
        with contextlib.suppress(Busy):  # which says nothing of the answer
            with pytest.raises(WrongAnswer) as caught:
                lesson09.global_mean.examine(answer, [torch.device("cpu")])
            return str(caught.value)
    pytest.skip("other programs had the cores, three times")


def test_a_rank_that_gloo_ends_is_shown_with_the_readers_line():
    def mean(values):
        size = 2 + dist.get_rank()
        dist.all_gather([torch.ones(size)] * dist.get_world_size(), torch.ones(size))
        return values.mean()

    said = said_of(mean)
    assert "a rank dies" in said and "was killed by SIGABRT, in all_gather, line 3 of your function: dist.all_" in said


def test_a_rank_at_work_is_no_deadlock(monkeypatch):
    monkeypatch.setattr(lesson09.global_mean, "task", dataclasses.replace(lesson09.global_mean.task, limit_s=1.0))

    def mean(values):
        while dist.get_rank() == 0:
            pass
        dist.all_reduce(values)
        return values.mean()

    said = said_of(mean)
    assert "does not end (stopped after 1 s)" in said and "deadlock" not in said and "Because:" not in said


def test_a_busy_machine_is_blamed_and_not_the_answer(monkeypatch):
    busy = "This machine is busy: in 60 s the ranks got 1.2 s of CPU time."

    def launch(*args, **options):
        states = {0: "in all_reduce, called at cell, line 3, in mean\n    dist.all_reduce(values)"}
        raise ranklaunch.RankError("late", 0, "slow", "", states, busy)

    monkeypatch.setattr(ranklaunch, "launch", launch)
    with pytest.raises(Busy, match=f"^{re.escape(busy)} global_mean could not be judged.$"):
        lesson09.global_mean.examine(lambda values: values.mean(), [torch.device("cpu")])
