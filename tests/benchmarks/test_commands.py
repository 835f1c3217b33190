"""Do the commands that print figures work, each in a process of its own?"""

import subprocess
import sys

import pytest

from tools import notebooks

pytestmark = pytest.mark.slow


def printed(*arguments: str) -> str:
    """Return what Python prints when it is started with `arguments`; fail where its exit status is not 0."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True, encoding="utf-8", timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("command", "said"), [
    (("benchmarks.compiled",), "RTX 5090"),
    (("benchmarks.published", "0"), "The worst ten of training and inference"),
    (("benchmarks.splits",), "first choice, with five numbers"),
    (("benchmarks.wrong_answers", "00"), "1 of 1 show something"),
], ids=lambda given: given[0] if isinstance(given, tuple) else "")  # fmt: skip
def test_the_command_works(command, said):
    assert said in printed("-m", *command)


def test_nothing_is_said_of_clones_that_are_not_there(tmp_path):
    assert printed("-m", "benchmarks.unchanged", str(tmp_path)).startswith("program  bare CPU")
