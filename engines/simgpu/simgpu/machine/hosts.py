"""How long does a host take for an operator? Named hosts, each with its source.

A host is a row of hosts.toml, or `Host(…)` with a number of one's own.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ALL", "DEFAULT", "Host", "get"]


@dataclass(frozen=True)
class Host:
    """What a host takes for an operation that it hands to a queue of the GPU, in µs; `source` says who measured it."""

    operator_us: float
    name: str = "given"
    source: str = "given by the program"

    def __post_init__(self) -> None:
        us = self.operator_us
        if isinstance(us, bool) or not isinstance(us, int | float):
            raise TypeError(f"operator_us must be a number of microseconds, not {us!r}")
        if not us >= 0:
            raise ValueError(f"operator_us must be a number of microseconds from 0, not {us!r}")

    @property
    def launch_ns(self) -> int:
        """Nanoseconds for one operation."""
        return round(self.operator_us * 1000)


def get(name: "str | Host", argument: str = "host") -> Host:
    """Return the row called `name`, in upper or lower case; a `Host` is returned as it is.

    Raises TypeError for what is neither, and ValueError that lists the names where none fits; `argument` is what the
    errors call it.
    """
    if isinstance(name, Host):
        return name
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a name or a simgpu.Host, not {name!r}")
    for host in ALL:
        if host.name.lower() == name.strip().lower():
            return host
    raise ValueError(f"{argument} is {name!r}, which is not in the table; it may be one of: {_names()}")


def _names() -> str:
    return ", ".join(host.name for host in ALL)


def _rows() -> tuple[Host, ...]:
    file = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Host(**row) for row in file["host"])


ALL: tuple[Host, ...] = _rows()
DEFAULT = ALL[0]
