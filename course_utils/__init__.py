"""Helpers of the course; importing the package does no work: no device query, no plotting library, no network."""

__version__ = "0.1.0"
__tracebackhide__ = True  # for stacks this package is a library, wherever it is installed
