"""Which settings of torch and of the process can code leave changed, and how is each one put back?"""

from course_utils.settings.pytorch import put_back, read, read_precision, set_precision

__all__ = ["put_back", "read", "read_precision", "set_precision"]
