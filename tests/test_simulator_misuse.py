"""Does a mistake on the simulated GPU end in a clear error, never in the end of the process?"""

import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import simulator
from tests import simulator_misuse

pytestmark = pytest.mark.skipif(simulator.unavailable() is not None, reason=str(simulator.unavailable()))
ROOT = Path(__file__).parents[1]


def run(name):
    return subprocess.run(
        [sys.executable, "-m", "tests.simulator_misuse", name],
        cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=170,
    )  # fmt: skip


def test_every_mistake_leaves_the_process_alive_and_the_accounting_intact():
    done = run("all")
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    assert words[-1] == "alive"
    assert words[1:-1:2] == list(simulator_misuse.TOGETHER) and simulator_misuse.TOGETHER


@pytest.mark.parametrize("name", simulator_misuse.ALONE)
def test_an_unusual_process(name):
    done = run(name)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["alive"]), done.stdout + done.stderr


def test_a_failed_expectation_ends_the_child():
    with pytest.raises(SystemExit, match="no <class 'ValueError'> from"):
        simulator_misuse.expect(ValueError, "", lambda: None)
