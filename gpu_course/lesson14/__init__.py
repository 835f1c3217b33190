"""What does torch.compile make of a function, and does it pay? The exercises of lesson 14."""

from gpu_course.lesson14.deciding import Card, Kernel, Plan, Program, best_plan, most_gained
from gpu_course.lesson14.graphs import clip, one_graph, recompiled
from gpu_course.lesson14.kernels import fold, moved

__all__ = [
    "Card", "Kernel", "Plan", "Program", "best_plan", "clip", "fold", "most_gained", "moved", "one_graph", "recompiled",
]  # fmt: skip
