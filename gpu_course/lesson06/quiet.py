"""Filter for the profiler's own messages; all other output still appears."""

import functools
import os
import threading
import warnings

__all__ = ["hide_profiler_messages"]


@functools.cache
def hide_profiler_messages() -> None:
    """From now on leave out what `torch.profiler` says of itself, which no reader can do anything about.

    torch 2.13 writes lines that begin with `USDT:` to file descriptor 2, at the start and the end of each profile. A
    torch before 2.13 warns that events are cleared at the end of a cycle, also where there is only one
    (https://github.com/pytorch/pytorch/pull/180387).
    """
    warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
    shown = os.dup(2)
    read_end, write_end = os.pipe()
    try:
        threading.Thread(target=_pass_on, args=(read_end, shown), daemon=True).start()
    except RuntimeError:  # a browser has no threads: the messages appear
        return
    os.dup2(write_end, 2)
    os.close(write_end)


def _pass_on(read_end: int, shown: int) -> None:
    """Write all lines that come from `read_end` to the descriptor `shown`, but those of the profiler."""
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(b"USDT:"):
                os.write(shown, line)
