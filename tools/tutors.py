"""Page for tutors: where people get stuck, exercise by exercise, from the mistakes that checks name."""

from gpu_course import catalogue

__all__ = ["page"]

_SHOWN = 4  # of an exercise, the first that its author wrote down


def page() -> str:
    """Return the page: for each exercise its first named mistakes, each with what to say to somebody who makes it."""
    parts = [
        "# Common struggles",
        "What a check says, and why, for the first mistakes of each exercise. Ask first what the learner expects the "
        "line to do. Then let the check speak: it shows the call, what was expected and what came. `hint()` gives the "
        "hints in turn.",
    ]
    lesson = ""
    for exercise in catalogue.registry():
        if exercise.lesson != lesson:
            lesson = exercise.lesson
            parts.append(f"## Lesson {lesson}")
        known = dict(reversed([(one.name, one.why) for one in exercise.mistakes]))
        shown = list(reversed(known.items()))[:_SHOWN]
        said = "\n".join(f"- {name}" + (f": {why}" if why else "") for name, why in shown)
        parts.append(f"### {exercise.task.title} ({exercise.task.minutes} minutes, `{exercise.name}`)\n\n{said}")
    return "\n\n".join(parts) + "\n"
