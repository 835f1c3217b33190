"""Real errors, raised on the CPU and the simulated GPU, are known and explained in words that hold on each device."""

import hashlib
import multiprocessing
import os
import pickle  # noqa: F401 (mistakes.toml)
import re
import signal
import socket
import sys
import tomllib
import warnings
from pathlib import Path
from unittest import mock

import numpy as np  # noqa: F401 (mistakes.toml)
import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.nn import functional as F  # noqa: F401 (mistakes.toml)
from torch.utils.data import DataLoader, Dataset
from traitlets.config import Config

import simgpu
from course_utils import explain as module
from course_utils.explain import caught, explain
from ranklaunch import launch
from tests import children


@pytest.fixture(params=["cpu", "sim"])
def device(request):
    return torch.device("cpu") if request.param == "cpu" else request.getfixturevalue("sim")


def backward_twice(device):
    x = torch.ones(2, device=device, requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    loss.backward()


def changed(device):
    y = torch.ones(2, device=device, requires_grad=True).exp()
    y += 1
    y.sum().backward()


def inference_tensor(device):
    with torch.inference_mode():
        x = torch.ones(2, device=device)
    torch.ones(2, device=device, requires_grad=True).mul(x)


def unscales_twice(device):
    weight = torch.ones(2, device=device, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler(device.type)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def nan_in_backward(device):
    with warnings.catch_warnings(action="ignore"), torch.autograd.set_detect_anomaly(True):
        (torch.zeros(2, device=device, requires_grad=True).sqrt() * 0).sum().backward()


class Samples(Dataset):
    def __init__(self, get):
        self.get = get

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.get(index)


def in_a_worker(get, timeout=0):
    list(DataLoader(Samples(get), num_workers=1, multiprocessing_context="fork", timeout=timeout))


def wait_for_a_worker():
    go_on = multiprocessing.get_context("fork").Event()
    try:
        in_a_worker(lambda i: go_on.wait(60), 0.1)
    finally:
        go_on.set()


def meet_at_a_taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)


class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def two_steps():
    model = nn.parallel.DistributedDataParallel(Spare())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def last_rank(do):
    """Return a function for two ranks, of which the last does `do`."""
    return lambda: do() if dist.get_rank() == 1 else dist.all_reduce(torch.ones(1))


def ranks(fn, timeout_s=20):
    return lambda: launch(fn, devices=["cpu", "cpu"], timeout_s=timeout_s)


def other_sizes():
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


def watched():
    """Run ranks of which one hands over another size, under the variable that readers set for this."""
    with mock.patch.dict(os.environ, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        launch(other_sizes, devices=["cpu", "cpu"], timeout_s=20)


# What happens in other processes: each is caused here
PROCESSES = {
    "rank hang": (ranks(last_rank(lambda: None), 1.5), "until their time was over"),
    "rank died": (ranks(last_rank(lambda: os.kill(os.getpid(), signal.SIGKILL))), "the process of rank 1 ended"),
    "rank result": (ranks(lambda: (n for n in [1])), "cannot be sent to this process"),
    "rank raised": (ranks(last_rank(lambda: {}["x"])), "rank 1 raised KeyError"),
    "collectives differ": (watched, "ranks called different collectives"),
    "unused parameter": (ranks(two_steps), "took no part in the loss"),
    "dead worker": (lambda: in_a_worker(lambda i: os.kill(os.getpid(), signal.SIGKILL)), "of the DataLoader ended"),
    "slow worker": (wait_for_a_worker, "within timeout seconds"),
    "worker raised": (lambda: in_a_worker(lambda i: {}["x"]), "a worker of the DataLoader raised KeyError"),
    "cannot pickle": (lambda: launch(lambda lock: lock, sys.stdout), "cannot be sent to another process"),
    "port in use": (meet_at_a_taken_port, "a port, such as the one on which ranks are to meet, is taken"),
}


class Unready(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(1, 1)


class Lacking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def attend(**masks):
    x = torch.ones(1, 3, 4)
    nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x, **masks)


EVERYWHERE, ALONE = tomllib.loads(Path(__file__).with_name("everywhere.toml").read_text(encoding="utf-8")).values()

MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))

POSTED = tomllib.loads(Path(__file__).with_name("posted_errors.toml").read_text(encoding="utf-8"))["posted"]

RECENT, FOREIGN = tomllib.loads(Path(__file__).with_name("posted_recent.toml").read_text(encoding="utf-8")).values()


