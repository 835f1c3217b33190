"""How long does this take, honestly, and how fast could it be on this machine?

    print(timing.measure(lambda: x @ x, device=DEVICE))
    print(timing.roofline(DEVICE))

Measured with torch.utils.benchmark: warm-up, synchronisation, repetitions, median and spread. On the simulated GPU,
times are those of its virtual clock, because the host's time of a simulated operator says nothing about a GPU.
"""

from course_utils.timing.measurements import Timing, measure
from course_utils.timing.rates import Roofline, predicted, roofline

__all__ = ["Roofline", "Timing", "measure", "predicted", "roofline"]
