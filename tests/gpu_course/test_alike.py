"""Do cases that look alike have one cause each, and do their instruments tell them apart?"""

import re

import pytest

from gpu_course.lesson11 import alike, slow


@pytest.mark.parametrize("seed", range(8))
def test_flat_losses_look_alike_and_instruments_tell_them_apart(seed):
    cases = {cause: alike.flat(cause, seed) for cause in alike.FLAT}
    for cause, case in cases.items():
        assert case.cause == cause and case.causes == alike.FLAT
        losses = case.symptom.partition(": ")[2].split(", ")
        assert len(losses) == 6 and len(set(losses)) == 1
        assert case.look("change").endswith(" 0.0")
    readings = [(case.look("gradient"), case.look("optimizer"), case.look("rate")) for case in cases.values()]
    assert len(set(readings)) == 3
    assert "none" in cases[alike.CLEARED].look("gradient")
    assert cases[alike.LACKS].look("optimizer").endswith("no")
    assert cases[alike.ZERO].look("rate").endswith(" 0.0")


def test_hangs_look_alike_and_the_report_tells_them_apart():
    shown = {
        alike.FEWER: ["had returned", "in all_reduce"], alike.OTHERS: ["in all_reduce", "in broadcast"],
        alike.WAITS: ["in all_reduce", "in wait"],
    }  # fmt: skip
    cases = alike.three_hangs()
    assert list(cases) == ["A", "B", "C"] and {case.cause for case in cases.values()} == shown.keys()
    for case in cases.values():
        assert case.symptom == "Two ranks train. Nothing is printed, and nothing happens."
        assert all(words in case.look("report") for words in shown[case.cause])
        batches = {int(number) for number in re.findall(r"has (\d)", case.look("batches"))}
        assert len(batches) == (2 if case.cause == alike.FEWER else 1)


@pytest.mark.parametrize("cause", slow.SLOW)
def test_compiled_steps_look_alike_and_instruments_tell_them_apart(cause):
    case = slow.slow(cause, seed=3)
    assert case.symptom == "A step was compiled, and is slower than before." and case.causes == slow.SLOW
    graphs = [int(number) for number in case.look("graphs").partition(": ")[2].split(", ")]
    assert (len(set(graphs)) == 1) == (cause == slow.BREAKS) and graphs[0] == (2 if cause == slow.BREAKS else 1)
    assert ("print" in case.look("breaks")) == (cause == slow.BREAKS)
    assert ("none" in case.look("guards")) == (cause == slow.BREAKS)
    assert ("calls" in case.look("guards")) == (cause == slow.NUMBER)
    assert case.because(cause) == f"Yes: {cause}."
    assert all(case.because(other).startswith("No: ") for other in slow.SLOW if other != cause)


def test_only_the_cause_is_right_and_the_others_hear_what_speaks_against_them():
    case = alike.flat(alike.ZERO)
    assert case.because(alike.ZERO) == "Yes: the learning rate is 0."
    assert case.because(alike.LACKS) == "No: does the optimizer hold the head? yes"
    assert "norm" in case.because(alike.CLEARED)
    assert case.because(None).startswith("No answer yet")
    assert alike.ZERO not in case.because(alike.LACKS) and case.cause not in repr(case).splitlines()[:2]
    with pytest.raises(ValueError, match="cause must be one of"):
        case.because("the weather")
    with pytest.raises(ValueError, match="instrument must be one of"):
        case.look("crystal ball")


def test_a_seed_draws_the_same_case_again_and_all_causes_are_drawn(monkeypatch):
    monkeypatch.setattr(alike, "hang", lambda cause, seed: alike.flat(alike.ZERO, seed))  # no ranks for this
    assert str(alike.draw(seed=1)) == str(alike.draw(seed=1))
    monkeypatch.setattr(alike, "slow", lambda cause, seed: alike.flat(alike.LACKS, seed))  # nothing is compiled
    assert {alike.draw(seed).cause for seed in range(30)} == set(alike.FLAT)
