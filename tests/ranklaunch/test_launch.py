"""`launch` runs functions on real processes, names what went wrong, and leaves nothing behind."""

import asyncio
import contextlib
import importlib
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from traceback import FrameSummary
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ranklaunch as module
from ranklaunch import RankError, forked, launch, output, preload, rank_device, report, run, use_device, wire
from ranklaunch.wire import Failure
from tests import children
from tests.by_value import files_of_sent
from tests.ranklaunch import system
from tests.waiting import HANG_S, until

HERE = Path(__file__)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def nothing_left():
    """After each test: no process but the server, no thread, port or file. tests/conftest.py looks at the settings."""
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    there = system.descendants().keys()
    with system.pids_of_ranks() as pids:
        yield
    assert handler is None or signal.getsignal(signal.SIGCHLD) == handler
    assert not system.abandoned_segments(pids)
    now = system.descendants()
    assert not [words for pid, (parent, words) in now.items() if pid not in there and not _server(parent, words)]
    until(lambda: not any(thread.name == "launch" for thread in threading.enumerate()))  # the server may import first
    assert not system.listening()


def _server(parent, words):
    return parent == os.getpid() and ("ranklaunch import forked" in words or "tests.children import serve" in words)


def failing(fn, **options):
    with pytest.raises(RankError) as caught:
        launch(fn, **options)
    return caught.value


def test_ranks_reduce_and_return_in_order():
    def total(x, scale):
        assert dist.get_world_size() == 3 and dist.get_backend() == "gloo" and rank_device() == torch.device("cpu")
        x = x * scale * (dist.get_rank() + 1)
        dist.all_reduce(x)
        return dist.get_rank(), x

    got = launch(total, torch.ones(2), nprocs=3, scale=10)
    assert [rank for rank, _ in got] == [0, 1, 2]
    assert all(torch.equal(x, torch.full((2,), 60.0)) for _, x in got)


def module_level():
    return dist.get_rank()


def test_functions_of_any_kind_run_and_large_arguments_and_results_travel():
    add = 5

    class Adder:
        def __call__(self):
            return add + dist.get_rank()

        def method(self):
            return launch(module_level, nprocs=1)  # in a rank

    assert launch(module_level) == [0, 1] and launch(Adder()) == [5, 6]
    assert launch(Adder().method, nprocs=1) == [[0]]
    got = launch(lambda x: x + 1, torch.zeros(5_000_000))
    assert all(one.shape == (5_000_000,) and one[-1] == 1 for one in got)


def test_start_sets_a_rank_up_and_may_call_the_function():
    def start():
        torch.manual_seed(7)
        os.environ["SEEN"] = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}, {dist.is_initialized()}"
        use_device(torch.device("meta"))
        return surrounded

    def surrounded(fn, *args, **options):
        return "before", fn(*args, **options), dist.is_initialized()

    def work(x, *, y):
        return x + y, torch.rand(1).item(), str(rank_device()), os.environ["SEEN"]

    drawn = torch.rand(1, generator=torch.Generator().manual_seed(7)).item()
    for rank, got in enumerate(launch(work, 1, y=2, start=start)):
        assert got == ("before", (3, drawn, "meta", f"{rank} of 2, False"), True)
    seeded = launch(torch.rand, 1, start=lambda: torch.manual_seed(7))  # what it returns is no function
    assert [one.item() for one in seeded] == [drawn, drawn]
    with pytest.raises(RuntimeError, match="launch did not start"):
        use_device(torch.device("cpu"))


def test_a_start_that_fails_is_told_as_the_function_and_results_are_named_as_the_function_returned_them():
    def start():
        raise ValueError("no device today")

    error = failing(module_level, start=start)
    assert (error.rank, error.kind, error.error) == (0, "raised", "ValueError") and "in start" in str(error)
    error = failing(lambda: (i for i in range(3)), start=lambda: lambda fn: (fn(), "more"))
    assert error.kind == "result" and "ranks 0 and 1 returned a generator, which cannot be sent" in str(error)


