"""What stands behind the lessons? A folder for each lesson, the checks of answers, progress and predictions."""

__tracebackhide__ = True  # for stacks this package is a library, wherever it is installed
