"""Is this answer right, and if not, what is the mistake?"""

from course_utils.checks.case import Case, WrongAnswer
from course_utils.checks.comparison import difference, shown
from course_utils.checks.engine import Exercise, exercise, lesson, unsolved

__all__ = ["Case", "Exercise", "WrongAnswer", "difference", "exercise", "lesson", "shown", "unsolved"]
