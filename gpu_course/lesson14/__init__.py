"""What does torch.compile make of a function, and does it pay? The exercises of lesson 14."""

from gpu_course.lesson14.clip import clip
from gpu_course.lesson14.most_gained import Card, Kernel, Program, most_gained
from gpu_course.lesson14.moved import moved
from gpu_course.lesson14.one_graph import one_graph
from gpu_course.lesson14.recompiled import recompiled

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "moved", "clip", "one_graph", "recompiled", "most_gained", "Card", "Kernel", "Program",
]  # fmt: skip
