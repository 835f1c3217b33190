"""Stored wrong answers that show something of their check that no other answer shows.

    python -m benchmarks.wrong_answers          all lessons, some ten minutes on a quiet machine
    python -m benchmarks.wrong_answers 02 05    the lessons 02 and 05

An answer shows which lines and branches of the check and its helpers it takes, and where the check ends: in which line,
at which call of the answer, on which device. What the reference, its alternatives, the broken program of a repair and
the named mistakes show is there in any case. Of the other wrong answers in the file beside the exercise, a smallest set
is kept that shows the rest, with each whose phrase no other answer to the exercise gets; a phrase in the words with
which the engine of checks compares any two values does not count. The others are printed: they can go. Exit status 1
says that there are some.

What an answer does on ranks, in processes of its own, is not seen; what the check says afterwards is.
"""

from __future__ import annotations

import argparse
import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import coverage

import kernelcheck
from course_utils import devices
from gpu_course import catalogue
from gpu_course.checks import Case, Exercise, WrongAnswer, engine

PACKAGE = Path(catalogue.__file__).parent
PLACES = devices.check_devices()
# Words of `case.equal`, and of calls that raise, for every exercise.
ENGINES_WORDS = re.compile(r"\s*(the result\b(?! is right)|modifies its input|raises |expected: |got: )")


@dataclass(frozen=True)
class Seen:
    """What an answer showed: `stored` if it is one of the wrong answers that could go."""

    stored: bool
    phrase: str
    message: str
    shown: frozenset[tuple]
    seconds: float

    @property
    def own_words(self) -> bool:
        """Whether the phrase stands in a line that this check alone would write."""
        lines = [line for line in self.message.splitlines() if self.phrase in line]
        return not any(map(ENGINES_WORDS.match, lines))


def answers(exercise: Exercise) -> Iterator[tuple[bool, str, Any]]:
    """Yield all answers to an exercise that the tests know: whether it could go, its phrase, and the answer."""
    yield False, "", exercise.reference
    yield from ((False, "", other.answer) for other in exercise.alternatives)
    yield from ((False, "", exercise.given) for _ in range(exercise.given is not None))
    yield from ((False, mistake.name, mistake.answer) for mistake in exercise.mistakes)
    yield from ((True, row.name, answer) for row, answer in exercise.stored("wrong"))


def seen(exercise: Exercise) -> list[Seen]:
    """Examine all answers to an exercise and return what each showed."""
    watch = coverage.Coverage(
        branch=True, data_file=None, config_file=False, include=[f"{PACKAGE}/lesson*/*", f"{PACKAGE}/common/*"]
    )
    recognised = engine.recognised

    def unwatched(*args: Any) -> Any:
        watch.switch_context("")  # a recording goes on behind the failure, as the check itself never does
        return recognised(*args)

    ends = []
    with mock.patch.object(engine, "recognised", unwatched), watch.collect():
        for number, (_, _, answer) in enumerate(answers(exercise)):
            watch.switch_context(f"answer {number}")
            begin_s = time.perf_counter()
            ends.append((*end(exercise, answer), time.perf_counter() - begin_s))
            watch.switch_context("")
    data, found = watch.get_data(), []
    for number, ((goes, phrase, _), (message, place, seconds)) in enumerate(zip(answers(exercise), ends, strict=True)):
        data.set_query_context(f"answer {number}")
        arcs = {(file, *arc) for file in data.measured_files() for arc in data.arcs(file) or ()}
        found.append(Seen(goes, phrase, message, frozenset(arcs | place), seconds))
    return found


def end(exercise: Exercise, answer: Any) -> tuple[str, set[tuple]]:
    """Return what the check says of an answer, and where it ended: lines, call of the answer, device."""
    try:
        exercise.examine(answer, PLACES)
    except WrongAnswer as wrong:
        first = wrong.__context__ if isinstance(wrong.__context__, WrongAnswer) else wrong  # before it got a name
        frames = list(traceback.walk_tb(first.__traceback__))
        own = [(frame.f_code.co_filename, line) for frame, line in frames if _in_a_check(frame.f_code.co_filename)]
        cases = [value for frame, _ in frames for value in frame.f_locals.values() if isinstance(value, Case)]
        return str(wrong), {(*own, case.calls, str(case.device)) for case in cases[:1]}
    return "", set()


def _in_a_check(file: str) -> bool:
    return Path(file).is_relative_to(PACKAGE) and Path(file).parent.name != "checks"


def kept(found: list[Seen]) -> list[Seen]:
    """Return the stored wrong answers of an exercise that show something, most of all first."""
    chosen, rest = [], [one for one in found if one.stored]
    others = [one for one in found if not one.stored]
    shown = set().union(*(one.shown for one in others))
    while new := max(rest, key=lambda one: len(one.shown - shown), default=None):
        if new.shown <= shown:
            break
        shown |= new.shown
        chosen.append(new)
        rest.remove(new)
    for one in rest:
        if one.own_words and not any(one.phrase in other.message for other in others + chosen):
            chosen.append(one)
    return chosen


def main() -> int:
    """Print how many wrong answers of each exercise show something, and those that do not; return 0 if all do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="numbers of two digits; all lessons unless given")
    wanted = parser.parse_args().lessons
    total = showing = 0
    for exercise in catalogue.registry():
        compiled = exercise.name == "block_sums"  # which needs a C++ compiler
        if (wanted and exercise.lesson not in wanted) or (compiled and kernelcheck.why_not()):
            continue
        found = seen(exercise)
        choice, wrong = kept(found), [one for one in found if one.stored]
        total, showing = total + len(wrong), showing + len(choice)
        spent_s = sum(one.seconds for one in wrong)
        print(f"{exercise.lesson} {exercise.name:24}{len(choice):3} of {len(wrong):2} show something, {spent_s:.1f} s")
        for number, one in enumerate(wrong, start=1):
            if one not in choice:
                print(f"    can go: the one in place {number}, {one.phrase!r}, {one.seconds:.1f} s", flush=True)
    print(f"{showing} of {total} show something")
    return int(showing < total)


if __name__ == "__main__":
    raise SystemExit(main())
