"""Does PyTorch's own operator database give the CPU's results on the simulated GPU?"""

import gc
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks import operators as operator_database
from course_utils import simulator

pytestmark = pytest.mark.skipif(simulator.unavailable() is not None, reason=str(simulator.unavailable()))


def test_a_sample_of_the_operators():
    simulator.enable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcomes = operator_database.run(every=20, limit=2)
    finally:
        torch.set_num_threads(threads)
        simulator.enable()  # the capacity as other tests expect it
        gc.collect()
    forward, backward = operator_database.report(outcomes)
    assert sum(o.samples for o in outcomes) > 100
    assert operator_database.unlisted(outcomes) == []
    assert forward >= 0.97 and backward >= 0.93


def test_an_unlisted_difference_is_reported_and_a_listed_one_is_not():
    wrong = operator_database.Outcome("add", samples=1, forward="values differ")
    listed = operator_database.Outcome("prod", samples=1, backward="values differ")
    assert operator_database.unlisted([wrong, listed]) == ["add"]
    agree = [operator_database.Outcome(name, samples=1) for name in ("prod", "linalg.lstsq", "empty")]
    assert operator_database.no_longer(agree) == ["prod"]


def test_what_differs_by_chance_differs_in_its_last_bits_alone():
    simulator.enable()
    torch.manual_seed(0)
    for _ in range(20):
        a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 4)
        expected, got = torch.linalg.lstsq(a, b).solution, torch.linalg.lstsq(a.to("sim"), b.to("sim")).solution
        assert torch.allclose(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_all_operators():
    command = [sys.executable, "-m", "benchmarks.operators"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _versions(device, call, tensors):
    """Return how far `call` moves the version counters of tensors on `device`, or None where it raises."""
    tensors = [tensor.detach().to(device, copy=True) for tensor in tensors]
    before = [tensor._version for tensor in tensors]
    try:
        call(*tensors)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None
    return [tensor._version > version for tensor, version in zip(tensors, before, strict=True)]


def _changes_in_place(op, sample):
    """Yield calls that change tensors, and these tensors: the operator's own form, and the one with out=."""
    first = sample.input if isinstance(sample.input, list) else [sample.input]
    single = not isinstance(sample.input, list)
    rest = {
        device: tree_map(lambda v, device=device: operator_database.move(v, device), (sample.args, sample.kwargs))
        for device in ("cpu", "sim:0")
    }

    def own(*tensors):
        args, kwargs = rest[str(tensors[0].device)]
        op.inplace_variant(tensors[0] if single else list(tensors), *args, **kwargs)

    if op.inplace_variant is not None:
        yield own, first
    if single and op.supports_out:
        made = op(sample.input, *sample.args, **sample.kwargs)

        def out(tensor, result):
            args, kwargs = rest[str(tensor.device)]
            op(tensor, *args, **kwargs, out=result)

        # PyTorch compares device= with the device of out= below the level where Python is asked, and sees `meta`
        if isinstance(made, torch.Tensor) and "device" not in sample.kwargs:
            yield out, [sample.input, made]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_an_operator_that_changes_tensors_moves_their_version_counters_as_on_the_cpu(sim, every):
    from torch.testing._internal import common_methods_invocations as listed

    lists = [db for name, db in vars(listed).items() if name.startswith("foreach_") and name.endswith("_op_db")]
    compared, wrong = 0, []
    for op in [*operator_database.database()[::every], *itertools.chain(*lists)]:
        if not op.supports_dtype(torch.float32, "cpu") or op.name in operator_database.EXCEPTIONS:
            continue
        kind = {"noncontiguous": False} if op.name.startswith("_foreach") else {}
        for sample in list(op.sample_inputs("cpu", torch.float32, **kind))[:3]:
            given = [leaf for leaf in tree_leaves((sample.input, sample.args)) if isinstance(leaf, torch.Tensor)]
            if not isinstance(sample.input, torch.Tensor | list) or any(t.layout != torch.strided for t in given):
                continue
            for call, tensors in _changes_in_place(op, sample):
                expected = _versions("cpu", call, tensors)
                if expected is not None:
                    compared += 1
                    got = _versions("sim:0", call, tensors)
                    wrong += [(op.name, expected, got)] if expected != got else []
    assert compared > 1200 / every and wrong == [], wrong


def _forms(op, tensor):
    """Yield ways of laying the same values out in memory, and nothing at all where the CPU does not crash with it."""
    yield tensor.clone()
    if tensor.dim() > 1:
        yield tensor.mT.contiguous().mT
        yield torch.stack([tensor, tensor], -1)[..., 0]
    if type(op).__name__ != "OpInfo":  # element by element, or a reduction
        yield tensor[:0] if tensor.dim() else tensor.expand(2, 3)


# The CPU alone has a kernel for it, chosen by the device; others, and the CPU with gradients, go by way of indices.
STRIDES_DIFFER = {"nn.functional.max_pool1d"}


def _strides(op, sample, form, device):
    torch.manual_seed(0)
    args, kwargs = tree_map(lambda v: operator_database.move(v, device), (sample.args, sample.kwargs))
    x = torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=device).copy_(form)
    made = [t for t in tree_leaves(op(x, *args, **kwargs)) if isinstance(t, torch.Tensor)]
    return [t.stride() for t in made if t.layout is torch.strided]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [90, pytest.param(1, marks=pytest.mark.slow)])
def test_strides_are_the_cpus(sim, every):
    compared, wrong = 0, []
    for op in operator_database.database()[::every]:
        if op.name in {*operator_database.EXCEPTIONS, *STRIDES_DIFFER}:
            continue
        kinds = (torch.float64, torch.complex64, torch.bool, torch.int32, torch.float16)
        for dtype in (kind for kind in kinds if op.supports_dtype(kind, "cpu")):
            for sample in list(op.sample_inputs("cpu", dtype))[:2]:
                if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
                    continue
                for form in _forms(op, sample.input.detach()):
                    try:
                        expected = _strides(op, sample, form, "cpu")
                    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
                        continue
                    compared += 1
                    got = _strides(op, sample, form, "sim:0")
                    wrong += [(op.name, dtype, form.shape, form.stride(), expected, got)] if got != expected else []
    assert compared > 4000 / every and wrong == [], wrong
