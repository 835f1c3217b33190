"""Are the published runs of lesson 10 whole, and are the formulas as near to them as the lesson says?"""

import math

import pytest

from gpu_course.lesson10 import measured, plans


def test_the_runs_are_those_that_were_published():
    assert len(measured.runs()) == 3231 and len(measured.ended()) == 1739
    assert sum(run.kind not in measured.LEFT_OUT for run in measured.ended()) == 827
    assert {run.model for run in measured.runs()} == {*measured.MODELS}
    for run in measured.runs():
        assert run.data * run.tensor * run.pipeline == run.gpus
        assert run.data * run.each * run.micro == measured.SEQUENCES
    best = measured.best(measured.runs("8B", 32))
    assert best.way == (16, 1, 2, 1) and best.tokens_per_s == 7186
    assert math.isinf(next(run for run in measured.runs() if not run.tokens_per_s).step_s)


@pytest.mark.parametrize(("program", "least", "most"), [(measured.NANOTRON, 1.0, 1.15), (plans.IDEAL, 1.6, 2.2)])
def test_the_error_on_the_models_that_no_number_was_chosen_on(program, least, most):
    chosen = lambda run: run.model in measured.FITTED or run.kind in measured.LEFT_OUT  # noqa: E731
    tried = [run for run in measured.ended() if not chosen(run)]
    assert len(tried) == 309
    assert least < measured.error(run.predicted_s(program) / run.step_s for run in tried) < most


def test_the_first_choice_of_the_formulas_is_mostly_near_the_best():
    found = measured.regrets(plans.IDEAL).values()
    assert (sum(one <= 1.25 for one in found), len(found)) == (15, 26)
