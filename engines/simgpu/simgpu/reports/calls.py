"""How does a report see calls of modules and functions, without PyTorch's compiler seeing the report?

PyTorch's own hooks for all modules would be parts of a compiled graph, or break it. What stands here in the place of
`Module.__call__`, or of a function, is to the compiler what it replaces.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from simgpu.ground.inductor import uncompiled
from simgpu.ground.replacements import Replacements

Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


def watch(put: Replacements, before: Before, after: After) -> None:
    """Let each call of a module tell `before`, and when it ends `after`, with its result; None where it fails."""
    plain = nn.Module.__call__

    @functools.wraps(plain)
    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = None
        with uncompiled():
            before(module, args, kwargs)
        try:
            result = plain(module, *args, **kwargs)
            return result
        except BaseException as error:
            _leave_out_here(error)
            raise
        finally:
            with uncompiled():
                after(module, args, kwargs, result)

    # what PyTorch's compiler looks into instead
    __call__._torchdynamo_inline = plain  # pyright: ignore[reportAttributeAccessIssue]
    put.put(nn.Module, __call__=__call__)


def watched(
    plain: Callable[..., Any], look: Callable[..., object], after: Callable[[], object] | None = None
) -> Callable[..., Any]:
    """Return `plain`, before which `look` gets the same arguments, and `after` which something is called."""

    @functools.wraps(plain)
    def tells(*args: Any, **kwargs: Any) -> Any:
        look(*args, **kwargs)
        try:
            result = plain(*args, **kwargs)
        except BaseException as error:
            _leave_out_here(error)
            raise
        if after is not None:
            after()
        return result

    # what PyTorch's compiler looks into instead
    tells._torchdynamo_inline = plain  # pyright: ignore[reportAttributeAccessIssue]
    return tells


def _leave_out_here(error: BaseException) -> None:
    """Leave out of an error's traceback the function that has caught it, and is about to raise it again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
