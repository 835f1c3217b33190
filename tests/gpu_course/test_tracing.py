"""Does a function that a check compiles run as a reader runs it, though the check counts operators?"""

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_utils import counting
from gpu_course.common.tracing import Alone


def test_no_mode_looks_on_and_all_are_back_afterwards():
    def look():
        return _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()

    with counting.count() as counts:
        before = look()
        assert Alone(look, "look")() == ([], [])
        assert look() == before and all(before)
        torch.ones(2).neg()
    assert counts.by_operator["neg"] == 1
