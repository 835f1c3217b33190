"""Which settings of an explorer are tested, where it has too many to test all of them?"""

import itertools
import random

from course_utils import timing

__all__ = ["LIVE", "settings"]

LIVE = timing.Roofline(14.0, {"fp32": 0.17, "fp16": 0.003, "bf16": 0.003}, "live", "cpu")  # made up


def settings(explorer, most=400):
    """Return combinations of first and last values, all of up to eight controls, and `most` drawn settings.

    What is drawn is drawn with a fixed seed.
    """
    names = [control.name for control in explorer.controls]
    extremes = list(itertools.product(*(sorted({c.values[0], c.values[-1]}) for c in explorer.controls)))
    drawn = random.Random(0)
    if len(extremes) > 2**8:
        extremes = random.Random(2).sample(extremes, 2**8)
    others = (tuple(drawn.choice(c.values) for c in explorer.controls) for _ in range(most))
    return [dict(zip(names, values, strict=True)) for values in (*extremes, *others)]
