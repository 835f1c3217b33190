"""Is an interrupt ever lost? In a weak reference's callback an exception is printed, and the program goes on."""

from tests import children

__all__ = ["survived"]

_PROGRAM = """
import random, signal, torch
random.seed(0)
sent = raised = 0
def interrupt(*given):
    global sent
    sent += 1
    raise KeyboardInterrupt
{setup}
work()  # imports what it needs: a module of torch that is loaded by half is not what is tried here
signal.signal(signal.SIGALRM, interrupt)
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 3e-3), 0.2)  # again, where one is lost
        while True:
            work()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raised += 1
print(raised, sent - raised, {report})
"""


def survived(setup: str, report: str = "") -> tuple[list[str], str]:
    """Interrupt `work`, a function that `setup` defines, 300 times at random moments, in a process of its own.

    Returns the words that it prints at its end: how many interrupts ended the work, how many were lost, and what the
    expressions of `report` give; and what stands in its stderr.
    """
    program = _PROGRAM.format(setup=setup, report=report)
    done = children.run("-c", program)
    return done.stdout.split(), done.stderr