def test_a_function_of_a_module_that_ranks_cannot_import_travels_by_value(tmp_path):
    import importlib.util

    file = tmp_path / "not_on_the_path.py"
    file.write_text("def fn():\n    return helper()\n\ndef helper():\n    return 7\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("not_on_the_path", file)
    loaded = sys.modules["not_on_the_path"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
        assert launch(loaded.fn) == [7, 7]
    finally:
        del sys.modules["not_on_the_path"]


def test_what_refers_to_pytorchs_operators_and_modules_of_objects_travels():
    aten, add, overload = torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor

    def work(x):
        return x + torch.ops.aten.add(x, x) + aten.mul(x, x) + add(x, x) + overload(x, x), torch.backends.cudnn.enabled

    assert launch(work, torch.tensor(3.0), nprocs=1)[0][0] == 3 + 6 + 9 + 6 + 6


def test_custom_operators_of_a_cell_travel_with_their_gradients():
    @torch.library.custom_op("course_test::scale", mutates_args=(), device_types="cpu")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    scale.register_fake(torch.empty_like)
    scale.register_autograd(lambda ctx, gradient: scale(gradient) + 1)  # it refers to itself
    overload, namespace = torch.ops.course_test.scale.default, torch.ops.course_test

    @torch.library.custom_op("course_test::shift_", mutates_args=("x",))
    def shift_(x: torch.Tensor) -> None:
        x.add_(1)

    def work():
        x = torch.ones(2, requires_grad=True)
        values = scale(x), overload(x), namespace.scale(x), torch.ops.course_test.scale(x)
        sum(values).sum().backward()
        namespace.shift_(y := torch.zeros(1))
        return [value.tolist() for value in values], x.grad.tolist(), y.item(), scale._abstract_fn is not None

    assert launch(work) == [([[3.0, 3.0]] * 4, [16.0, 16.0], 1.0, True)] * 2

    def by_name(x):  # nothing but the text shows what it needs
        return torch.ops.course_test.scale(x)

    assert launch(by_name, torch.tensor(2.0), nprocs=1) == [6]


def test_operators_of_pytorch_do_not_travel():
    negative = torch.ops.prims.neg.default  # one of a hundred that PyTorch makes by one function

    def by_text(x):
        return torch.ops.prims.neg(x)

    def by_value(x):
        return negative(x), torch.ops.prims.neg(x)

    assert "<locals>" in wire.OPDEFS["prims::neg"]._init_fn.__qualname__  # as one that is typed in a function
    sent = wire.dumps_call(by_text, (), {}), wire.dumps_call(by_value, (), {}), wire.dumps_start(None)
    assert not any(b"prims::" in one for one in sent)
    assert launch(by_text, torch.tensor(2.0), nprocs=1) == [-2]
    assert launch(by_value, torch.tensor(2.0), nprocs=1) == [(-2, -2)]


def test_results_that_only_cloudpickle_can_send_come_back():
    def work():
        class Local:
            value = property(lambda self: "local")

        return Local(), lambda: "lambda", memoryview(b"view")

    for made, function, view in launch(work):
        assert (made.value, function(), bytes(view)) == ("local", "lambda", b"view")


def test_tensors_come_back_as_they_were_on_the_cpu():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.tied = self.layer.weight

    marker = Net.forward

    def made():
        base = torch.arange(1_000_000.0)
        return {
            "view": base[:3],
            "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16),
            "channels_last": torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "sparse": torch.eye(3).to_sparse(),
            "grad": torch.ones(2, requires_grad=True),
            "net": (Net(), [torch.tensor(1)]),
            "float8": torch.tensor([1.5]).to(torch.float8_e4m3fn),
            "conjugate": torch.tensor([1 + 2j]).conj(),
            "empty": torch.ones(0, 3),
            "repeated": torch.arange(4)[2:].expand(3, 2),
            "named": named,
        }

    named = torch.ones(1)
    named.word = "kept"

    got = launch(made)[1]
    assert got["view"].untyped_storage().nbytes() == 12
    assert got["view"].tolist() == [0, 1, 2] and got["bfloat16"].dtype == torch.bfloat16
    assert got["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3)) and got["grad"].requires_grad
    assert got["float8"].dtype == torch.float8_e4m3fn and got["float8"].float().item() == 1.5
    assert got["conjugate"].tolist() == [1 - 2j] and got["empty"].shape == (0, 3) and got["named"].word == "kept"
    assert got["repeated"].tolist() == [[2, 3]] * 3 and got["repeated"].stride() == (0, 1)
    net = got["net"][0]
    assert type(net) is Net and net.tied is net.layer.weight and isinstance(net.tied, nn.Parameter)
    assert Net.forward is marker  # the class is still the reader's own


def test_small_tensors_are_not_written_as_archives_and_operations_of_sending_are_not_the_readers():
    class Seen(TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    with Seen() as seen:
        again = pickle.loads(wire.dumps(torch.ones(4)[:2]))
    assert seen.names == ["ones.default", "slice.Tensor"]
    assert again.resize_(3).shape == (3,)  # its memory is PyTorch's own
    assert len(wire.dumps([torch.ones(1) for _ in range(100)])) < 100 * 100


def test_random_numbers_differ_between_ranks_and_not_between_launches():
    def draw():
        import random

        import numpy as np

        return torch.rand(1).item(), random.random(), float(np.random.rand())

    first, again = launch(draw), launch(draw)
    assert first == again
    assert all(a != b for a, b in zip(*first, strict=True))


def test_a_rank_looks_like_a_process_of_torchrun(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_TEST_LATE", "1")
    monkeypatch.setattr(sys, "argv", ["program.py", "--option"])
    monkeypatch.chdir(tmp_path)

    def where():
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "COURSE_TEST_LATE")
        return [os.environ[name] for name in names], os.getcwd(), torch.get_num_threads(), sys.argv

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = launch(where)[1]
    assert found == (["1", "1", "2", "2", "127.0.0.1", "1"], str(tmp_path), max(1, cores // 2), sys.argv)


def test_a_warning_that_is_an_error_here_is_one_in_the_ranks():
    def warn():
        warnings.warn("old", FutureWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert failing(warn).error == "FutureWarning"
        warnings.simplefilter("ignore", FutureWarning)
        launch(warn)


def test_output_comes_in_rank_order_with_the_name_of_the_rank(capfd):
    def speak():
        rank = dist.get_rank()
        time.sleep(0.2 * (1 - rank))
        print(f"first of {rank}\n\nsecond", flush=False)
        os.system("echo from a subprocess")
        os.write(2, f"to stderr of {rank}\n".encode())
        print("no newline", end="")

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        launch(speak)
    lines = [
        f"[rank {r}] {t}".rstrip()
        for r in (0, 1)
        for t in (f"first of {r}", "", "second", "from a subprocess", "no newline")
    ]
    assert out.getvalue().splitlines() == lines
    assert err.getvalue().splitlines() == ["[rank 0] to stderr of 0", "[rank 1] to stderr of 1"]
    assert capfd.readouterr() == ("", "")


def test_what_a_thread_prints_after_the_function_is_shown():
    def speak():
        threading.Thread(target=lambda: time.sleep(0.2) or print("late")).start()

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        launch(speak, nprocs=1)
    assert out.getvalue() == "[rank 0] late\n"


def test_progress_is_not_withheld(monkeypatch, tmp_path):
    """Each rank goes on when its lines have been shown: if they were kept to its end, there would be none."""
    monkeypatch.setattr(output, "HOLD_S", 0.1)

    class Screen(io.StringIO):
        def write(self, text):
            for line in text.splitlines():
                (tmp_path / re.sub(r"\W+", "-", line)).touch()
            return len(text)

    def work():
        for step in range(3):
            print(f"step {step}")
            sys.stderr.write(f"\r{step}/3")  # a progress bar
            names = [f"-rank-{dist.get_rank()}-{said}" for said in (f"step-{step}", f"{step}-3")]
            until(lambda names=names: all((tmp_path / name).exists() for name in names))

    with contextlib.redirect_stdout(Screen()), contextlib.redirect_stderr(Screen()):
        launch(work, timeout_s=HANG_S)


def test_lines_that_come_fast_are_not_cut(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(output, "HOLD_S", 0.02)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now_s))
    screen, collected = io.StringIO(), output.Output(2)
    with contextlib.redirect_stdout(screen):
        for _ in range(60):
            for rank in (0, 1):
                collected.take(rank, "out", b"ole\n" + b"whole\n" * 9 + b"wh")
            collected.tick()
            now_s += 0.001
    lines = screen.getvalue().splitlines()
    assert len(lines) > 600 and set(lines[1:]) == {"[rank 0] whole", "[rank 1] whole", "[rank 1] ole"}


def test_a_rank_without_stdout_returns_and_a_long_error_is_shortened():
    def work(text):
        sys.stdout = None
        if text:
            raise ValueError(text)
        return 3

    assert launch(work, "") == [3, 3]
    text = str(failing(lambda: work("begin" + "x" * 1_000_000 + "end")))
    assert "begin" in text and "end" in text and "characters left out" in text and len(text) < 4000


def test_many_lines_are_few_messages_of_a_notebook(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now_s))

    class Screen(io.StringIO):
        flushes = 0

        def flush(self):
            self.flushes += 1

    screen, collected = Screen(), output.Output(1)
    with contextlib.redirect_stdout(screen):
        for line in range(1000):
            collected.take(0, "out", b"%d\n" % line)
        assert screen.getvalue().endswith("[rank 0] 999\n") and screen.flushes == 0
        now_s += output.FLUSH_S
        collected.tick()
        assert screen.flushes == 1
        collected.tick()
        assert screen.flushes == 1


def test_what_a_long_error_advises_at_its_end_stands_in_the_state_of_its_rank():
    def work():
        raise ValueError("not this one, " * 40 + "but another")

    state = failing(work, nprocs=1).states[0]
    assert state.startswith("raised ValueError: not this one") and state.endswith("but another")
    assert "characters left out" in state and len(state) < 500


def test_the_first_failure_is_named_with_its_line():
    def work():
        if dist.get_rank() == 1:
            time.sleep(0.1)
            raise ValueError("bad value")  # the reader's line
        dist.all_reduce(torch.ones(1))

    error = failing(work)
    assert (error.rank, error.kind, error.error) == (1, "raised", "ValueError")
    assert str(error).splitlines() == [
        "rank 1 raised ValueError:",
        f"  {_shown(HERE)}, line {work.__code__.co_firstlineno + 3}, in work",
        '    raise ValueError("bad value")  # the reader\'s line',
        "ValueError: bad value",
        "rank 0 ended because of it.",
    ]
    assert error._render_traceback_()[0].startswith("RankError: rank 1")


def _shown(path):
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def test_an_error_deep_in_a_library_shows_the_readers_line_and_its_cause():
    def work():
        try:
            nn.Linear(2, 2)(torch.ones(3))
        except RuntimeError as error:
            raise KeyError("wrapped") from error

    text = str(failing(work))
    assert "nn.Linear(2, 2)(torch.ones(3))" in text and "raised in forward (linear.py)" in text
    assert text.index("which led to:") < text.index("KeyError: 'wrapped'")
    assert text.startswith("ranks 0 and 1 raised KeyError:")


def test_an_error_of_errors_shows_each_with_its_line():
    def part(name):
        raise KeyError(name)

    def work():
        errors = []
        for name in ("first", "second"):
            try:
                part(name)
            except KeyError as error:
                errors.append(error)
        raise ExceptionGroup("several", errors)

    text = str(failing(work, nprocs=1))
    assert "ExceptionGroup: several (2 sub-exceptions)\none of these:\n" in text
    assert text.index("KeyError: 'first'") < text.index("KeyError: 'second'")
    assert text.count(f"line {part.__code__.co_firstlineno + 1}, in part") == 2


def test_errors_without_end_are_told_of():
    def again():
        again()

    def wrapped():
        try:
            wrapped()
        except Exception as error:
            raise ValueError("wrapped") from error

    error = failing(again, nprocs=1)
    assert error.error == "RecursionError" and str(error).count("again()") == 1
    assert re.search(r"again\(\)\n    \d{3} times\nRecursionError: maximum", str(error))
    error = failing(wrapped, nprocs=1)
    assert error.error == "ValueError" and str(error).count("which led to:") == 7


def test_of_two_failures_the_first_is_named_and_the_other_only_mentioned(monkeypatch):
    monkeypatch.setattr(run, "_GRACE_S", HANG_S)  # for the other to be heard

    def work():
        rank = dist.get_rank()
        wire.time = SimpleNamespace(perf_counter=lambda: 2.0 - rank)  # when a rank tells of its error
        dist.barrier()  # a rank may have started late
        raise ValueError("first") if rank else TypeError("second")

    error = failing(work)
    assert error.rank == 1 and error.error == "ValueError"
    assert str(error).splitlines()[-1] == "After it, rank 0 raised TypeError: second."


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_every_way_to_die_is_named(method, monkeypatch):
    if method == "forkserver" and sys.platform != "linux":
        pytest.skip("ranks are forked on Linux only")
    monkeypatch.setenv("RANKLAUNCH_METHOD", method)

    def die(how):
        print("before")
        dist.barrier()  # both have printed
        if dist.get_rank() == 1:
            how()
        dist.all_reduce(torch.ones(1))

    ways = {
        lambda: os._exit(3): "ended the process with exit code 3 before the function returned",
        lambda: os.kill(os.getpid(), 9): "was killed by SIGKILL",
        lambda: sys.exit("enough"): "raised SystemExit",
        lambda: os.kill(os.getpid(), signal.SIGSEGV): "was killed by SIGSEGV",
    }
    for how, words in list(ways.items())[: 4 if method == "forkserver" else 1]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            error = failing(lambda how=how: die(how))
        assert error.rank == 1 and words in error.states[1] and words in str(error)
        assert out.getvalue() == "[rank 0] before\n[rank 1] before\n"


@pytest.mark.parametrize("case", ["dtypes", "a short recv", "sizes in another order"])
def test_a_rank_that_compiled_code_ends_is_shown_with_the_readers_line(case):
    def work(case):
        rank = dist.get_rank()
        if case == "dtypes":
            dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank else torch.float64))
        elif case == "a short recv":
            (dist.recv if rank else dist.send)(torch.ones(4 if rank else 8), 1 - rank)
        else:
            for size in (2, 5) if rank else (5, 2):
                dist.all_reduce(torch.ones(size))

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        error = failing(lambda: work(case))
    died = error.states[error.rank]
    assert error.kind == "died" and re.match(r"was killed by SIGABRT, in (all_reduce|recv), called at ", died)
    assert str(error).startswith(f"rank {error.rank} {died}") and re.search(r"line \d+, in work\n    .*dist\.\w", died)
    assert "size doesn't match" in err.getvalue() and "Fatal Python error" not in err.getvalue()


@pytest.mark.parametrize("folder", ["a größer path", "路径", "🙂"])
def test_a_line_is_shown_from_a_path_with_any_letters(tmp_path, folder):
    """What faulthandler writes of a dead process is ASCII."""
    path = tmp_path / folder / "mine.py"
    path.parent.mkdir()
    path.write_text("def größe():\n    import os\n\n    os.abort()  # here\n", encoding="utf-8")
    names = {"__name__": "mine"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    error = failing(names["größe"], nprocs=1)
    assert error.kind == "died" and f"{path}, line 4, in größe" in str(error) and "os.abort()  # here" in str(error)


def test_what_a_program_says_that_a_rank_started_and_that_dies_is_shown():
    def work():
        code = "import ctypes; ctypes.string_at(0)"
        return subprocess.run([sys.executable, "-X", "faulthandler", "-c", code]).returncode != 0

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert launch(work, nprocs=1) == [True]
    assert err.getvalue().startswith(("[rank 0] Fatal Python error", "[rank 0] Windows fatal exception"))


def test_a_hang_says_where_each_rank_waits():
    def pause():
        time.sleep(600)

    def work():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        elif dist.get_rank() == 1:
            pause()

    error = failing(work, nprocs=3, timeout_s=0.5)
    assert (error.rank, error.kind) == (1, "hang")
    first = work.__code__.co_firstlineno
    assert str(error).splitlines() == [
        "2 of 3 ranks had not returned after 0.5 s; all were stopped.",
        f"rank 0: in all_reduce, called at {_shown(HERE)}, line {first + 2}, in work",
        "    dist.all_reduce(torch.ones(1))",
        f"rank 1: at {_shown(HERE)}, line {pause.__code__.co_firstlineno + 1}, in pause",
        "    time.sleep(600)",
        f"    called from {_shown(HERE)}, line {first + 4}, in work",
        "rank 2: had returned",
    ]


def test_a_rank_that_keeps_others_waiting_in_a_backward_pass_is_named():
    def work():
        layer = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        if dist.get_rank() == 1:
            time.sleep(60)
        layer(torch.ones(1)).backward()

    launch(lambda: None)
    forked.preload("torch._dynamo")  # else the time is over before it is imported
    error = failing(work, timeout_s=1.0)
    assert error.rank == 1 and "in backward, called at" in error.states[0]

    def wait():
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(1), async_op=True).wait()

    assert failing(wait, timeout_s=0.5).rank == 1


@linux
def test_a_hang_in_compiled_code_that_holds_pythons_lock_is_located_and_a_rank_that_does_not_answer_ends(monkeypatch):
    monkeypatch.setattr(run, "_ANSWER_S", 0.3)
    error = failing(lambda: os.kill(os.getpid(), signal.SIGSTOP), nprocs=1, timeout_s=0.3)
    assert "rank 0: gave no answer" in str(error)

    def stuck():
        import ctypes

        ctypes.PyDLL(None).sleep(60)

    monkeypatch.setattr(run, "_SIGNAL_S", HANG_S)  # it answers to that, as soon as the machine lets it
    error = failing(stuck, nprocs=1, timeout_s=2.0)
    assert "ctypes.PyDLL(None).sleep(60)" in str(error)


def test_results_that_cannot_be_sent_say_so():
    error = failing(lambda: (i for i in range(3)))
    assert (error.rank, error.kind) == (0, "result")
    assert "ranks 0 and 1 returned a generator, which cannot be sent" in str(error)
    error = failing(lambda: threading.Lock() if dist.get_rank() else 1)
    assert error.rank == 1 and "rank 1 returned a lock" in str(error)
    error = failing(lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1)))
    assert error.kind == "result" and "return its .module" in str(error)


def interrupt(after_s, fn):
    """Launch `fn`, which does not end, interrupt it after so many seconds, and expect that to end it.

    Whatever pytest does with interrupts. Without one the launch would end with another error, at its limit.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = threading.Event()

    def send():
        time.sleep(after_s)
        while not ended.is_set():  # again, where Python loses one in a weak reference's callback
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(60)

    sender = threading.Thread(target=send)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            sender.start()
            launch(fn, timeout_s=HANG_S)
        ended.set()
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.tb


def test_a_notebook_shows_one_sentence_of_an_interrupted_launch(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(run.LaunchRun, "results", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        launch(lambda: None)
    sentence = "KeyboardInterrupt: the launch was interrupted, and all ranks were stopped"
    assert caught.value._render_traceback_() == [sentence] and caught.value.__suppress_context__


@linux
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_stops_all_ranks_and_leaves_nothing():
    launch(lambda: None)
    descriptors = len(system.descriptors())
    for moment in [*range(0, 200, 20), 500]:
        interrupt(moment / 1000, lambda: time.sleep(600))
    assert len(system.descriptors()) == descriptors


@linux
@pytest.mark.parametrize("garbage", [b"garbage", b"\0", pickle.dumps("no message")])
def test_a_rank_that_writes_into_its_channel_is_named_at_once(garbage):
    def work():
        import gc

        if dist.get_rank() == 1:
            channel = next(one for one in gc.get_objects() if isinstance(one, wire.Channel))
            os.write(channel.connection.fileno(), garbage)
        time.sleep(60)

    error = failing(work)
    assert (error.rank, error.kind) == (1, "died") and "rank 1 wrote into the connection of launch" in str(error)


@linux
def test_a_copy_that_a_rank_forks_is_not_the_rank():
    def work(copy_raises):
        if os.fork() == 0:
            if copy_raises:
                raise ValueError("in the copy")
            return "copy"
        return os.waitstatus_to_exitcode(os.wait()[1])

    assert launch(work, False) == [0, 0]
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert launch(work, True, nprocs=1) == [1]
    assert err.getvalue() == "[rank 0] ValueError: in the copy\n"


@linux
@pytest.mark.parametrize("how", ["returns", "raises", "is killed"])
def test_what_a_rank_started_ends_with_it(how):
    def work(how):
        own_session = subprocess.Popen(["sleep", "98"], start_new_session=True)
        print(own_session.pid, subprocess.Popen(["sh", "-c", "sleep 99 & sleep 99"]).pid)
        if how == "raises":
            raise ValueError
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(RankError):
        launch(work, how, nprocs=1)
    pids = [int(word) for word in out.getvalue().removeprefix("[rank 0]").split()]
    assert len(pids) == 2 and not [pid for pid in pids if system.exists(pid)]


def test_two_launches_at_once_do_not_meet():
    got = {}

    def one(name):
        got[name] = launch(lambda: _sum(name))

    def _sum(name):
        time.sleep(0.2)
        x = torch.tensor(float(name))
        dist.all_reduce(x)
        return x.item()

    threads = [threading.Thread(target=one, args=(name,)) for name in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: [2, 2], 2: [4, 4], 3: [6, 6]}


@linux
def test_everything_ends_with_a_kernel_that_is_killed(tmp_path):
    code = (
        "import os, signal, sys, time\nfrom pathlib import Path\nfrom ranklaunch import launch\n"
        "kernel = os.getpid()\n"
        "def work():\n    Path(sys.argv[1]).write_text(f'{os.getpid()} {os.getppid()}')\n"
        "    os.kill(kernel, signal.SIGKILL)\n    time.sleep(900)\n"
        "launch(work, nprocs=1)\n"
    )
    assert children.run("-c", code, tmp_path / "seen").returncode == -signal.SIGKILL
    rank, server = map(int, (tmp_path / "seen").read_text(encoding="utf-8").split())
    until(lambda: not system.exists(server) and not system.exists(rank))


@linux
def test_a_segment_that_a_rank_leaves_is_seen_and_those_of_other_programs_are_not():
    def leave():
        left = Path(f"/dev/shm/left_{os.getpid()}_1")
        left.touch()
        return left

    with system.pids_of_ranks() as pids:
        (left,) = launch(leave, nprocs=1)
    try:
        assert system.abandoned_segments(pids) == [left.name] and system.abandoned_segments({2**22 + 1}) == []
    finally:
        left.unlink()


@linux
def test_a_server_that_died_is_replaced_also_from_a_folder_that_was_deleted(monkeypatch, tmp_path):
    launch(lambda: None)
    server = forked._running[-1].process
    error = failing(lambda pid=server.pid: os.kill(pid, signal.SIGKILL) or time.sleep(30), nprocs=1)
    assert error.kind == "died" and "ended with the process that starts the ranks" in str(error)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    tmp_path.rmdir()
    assert launch(os.getcwd) == [str(Path.home())] * 2
    assert forked._running[-1].process.pid != server.pid


@linux
def test_a_module_that_a_library_names_is_imported_once_for_all_ranks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_library.py").write_text("import os\nimported_by = os.getpid()\n", encoding="utf-8")
    (tmp_path / "a_broken_library.py").write_text("raise ValueError('in each rank')\n", encoding="utf-8")

    def importer():
        import a_library

        return a_library.imported_by, os.getpid()

    def broken():
        import a_broken_library  # noqa: F401

    preload("a_broken_library", "a_library")
    pairs = launch(importer) + launch(importer)
    assert {by for by, _ in pairs} == {forked._running[-1].process.pid} and len({pid for _, pid in pairs}) == 4
    assert "ValueError: in each rank" in str(failing(broken))


@linux
def test_what_takes_long_to_import_and_is_here_is_imported_once_for_all_ranks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(run, "SLOW", ("a_slow_library", "another_slow_library"))
    for name in run.SLOW:
        (tmp_path / f"{name}.py").write_text("import os\nimported_by = os.getpid()\n", encoding="utf-8")

    def importers():
        import a_slow_library
        import another_slow_library

        return a_slow_library.imported_by, another_slow_library.imported_by, os.getpid()

    importlib.import_module("a_slow_library")
    found = launch(importers)
    monkeypatch.delitem(sys.modules, "a_slow_library")
    assert {first for first, _, _ in found} == {forked._running[-1].process.pid}
    assert [second for _, second, _ in found] == [pid for _, _, pid in found]


@linux
def test_a_server_that_cannot_start_or_is_interrupted_leaves_nothing(monkeypatch):
    monkeypatch.setattr(forked, "_running", [])
    monkeypatch.setattr(forked, "fresh", lambda _, **to: subprocess.Popen(["sh", "-c", "echo broken >&2"], **to))
    with pytest.raises(RuntimeError, match=r"could not start:\nbroken"):
        launch(module_level)
    monkeypatch.setattr(forked, "fresh", lambda _, **to: subprocess.Popen(["sleep", "97"], **to))
    there = system.descendants().keys()
    interrupt(0.5, module_level)
    assert system.descendants().keys() == there


async def asynchronous():
    return dist.get_rank()


@pytest.mark.parametrize(("fn", "args", "options", "words"), [
    (3, (), {}, "fn is 3, it must be a function"),
    (asynchronous, (), {}, r"fn is an async function.*asyncio\.run"),
    (module_level, (), {"nproc": 4}, r"do not fit fn: .*'nproc' .nprocs, timeout_s, devices and start are"),
    (module_level, (4,), {}, "the arguments do not fit fn: too many positional arguments"),
    (module_level, (), {"start": 3}, "start is 3, it must be a function that takes no arguments"),
    (module_level, (), {"start": threading.Lock().acquire}, "start cannot be sent to the ranks: cannot pickle"),
    (module_level, (), {"nprocs": 0}, "nprocs must be at least 1"),
    (module_level, (), {"nprocs": 65}, "nprocs is 65, it may be at most 64"),
    (module_level, (), {"devices": ["cpu"]}, "devices has 1 entries, it must have one for each of the 2 ranks"),
    (module_level, (), {"devices": ["cpu", "meta"]}, r"devices\[1\] is meta"),
    (lambda a, b: None, (1, threading.Lock()), {}, "argument 2 cannot be sent to the ranks"),
])  # fmt: skip
def test_wrong_arguments_are_named(fn, args, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        launch(fn, *args, **options)


def test_what_a_function_uses_and_cannot_be_sent_is_named():
    lock, again = threading.Lock(), 3

    def helper():
        return (lock, again) if again else work()

    def work():
        return helper()

    with pytest.raises(TypeError, match=r"^fn uses helper uses lock, which cannot be sent to the ranks: cannot pickle"):
        launch(work)
    with pytest.raises(TypeError, match="fn cannot be sent to the ranks: cannot pickle"):
        launch(lambda: (lock, later))
    later = None


def test_a_rank_may_leave_the_group_use_workers_and_print_much():
    def work():
        dist.barrier()
        dist.destroy_process_group()
        print("x" * 1_000_000)
        return [batch.sum().item() for batch in torch.utils.data.DataLoader(torch.arange(4.0), 2, num_workers=1)]

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert asyncio.run(asyncio.to_thread(launch, work)) == [[1, 5], [1, 5]]
    assert [len(line) for line in out.getvalue().splitlines()] == [1_000_009] * 2


def test_a_group_may_be_left_at_once_and_another_one_joined():
    def work():
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    assert launch(work, nprocs=3) == [3, 3, 3]


def test_errors_that_are_easily_mistaken_for_the_launchs_own_are_those_of_the_rank():
    def interrupt():
        raise KeyboardInterrupt

    assert failing(interrupt, nprocs=1).error == "KeyboardInterrupt"
    error = failing(lambda: dist.init_process_group("gloo"), nprocs=1)
    assert error.error == "ValueError" and "launch has set up the process group: leave the call out." in str(error)


def test_gpus_are_used_where_each_rank_has_its_own(monkeypatch):
    monkeypatch.delenv("RANKLAUNCH_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert module._places(None, 2) == ("cuda:0", "cuda:1")
    assert module._places(None, 3) == ("cpu", "cpu", "cpu")
    assert module._places(["cuda:1", torch.device("cpu")], 2) == ("cuda:1", "cpu")
    assert module._backend(("cuda:0", "cuda:1")) == "cpu:gloo,cuda:nccl"
    assert module._backend(("cuda:0", "cuda:0")) == module._backend(("cuda:0", "cpu")) == "gloo"
    monkeypatch.setenv("RANKLAUNCH_DEVICE", "cpu")
    assert module._places(None, 2) == ("cpu", "cpu")
    with pytest.raises(RuntimeError, match="rank_device"):  # only a rank has a device
        rank_device()


def test_a_rank_that_lost_its_partner_is_not_the_first_failure():
    place = [FrameSummary(dist.distributed_c10d.__file__, 1, "all_reduce")]
    lost = Failure("RuntimeError", "RuntimeError: Connection closed by peer", place, None, 1.0)
    assert not report.cause_known(report.Seen(2, failed={0: lost}))
    seen = report.Seen(2, failed={0: lost}, ended={1: (-9, 2.0)})
    assert report.cause_known(seen) and report.first_failure(seen).rank == 1
    own = Failure("RuntimeError", "RuntimeError: Connection closed by peer", [], None, 1.0)
    seen = report.Seen(2, failed={0: own}, ended={1: (-9, 2.0)})
    assert report.first_failure(seen).rank == 0


def test_what_ranks_load_late_is_loaded_once():
    """Optimizers and DistributedDataParallel import torch's compiler when first used: a second for each rank."""

    def step():
        layer = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        loaded = "torch._dynamo" in sys.modules
        layer(torch.ones(1)).backward()
        return loaded

    launch(step)
    launch(lambda: importlib.import_module("torch.distributed.fsdp") and None)
    before = launch(lambda: {"torch._dynamo", "torch.distributed.fsdp"} <= sys.modules.keys())
    assert before == [run._way() is forked.Forked] * 2


def test_a_function_keeps_its_file_whatever_cloudpickle_writes(monkeypatch):
    assert files_of_sent(wire.dumps, monkeypatch) == ["<cell 7>"] * 2
