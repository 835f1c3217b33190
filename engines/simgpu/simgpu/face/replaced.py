"""Which attributes were replaced, and how does each become what it was before?"""

from typing import Any

_ABSENT = object()


class Replacements:
    """Attributes of modules and classes that have other values until `undo`. One after the other, not by threads."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, **values: Any) -> None:
        """Give `owner` these attributes, and remember what stood there itself (not what it inherits)."""
        for name, value in values.items():
            self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)

    def put_item(self, owner: dict, key: str, value: Any) -> None:
        """Give a dictionary this item, such as an environment or `sys.modules`."""
        self._before.append((owner, key, owner.get(key, _ABSENT)))
        owner[key] = value

    def undo(self) -> None:
        """Put everything back, the last change first."""
        while self._before:
            owner, name, value = self._before.pop()
            if isinstance(owner, _MAPPINGS):
                _put_back_item(owner, name, value)
            elif value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_MAPPINGS = (dict, type(__import__("os").environ))


def _put_back_item(owner: Any, key: str, value: Any) -> None:
    if value is _ABSENT:
        owner.pop(key, None)
    else:
        owner[key] = value
