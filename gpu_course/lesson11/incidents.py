"""Incidents of published training runs: what a person saw, its cause, and where to look next."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from course_utils import arguments


@dataclass(frozen=True)
class Incident:
    """What was seen, why it is this `cause`, where to `look` next, what came of it, and where that is told."""

    shown: str
    cause: str
    look: str
    because: str
    ended: str
    source: str
    year: int

    def __str__(self) -> str:
        return self.shown.strip("\n")

    __repr__ = __str__


_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CAUSES: dict[str, str] = dict(sorted(_READ["causes"].items()))  # the file has them in the order of the incidents
LOOKS: dict[str, str] = dict(sorted(_READ["looks"].items()))
INCIDENTS = {name: Incident(**row) for name, row in _READ["incidents"].items()}


def judge(name: str, cause: str, look: str) -> str:
    """Return whether `cause` and `look` are right for the incident, and if not, what would be seen otherwise.

    Raises ValueError that lists the names where one of the three is none of them.
    """
    incident = INCIDENTS[arguments.one_of("name", name, tuple(INCIDENTS))]
    arguments.one_of("cause", cause, tuple(CAUSES))
    arguments.one_of("look", look, tuple(LOOKS))
    if cause != incident.cause:
        return f"It is not this cause: then {CAUSES[cause]}. Source: {incident.source}"
    if look != incident.look:
        return f"It is this cause, but look elsewhere: {look} shows {LOOKS[look]}. Source: {incident.source}"
    return f"Yes: {incident.because}. {incident.ended} Source: {incident.source} ({incident.year})."
