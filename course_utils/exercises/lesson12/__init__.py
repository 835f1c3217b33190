from course_utils.exercises.lesson12.scoring import LEVELS, Costs, Score, score
from course_utils.exercises.lesson12.changes import gains
