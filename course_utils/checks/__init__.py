"""Is this answer right, and if not, what is the mistake?"""

from course_utils.checks.case import Case, Task, WrongAnswer
from course_utils.checks.comparison import difference, shown
from course_utils.checks.engine import Exercise, exercise, lesson, unsolved
from course_utils.checks.mistakes import Edit, alike, edit, source_of

__all__ = [
    "Case", "Edit", "Exercise", "Task", "WrongAnswer", "alike", "difference", "edit", "exercise", "lesson", "shown",
    "source_of", "unsolved",
]  # fmt: skip
