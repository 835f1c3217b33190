"""What fails on 64 nodes of 8 GPUs in a week, and how often? The published counts, and the events drawn from them.

`interruptions.csv` holds published counts with their addresses. The categories of Llama 3 are those of table 5 of its
paper, and were read at https://glennklockwood.com/garden/component-reliability; 16,384 GPUs are 2,048 nodes. Of its 419
interruptions, 357 are simulated: software bugs and silent corruption are not. Of failing GPUs, 2 of 10 showed it before
in the report on 504 GPUs. Everything else is assumed, for want of a published rate: `ASSUMED`, how often a checkpoint
is damaged, and how often a link that fails once fails again.
"""

import csv
import functools
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ASSUMED", "CAUSES", "DAY_S", "HOUR_S", "NODES", "WEEK_S", "Event", "daly_s", "drill", "failures", "per_node_day",
    "published", "young_s",
]  # fmt: skip

HOUR_S, DAY_S, WEEK_S = 3600, 24 * 3600, 7 * 24 * 3600
NODES = 64
CAUSES = ("GPU", "node", "network", "hang", "slow", "checkpoint", "preemption")
ASSUMED = {"slow": 1e-3, "blip": 3e-3, "preemption": 1 / 7 / NODES}  # in a node-day, as often in each cluster
_DAMAGED, _BAD_CABLES, _WARNED = 0.05, 0.25, 0.2  # shares: of checkpoints, of links that fail, of GPUs that fail
_XIDS = (48, 79, 119)
WARNED = 1000  # is added to the Xid of a GPU that has warned before


@dataclass(frozen=True, order=True)
class Event:
    """Something that fails: `place` is one of the 64 places in the job, whichever node has it at that time."""

    at_s: int
    kind: str
    place: int = 0
    number: float = 0


@functools.cache
def published() -> tuple[dict[str, str], ...]:
    """Return the rows of `interruptions.csv`."""
    with Path(__file__).with_name("interruptions.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def per_node_day(source: str, kind: str = "") -> float:
    """Return how often something interrupts one node in a day by a published source, of one `kind` or of all."""
    rows = [row for row in published() if row["source"] == source and kind in ("", row["kind"])]
    if not rows:
        raise ValueError(f"nothing was published for {source!r} and {kind!r}")
    return sum(float(row["count"]) for row in rows) / float(rows[0]["nodes"]) / float(rows[0]["days"])


def failures(seed: int, times: float = 1.0, kinds: Iterable[str] = CAUSES) -> list[Event]:
    """Return the failures of a week, `times` as often as in the training of Llama 3, as far as rates are published."""
    rates = {kind: times * per_node_day("Llama 3 405B", kind) for kind in CAUSES[:4]} | ASSUMED
    events: list[Event] = []
    for kind, rate in rates.items():
        if kind in kinds or (kind == "blip" and "slow" in kinds):
            chance = random.Random(f"{seed} {kind}")
            at_s = chance.expovariate(rate * NODES) * DAY_S
            while at_s < WEEK_S:
                events += _with_circumstances(kind, int(at_s), chance, "checkpoint" in kinds)
                at_s += chance.expovariate(rate * NODES) * DAY_S
    return sorted(events)


def _with_circumstances(kind: str, at_s: int, chance: random.Random, damages: bool) -> list[Event]:
    """Return a failure of a kind with what announces it, what repeats it, and a checkpoint that it finds damaged."""
    node, number, share = chance.randrange(NODES), chance.random(), chance.random()
    events = [Event(at_s, kind, node, round(1.15 + 0.45 * number, 2) if kind in ("slow", "blip") else 0)]
    if kind == "GPU":
        warned = share < _WARNED and at_s > HOUR_S
        events = [Event(at_s, kind, node, _XIDS[int(3 * number)] + WARNED * warned)]
        events += [Event(at_s - HOUR_S, "warning", node)] * warned
    if kind == "network" and share < _BAD_CABLES:
        events = [Event(at_s + times * 5 * HOUR_S, kind, node, 1) for times in range(30)]
    if damages and kind in ("GPU", "node") and chance.random() < _DAMAGED:
        events.append(Event(at_s - 1, "damage"))
    return [event for event in events if 0 <= event.at_s < WEEK_S]


def drill(seed: int) -> list[Event]:
    """Return a week that has each kind of failure: one a day or so, at hours, places and in an order by `seed`."""
    chance = random.Random(f"drill {seed}")
    kinds = ["GPU", "GPU", "node", "network", "cable", "hang", "slow", "blip", "preemption", "damage", "warned"]
    chance.shuffle(kinds)
    events: list[Event] = []
    for index, (kind, node) in enumerate(zip(kinds, chance.sample(range(NODES), len(kinds)), strict=True)):
        at_s = int((8 + 14 * index + 9 * chance.random()) * HOUR_S)
        xid = chance.choice(_XIDS)
        slow = round(1.2 + 0.4 * chance.random(), 2)
        events += {
            "GPU": [Event(at_s, "GPU", node, xid)],
            "warned": [Event(at_s - HOUR_S, "warning", node), Event(at_s, "GPU", node, xid + WARNED)],
            "cable": [Event(at_s + times * 5 * HOUR_S, "network", node, 1) for times in range(30)],
            "damage": [Event(at_s - 1, "damage"), Event(at_s, "GPU", node, xid)],
        }.get(kind, [Event(at_s, kind, node, slow)])
    return sorted(event for event in events if event.at_s < WEEK_S)


def young_s(save_s: float, between_s: float) -> float:
    """Return the seconds of training between two checkpoints that waste least, to first order (J. W. Young, 1974).

    `save_s` is what a checkpoint takes, `between_s` the mean time between failures. https://doi.org/10.1145/361147.361115
    """
    return math.sqrt(2 * save_s * between_s)


def daly_s(save_s: float, between_s: float) -> float:
    """Return the same to a higher order, for saves of less than twice the time between failures (J. T. Daly, 2006).

    https://doi.org/10.1016/j.future.2004.11.016
    """
    share = save_s / (2 * between_s)
    return young_s(save_s, between_s) * (1 + math.sqrt(share) / 3 + share / 9) - save_s
