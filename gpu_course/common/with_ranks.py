"""Ranks, as lessons need them in each cell: its import says in one sentence where PyTorch has none."""

from ranklaunch import needs_distributed

needs_distributed()
