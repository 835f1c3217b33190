"""Is the capstone fast, and does it train as the given program does? Its score, and the exercises of lesson 12."""

from gpu_course.lesson12.attend import attend
from gpu_course.lesson12.average import average
from gpu_course.lesson12.cards import Card, Drawn, card, draw, export, score, start
from gpu_course.lesson12.changes import CHANGES, Gains, gains, hint
from gpu_course.lesson12.cut import cut
from gpu_course.lesson12.model_flops import model_flops
from gpu_course.lesson12.program import excerpt
from gpu_course.lesson12.scoring import LEVELS, SPECS, Costs, Score
from gpu_course.lesson12.train_steps import train_steps

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "attend", "train_steps", "cut", "average", "model_flops", "CHANGES", "LEVELS", "SPECS", "Card", "Costs", "Drawn",
    "Gains", "Score", "card", "draw", "excerpt", "export", "gains", "hint", "score", "start",
]  # fmt: skip
