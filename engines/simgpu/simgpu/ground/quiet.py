"""Pauses of counting inside a counted operator, and of garbage collection."""

import gc
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


@contextmanager
def uncollected() -> Generator[None]:
    """Suspend garbage collection in the block, where many objects are made that all stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
