"""Do the commands that print the figures of timing, of the training loop and of the exercises work?"""

import functools

import pytest
import torch

from benchmarks import exercises as exercise_figures
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


LESSON = """from course_utils.exercises.lesson99 import parts
from course_utils.exercises.lesson99.parts import halve, spare as other
TABLE = [
    1,
]
@exercise(title="One")
def one(x):
    return halve(x)
@one.checks
def _(case):
    case.equal(case.call(2), TABLE)
    other(parts.shared)
@one.mistake("twice", "why")
def _(x):
    return 2 * x
one.alternative("slower", edit("halve(x)", "x / 2"))
one.edits(
    ("none", "why", "halve(x)", "x"),
)
@exercise(title="Two")
def two(parts):
    return parts.lonely + one(TABLE)
"""
PARTS = """def halve(x):
    return deeper(x)
def deeper(x): return x / 2
def spare(x): return x
shared = 1
lonely = 2
"""
WRONG = """def zero(x):
    return 0
def both(x): return zero(x)
WRONG = {
    "one": [
        ("zero", zero),
    ],
    "two": [("both", both)],
}
"""


def test_an_exercise_costs_what_it_reaches_and_its_share_of_what_others_reach():
    modules = {"course_utils.exercises.lesson99": LESSON, "course_utils.exercises.lesson99.parts": PARTS}
    found, rest = exercise_figures.costs(["one", "two"], modules, WRONG)
    assert found["one"] == exercise_figures.Cost(3, 4, 3 + 3, 1.5 + 5, 3 + 1, 1)  # half of TABLE; parts; half of zero
    assert found["two"] == exercise_figures.Cost(3, 0, 0, 1.5, 1 + 1 + 1)  # its `parts` is its own argument
    assert rest == 1 and found["one"].total == 23.5  # lonely


def test_exercises_beyond_a_limit_are_noticed(monkeypatch, capsys):
    monkeypatch.setattr(exercise_figures, "MEDIAN", 10**4)
    for maximum, status in ((10**4, 0), (1, 1)):
        monkeypatch.setattr(exercise_figures, "MAXIMUM", maximum)
        assert exercise_figures.main() == status
        assert "shared by all lessons: " in capsys.readouterr().out
