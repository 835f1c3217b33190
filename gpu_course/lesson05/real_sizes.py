"""Programs of a real size, and this lesson's own, as a model and a batch for a forecast of their training step."""

import torch
from torch import nn

from course_utils import models

CROP_CLASSES = 8


def _photos(layout: torch.memory_format = torch.contiguous_format, batch: int = 128) -> tuple[torch.Tensor, ...]:
    return torch.rand(batch, 3, 224, 224).to(memory_format=layout), torch.randint(1000, (batch,))


def _texts(layout: torch.memory_format = torch.contiguous_format, batch: int = 8) -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(50_257, (batch, 1025))
    return tokens[:, :-1], tokens[:, 1:]


def _crops(layout: torch.memory_format = torch.contiguous_format, batch: int = 32) -> tuple[torch.Tensor, ...]:
    return torch.rand(batch, 3, 24, 24).to(memory_format=layout), torch.randint(CROP_CLASSES, (batch,))


def _gpt2_small() -> nn.Module:
    # 50,304 rows for 50,257 tokens: a multiple of 64, as tensor cores like it
    return models.TransformerLM(50_304, width=768, heads=12, layers=12, context=1024)


PROGRAMS = {  # name: (what makes the model, what makes a batch in a layout)
    "ResNet-50": (models.resnet50, _photos),
    "GPT-2 small": (_gpt2_small, _texts),
    "this lesson": (lambda: models.ConvNet(channels_in=3, classes=CROP_CLASSES), _crops),
}
