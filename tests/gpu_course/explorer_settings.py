"""Which settings of an explorer are tested, where it has too many to test all of them?"""

from itertools import combinations

from course_utils import timing

__all__ = ["LIVE", "pairs", "settings"]

LIVE = timing.Roofline(14.0, {"fp32": 0.17, "fp16": 0.003, "bf16": 0.003}, "live", "cpu")  # made up


def pairs(row):
    """Return the pairs of two controls' values in a row of (control, place of its value), in the controls' order."""
    return combinations(sorted(row), 2)


def settings(explorer):
    """Return settings in which every pair of values of two controls occurs at least once, built greedily.

    Most mistakes need one value or two together: a covering array finds them with a small part of the whole product.
    """
    counts = [len(control.values) for control in explorer.controls]
    every = [[(control, place) for place in range(count)] for control, count in enumerate(counts)]
    left = dict.fromkeys((a, b) for one, two in combinations(every, 2) for a in one for b in two)
    found = []
    while left:
        row = list(next(iter(left)))
        for values in every:
            if values[0][0] not in dict(row):
                row.append(max(values, key=lambda value: sum(pair in left for pair in _with(value, row))))
        for pair in pairs(row):
            left.pop(pair, None)
        found.append({explorer.controls[c].name: explorer.controls[c].values[place] for c, place in sorted(row)})
    return found


def _with(value, row):
    return [(min(value, other), max(value, other)) for other in row]
