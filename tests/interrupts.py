"""Is an interrupt ever lost? In a weak reference's callback an exception is printed, and the program goes on."""

import tomllib
from pathlib import Path

from tests import children

__all__ = ["PASSED_THROUGH", "survived"]

_PROGRAMS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PASSED_THROUGH: str = _PROGRAMS["passed_through"]


def survived(setup: str, report: str = "") -> tuple[list[str], str]:
    """Interrupt `work`, a function that `setup` defines, 300 times at random moments, in a process of its own.

    Returns the words that it prints at its end: how many interrupts ended the work, how many were lost, and what the
    expressions of `report` give; and what stands in its stderr.
    """
    program = _PROGRAMS["survived"].format(setup=setup, report=report)
    done = children.run("-c", program)
    return done.stdout.split(), done.stderr
