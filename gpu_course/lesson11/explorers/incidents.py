"""What happened here, and where would you look next? Published incidents, to be judged one by one."""

from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer
from gpu_course.lesson11.incidents import CAUSES, INCIDENTS, LOOKS, judge

__all__ = ["Judged", "explore", "find"]

_FIRST = "one GPU is slow"  # wrong for the first incident, so that the static page does not tell


@dataclass(frozen=True)
class Judged:
    """An incident with a cause and a next look, and what speaks for them or against them."""

    incident: str
    said: str

    def __str__(self) -> str:
        return self.said


def find(*, incident: str, cause: str, look: str) -> Judged:
    """Return what is said on this cause and this look. Raises ValueError that lists the names."""
    return Judged(incident, judge(incident, cause, look))


def draw(judged: Judged) -> Any:
    """Return the picture: what a person saw."""
    lines = str(INCIDENTS[judged.incident]).splitlines()
    figure, axes = plots.new(height_in=0.3 + 0.2 * len(lines))
    axes.axis("off")
    text = "\n".join(lines)
    axes.text(0, 1, text, va="top", family="monospace", fontsize=6.6, linespacing=1.8, transform=axes.transAxes)
    return figure


def explore() -> Explorer:
    """Return the explorer of incidents."""
    controls = [
        Choice("incident", "Incident", tuple(INCIDENTS), next(iter(INCIDENTS))),
        Choice("cause", "Cause", tuple(CAUSES), _FIRST),
        Choice("look", "Next look", tuple(LOOKS), next(iter(LOOKS))),
    ]
    return Explorer("incidents of others", find, draw, str, controls)
