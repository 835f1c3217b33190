"""Does what a kernel or a compiler starts end with it, in time that the machine gave it, and does nothing stay?"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch

import kernelcheck
from kernelcheck.cuda import processes, toolchain
from kernelcheck.cuda.kernel import Kernel, Parameter
from kernelcheck.cuda.text import CudaText
from tests import children
from tests.kernelcheck.cuda_samples import BASES
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")
LONG_S = f"600.{os.getpid()}"  # of no other run of these tests
SLEEPS = f"import subprocess, sys, time; subprocess.Popen(['sleep', '{LONG_S}']); time.sleep(float(sys.argv[1]))"


def sleepers() -> int:
    """Return how many processes run that the tests' commands start."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return sum(line.startswith(f"sleep {LONG_S}") for line in listed.splitlines())


def kernel_of(source: str) -> kernelcheck.Kernel:
    """Return a kernel whose text is not looked at: what it may do is more than what a compiler lets it."""
    return Kernel("k", source, (Parameter("x", "float*", True, "f4"),), toolchain.build(source, "k", ()))


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_with_a_command_end_all_that_it_started(seconds):
    endless = seconds == "600"
    done = processes.run([sys.executable, "-c", SLEEPS, seconds], cpu_s=60, wall_s=1 if endless else HANG_S)
    assert done.late == endless
    until(lambda: not sleepers())  # what was killed takes a moment to end


def test_the_limit_is_of_the_cpu_s_time_not_of_the_clock():
    done = processes.run([sys.executable, "-c", "import time; time.sleep(1.3)"], cpu_s=0, wall_s=HANG_S)
    assert done.code == 0 and not done.out_of_time
    done = processes.run([sys.executable, "-c", "while True: pass"], cpu_s=0, wall_s=HANG_S)
    assert done.out_of_time and not done.late


def test_a_compiler_ends_with_its_own_children(monkeypatch):
    monkeypatch.setattr(toolchain, "COMPILE_S", 0)
    many = "\n".join(f"__device__ float f{n}(float v) {{ return v * {n} + expf(v / {n + 1}); }}" for n in range(5000))
    with pytest.raises(kernelcheck.CompileError, match="did not end within 0 s of its own time"):
        kernelcheck.compile_cuda(f"{many}\n__global__ void k(float* x) {{ x[0] = f1(x[0]); }}")


def test_a_kernel_that_forks_leaves_no_children():
    body = f'if (fork() == 0) {{ execlp("sleep", "sleep", "{LONG_S}", (char*)0); }} x[0] = 1;'
    forks = f"#include <unistd.h>\n__global__ void k(float* x) {{ {body} }}"
    kernel_of(forks).check(1, 1, [torch.zeros(1)], limit=1.0)
    until(lambda: not sleepers())


@pytest.mark.parametrize(
    ("body", "kind"),
    [("(exit)(0);", "exit"), ("_exit(0);", "exit"), ("kill(getpid(), 9);", "exit"), ("(abort)();", "abort")],
)
def test_a_kernel_that_ends_its_process_is_named(body, kind):
    source = f"#include <signal.h>\n#include <unistd.h>\n__global__ void k(float* x) {{ {body} }}"
    assert kernel_of(source).check(1, 1, [torch.zeros(1)]).fault.kind == kind


def test_a_machine_that_gives_no_time_is_blamed(monkeypatch):
    late = processes.Done(-9, b"", "", late=True)
    add = kernelcheck.compile_cuda(BASES["add"].source)
    monkeypatch.setattr(processes, "run", lambda *_, **__: late)
    fault = add.check(4, 256, BASES["add"].made()).fault
    assert fault.kind == "busy" and "this machine is busy" in str(fault)


@pytest.mark.parametrize("home", ["none", "a file", "somebody else's"])
def test_a_home_that_cannot_be_written_to_is_not_needed(home, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / ".cache").mkdir()
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert toolchain._kept() == tmp_path / ".cache" / "kernelcheck"
    if home == "none":
        monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError))
    elif home == "a file":
        monkeypatch.setenv("XDG_CACHE_HOME", __file__)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert toolchain._kept() == Path(toolchain._scratch().name)


def test_no_folder_stays():
    program = """
import os, signal, tempfile, torch, kernelcheck
tempfile.tempdir = None  # the one of this process
kernel = kernelcheck.compile_cuda("__global__ void k(float* x) { x[0] = 1; }")
kernel(1, 1, [torch.zeros(1)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    with tempfile.TemporaryDirectory() as folder:
        done = children.run("-c", program, env={**os.environ, "TMPDIR": folder})
        assert done.returncode == -signal.SIGKILL, done.stderr
        # what `kernelcheck-` begins is the runtime, kept here where a home cannot be written to
        assert not [path for path in Path(folder).glob("*kernel*") if not path.name.startswith("kernelcheck-")]


@pytest.mark.parametrize(
    "text",
    [
        "extern __shared__ " + " " * 40_000, "extern " * 20_000, "__global__ __launch_bounds__(" * 8_000,
        "template <" * 15_000, "float a" + ", b" * 20_000 + "[", "/*" * 40_000, "#include <cuda" * 8_000,
        "(" * 60_000, "a " * 60_000,
    ],
    ids=lambda text: text[:20].strip(),
)  # fmt: skip
def test_a_long_text_is_read(text):
    """One whose time grows with the square of the text would take minutes."""
    try:
        toolchain._prepared(text)
        CudaText(text).local_arrays()
    except RecursionError:
        pytest.fail("the text is walked through by recursion")
