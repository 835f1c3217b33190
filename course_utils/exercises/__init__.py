"""The exercises of the lessons: one module a lesson, with the reference answers and their checks."""
