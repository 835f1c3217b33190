"""Small models that several lessons share, built from PyTorch's standard layers for any device.

    model = models.TransformerLM(width=64, layers=2).to(DEVICE)
    logits = model(tokens.to(DEVICE))  # (batch, time) -> (batch, time, vocabulary)

Batch comes first everywhere: images are (batch, channels, height, width), text is (batch, time) of int64 numbers below
`vocabulary`. What `forward` creates, it creates on the device of its input. All models return logits, for
`torch.nn.functional.cross_entropy`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils import arguments

__all__ = ["Block", "Bottleneck", "ConvNet", "RecurrentClassifier", "TransformerLM", "resnet50"]


class ConvNet(nn.Module):
    """Classifies images: three convolutions, the mean over all places, one linear layer.

    (batch, channels_in, height, width) float -> (batch, classes) logits, for any height and width from 2.
    """

    def __init__(self, channels_in: int = 1, classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels_in, width, 3, padding=1, bias=False),  # the norm after it has a bias of its own
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.features(images)  # (batch, 2 width, height / 2, width / 2)
        return self.head(x.mean(dim=(2, 3)))  # (batch, classes)


class Bottleneck(nn.Module):
    """One block of ResNet-50: images of `wide` channels -> `4 * narrow` channels, the sides divided by `stride`."""

    def __init__(self, wide: int, narrow: int, stride: int) -> None:
        super().__init__()
        sizes = (wide, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, 4 * narrow, 1, 1)
        layers = [layer for size in sizes for layer in (*_norm_conv(*size), nn.ReLU(inplace=True))]
        self.body = nn.Sequential(*layers[:-1])
        self.skip = nn.Sequential(*_norm_conv(wide, 4 * narrow, 1, stride)) if wide != 4 * narrow else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.body(x).add_(self.skip(x)))


def _norm_conv(channels: int, out: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)


def resnet50(classes: int = 1000) -> nn.Sequential:
    """Return ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385): photographs (batch, 3, 224, 224) -> logits.

    Without pretrained weights. The stride of a block stands in its middle convolution, as in most programs since.
    """
    blocks, wide = [], 64
    for narrow, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(wide, narrow, stride if number == 0 else 1))
            wide = 4 * narrow
    stem = *_norm_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))


class RecurrentClassifier(nn.Module):
    """Classifies texts of different lengths: an embedding, one LSTM layer, a linear layer on the last real state.

    Tokens (batch, time) int64, padded at the end to one length, and lengths (batch,) int64 from 1 to time
    -> (batch, classes) logits. What stands in the padding changes nothing.
    """

    def __init__(self, vocabulary: int, embedding: int = 64, hidden: int = 128, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))  # (batch, time, hidden)
        rows = torch.arange(len(tokens), device=tokens.device)  # created where the tokens are
        last = states[rows, lengths - 1]  # (batch, hidden): each text's state after its own last token
        return self.head(last)  # (batch, classes)


class Block(nn.Module):
    """One layer of the Transformer: attention to the past, then a small network for each token; both add to `x`.

    The norms come first (pre-norm). (batch, time, width) -> (batch, time, width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attend(self, x: Tensor) -> Tensor:
        """Return for each place a mixture of the values of the places up to it."""
        batch, time, width = x.shape
        split = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class TransformerLM(nn.Module):
    """Predicts the next token of a text with a Transformer decoder, in the manner of GPT-2.

    (batch, time) int64, time at most `context` -> (batch, time, vocabulary) logits; those at place t know the tokens
    0 to t and none after. `tied` makes the output layer use the weight of the embedding. `checkpointing` keeps only
    the input of each block for the backward pass and computes the rest again.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        width: int = 128,
        heads: int = 4,
        layers: int = 4,
        context: int = 128,
        tied: bool = True,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if arguments.whole("width", width) % arguments.whole("heads", heads):
            raise ValueError(f"width is {width} and heads is {heads}; width must be a multiple of heads")
        self.context, self.checkpointing = context, checkpointing
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight  # one parameter under two names
        self.apply(_start_small)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        if time > self.context:
            raise ValueError(f"tokens has {time} places, the model has {self.context}: cut the text or raise context")
        x = self.embed(tokens) + self.places(torch.arange(time, device=tokens.device))  # (batch, time, width)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x))  # (batch, time, vocabulary)


def _start_small(module: nn.Module) -> None:
    """Draw first weights with standard deviation 0.02 and zero the biases, as GPT-2 does; norms stay as they are."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
