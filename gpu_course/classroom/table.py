"""Progress of a class as a text table."""

from course_utils import tables
from gpu_course import catalogue, exam
from gpu_course.classroom.people import Class

__all__ = ["begun", "table"]


def begun(of: Class) -> list[tuple[str, list[str]]]:
    """Return the lessons in which somebody has solved or tried something, with the names of their exercises."""
    every: dict[str, list[str]] = {}
    for exercise in catalogue.registry():
        every.setdefault(exercise.lesson, []).append(exercise.name)
    seen = {lesson for person in of.people for lesson, *_ in [*person.solved, *person.tries]}
    return [(lesson, names) for lesson, names in sorted(every.items()) if lesson in seen]


def table(of: Class) -> str:
    """Return the table: a row for each person, a column for each lesson that somebody has begun, remarks below it."""
    lessons = begun(of)
    count = sum(len(names) for _, names in lessons)
    rows = []
    for person in of.people:
        solved = [sum((lesson, name) in person.solved for name in names) for lesson, names in lessons]
        row = [person.shown, ", ".join(map(str, person.lines)), *map(str, solved)]
        rows.append((*row, f"{sum(solved)} of {count}", _examined(person.result)))
    head = ("name", "line", *(lesson for lesson, _ in lessons), "all", "examination")
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return "\n".join([tables.text(rows, head), *of.remarks, *map(str, of.unread)])


def _examined(result: exam.Person | None) -> str:
    """Return how many answers were right before the course and after it."""
    if result is None:
        return ""
    papers = [marks for marks in (result.before, result.after) if marks]
    return ", ".join(
        f"{sum(right for right, _ in one.values())} of {sum(of for _, of in one.values())}" for one in papers
    )
