"""Is the failure cured? The exercises of lesson 11, each a broken program to repair, and the data on which they run."""

from gpu_course.lesson11 import flight
from gpu_course.lesson11.alike import draw, swing, three_flat, three_hangs
from gpu_course.lesson11.blame import blame, hangs
from gpu_course.lesson11.crashes import crash
from gpu_course.lesson11.fine_tune import features, fine_tune, halves
from gpu_course.lesson11.fit import fit, noisy, regression
from gpu_course.lesson11.flight import torchfrtrace
from gpu_course.lesson11.incidents import CAUSES, INCIDENTS, LOOKS, judge
from gpu_course.lesson11.photo_means import photo_means
from gpu_course.lesson11.photos import Archive, Samples, archive
from gpu_course.lesson11.stuck import linear, on_two_ranks, shares
from gpu_course.lesson11.tagging import tagger, texts
from gpu_course.lesson11.train_and_validate import BUDGET_BYTES, classifier, points, train_and_validate
from gpu_course.lesson11.train_on_stream import echo, signals, train_on_stream
from gpu_course.lesson11.train_pairs import embedding, pairs, train_pairs
from gpu_course.lesson11.train_tagger import train_tagger
from gpu_course.lesson11.train_together import train_together

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "train_tagger", "train_on_stream", "fine_tune", "fit", "train_together", "blame", "train_and_validate",
    "photo_means", "train_pairs", "BUDGET_BYTES", "CAUSES", "INCIDENTS", "LOOKS", "Archive", "Samples", "archive",
    "classifier", "crash", "draw", "echo", "embedding", "features", "flight", "halves", "hangs", "judge", "linear",
    "noisy", "on_two_ranks", "pairs", "points", "regression", "shares", "signals", "swing", "tagger", "texts",
    "three_flat", "three_hangs", "torchfrtrace",
]  # fmt: skip
