"""What does every room need that knows nothing of GPUs: arguments, tables, whose a line of code is, what is solved?"""

from pathlib import Path

from course_utils.base import arguments, places, solved, tables

__all__ = ["PACKAGE", "arguments", "places", "solved", "tables"]

PACKAGE = Path(__file__).parents[1]  # the folder of course_utils
