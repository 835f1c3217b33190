"""Does the check of each exercise accept, on this machine, the answer with which the lesson goes on?

And does it draw each edge that its text allows (`gpu_course/checks/edges.py`)? Other answers, right and wrong, stand in
tests/gpu_course.
"""

import pytest

from course_utils import devices
from gpu_course.catalogue import registry
from gpu_course.checks import edges

# of an exercise on deviations, whose check tries a single row
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", r"ignore:std\(\)")
PLACES = devices.check_devices()
EXERCISES = [e for e in registry() if not e.task.needs()]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: f"{e.lesson}-{e.name}")
def test_it_passes_on_every_device_and_the_check_draws_each_edge_or_says_why_not(exercise):
    with edges.recording() as seen:
        exercise.examine(exercise.reference, ["cpu", *PLACES])  # there may be no GPU, not even a simulated one
    if PLACES[-1].type == "sim":  # elsewhere some are drawn in another process
        assert sorted(seen.missing()) == sorted(exercise.exempted) and all(exercise.exempted.values())
