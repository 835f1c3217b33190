"""Who in a class has solved what, and which mistakes stop whom? From the lines that learners send.

classroom.table(lines)     as text
classroom.page(lines)      as a page: who stands where, which mistakes most people make, what the class has gained
"""

from gpu_course.classroom.page import page
from gpu_course.classroom.people import Class, Person, gathered
from gpu_course.classroom.reading import Line, Unread, lines
from gpu_course.classroom.table import table
from gpu_course.classroom.written import PREFIX, Progress, read, write

__all__ = [
    "PREFIX", "Class", "Line", "Person", "Progress", "Unread", "gathered", "lines", "page", "read", "table", "write",
]  # fmt: skip
