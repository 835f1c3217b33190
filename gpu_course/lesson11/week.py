"""How much training does a week on 512 GPUs bring, when GPUs, nodes and links fail at published rates?

A job runs on 64 nodes of 8 GPUs for seven days of a virtual clock, with a few spare nodes beside it. Things fail.
A policy, `decide(seen, notes)`, is asked every five minutes and whenever something happens. It sees what a cluster
shows (`Seen`) and never why, and it returns a `Decision`. `run` returns what became of the week.

    week.run(decide, seed=3)                  failures at the rate of Llama 3's training
    week.run(decide, seed=3, times=4)         four times as often: that is about the rate that OPT-175B met
    week.run(decide, events=week.drill(3))    one failure of each kind, at times that depend on the seed
    week.picture(week.run(decide))            what the job did on each day, and which cause took how many hours
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from course_utils import plots
from gpu_course.lesson11.cluster import (
    RESTART_S,
    SAVE_S,
    SPARES,
    STEP_S,
    WATCHDOG_S,
    Cluster,
    Decision,
    Incident,
    Message,
    Seen,
    Span,
    Week,
)
from gpu_course.lesson11.interruptions import (
    ASSUMED,
    CAUSES,
    DAY_S,
    HOUR_S,
    NODES,
    WEEK_S,
    Event,
    daly_s,
    drill,
    failures,
    per_node_day,
    published,
    young_s,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "ASSUMED", "CAUSES", "DAY_S", "HOUR_S", "NODES", "RESTART_S", "SAVE_S", "SPARES", "STEP_S", "WATCHDOG_S", "WEEK_S",
    "Decision", "Event", "Incident", "Message", "Seen", "Span", "Week", "daly_s", "drill", "failures", "per_node_day",
    "picture", "published", "run", "young_s",
]  # fmt: skip

_COLOURS = {
    "training": plots.GREEN, "saving": plots.SKY, "GPU": plots.RED, "node": plots.PLUM, "network": plots.OCHRE,
    "hang": plots.INK, "slow": "#f2ab93", "checkpoint": plots.BLUE, "preemption": "#f0e442", "no cause": plots.PALE,
}  # fmt: skip


def run(
    decide: Callable[[Seen, dict], Decision],
    seed: int = 0,
    *,
    times: float = 1.0,
    kinds: Iterable[str] = CAUSES,
    events: Iterable[Event] | None = None,
    spares: int = SPARES,
    save_s: int = SAVE_S,
) -> Week:
    """Return a week under the policy `decide`, with `failures(seed, times, kinds)`, or with the `events` given."""
    cluster = Cluster(list(failures(seed, times, kinds)) if events is None else list(events), spares, save_s)
    notes: dict[str, Any] = {}
    while cluster.now_s < WEEK_S:
        cluster.obey(decide(cluster.seen(), notes))
        cluster.wait()
    return cluster.week()


def picture(found: Week, title: str = "A week on 512 GPUs, simulated") -> "Figure":
    """Return the picture of a week: a row for each day, what the job did in it, and the hours that each cause took."""
    spent_h = {name: seconds / HOUR_S for name, seconds in found.spent_s.items()}
    lost = {name: hours for name, hours in spent_h.items() if name != "training" and hours}
    names = sorted(lost, key=lambda name: lost[name])
    figure, (days, bars) = plots.new(
        (title, "hours lost"), columns=2, widths=(3, 2), height_in=3.2, said=f"{title}: {found}"
    )
    for (day, colour, alpha, low, high), stretches in _stretches(found).items():
        # days count downwards, so the lower edge of a bar has the larger number
        days.broken_barh(stretches, (day + 0.36 - 0.72 * high, 0.72 * (high - low)), color=colour, alpha=alpha, lw=0)
    days.set(yticks=range(7), yticklabels=[f"day {day}" for day in range(1, 8)], ylim=(6.6, -0.6), xlim=(0, 24))
    days.set(xlabel=f"hour of the day; goodput {found.goodput:.1%}", xticks=range(0, 25, 6))
    bars.barh(names, [lost[name] for name in names], color=[_COLOURS[name] for name in names], height=0.7)
    for name in names:
        bars.text(lost[name], name, f" {lost[name]:.1f}", va="center", fontsize=8.5)
    bars.margins(x=0.15)
    bars.grid(False, axis="y")
    return figure


def _stretches(lived: Week) -> dict[tuple[int, str, float, float, float], list[tuple[float, float]]]:
    """Return when a day's hours begin and how long they last, by day, colour, how pale it is, and part of the height.

    Training that is slowed down is green up to its useful share. So each colour has the area of its hours.
    """
    stretches = defaultdict(list)
    for span in lived.spans:
        alpha = 0.55 if span.doing == "lost" else 1.0
        parts = [(_COLOURS[span.cause or span.doing], alpha, 0.0, span.share)]
        if span.share < 1:
            parts.append((_COLOURS["slow"], 1.0, span.share, 1.0))
        for day in range(span.start_s // DAY_S, (span.end_s - 1) // DAY_S + 1):
            start_s, end_s = max(span.start_s - day * DAY_S, 0), min(span.end_s - day * DAY_S, DAY_S)
            for part in parts:
                stretches[day, *part].append((start_s / HOUR_S, (end_s - start_s) / HOUR_S))
    return stretches