def set_aside(address):
    """Return whether the messages at `address` were kept from whoever wrote patterns (see posted_recent.toml)."""
    return int(hashlib.sha256(address.encode()).hexdigest(), 16) % 3 == 0


def as_raised(text):
    """Return the error whose last line in a traceback is `text`: its type, with its module, and its message."""
    found = re.match(r"(?:([\w.]+)\.)?(\w+(?:Error|Exception|Unsupported)): ?", text)
    if not found:
        return RuntimeError(text)
    kind = type(found[2], (Exception,), {"__module__": found[1] or "builtins"})
    return kind(text[found.end() :])


KINDS = tomllib.loads(Path(module.__file__).with_suffix(".toml").read_text(encoding="utf-8"))["error"]
ELSEWHERE = {message: one["name"] for one in KINDS for message in one.get("examples", ())}


@pytest.mark.parametrize(("name", "program", "phrase"), EVERYWHERE)
def test_an_error_of_the_cpu_and_of_the_simulated_gpu_is_explained_in_the_same_words(device, name, program, phrase):
    with caught() as c:
        eval(program, globals(), {"d": device})
    assert c.explanation.name == name
    assert phrase in c.explanation.what
    with caught() as reference:
        eval(program, globals(), {"d": torch.device("cpu")})
    assert c.explanation == reference.explanation


@pytest.mark.parametrize(("message", "name"), ELSEWHERE.items())
def test_messages_of_other_devices_are_known(message, name):
    assert explain(RuntimeError(message)).name == name


@pytest.mark.parametrize(("name", "program"), [(name, each) for name, some in MISTAKES.items() for each in some])
def test_an_error_that_pytorch_raises_here_is_explained(name, program):
    with caught() as c:
        eval(program, globals())
    assert c.explanation.name == name, c.error


@pytest.mark.parametrize("posted", POSTED + RECENT, ids=lambda posted: posted["message"][:40])
def test_an_error_that_was_posted_is_never_explained_as_another_one(posted):
    for error in (as_raised(posted["message"]), posted["message"]):
        assert explain(error).name in (posted["entry"], "unknown")


@pytest.mark.parametrize("message", FOREIGN)
def test_an_error_of_something_else_is_not_taken_for_one_of_pytorch(message):
    assert explain(as_raised(message)).name == explain(message).name == "unknown"


@pytest.mark.parametrize("pasted", [
    "RuntimeError: {}\n{}", ">>> a @ b\nTraceback (most recent call last):\nRuntimeError: {} {}",
    "E       RuntimeError: {}\nE       {}",
    "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: {}\n[rank0]:   {}",
    "2026-01-02 10:11:12,345 - ERROR - RuntimeError: {}\n2026-01-02 10:11:13,346 - ERROR - {}",
    "\x1b[31mRuntimeError\x1b[0m: {}\n{}", "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: {} {}",
    "KeyError: 'a'\n\nThe above exception was the direct cause of the following exception:\n\nRuntimeError: {} {}",
    "[0;31mRuntimeError[0m: {}\n{}", "&gt; RuntimeError: {}\r\n&gt; {}\r\n",
    "[rank1]: \\u001b[31mRuntimeError\\u001b[0m: {} {}",
])  # fmt: skip
def test_what_a_terminal_or_a_log_makes_of_a_message_is_explained(pasted):
    text = pasted.format("mat1 and mat2 shapes cannot be", "multiplied (2x3 and 2x3)")
    assert explain(text).what == "matrices of shapes 2x3 and 2x3 cannot be multiplied."


def test_a_text_of_a_megabyte_is_answered():
    """A pattern that reads on from each letter of one of these would take minutes."""
    code = """
from course_utils.explain import explain
for long in [one * 200_000 for one in ["A", "\\n", " ", "ab.", "'a' ", "ValueError", "KeyError: x\\n", "size for "]]:
    print(explain(long + "\\nRuntimeError: CUDA out of memory.").name, bool(explain(long).what))
"""
    ended = children.run("-c", code, timeout_s=120)
    assert ended.stdout.splitlines() == ["out of memory True"] * 8


