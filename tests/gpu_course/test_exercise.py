"""Does the exercise engine tell the four outcomes apart, and does the kernel stay usable whatever an answer does?"""

import builtins
import contextlib
import dataclasses
import gc
import inspect
import logging
import math
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable
from operator import setitem
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import kernelcheck
import simgpu
from course_utils import devices
from gpu_course import catalogue, lesson08, solved
from gpu_course import settings as watched
from gpu_course.catalogue import registry
from gpu_course.checks import Case, Edit, Exercise, WrongAnswer, edit, exercise, read, sandbox, unsolved
from gpu_course.checks.case import load_libraries
from gpu_course.checks.comparison import difference, outline, shown
from gpu_course.checks.finding import Finding
from gpu_course.checks.mistakes import Mistake, Note, alike
from tests import children
from tests.interrupts import PASSED_THROUGH
from tests.simgpu.simulated import fork_children
from tests.waiting import calls

PLACES = devices.check_devices()


@pytest.fixture
def double():
    """An exercise of its own, with a short time limit and no place in the registry."""

    @exercise(title="Double", minutes=1, difficulty=1, hints=("first", "second"), limit_s=0.4)
    def double(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return twice `x`, on `device`."""
        return 2 * x.to(device)  # one copy

    @double.checks
    def _(case: Case) -> None:
        x = torch.tensor([1.0, 2.0])
        got = case.call(x, case.device)
        case.fail_if(isinstance(got, torch.Tensor) and got.dim() == 0, "sums", "each entry counts")
        case.equal(got, torch.tensor([2.0, 4.0]).to(case.device))
        case.budget("copies to the device", case.counts.copies_h2d, 1, "each costs time")

    return double


def refuse(double: Exercise, answer) -> str:
    with pytest.raises(WrongAnswer) as caught:
        double.examine(answer, PLACES)
    return str(caught.value)


def test_not_attempted_returns_the_reference_and_prints_one_stable_line(double, capsys):
    def stub(x, device):
        """Return twice `x`, on `device`."""
        raise NotImplementedError

    assert double.check(stub) is double.reference
    said = capsys.readouterr().out
    assert said.count("\n") == 2 and "not attempted" in said and "hint()" in said
    assert max(map(len, said.splitlines())) < 90


def test_stubs_are_recognised_and_answers_that_begin_like_one_are_not():
    def bare(x):
        raise NotImplementedError

    def with_text(x):
        raise NotImplementedError("later")

    def conditional(x):
        if x:
            return x
        raise NotImplementedError

    def other(x):
        raise ValueError

    def idle(x):
        """Its text."""
        raise NotImplementedError
        ...
        "your code here"
        pass

    assert unsolved(bare) and unsolved(with_text) and unsolved(idle)
    assert not unsolved(conditional) and not unsolved(other) and not unsolved(lambda x: x) and not unsolved(None)


def test_code_below_the_raise_of_the_stub_is_named_and_not_passed_over(double, monkeypatch, capsys):
    monkeypatch.setattr(solved, "change", lambda *names: pytest.fail("solved"))

    def left(x, device):
        """Return twice `x`, on `device`."""
        raise NotImplementedError
        return 2 * x.to(device)

    def called(x, device):
        raise NotImplementedError("later")
        y = x.to(device)
        return 2 * y

    for answer in (left, called):
        with pytest.raises(WrongAnswer) as caught:
            double.check(answer)
        assert "delete the line `raise NotImplementedError`" in str(caught.value)
        assert "the code below it never runs" in str(caught.value) and "hint()" in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_broken_program_as_it_was_given_is_not_attempted_and_what_is_left_of_it_is_wrong(double, capsys, monkeypatch):
    monkeypatch.setattr(solved, "change", lambda *names: None)
    double.given = edit("~ 2 * x → 3 * x").of(double.reference)

    def as_given(x, device):
        # comments, layout and docstring do not count
        return (
            3 * x.to(device)
        )  # fmt: skip

    def changed(x, device):
        return 3.0 * x.to(device)

    assert double.given(torch.ones(1), "cpu").item() == 3
    assert double.check(as_given) is double.check(double.given) is double.reference
    assert capsys.readouterr().out.count("not attempted") == 2
    assert "other values" in refuse(double, changed)
    for answer in (None, 3, torch.add, torch.nn.Linear):
        assert not double.untouched(answer)


@pytest.mark.parametrize(("places", "error", "phrase"), [
    (None, TypeError, "places is None, it must be a torch.device or text"),
    (5, TypeError, "places is 5, it must be"),
    ("gpu", ValueError, "places is 'gpu', which names no device"),
    (["cpu", 3], TypeError, "places[1] is 3, it must be"),
    ([], ValueError, "places is [], it must be a device or a list of at least one"),
])  # fmt: skip
def test_one_device_is_taken_like_a_list_of_it_and_what_is_no_device_is_named(double, places, error, phrase):
    for good in (PLACES[0], str(PLACES[0]), iter(PLACES)):
        double.examine(double.reference, good)
    with pytest.raises(error, match=re.escape(phrase)):
        double.examine(double.reference, places)


def test_a_right_answer_is_returned_and_remembered(double, capsys, monkeypatch):
    marked = []
    monkeypatch.setattr(solved, "change", marked.append)

    def answer(x, device):
        return x.to(device) + x.to(device) if device.type == "cpu" else x.to(device) * 2
        raise NotImplementedError  # of the stub

    assert double.check(answer) is answer
    assert marked == [{(double.lesson, "double"): True}]
    assert f"right. Checked on {PLACES[0]}" in capsys.readouterr().out


def test_a_wrong_answer_shows_the_call_expected_and_got_without_a_traceback(double):
    message = refuse(double, lambda x, device: 3 * x.to(device))
    assert "double(tensor([1., 2.])" in message and "expected: tensor([2., 4.]" in message
    assert "got:      tensor([3., 6.]" in message and "hint()" in message
    with pytest.raises(WrongAnswer, match="sums") as caught:
        double.examine(lambda x, device: x.sum(), PLACES)
    assert "each entry counts" in str(caught.value)
    rendered = "\n".join(caught.value._render_traceback_())
    assert "double: not right yet." in rendered and "Traceback" not in rendered and "_case.py" not in rendered


@pytest.mark.skipif(PLACES[-1].type == "cpu", reason="no device to copy to")
def test_a_right_answer_that_copies_too_often_is_told_the_count(double):
    message = refuse(double, lambda x, device: x.to(device) + x.to(device))
    assert "takes 2 copies to the device and the limit is 1" in message


def test_an_error_is_reported_with_the_readers_own_line(double):
    def answer(x, device):
        y = x.to(device)
        return y.undefined_method()

    message = refuse(double, answer)
    assert "raises AttributeError" in message and "line 3 of your function:  return y.undefined_method()" in message

    def calls_a_helper(x, device):
        return helper(x.to(device))

    def helper(x):
        return [one.undefined_method() for one in x]

    message = refuse(double, calls_a_helper)
    assert "in `helper`:  return [one.undefined_method() for one in x]" in message


def recursive(x, device):
    if torch.is_tensor(x):
        return recursive(x, device)


def swallow(x, device):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def swallows_on_two_levels(x, device):
    while True:
        try:
            swallow(x, device)
        except BaseException:
            repr(x)


def keeps_what_it_swallows(x, device):
    kept = []
    while True:
        try:
            time.sleep(0.001)
        except BaseException as error:
            kept.append(error)


def generates(x, device):
    yield 2 * x.to(device)


def removes_the_working_directory():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)


KEPT = []


def enter(region):
    """Enter a region that is never left, and keep it alive."""
    KEPT.append(region)
    region.__enter__()


def leaving(change):
    """Return an answer that is right and leaves something changed."""
    return lambda x, device: (change(), 2 * x.to(device))[1]


def raising(error):
    """Return an answer that raises `error`."""
    return lambda x, device: (_ for _ in ()).throw(error)


class Watching(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else the first operator of a process loads the whole compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def fails(*given):
    raise ZeroDivisionError


def deterministic():
    torch._C._set_deterministic_algorithms(True, warn_only=True)  # the public function first loads the compiler


def cudnn(name, value):
    with torch.backends.__allow_nonbracketed_mutation():  # PyTorch's own test tools forbid it without
        setattr(torch.backends.cudnn, name, value)


modules, tf32 = torch.nn.modules.module, torch.backends.cuda.matmul
LEFT = {
    "random": [lambda: torch.manual_seed(1), lambda: torch.rand(1), random.random, np.random.rand],
    "default device": [lambda: torch.set_default_device("meta")],
    "grad mode": [lambda: torch.set_grad_enabled(False)],
    "autocast": [lambda: enter(torch.autocast(PLACES[0].type, torch.bfloat16))],
    "modes that are entered": [
        lambda: enter(torch.device("meta")), lambda: enter(Watching()), lambda: _python_dispatch._pop_mode(),
    ],
    "inference mode": [lambda: enter(torch.inference_mode())],
    "hooks for saved tensors": [lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fails))],
    "anomaly mode": [lambda: torch.autograd.set_detect_anomaly(True)],
    "precision of float32 matrix": [
        lambda: torch.set_float32_matmul_precision("high"), lambda: setattr(tf32, "fp32_precision", "tf32"),
        lambda: cudnn("allow_tf32", False),
    ],
    "deterministic mode": [deterministic],
    "which kernels torch may choose": [
        lambda: cudnn("benchmark", True), lambda: enter(sdpa_kernel(SDPBackend.MATH)),
    ],
    "hooks of all modules or optimizers": [
        lambda: modules.register_module_full_backward_hook(fails), lambda: modules.register_module_forward_hook(fails),
        lambda: register_optimizer_step_post_hook(fails),
    ],
    "changes Linear.forward": [lambda: setattr(torch.nn.Linear, "forward", lambda self, given: given)],
    "changes torch.autograd.grad": [lambda: setattr(torch.autograd, "grad", None)],
    "changes Conv2d.forward": [lambda: setattr(torch.nn.Conv2d, "forward", lambda self, given: given)],
    "changes Tensor.sum": [lambda: setattr(torch.Tensor, "sum", lambda self: self)],
    "changes Tensor.item": [lambda: setattr(torch.Tensor, "item", lambda self: 0)],
    "changes Tensor.shape": [lambda: setattr(torch.Tensor, "shape", property(lambda self: ()))],
    "changes ReLU.__call__": [lambda: setattr(torch.nn.ReLU, "__call__", lambda self, given: given)],
    "changes torch.halve": [lambda: setattr(torch, "halve", lambda x: x / 2)],
    "changes builtins.loss": [lambda: setattr(builtins, "loss", 0.5)],
    "changes torch.nn.functional.relu": [lambda: delattr(torch.nn.functional, "relu")],
    "how NumPy prints": [lambda: np.set_printoptions(precision=2), lambda: np.seterr(all="raise")],
    "how matplotlib draws": [lambda: setitem(matplotlib.rcParams, "figure.dpi", 50.0)],
    "changes SGD.step": [lambda: setattr(torch.optim.SGD, "step", lambda self: None)],
    "changes time.perf_counter": [lambda: setattr(time, "perf_counter", lambda: 0.0)],
    "how torch prints tensors": [lambda: torch.set_printoptions(precision=8, sci_mode=False)],
    "filters of warnings": [lambda: warnings.filterwarnings("ignore"), warnings.resetwarnings],
    "settings of logging": [lambda: logging.basicConfig(level=logging.DEBUG, force=True), logging.disable],
    "garbage collector": [gc.disable],
    "how processes are started": [lambda: multiprocessing.set_start_method("spawn", force=True)],
    "working directory": [removes_the_working_directory],
    "changes os.environ['COURSE_TEST_ADDED']": [lambda: os.environ.__setitem__("COURSE_TEST_ADDED", "1")],
    "changes os.environ['COURSE_TEST_KEPT']": [lambda: os.environ.__setitem__("COURSE_TEST_KEPT", "other")],
    "changes os.environ['COURSE_TEST_DELETED']": [lambda: os.environ.__delitem__("COURSE_TEST_DELETED")],
    "print": [lambda: setattr(builtins, "print", None)],
    "sys.stdout": [lambda: setattr(sys, "stdout", None)],
}  # fmt: skip
if devices.simulated() is not None:
    LEFT |= {
        "current GPU": [lambda: torch.sim.set_device(1)],
        "simulated GPU's memory": [
            lambda: simgpu.configure(capacity="64 GiB"),
            lambda: enter(simgpu.memory("sim:0").budget(2**20)),  # what memory.budget enters there
        ],
        "current stream": [lambda: torch.sim.set_stream(torch.sim.Stream())],
    }  # fmt: skip
HOSTILE = [
    ("calls itself without end\n  in line 3 of your function:  return recursive(", recursive),
    ("does not end", swallow), ("does not end", swallows_on_two_levels),
    ("does not end", keeps_what_it_swallows), ("raises SystemExit", raising(SystemExit(3))),
    ("raises KeyboardInterrupt", raising(KeyboardInterrupt())), ("raises GeneratorExit", raising(GeneratorExit())),
    ("other values", lambda x, device: ([print("x" * 10_000) for _ in range(200)], x.to(device))[1]),
    ("modifies its input", lambda x, device: x.mul_(2).to(device)),
    ("expected a tensor", generates), ("other values", lambda x, device: 2 * x.to(device) * float("nan")),
    ("must be a function, not nothing", None), ("must be a function", 7), ("must be a function", torch.Tensor),
    ("must take", lambda x: x), ("is None", lambda x, device: None), ("expected a tensor", lambda *given: np.ones(2)),
    ("shape", lambda x, device: x.to(device)[:1]), ("dtype", lambda x, device: (2 * x.to(device)).half()),
    *((phrase, leaving(change)) for phrase, changes in LEFT.items() for change in changes),
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "answer"), HOSTILE)
def test_hostile_answers_are_rejected_and_leave_nothing_behind(double, phrase, answer, capfd, monkeypatch):
    monkeypatch.setenv("COURSE_TEST_KEPT", "kept")
    monkeypatch.setenv("COURSE_TEST_DELETED", "kept")
    environment, settings = dict(os.environ), watched.read()
    torch.manual_seed(5)
    wanted = (torch.rand(1).item(), random.Random(5).random())
    torch.manual_seed(5)
    before = torch.get_default_dtype(), torch.is_grad_enabled(), builtins.print, sys.stdout
    assert phrase in refuse(double, answer)
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), builtins.print, sys.stdout)
    assert torch.rand(1).item() == wanted[0]
    assert torch.empty(1).device.type == "cpu"
    assert len(capfd.readouterr().out) < 10_000
    assert dict(os.environ) == environment
    assert watched.read() == settings


def test_regions_of_autocast_after_an_answer_that_left_one_use_the_weights_of_then(double):
    refuse(double, leaving(LEFT["autocast"][0]))
    weight, x = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1)
    for wanted in (1.0, 2.0):
        with torch.no_grad():
            weight.fill_(wanted)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.nn.functional.linear(x, weight).item() == wanted


def test_what_a_library_sets_when_it_first_starts_is_no_change_of_the_answer(double, monkeypatch):
    monkeypatch.setenv("KMP_INIT_AT_FORK", "")  # so that it is put back
    monkeypatch.delenv("KMP_INIT_AT_FORK")

    def answer(x, device):
        os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn does where it is imported
        return 2 * x.to(device)

    double.examine(answer, PLACES)
    assert os.environ["KMP_INIT_AT_FORK"] == "FALSE"
    assert "KMP_INIT_AT_FORK" in refuse(double, lambda x, device: os.environ.update(KMP_INIT_AT_FORK="TRUE"))


def test_a_filter_that_a_library_adds_for_its_own_warnings_is_no_change_of_the_answer(double):
    def answer(x, device):
        warnings.filterwarnings("ignore", message="numpy.dtype size changed")  # as a library does where it is imported
        return 2 * x.to(device)

    with warnings.catch_warnings():
        double.examine(answer, PLACES)


def test_answers_are_checked_where_the_reader_has_set_the_precision_in_the_newer_way(double):
    before = watched.read()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # from here on torch.get_float32_matmul_precision raises
        double.examine(double.reference, PLACES)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        assert watched.put_back(before) == ["the precision of float32 matrix products"]


def test_what_a_check_costs_beside_the_answer_is_little(double):
    """In calls of functions, which are the same on a busy machine."""
    costs = lambda: sandbox.State.capture(PLACES[-1]).restore(draws=False)  # noqa: E731
    costs()  # what it needs is imported
    assert calls(costs) < 5_000


def test_a_check_that_fails_or_never_calls_the_answer_blames_itself(double):
    @double.checks
    def _(case):
        raise ZeroDivisionError("ours")

    with pytest.raises(RuntimeError, match="check of double itself failed, your answer may be right"):
        double.examine(double.reference, PLACES)

    @double.checks
    def _(case):
        return None

    with pytest.raises(RuntimeError, match="never called"):
        double.examine(double.reference, PLACES)


def test_an_error_of_the_check_that_the_reference_does_not_give_is_the_answers(double):
    @double.checks
    def _(case):
        got = case.call(torch.ones(2), case.device)
        case.equal(got.storage_offset(), 0)  # a text has none

    message = refuse(double, lambda x, device: "2, 2")
    assert "returns a str that cannot be used as the text says: AttributeError" in message
    assert "may be right" not in message


def test_a_message_is_short_however_long_the_words_of_an_error_are(double):
    assert len(refuse(double, raising(ValueError("word " * 10_000)))) < 1_500


def checked_by(check) -> Exercise:
    """Return an exercise of its own that `check` judges."""

    @exercise(title="Given", minutes=1, difficulty=1, hints=("first", "second"), limit_s=0.4)
    def given(state: dict) -> dict:
        """Return `state`."""
        return state

    given.checks(check)
    return given


def test_a_long_argument_is_shown_whole_or_in_outline():
    state = {"step": 3, "rows": [[1.0, 2.0]] * 40, "weights": {"0": torch.ones(2), "1": torch.ones(200)}}
    said = refuse(checked_by(lambda case: case.call(state)), lambda state: state["bias"])
    assert "given({'step': 3, 'rows': [[1.0, 2.0], [1.0, 2.0]," in said
    state["more"] = {str(number): torch.ones(12) for number in range(8)}
    said = refuse(checked_by(lambda case: case.call(state)), lambda state: state["bias"])
    assert "given({'step': 3, 'rows': <list of 40>, 'weights': {'0': tensor([1., 1.])" in said
    assert "'more': <dict of 8>}) on" in said
    assert outline(("a", [100] * 30, "b" * 99)) == f"('a', [100, 100, 100, 100, 100, 100, ...], '{'b' * 58}…)"
    assert outline(list(range(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, …]"


def test_a_call_has_the_words_of_the_check_also_where_the_answer_raises():
    said = refuse(checked_by(lambda case: case.call({}, called="given(nothing)")), lambda state: state["step"])
    assert said.startswith("given(nothing) on ") and "raises KeyError" in said


def test_what_is_compared_has_its_name():
    said = refuse(checked_by(lambda case: case.equal(case.call({"a": 1}), {"a": 2}, what="the state")), lambda x: x)
    assert "the state['a'] is 1, expected 2" in said and "Note" not in said and "Because:" not in said


def test_a_note_stands_where_the_cause_is_not_known_and_the_reason_where_it_is(third):
    said = refuse(third, lambda x: x * 0)
    assert "\n  Note: by hand\n" in said and "Because:" not in said
    said = refuse(third, lambda x: x - x / 2)
    assert "\n  Because: a half is more\n" in said and "Note" not in said
    with pytest.raises(WrongAnswer) as caught:
        third.examine(lambda x: x * 0, PLACES)
    assert "<div>Note: by hand</div>" in caught.value.panel.html


def test_a_named_mistake_keeps_what_else_than_the_result_was_compared():
    seen = Finding("the gradient of x has other values", expected="1", got="2", note="on rank 0")
    named = seen.named("halves", "a half is more")
    assert named.name == "halves: the gradient of x has other values" and named.reason.endswith("a half is more")
    assert dataclasses.replace(seen, name="rank 0's result has other values").named("halves", "").name == "halves"


def test_a_result_without_values_is_told_by_its_device(double):
    with pytest.raises(WrongAnswer, match="the result is on meta, expected on"):
        double.examine(lambda x, device: x.to("meta"), PLACES)


def test_an_answer_that_gives_something_else_at_a_second_call_is_wrong(double):
    kept = {}

    def of_the_last(x, device):
        kept.setdefault("device", 0)
        kept["device"] += 1
        return kept["device"] * 2 * x.to(device)

    def of_the_first(x, device):
        return kept.setdefault("first", 2 * x.to(device))

    @double.checks
    def _(case):
        case.call(torch.ones(2), case.device)

    assert "returns one object for all calls with the same" in refuse(double, of_the_first)
    message = refuse(double, of_the_last)
    assert "gives something else when it is called a second time" in message
    assert "expected: tensor([2., 2.]" in message and "got:      tensor([4., 4.]" in message


@exercise(lesson="99", title="Step", minutes=1, difficulty=1, hints=("first", "second"))
def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list, device: torch.device) -> None:
    """Train `model` on each batch."""
    for x in batches:
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()


@step.checks
def _(case: Case) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(case.device)
    case.call(model, torch.optim.SGD(model.parameters(), momentum=0.9), [torch.randn(3, 2)], case.device,
              modifies="training")  # fmt: skip


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (lambda model, optimizer, batches: model.eval(), "leaves `model` in evaluation mode"),
        (lambda model, optimizer, batches: model[1].eval(), "leaves `model.1` in evaluation mode"),
        (lambda model, optimizer, batches: model[0].requires_grad_(False), "`model.0.weight` with requires_grad=False"),
        (lambda model, optimizer, batches: model.register_forward_hook(print), "leaves a hook on `model`"),
        (lambda model, optimizer, batches: model.half(), "leaves `model.0.weight` in torch.float16"),
        (lambda model, optimizer, batches: optimizer.state.clear(), "leaves `optimizer` without its state"),
        (lambda model, optimizer, batches: optimizer.param_groups[0].update(lr=9), "changes lr of `optimizer` to 9"),
        (lambda model, optimizer, batches: batches.clear(), "modifies `batches`"),
        (lambda model, optimizer, batches: batches[0].add_(1), "modifies `batches[0]`"),
    ],
)
def test_what_a_right_answer_leaves_changed_beside_what_it_may_change_is_named(also, message):
    step.examine(step.reference, PLACES)

    def answer(*given):
        step.reference(*given)
        also(*given[:3])

    assert message in refuse(step, answer)


_kept = {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x, device: (2 * x.to(device)).requires_grad_(), "returns a tensor that requires gradients"),
        (torch.inference_mode()(lambda x, device: 2 * x.to(device)), "returns a tensor of inference mode"),
        (lambda x, device: _kept.setdefault(device, 2 * x.to(device)), "for other numbers of the same shape"),
        (lambda x, device: torch.mul(x.to(device), 2, out=_kept.setdefault(str(device), torch.empty(2, device=device))),
         "an earlier call"),
    ],
)  # fmt: skip
def test_a_result_with_a_graph_and_one_that_is_kept_from_call_to_call_are_wrong(double, answer, message):
    _kept.clear()
    assert message in refuse(double, answer)


def test_a_case_counts_what_the_answer_did_and_nothing_of_its_own(double):
    case = Case(double.task, double.reference, PLACES[0])
    case.call(torch.ones(2), torch.device("cpu"))
    assert (case.counts.operators, case.counts.cpu_reads) == (1, 0)


@pytest.mark.parametrize("packed", [lambda x: x, lambda x: {"weight": x}, lambda x: [x, 3]])
def test_large_tensors_that_would_be_shown_alike_are_not_shown(double, packed):
    @double.checks
    def _(case):
        case.equal(packed(case.call(torch.ones(20), case.device)), packed(torch.full((20,), 2.0, device=case.device)))

    message = refuse(double, lambda x, device: 3 * x.to(device))
    assert "has other values, up to 1 apart" in message and "expected:" not in message


def test_an_answer_that_cannot_import_is_no_known_mistake(double):
    def imports(x, device):
        import no_such_module

        return no_such_module.double(x)

    know(double, "cannot", "since it is not there", imports)
    message = refuse(double, imports)
    assert "raises ModuleNotFoundError" in message and "import no_such_module" in message and "cannot:" not in message


def test_an_error_that_is_known_is_explained(double):
    message = refuse(double, lambda x, device: 2 * x.to("sim:7"))
    assert "What it means: " in message and "What to do: " in message


@pytest.fixture
def third():
    """An exercise with two mistakes, on inputs that tell them apart only together."""

    @exercise(title="Third", minutes=1, difficulty=1, hints=("first", "second"), limit_s=0.4)
    def third(x: torch.Tensor) -> torch.Tensor:
        """Return a third of `x`."""
        return x / 3

    @third.checks
    def _(case: Case) -> None:
        for value in (6.0, 9.0):
            x = torch.tensor([value]).to(case.device)
            got = case.call(x)
            case.fail_if(case.counts.host_reads, "reads")
            case.equal(got, torch.tensor([value / 3]).to(case.device), why="by hand")

    know(third, "halves", "a half is more", returning("x / 2"), returning("x * 0.5"))
    know(third, "takes 4 off", "a third is a part", returning("x - 3"))
    return third


def know(exercise: Exercise, name: str, why: str, *answers: Edit | Callable) -> None:
    """Add a known mistake, as the file beside an exercise does."""
    made = [one.of(exercise.reference) if isinstance(one, Edit) else one for one in answers]
    exercise.mistakes.extend(Mistake(name, why, answer) for answer in made)


def returning(value: str) -> Edit:
    """Return the edit of `third` that returns something else."""
    return edit(f"-    return x / 3\n+    return {value}")


def test_a_mistake_is_named_where_an_answer_does_the_same_on_all_inputs(third):
    assert "by hand" in refuse(third, lambda x: x * 0)
    assert not any(seen.whole for mistake in third.mistakes for seen in mistake.seen.values())  # one value tells enough
    message = refuse(third, lambda x: x - x / 2)
    assert "halves" in message and "a half is more" in message and "expected: tensor([2.]" in message
    message = refuse(third, lambda x: x - 3)  # as the first on the first input
    assert "takes 4 off" in message and "halves" not in message
    message = refuse(third, lambda x: x.new_full((1,), 3.0))  # as both on the first
    assert "halves" not in message and "takes" not in message and "by hand" in message
    message = refuse(third, lambda x: x / 2 if x.item() else x)  # as the first, and in another way
    assert "reads" in message and "halves" not in message
    place = PLACES[0]
    assert [note.wrong for note in third.recording(third.mistakes[-1], place)] == [False, True, False, True]


def test_a_mistake_that_raises_is_named_and_what_was_seen_stays(third):
    know(third, "asks for a label", "tensors have none", returning("x.label"))
    message = refuse(third, lambda x: [x.label][0])
    assert "asks for a label: raises AttributeError" in message and "line 1 of your function" in message


def test_an_edit_replaces_lines_that_stand_once(third):
    answer = returning("x / 0 + y").of(third.reference)
    with pytest.raises(NameError):
        answer(torch.ones(1))
    with pytest.raises(ValueError, match="stands 0 times"):
        edit("-    return x / 4\n+    return x").of(third.reference)

    def twice(x):
        x = x + 1
        if x > 1:
            x = 2 * x
        x = x + 1
        return x

    with pytest.raises(ValueError, match="stands 2 times"):
        edit("-    x = x + 1\n+    x = x + 2").of(twice)
    both = edit("""
         def twice(x):
        -    x = x + 1
        +    x = x + 2
        ...
        -    x = x + 1
             return x
    """)
    with pytest.raises(ValueError, match="stands 2 times"):
        edit("""
            -    x = x + 1
            ...
            -    return x
            +    return -x
        """).of(twice)
    assert twice(3) == 9 and both.of(twice)(3) == 10
    with pytest.raises(ValueError, match="stands 2 times"):
        edit("~ x + 1 → x + 2").of(twice)
    piece = edit("""
        ~ 2 * x → 3 * x
        ~  > 1 →
        -    return x
        +    return -x
    """)
    assert piece.source(twice) == edit("""
        -    if x > 1:
        -        x = 2 * x
        +    if x:
        +        x = 3 * x
        ...
        -    return x
        +    return -x
    """).source(twice)
    assert piece.of(twice)(3) == -13


def test_a_file_of_answers_has_mistakes_with_beliefs_right_answers_and_wrong_ones(tmp_path, third):
    file = Path(__file__).with_name("a_file_of_answers.diff")
    found = {kind: read(file).of(kind, third.reference) for kind in ("mistake", "right", "wrong")}
    assert [(row.name, row.belief, row.why, answer(12.0)) for row, answer in found["mistake"]] == [
        ("halves", "too-much", "more than a third", 6),
        ("shifts: by [3]", "off-by-one", "a part", 9),
        ("shifts: by [3]", "off-by-one", "a part", 5),
    ]
    assert [(row.name, answer(12.0)) for row, answer in found["right"]] == [("by hand", 4)]
    assert [(row.name, answer(1.0)) for row, answer in found["wrong"]] == [("pi [2]", math.pi)]
    assert read(tmp_path / "none.diff").of("mistake", third.reference) == []


def test_every_file_of_answers_stands_beside_its_exercise():
    files = {Path(inspect.getfile(found.reference)).with_name(f"{found.name}.diff") for found in registry()}
    assert files == set(Path(catalogue.__file__).parent.glob("lesson*/*.diff"))


def test_reset_forgets(double, monkeypatch, capsys):
    forgotten = []
    monkeypatch.setattr(solved, "change", forgotten.append)
    double.hint()
    double.reset()
    double.hint()
    assert forgotten == [{(double.lesson, "double"): False}] and capsys.readouterr().out.count("Hint 1") == 2


@pytest.mark.parametrize("change", [{"difficulty": 4}, {"hints": "x"}, {"title": ""}])
def test_bad_arguments_are_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        exercise(**{"title": "T", "minutes": 1, "difficulty": 1, "hints": ("h",), **change})(exercise)


def test_the_registry_lists_every_exercise_once_in_order():
    found = [(e.lesson, e.name) for e in registry()]
    assert found and len(set(found)) == len(found)
    assert [lesson for lesson, _ in found] == sorted(lesson for lesson, _ in found)


@pytest.mark.skipif(os.name == "nt", reason="a signal that only POSIX sends")
def test_a_real_interrupt_of_the_user_passes_through():
    done = children.run("-c", PASSED_THROUGH)
    assert done.stdout.strip() == "passed through", done.stderr


def test_what_the_answer_printed_is_shown_and_what_the_sandbox_keeps_of_it_is_bounded(double):
    def answer(x, device):
        for number in range(9):
            print("seen", number)
        return x.to(device)

    message = refuse(double, answer)
    assert "your code printed:\n    seen 0\n" in message and "seen 5" not in message and "4 more lines" in message
    outcome = sandbox.call(lambda: print("x" * 50_000), (), {}, limit_s=5, device=torch.device("cpu"), draws=False)
    assert len(outcome.printed) < 3 * sandbox.KEPT_CHARACTERS and "more characters" in outcome.printed


def test_a_warning_is_shown_without_the_line_of_ours_that_stands_for_the_readers(double):
    def answer(x, device):
        code = sandbox.call.__code__
        print(warnings.formatwarning("one\ntwo", UserWarning, code.co_filename, code.co_firstlineno), end="")
        print("three")
        return x.to(device)

    assert "your code printed:\n    UserWarning: one\n    two\n    three\n" in refuse(double, answer)


def test_an_error_that_announces_its_reason_in_a_first_line_is_shown_with_it(double):
    answer = raising(RuntimeError("Error(s) in loading:\n\tMissing key(s): weight.\n\tand more"))
    assert "raises RuntimeError: Error(s) in loading: Missing key(s): weight.\n" in refuse(double, answer)


def test_a_graph_that_the_answer_broke_is_its_mistake(double):
    x = torch.ones(2, requires_grad=True)
    loss = x.exp()
    loss.data.zero_()
    loss.sum().backward()
    case = Case(double, double.reference, PLACES[0])
    with pytest.raises(WrongAnswer, match="its backward pass raises RuntimeError: Trying to backward"):
        case.backward(loss)


def test_libraries_are_loaded_before_an_answer_is_timed_and_draw_no_random_numbers():
    before = torch.get_rng_state()
    load_libraries(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before) and load_libraries.cache_info().currsize >= 1


class Lying(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError("no")


@pytest.mark.parametrize(("got", "expected", "said"), [
    (np.ones(3), np.zeros(3), "other values"),
    (np.ones(3), np.ones(2), "shape"),
    (torch.tensor([1.5]), torch.tensor([1.50001]), "other values, up to 1e-05 apart"),  # both are shown as 1.5
    (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), "other values"),
    (torch.ones(2).as_subclass(Lying), torch.ones(2), "type Lying, expected a tensor"),
    (torch.ones(2), torch.ones(2).to_sparse(), "layout"),
    (torch.zeros(2).to_sparse(), torch.ones(2).to_sparse(), "other values"),
    (torch.ones(2, device="meta"), torch.ones(2), "is on meta"),
    (10**400, 1.5, "expected 1.5"),
    (True, 1, "type bool"),
    (1.5 + 0j, 1.5, "type complex, expected float"),
    (np.float32(1), 1.0, "is NumPy's float32, expected Python's float: wrap it in float(...)"),
    (np.complex64(1), 1.0, "type NumPy's complex64, expected float"),
    (np.True_, True, "is NumPy's bool_, expected Python's bool: wrap it in bool(...)"),
    (np.True_, False, "True_, expected False" if np.__version__ >= "2" else "True, expected False"),
    ([np.False_], [False], "the result[0] is NumPy's bool_, expected Python's bool"),
    (np.str_("a"), "a", "is NumPy's str_, expected Python's str: wrap it in str(...)"),
    (np.True_, 1, "is of type NumPy's bool_, expected int"),
    (np.int64(1), True, "is of type NumPy's int64, expected bool"),
    (np.float64(1), torch.ones(1), "is of type NumPy's float64, expected a tensor"),
    (np.float64(1.5), 1, "1.5"),
    (2.0, 2, "the result is 2.0, a float, expected the int 2: divide with //, or wrap it in int(...)"),
    ([1, np.float64(2)], [1, 2], "the result[1] is 2.0, a float, expected the int 2"),
    (2.0, 3, "the result is 2.0, expected 3"),
    (1, True, "type int"),
    ({1, 2}, {1, 3}, "expected {1, 3}"),
    (frozenset({1, 2}), {1, 3}, "expected {1, 3}"),
    ([1, 2], {1, 2}, "type list, expected set"),
    ([1, [2, 3]], [1, [2, 4]], "the result[1][1] is 3, expected 4"),
    ((1, 2), [1, 2], "type tuple"),
    (None, [], "is a return missing?"),
    ((one for one in "ab"), ["a", "b"], "is a generator, expected list: return the values"),
    ([None], [""], "the result[0] is None, expected ''"),
])  # fmt: skip
def test_each_kind_of_difference_is_said(got, expected, said):
    assert said in difference(got, expected)
    assert difference(expected, expected) == ""


def test_answers_are_alike_whatever_their_layout_and_the_order_of_their_additions():
    row = torch.tensor([1000.0, 0.001])
    assert alike([Note("equal", True, ("cpu", row))], [Note("equal", True, ("cpu", row + 5e-4))])
    assert not alike([Note("equal", True, ("cpu", row))], [Note("equal", True, ("cpu", row + 5e-3))])
    written = "program 1 writes element 0 of out, which program 0 writes too (line {})"
    shared = "race: thread 0 reads `{}`[1] in shared memory, which thread 1 wrote (line {})"
    assert alike([Note(written.format(5), True, None)], [Note(written.format(17), True, None)])
    assert alike([Note(shared.format("tile", 5), True, None)], [Note(shared.format("part", 6), True, None)])
    assert not alike([Note(written.format(5), True, None)], [Note(shared.format("tile", 5), True, None)])


def test_a_tensor_without_values_is_shown_by_its_shape_rows_as_a_table_and_of_many_tensors_the_first():
    assert shown(torch.empty(5, 2, device="meta", dtype=torch.bfloat16)) == "<tensor (5, 2) bfloat16 on meta>"
    rows = [{"line": 4, "s": 0.25}, {"line": 12, "s": 3}]
    assert shown({"waits": rows}) == "{'waits': \n  line  s\n  4     0.25\n  12    3\n}"
    assert shown([{"a": 1}, {"b": 2}, 3]) == "[{'a': 1}, {'b': 2}, 3]"
    assert shown(torch.ones(2)) == "tensor([1., 1.])"
    said = shown([torch.ones(2, 2)] * 7)
    assert said.count("tensor(") == 6 and said.endswith(", ...]") and "\n" not in said


def row_by_row(x, device):
    while True:
        for row in x:
            row + row


def test_an_answer_that_calls_too_many_operators_is_told_so(double, monkeypatch):
    monkeypatch.setattr(double, "task", dataclasses.replace(double.task, limit_s=0.5))
    said = refuse(double, row_by_row)
    assert "does not end within 0.5 s" in said and "operators by then: work on whole tensors" in said


def test_equal_values_do_not_differ_and_what_cannot_be_compared_is_a_fault_of_the_check():
    layer = torch.nn.Linear(2, 2)
    assert difference(layer, layer) == difference([float("nan")], [float("nan")]) == ""
    assert difference({"a": (1,)}, {"a": (1,)}) == difference({1: frozenset("a")}, {1: {"a"}}) == ""
    assert difference([float("inf")], [float("inf")]) == "" != difference([1.0], [float("inf")], rtol=1e-3)
    assert "nan or inf among them" in difference(torch.full((13,), torch.nan), torch.zeros(13))
    assert difference({"b": 2, "a": 1}, {"a": 1, "b": 2}) == ""
    for got, expected in [(np.float64(1), 1.0), (np.int64(1), 1), (1, 1.0)]:
        assert difference(got, expected) == ""
    assert difference(torch.Size([1, 2]), (1, 2)) == difference(Counter(a=1), {"a": 1}) == ""
    with pytest.raises(TypeError, match="compare by identity"):
        difference(iter_of(), iter_of())


def test_a_class_that_a_function_defines_is_the_same_in_each_of_its_calls():
    def record(number):
        return dataclasses.make_dataclass("Record", ["number", "values"])(number, torch.ones(2))

    def pair(number):
        return namedtuple("Pair", "number values")(number, torch.ones(2))

    for make in (record, pair):
        assert difference(make(1), make(1), copied=True) == ""
        assert difference({"a": [make(1)]}, {"a": [make(2)]}, copied=True)


def iter_of():
    return (number for number in (1, 2))


@pytest.fixture
def masked():
    """An exercise whose answer is a module."""

    @exercise(title="Add", minutes=1, difficulty=1, hints=("first", "second"), limit_s=0.4)
    class Adder(torch.nn.Module):
        """A module that adds `amount`, which moves with it."""

        def __init__(self, amount: float) -> None:
            super().__init__()
            self.register_buffer("amount", torch.tensor(amount))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return `x + amount`."""
            return x + self.amount

    @Adder.checks
    def _(case: Case) -> None:
        model = case.call(2.0)
        case.fail_if("amount" not in dict(model.named_buffers()), "is no buffer", "it would stay behind")
        got = case.use(model.to(case.device), torch.ones(2, device=case.device))
        case.equal(got, torch.full((2,), 3.0, device=case.device))

    return Adder


def test_a_wrong_class_is_told_where_it_is_wrong(masked):
    class NoModule:
        def __init__(self, amount):
            self.amount = amount

    class Plain(torch.nn.Module):
        def __init__(self, amount):
            super().__init__()
            self.amount = torch.tensor(amount)

    class Half(torch.nn.Module):
        def __init__(self, amount):
            super().__init__()
            self.register_buffer("amount", torch.tensor(amount))

        def forward(self, x):
            print(x.shape)
            raise NotImplementedError

    class Fewer(torch.nn.Module):
        def __init__(self):
            super().__init__()

    assert "must be a subclass of torch.nn" in refuse(masked, NoModule)
    assert "Adder(2.0)" in refuse(masked, Plain) and "is no buffer" in refuse(masked, Plain)
    assert "in line 3 of `forward`:  raise NotImplementedError" in refuse(masked, Half)
    assert "Adder(2.0)(tensor([1., 1.]" in refuse(masked, Half)
    assert "must take (amount)" in refuse(masked, Fewer)
    assert "must be a class, not function" in refuse(masked, lambda amount: amount)
    assert "must be a class, not Linear" in refuse(masked, torch.nn.Linear(1, 1))


def test_code_below_a_raise_in_a_method_is_named(masked):
    class Left(torch.nn.Module):
        def __init__(self, amount):
            raise NotImplementedError

        def forward(self, x):
            raise NotImplementedError
            return x + 2

    with pytest.raises(WrongAnswer, match="delete the line"):
        masked.check(Left)


@pytest.fixture
def clocked():
    """An exercise that needs the simulated clock."""

    @exercise(title="Wait", minutes=1, difficulty=1, hints=("first", "second"), simulated=True)
    def wait(device: torch.device) -> None:
        """Wait until `device` has worked through its queue."""
        torch.sim.synchronize(device)

    @wait.checks
    def _(case: Case) -> None:
        assert case.device == torch.device("sim:0")
        case.fail_if(case.call(case.device) is not None, "returns something")

    return wait


def test_an_exercise_may_say_where_its_answer_runs(monkeypatch, capsys):
    monkeypatch.setattr(solved, "change", lambda *names: None)
    found = [one for one in registry() if one.lesson == "09"]
    assert found and {one.task.where for one in found} == {"real ranks on the CPU"}
    monkeypatch.setattr(found[0], "_check", lambda case: case.call(torch.ones(1)))
    found[0].check(lambda values: values)
    assert "right. Checked on real ranks on the CPU." in capsys.readouterr().out


def test_a_simulated_exercise_runs_on_the_simulated_gpu_alone(clocked, monkeypatch, capsys):
    monkeypatch.setattr(solved, "change", lambda *names: None)
    clocked.examine(clocked.reference, ["cpu"])
    clocked.check(lambda device: None)
    assert "right. Checked on the simulated GPU." in capsys.readouterr().out


def test_beside_a_real_gpu_a_simulated_exercise_is_checked_in_a_child(monkeypatch, capsys, tmp_path):
    chosen = next(found for found in registry() if found.lesson == "02")
    monkeypatch.setattr(chosen, "task", dataclasses.replace(chosen.task, simulated=True))
    monkeypatch.setattr(devices, "simulated", lambda: None)
    monkeypatch.setattr(solved, "change", lambda *names: None)
    given = chosen.reference
    with monkeypatch.context() as forking:
        fork_children(forking)
        assert chosen.check(lambda *args, **kwargs: given(*args, **kwargs))
        assert "right. Checked on" in capsys.readouterr().out
        with pytest.raises(WrongAnswer) as caught:
            chosen.check(lambda *args, **kwargs: 1 / 0)
    assert "raises ZeroDivisionError" in str(caught.value) and "on sim:0" in str(caught.value)
    monkeypatch.setenv("PYTHONPATH", str(broken_torch(tmp_path)))
    assert callable(chosen.check(lambda *args, **kwargs: None))
    assert "could not be checked on the simulated GPU" in capsys.readouterr().out


def broken_torch(folder):
    """Return a folder with a sitecustomize that makes the simulated GPU unavailable."""
    text = "import sys\nsys.modules['simgpu'] = None\n"
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


def test_an_exercise_that_needs_a_compiler_says_so_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(kernelcheck, "why_not", lambda: "There is no compiler here.")

    def block_sums():
        return "no CUDA at all"

    assert lesson08.block_sums.check(block_sums) is block_sums
    assert "There is no compiler here. The lesson goes on with your answer." in capsys.readouterr().out
