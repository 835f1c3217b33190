"""Attributes replaced for a while, and the way back."""

from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any, TypeVar

_ABSENT = object()
_Key = TypeVar("_Key")


class Replacements:
    """Attributes of modules and classes that have other values until `undo`. Not for several threads at a time."""

    def __init__(self) -> None:
        self._back = ExitStack()  # what puts each back; the last change comes first

    def put(self, owner: Any, **values: Any) -> None:
        """Set these attributes of `owner`, and keep its own old ones (not inherited ones)."""
        self.keep(owner, *values)
        for name, value in values.items():
            setattr(owner, name, value)

    def keep(self, owner: Any, *names: str) -> None:
        """Remember these attributes of `owner`, which something else is about to set."""
        for name in names:
            self._back.callback(_put_back, owner, name, vars(owner).get(name, _ABSENT))

    def put_item(self, owner: MutableMapping[_Key, Any], key: _Key, value: Any) -> None:
        """Give a mapping this item, such as an environment or `sys.modules`."""
        before = owner.get(key, _ABSENT)
        if before is _ABSENT:
            self._back.callback(owner.pop, key, None)
        else:
            self._back.callback(owner.__setitem__, key, before)
        owner[key] = value

    def append(self, items: list[Any], item: Any) -> None:
        """Append `item` to a list that others change, too."""
        items.append(item)
        self._back.callback(_remove, items, item)

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Register `function(*args)`, which puts something else back, for `undo`."""
        self._back.callback(function, *args)

    def forget(self, function: Any) -> None:
        """Clear what a cached function has answered, now and at `undo`; one that keeps nothing is left alone."""
        clear = getattr(function, "cache_clear", None)
        if clear is not None:
            clear()
            self.call(clear)

    def undo(self) -> None:
        """Put everything back, the last change first."""
        self._back.close()


def _remove(items: list[Any], item: Any) -> None:
    if item in items:
        items.remove(item)


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is not _ABSENT:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)