def test_an_inner_error_is_explained_where_only_the_outer_one_has_a_traceback_in_its_message():
    inner = "Original Traceback (most recent call last):\nModuleNotFoundError: No module named 'fast'\n"
    outer = RuntimeError(f"Caught ModuleNotFoundError in DataLoader worker process 0.\n{inner}")
    assert explain(outer).name == "no such module"
    known = explain(ExceptionGroup("all", [KeyError("x"), RuntimeError("CUDA out of memory.")]))
    assert known.name == "out of memory" and known.what.endswith("Of it came ExceptionGroup: all (2 sub-exceptions)")


def test_of_the_errors_that_were_posted_nearly_all_are_explained():
    assert len({(posted["message"], posted["address"]) for posted in POSTED}) == len(POSTED) >= 200
    assert {posted["entry"] for posted in POSTED} <= {*module.names(), "unknown"}
    assert all(re.fullmatch(r"https://[\w./-]+", posted["address"]) and posted["cause"] for posted in POSTED)
    right = sum(explain(as_raised(posted["message"])).name == posted["entry"] for posted in POSTED)
    assert right >= 0.95 * len(POSTED)


def test_of_the_errors_that_were_set_aside_nine_in_ten_are_explained():
    assert len({(posted["message"], posted["address"]) for posted in RECENT}) == len(RECENT) >= 310
    aside = [posted for posted in RECENT if set_aside(posted["address"])]
    right = sum(explain(as_raised(posted["message"])).name == posted["entry"] for posted in aside)
    assert len(aside) >= 70 and right >= 0.9 * len(aside)
    assert all(2023 <= getattr(posted["date"], "year", posted["date"]) <= 2026 for posted in RECENT)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork and no SIGKILL")
@pytest.mark.parametrize("name", PROCESSES)
def test_an_error_of_another_process_is_explained(name):
    program, phrase = PROCESSES[name]
    with caught() as c:
        program()
    assert c.explanation.name == name and phrase in c.explanation.what, c.error


def test_an_error_of_the_backward_pass_names_a_tensor_of_the_simulated_gpu_as_cuda_names_its_own(sim):
    with pytest.raises(RuntimeError, match=r"operation: \[torch\.sim\.FloatTensor \[2\]\], which is output 0 of Exp"):
        changed(sim)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_the_simulated_gpu_in_a_forked_worker_is_explained(sim):
    there = torch.ones(2, device=sim)
    for get in (lambda index: torch.ones(2, device=sim), there.__getitem__):
        with caught() as c:
            in_a_worker(get)
        assert c.explanation.name == "used before fork" and "its parent had used" in c.explanation.what


def test_an_error_that_is_known_is_explained_through_ranks_and_workers():
    for run in (ranks(lambda: torch.ones(2).view(3)), lambda: in_a_worker(lambda index: torch.ones(2).view(3))):
        with caught() as c:
            run()
        assert c.explanation.what == "2 elements do not fill the shape [3]."


def test_the_kinds_that_are_tested_are_all_kinds():
    tested = {*(name for name, *_ in EVERYWHERE), *PROCESSES, *ELSEWHERE.values()}
    assert tested == set(module.names()) and len(module.names()) == len(set(module.names()))


@pytest.mark.parametrize(("program", "name", "phrase"), ALONE)
def test_errors_that_only_a_device_has_are_explained(sim, program, name, phrase):
    with caught() as c:
        eval(program, globals(), {"d": sim})
    assert c.explanation.name == name
    assert phrase in c.explanation.what


def test_an_explanation_is_three_short_lines_and_leaves_out_what_the_message_lacks():
    for _, _, what, why, now in module._KNOWN:
        assert all(len(f"Why:  {text}") <= 160 and text.endswith(".") for text in (*what.split(" | "), why, now))
    for message in ELSEWHERE:
        lines = str(explain(RuntimeError(message))).splitlines()
        parts = re.sub(r"\n {6}", " ", "\n".join(lines)).splitlines()
        assert [part[:6] for part in parts] == ["What: ", "Why:  ", "Now:  "]
        assert all(len(part) <= 160 and part.endswith(".") for part in parts), parts
        assert all(len(line) <= 92 or " " not in line[6:] for line in lines), lines
        assert "{" not in str(lines) and " | " not in str(lines)
    assert explain(RuntimeError("CUDA out of memory.")).what == "the device had no room for a tensor."
    assert explain(RuntimeError("weight and input must be on the same device")).what.endswith("on two devices.")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (KeyError("x"), "KeyError: 'x'"), (OSError(), "OSError: no message"),
        (RuntimeError("{b}"), "RuntimeError: {b}"), (RuntimeError("{a} " * 200), "RuntimeError: " + "{a} " * 50),
    ],
)  # fmt: skip
def test_an_unknown_error_is_said_to_be_unknown_and_a_long_message_is_cut(error, what):
    found = explain(error)
    assert (found.name, found.what) == ("unknown", what)
    assert "no explanation" in found.why


