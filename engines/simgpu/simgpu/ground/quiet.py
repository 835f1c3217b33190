"""What counts operators, and when does it leave them out? While they are part of a kernel that is counted already."""

from collections.abc import Generator
from contextlib import contextmanager


class Meter:
    """Counts operators, but for those that run while `quiet` is above 0."""

    quiet = 0

    @contextmanager
    def charged(self) -> Generator[None]:
        """Inside, operators are charged nothing: they are parts of kernels that are charged."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1
