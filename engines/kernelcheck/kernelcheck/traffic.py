"""Memory traffic of a kernel by array: bytes, requests and sectors."""

from dataclasses import dataclass


@dataclass
class Traffic:
    """What a kernel asks of one array: bytes loaded, bytes stored (by atomic operations too), requests and sectors."""

    loaded_bytes: int = 0
    stored_bytes: int = 0
    requests: int = 0
    sectors: int = 0


class Sums:
    """The sums over `by_array`, which a report has: array -> `Traffic`."""

    by_array: dict[str, Traffic]

    loaded_bytes = property(lambda self: sum(one.loaded_bytes for one in self.by_array.values()))
    stored_bytes = property(lambda self: sum(one.stored_bytes for one in self.by_array.values()))
    requests = property(lambda self: sum(one.requests for one in self.by_array.values()))
    sectors = property(lambda self: sum(one.sectors for one in self.by_array.values()))
