"""Host time of what a program asks of its GPUs, by class of operator."""

from collections import Counter
from collections.abc import Iterable, Iterator

from simgpu.clock.events import Copy, Event, Graph, Kernel, Message
from simgpu.machine.hosts import PARTS, Host, class_of, kind_of_copy


def seconds_by_class(events: Iterable[Event], host: Host) -> dict[str, float]:
    """Return the seconds that a host takes for events, by class of `hosts.CLASSES`; those that take none are left out.

    Waits, and what a program says of its own work, are no operators and not in it.
    """
    times_ns: Counter[str] = Counter()
    for event in events:
        for name, times in _asked(event):
            times_ns[name] += times * host.price_ns(name)
    return {name: ns / 1e9 for name, ns in times_ns.items() if ns}


def seconds_by_part(events: Iterable[Event], host: Host) -> dict[str, float]:
    """Return the same by part of `hosts.PARTS`: operators, optimizer, autograd, views."""
    by_class = seconds_by_class(events, host)
    parts = {part: sum(by_class.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    return {part: seconds for part, seconds in parts.items() if seconds}


def _asked(event: Event) -> Iterator[tuple[str, int]]:
    """Yield the classes of what the host does for an event, and how often."""
    match event:
        case Kernel():
            yield class_of(event.cost.host, event.phase, event.bare), 1
            yield "tensor of a list", event.cost.tensors
            yield from event.calls
        case Copy():
            yield kind_of_copy(event.direction, event.nbytes, event.pinned), 1
        case Graph():
            yield "launch", 1
            yield "graph node", len(event.work)
            yield from event.calls
        case Message():
            yield "library", 1
        case _:
            pass
