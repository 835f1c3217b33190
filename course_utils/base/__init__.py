"""What does every room need that knows nothing of GPUs: arguments, whose a line of code is, what has been solved?"""

from pathlib import Path

from course_utils.base import arguments, places, solved

__all__ = ["PACKAGE", "arguments", "places", "solved"]

PACKAGE = Path(__file__).parents[1]  # the folder of course_utils
