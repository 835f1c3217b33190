"""Does what stands for Python in the kernels of tests do what Python does, without importing torch again?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kernels, pythons
from tests.waiting import until

pytestmark = pytest.mark.skipif(not pythons.can_wait(), reason="kernels are forked on Linux alone")
TOLD = "import sys; print({}); sys.exit({})"


@pytest.fixture(scope="module")
def python():
    """What kernels have as `sys.executable`."""
    kernels.server()
    path = Path(kernels.folder().name, "python")
    until(path.exists)
    return path


def both(python, *words, **options):
    """Return how a program ends and what it prints, as Python and as what stands for it."""
    ways = (sys.executable, python)
    done = [subprocess.run([way, *words], capture_output=True, text=True, check=False, **options) for way in ways]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


@pytest.mark.parametrize(
    "words",
    [
        ["-c", TOLD.format("sys.argv, sys.path, __name__", 3), "a b", "ü"],
        ["-P", "-u", "-c", TOLD.format("sys.path", "'words'")],
        ["-c", "import os, sys; print('lost', end=''); sys.stdout.flush(); os._exit(5)"],
        ["-c", "def f(): raise KeyError(1)\nf()"],
        ["-c", "import sys, warnings; print(sys.stdin.read()); warnings.warn('seen')"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
        ["-m", "json.tool", "--sort-keys"],
        ["-X", "utf8", "-c", TOLD.format("sys.flags.utf8_mode, 'torch' in sys.modules", 0)],
        ["no such file.py"],
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_a_program_ends_and_prints_as_with_python(python, words):
    as_python, forked = both(python, *words, input='{"b": 1, "a": 2}')
    if words[0].startswith("no"):
        assert as_python[0] and forked[0] and words[0] in forked[2]
    else:
        assert forked == as_python


def test_a_file_is_a_program_with_its_folder_and_its_stack(python, tmp_path):
    (tmp_path / "beside.py").write_text("value = 7\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text("import beside, os, sys\nprint(beside.value, os.getcwd(), __file__)\nsys.nothing\n", "utf-8")
    as_python, forked = both(python, program, cwd=tmp_path)
    assert forked == as_python and "line 3" in forked[2]


def at_first():
    """Return the environment in which the process began that forks, whatever other tests did to this one's."""
    data = Path(f"/proc/{kernels.server().process.pid}/environ").read_bytes()
    return dict(entry.decode().split("=", 1) for entry in data.split(b"\0") if entry)


def test_torch_is_there_already_but_not_in_an_environment_that_it_would_read(python):
    words = ["-c", "import sys; print('torch' in sys.modules)"]
    for name, value, there in (
        ("OMP_NUM_THREADS", "3", "False"), ("SOMETHING", "3", "True"), ("TORCHINDUCTOR_CACHE_DIR", "there", "True")
    ):  # fmt: skip
        (_, plain, _), (_, forked, _) = both(python, *words, env={**at_first(), name: value})
        assert plain.strip() == "False" and forked.strip() == there


def test_modules_are_found_where_the_environment_says(python, tmp_path):
    (tmp_path / "elsewhere.py").write_text("value = 7\n", encoding="utf-8")
    words = ["-P", "-c", "import elsewhere, sys; print(elsewhere.value, sys.path)"]
    as_python, forked = both(python, *words, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert forked == as_python and forked[0] == 0


def test_signals_and_files_reach_the_fork_which_ends_with_what_stands_for_it(python):
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "os.write(int(sys.argv[1]), str(os.getpid()).encode())\n"
        "time.sleep(600)\n"
    )
    for way, code in ((signal.SIGTERM, 7), (signal.SIGKILL, -9)):
        end, other = os.pipe()
        process = subprocess.Popen([python, "-c", program, str(other)], pass_fds=[other])
        os.close(other)
        fork = int(os.read(end, 20))
        os.close(end)
        process.send_signal(way)
        assert process.wait() == code
        until(lambda fork=fork: not Path(f"/proc/{fork}").exists())
