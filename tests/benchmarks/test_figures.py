"""Do the commands that print the figures of timing and of the training loop work?"""

import functools

import pytest
import torch

from benchmarks import loops as loop_figures
from benchmarks import timing as timing_figures


@pytest.fixture(autouse=True)
def threads_are_put_back():
    """The commands choose a number of threads for their process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_loops_are_those_of_the_lesson():
    cells = loop_figures.lesson()
    for final in (False, True):
        variant = loop_figures.Variant("one", final=final, decode_once=True)
        loss, share = loop_figures.epoch_of(variant, torch.device("cpu"), cells)()
        assert 1 < loss < 3 and 0 <= share <= 1
    assert cells["amp_dtype"](torch.device("cpu")) in (None, torch.bfloat16)


@pytest.mark.slow
def test_the_command_of_the_loops_works(capsys):
    loop_figures.main(["--rounds", "1"])
    printed = capsys.readouterr().out
    assert all(variant.change in printed for variant in loop_figures.VARIANTS)


@pytest.mark.slow
def test_the_command_of_timing_works(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["timing_figures"])
    monkeypatch.setattr(timing_figures, "compare", functools.partial(timing_figures.compare, turns=2, min_time_s=0.02))
    monkeypatch.setattr(timing_figures, "rates", functools.partial(timing_figures.rates, turns=1))
    timing_figures.main()  # on a busy machine it may miss a target
    printed = capsys.readouterr().out
    assert all(name in printed for name in timing_figures.workloads()) and "fp32: search" in printed
