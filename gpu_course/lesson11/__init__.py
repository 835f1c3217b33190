"""Is the failure cured? The exercises of lesson 11, each a broken program to repair, and the data on which they run."""

from gpu_course.lesson11 import flight, week
from gpu_course.lesson11.alike import draw, swing, three_flat, three_hangs
from gpu_course.lesson11.crashes import (
    BUDGET_BYTES,
    classifier,
    crash,
    echo,
    photo_means,
    points,
    signals,
    tagger,
    texts,
    train_and_validate,
    train_on_stream,
    train_tagger,
)
from gpu_course.lesson11.deciding import decide
from gpu_course.lesson11.flight import blame, hangs, torchfrtrace
from gpu_course.lesson11.incidents import CAUSES, INCIDENTS, LOOKS, judge, name_causes
from gpu_course.lesson11.photos import Archive, Samples, archive
from gpu_course.lesson11.silent import (
    embedding,
    features,
    fine_tune,
    fit,
    halves,
    noisy,
    pairs,
    regression,
    train_pairs,
)
from gpu_course.lesson11.stuck import linear, on_two_ranks, shares, train_together
from gpu_course.lesson11.week import Decision, Seen

__all__ = [
    "BUDGET_BYTES", "CAUSES", "INCIDENTS", "LOOKS", "Archive", "Decision", "Samples", "Seen", "archive", "blame",
    "classifier", "crash", "decide", "draw", "echo", "embedding", "features", "fine_tune", "fit", "flight", "halves",
    "hangs", "judge", "linear", "name_causes", "noisy", "on_two_ranks", "pairs", "photo_means", "points", "regression",
    "shares", "signals", "swing", "tagger", "texts", "three_flat", "three_hangs", "torchfrtrace", "train_and_validate",
    "train_on_stream", "train_pairs", "train_tagger", "train_together", "week",
]  # fmt: skip
