"""A small model that tags tokens, and texts for it."""

import torch
from torch import nn

from gpu_course.lesson11.watched import Batches, Layers


def tagger() -> nn.Module:
    """Return a model that gives each word of a text, a number below 9, the logits of three classes."""
    torch.manual_seed(1)
    return Layers(nn.Embedding(9, 6), nn.Tanh(), nn.Linear(6, 3))


def texts() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of words and tags, (3, 5) each: texts of 5, 3 and 2 words, then of 5, 4 and 1, then of 5."""
    made, batches = torch.Generator().manual_seed(2), Batches()
    for lengths in ((5, 3, 2), (5, 4, 1), (5, 5, 5)):
        words, tags = (torch.randint(0, most, (3, 5), generator=made) for most in (9, 3))
        behind = torch.arange(5) >= torch.tensor(lengths)[:, None]
        batches.append((words.masked_fill(behind, 0), tags.masked_fill(behind, -1)))
    return batches
