"""Which attributes were replaced, and how does each become what it was before?"""

from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any, TypeVar

_ABSENT = object()
_Key = TypeVar("_Key")


class Replacements:
    """Attributes of modules and classes that have other values until `undo`. One after the other, not by threads."""

    def __init__(self) -> None:
        self._back = ExitStack()  # what puts each back; the last change comes first

    def put(self, owner: Any, **values: Any) -> None:
        """Give `owner` these attributes, and remember what stood there itself (not what it inherits)."""
        for name, value in values.items():
            before = vars(owner).get(name, _ABSENT)
            if before is _ABSENT:
                self._back.callback(delattr, owner, name)
            else:
                self._back.callback(setattr, owner, name, before)
            setattr(owner, name, value)

    def put_item(self, owner: MutableMapping[_Key, Any], key: _Key, value: Any) -> None:
        """Give a mapping this item, such as an environment or `sys.modules`."""
        before = owner.get(key, _ABSENT)
        if before is _ABSENT:
            self._back.callback(owner.pop, key, None)
        else:
            self._back.callback(owner.__setitem__, key, before)
        owner[key] = value

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Let `undo` call `function(*args)`, which puts something else back."""
        self._back.callback(function, *args)

    def undo(self) -> None:
        """Put everything back, the last change first."""
        self._back.close()