def raised_from(outer, inner):
    """Raise `outer` because of `inner`."""
    try:
        raise inner
    except Exception as error:
        raise outer from error


def raised_during(outer, inner):
    """Raise `outer` while `inner` is handled."""
    try:
        raise inner
    except Exception:
        raise outer  # noqa: B904 (its context is what is tested)


def raised_alone(outer, inner):
    """Raise `outer` while `inner` is handled, and hide that."""
    try:
        raise inner
    except Exception:
        raise outer from None


TOO_LARGE, ELSEWHERE_ON = RuntimeError("CUDA out of memory."), RuntimeError("weight must be on the same device")


@pytest.mark.parametrize(("way", "outer", "inner", "name"), [
    (raised_from, ValueError("could not run"), TOO_LARGE, "out of memory"),
    (raised_from, RuntimeError("Out of memory? out of memory"), ELSEWHERE_ON, "two devices"),
    (raised_from, TOO_LARGE, KeyError("x"), "out of memory"),
    (raised_during, ValueError("could not run"), TOO_LARGE, "out of memory"),
    (raised_during, TOO_LARGE, ModuleNotFoundError("No module named 'fast'"), "out of memory"),
    (raised_during, ValueError("could not run"), KeyError("x"), "unknown"),
    (raised_alone, ValueError("could not run"), TOO_LARGE, "unknown"),
])  # fmt: skip
def test_the_innermost_known_cause_is_explained_and_the_outer_error_named(way, outer, inner, name):
    with caught() as c:
        way(type(outer)(*outer.args), type(inner)(*inner.args))
    assert c.explanation.name == name
    outermost = name == "unknown" or explain(type(outer)(*outer.args)).name == name
    assert outermost or c.explanation.what.endswith(f"Of it came {type(outer).__name__}: {outer}")


@pytest.mark.parametrize("kind", [5, "ValueError", None, int, ValueError("an instance"), (ValueError, KeyError)])
def test_what_is_no_error_and_no_type_of_error_is_refused_by_name(kind):
    with pytest.raises(TypeError, match="error is a int"):
        explain(5)
    with pytest.raises(TypeError, match=r"kinds holds .*, it may hold types of errors"), caught(kind):
        raise AssertionError("the block ran")


def test_a_block_that_raises_nothing_or_something_else_is_not_hidden():
    with pytest.raises(AssertionError, match="it raised none"), caught():
        pass
    with pytest.raises(KeyError), caught(ValueError):
        {}["x"]
    with pytest.raises(KeyboardInterrupt), caught():
        raise KeyboardInterrupt


def test_what_was_caught_prints_and_keeps_no_frames_alive():
    with caught() as c:
        torch.ones(2).view(3)
    assert str(c) == str(c.explanation) and "<th>What</th>" in c._repr_html_()
    assert isinstance(c.error, RuntimeError) and c.error.__traceback__ is None


def test_an_error_of_a_simulated_kernel_names_the_index_and_the_way_out(sim):
    simgpu.configure(errors="asynchronous")
    try:
        torch.ones(3, device=sim)[torch.tensor([5], device=sim)]
        with caught(torch.AcceleratorError) as c:
            torch.sim.synchronize()
    finally:
        simgpu.reset()
    assert "index" in str(c) and "simgpu.reset()" in str(c)


def test_a_notebook_explains_the_last_error_and_each_one_only_when_asked(capsys):
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    module.load_ipython_extension(shell)
    wrong = "import torch; torch.ones(2).view(3)"
    shell.run_cell(wrong)
    assert "What: " not in capsys.readouterr().out
    assert shell.run_line_magic("explain", "").name == "wrong number of elements"
    assert shell.run_cell_magic("explain", "", "CUDA out of\nmemory").name == "out of memory"
    for line, said in (("on", 1), ("off", 0)):
        shell.run_line_magic("explain", line)
        shell.run_cell(wrong)
        shown = capsys.readouterr().out
        assert "is invalid for input of size 2" in shown and shown.count("What: 2 elements do not fill") == said
