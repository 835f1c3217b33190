"""Is this answer right, and if not, what is the mistake?"""

from gpu_course.checks import edges
from gpu_course.checks.answers import Edit, beside, edit, read, source_of
from gpu_course.checks.case import Busy, Case, Task, WrongAnswer, explained
from gpu_course.checks.child import run_forked, run_limited
from gpu_course.checks.comparison import difference, shown, whole_numbers
from gpu_course.checks.counted import OTHER
from gpu_course.checks.engine import Exercise, exercise, unsolved
from gpu_course.checks.footprint import Footprint, Left, Returned, needs_no_graph, unfit_for_autograd
from gpu_course.checks.mistakes import alike
from gpu_course.checks.program import ProgramCase
from gpu_course.checks.sandbox import BEHAVES, State
from gpu_course.checks.stubs import stub

__all__ = [
    "BEHAVES", "OTHER", "Busy", "Case", "Edit", "Exercise", "Footprint", "Left", "ProgramCase", "Returned", "State",
    "Task", "WrongAnswer", "alike", "beside", "difference", "edges", "edit", "exercise", "explained", "needs_no_graph",
    "read", "run_forked", "run_limited", "shown", "source_of", "stub", "unfit_for_autograd", "unsolved",
    "whole_numbers",
]  # fmt: skip
