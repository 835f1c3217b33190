"""Do the commands that print the figures of timing and of the training loop work?"""

import functools

import pytest
import torch

from benchmarks import loops as loop_figures
from benchmarks import timing as timing_figures


def test_the_loops_are_those_of_the_lesson():
    cells = loop_figures.lesson()
    for final in (False, True):
        variant = loop_figures.Variant("one", final=final, decode_once=True)
        loss, share = loop_figures.epoch_of(variant, torch.device("cpu"), cells)()
        assert 1 < loss < 3 and 0 <= share <= 1
    assert cells["amp_dtype"](torch.device("cpu")) in (None, torch.bfloat16)


def test_a_final_loop_that_is_slower_is_noticed(monkeypatch, capsys):
    rates = {variant: [100.0] for variant in loop_figures.VARIANTS}
    monkeypatch.setattr(loop_figures, "measured", lambda device, rounds: rates)
    assert loop_figures.main([]) == 0 and "final loop, float32: 1.00 times" in capsys.readouterr().out
    rates[loop_figures.VARIANTS[1]] = [101.0]
    assert loop_figures.main([]) == 1 and "0.99 times the better naive one" in capsys.readouterr().out


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
