"""Format of the line that carries a learner's progress.

    course-progress-3;Ada;k3f9;0.1.0;00:double;02:nearest,ramp;!02:nearest:the+answer+stays+on+the+host:2;8f3e0a11

Behind the name stands a code, which tells two people of one name apart, and the version of the course. Then comes what
is solved by lesson, and after an exclamation mark how often which mistake was made in which exercise.
"""

import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import quote_plus, unquote_plus

from course_utils import __version__
from gpu_course import sealing
from gpu_course import solved as store
from gpu_course.checks import OTHER

__all__ = ["MARK", "PREFIX", "Progress", "read", "write"]

MARK = "course-progress-"
PREFIX = f"{MARK}3"
_QUOTES = "'\"`“”‘’"


@dataclass(frozen=True)
class Progress:
    """What a line says of one person: what is solved, and how often which mistake was made; the code may be ""."""

    name: str
    code: str
    solved: set[store.Key] = field(default_factory=set)
    tries: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by lesson, exercise and mistake


def write(name: str, code: str, done: set[store.Key], tries: dict[tuple[str, str, str], int]) -> str:
    """Return the line."""
    parts = [f"{lesson}:{','.join(names)}" for lesson, names in store.by_lesson(done).items()]
    counts = sorted(tries.items())
    parts += [f"!{lesson}:{each}:{_encoded(mistake or OTHER)}:{count}" for (lesson, each, mistake), count in counts]
    return sealing.sealed(";".join([PREFIX, _encoded(name), code, __version__, *parts]))


def read(line: str) -> Progress:
    """Return what a line says; white space and quotes around it are ignored.

    Raises ValueError where it is damaged or none.
    """
    text = unicodedata.normalize("NFC", "".join(line.split()).strip(_QUOTES))
    if text.partition(";")[0] != PREFIX:
        raise ValueError(f"it does not begin with {PREFIX}")
    _, name, code, _, *parts = sealing.unsealed(text).split(";")
    person = Progress(_plain(name), sealing.code_of(code))
    for part in parts:
        if part.startswith("!"):
            lesson, each, mistake, count = part[1:].split(":")
            key = (*store.key(lesson, each), _plain(mistake) or OTHER)
            person.tries[key] += min(max(int(count), 0), store.MOST_TRIES)
            continue
        lesson, _, names = part.partition(":")
        person.solved.update(store.key(lesson, each) for each in names.split(","))
    return person


def _encoded(name: str) -> str:
    """Return `name` without spaces and signs that a mail or a string in Python would change; letters stay."""
    name = unicodedata.normalize("NFC", " ".join(name.split()))
    return "".join(sign if sign.isalnum() else quote_plus(sign) for sign in name)


def _plain(text: str) -> str:
    return sealing.printable(unquote_plus(text), 200)
