"""Does PyTorch's own operator database give the CPU's results on the simulated GPU?"""

import contextlib
import gc

import pytest
import torch

import simgpu
from tests.simgpu import operators as operator_database


@contextlib.contextmanager
def on_one_thread():
    operator_database.database()  # what it looks for when it is imported is no part of this
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()


@pytest.mark.usefixtures("_capacity")
@pytest.mark.parametrize(("every", "limit"), [(20, 2), pytest.param(1, 10**9, marks=pytest.mark.slow)])
def test_operators_have_the_cpus_results(every, limit):
    simgpu.enable()
    with on_one_thread():
        outcomes = operator_database.run(every, limit=limit)
    forward, backward = operator_database.report(outcomes)
    assert sum(o.samples for o in outcomes) > 2000 / every
    assert every > 1 or operator_database.no_longer(outcomes) == []  # nothing is listed that agrees
    assert operator_database.unlisted(outcomes) == []
    assert forward >= 0.97 and backward >= 0.93


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_operators_on_cudas_face(every):
    with on_one_thread(), simgpu.cuda(memory="8 GiB"):
        outcomes = operator_database.run(every, offset=7 % every, limit=2, place="cuda:0")
        assert torch.ones(1, device="cuda").is_cuda
    assert sum(o.samples for o in outcomes) > 2000 / every and operator_database.unlisted(outcomes) == []


@pytest.fixture
def _capacity():
    yield
    simgpu.enable()  # as other tests expect it


@pytest.fixture
def _cuda(_capacity):
    with on_one_thread(), simgpu.cuda("H100 SXM", gpus=2, memory="8 GiB", errors="immediate"):
        yield


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize(
    ("kinds", "backward", "every", "least"),
    [
        ("cpu", False, 1, 120), ("cpu", True, 1, 1), ("cuda", True, 1, 1), ("cuda", False, 6, 12),
        pytest.param("cuda", False, 1, 80, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_number_format_that_only_one_of_cpu_and_cuda_has_is_cudas(kinds, backward, every, least):
    tried, wrong = operator_database.formats(kinds, backward, every)
    assert tried >= least and wrong == [], "\n".join(wrong)


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("every", [200, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backward", [False, True])
def test_a_number_format_that_cpu_and_cuda_have_is_not_refused(every, backward):
    tried, wrong = operator_database.formats("both", backward, every, offset=11 % every)
    assert tried > 2500 // every and wrong == [], "\n".join(wrong)


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_impossible_calls_raise_what_pytorch_expects_of_cuda(every):
    tried, wrong = operator_database.errors(every)
    assert tried >= 400 // every and wrong == [], "\n".join(wrong)


def test_unlisted_differences_and_those_that_values_do_not_show_are_reported():
    wrong = operator_database.Outcome("add", samples=1, forward="values differ")
    listed = operator_database.Outcome("prod", samples=1, backward="values differ")
    assert operator_database.unlisted([wrong, listed]) == ["add"]
    agree = [operator_database.Outcome(name, samples=1) for name in ("prod", "linalg.lstsq", "empty")]
    assert operator_database.no_longer(agree) == ["prod"]
    x = torch.ones(2, 3)
    state = [x], [False], [x]
    assert operator_database._differs(state, state, "add") == ""
    assert "counts changes" in operator_database._differs(state, ([x], [True], [x]), "add")
    assert "strides" in operator_database._differs(state, ([x.mT.contiguous().mT], [False], [x]), "add")
    assert "values" in operator_database._differs(state, ([x + 1], [False], [x]), "add")
    z = torch.ones(2, dtype=torch.complex64)
    assert "bits" in operator_database._differs(([z], [], []), ([z.conj()], [], []), "add")


def test_what_differs_by_chance_differs_in_its_last_bits_alone():
    simgpu.enable()
    torch.manual_seed(0)
    for _ in range(20):
        a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 4)
        expected, got = torch.linalg.lstsq(a, b).solution, torch.linalg.lstsq(a.to("sim"), b.to("sim")).solution
        assert torch.allclose(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("every", [120, pytest.param(1, marks=pytest.mark.slow)])
def test_version_counters_strides_and_views_are_the_cpus(sim, every):
    compared, wrong = operator_database.sweep(every, limit=1 if every > 1 else 2)
    assert compared > 20_000 / every and wrong == [], "\n".join(wrong)


@pytest.mark.usefixtures("_capacity")
@pytest.mark.parametrize("every", [60, pytest.param(1, marks=pytest.mark.slow)])
def test_operators_that_come_whole_are_taken_apart_in_inference_mode(every):
    """Here, since the database takes 4 seconds to import: the tests of a file share a process."""
    met, differing = operator_database.in_modes(every, limit=3)
    assert differing == []
    assert len(met) > 100 / every
